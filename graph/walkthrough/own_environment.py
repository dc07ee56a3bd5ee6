"""Makes the folder in which a notebook adds an environment of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from environments import example
from graph.walkthrough.small_run import temporary_folder

RECIPE = """\
seed: 4
iterations: 1
environment: {name: "my_depot:depot", options: {starts: 12}}   # module:callable, and the callable's arguments
policy: {path: starter, device: cpu}
tasks: {initial_count: 12}
training: {steps: 3, tasks_per_step: 4, rollouts_per_task: 4, max_tokens: 256, learning_rate: 1.0e-4, loss: grpo}
signals: {contexts_per_iteration: 4}
roles: {exploration: {rounds: 2, steps: 8, drafts_per_context: 2, independent: false, order: easy_first}}
evaluation: {set: null}                                         # a plain class has no evaluation set
"""
"""A recipe for an environment of one's own at toy size (ours); recipes/own-environment.yaml is one of ordinary size."""


def workshop() -> Path:
    """Return a temporary folder with ``my_depot.py``, a copy of the example, and ``recipe.yaml``.

    It is removed when this process ends.
    """
    folder = temporary_folder()
    shutil.copy(example.__file__, folder / "my_depot.py")
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder
