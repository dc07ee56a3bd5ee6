"""Makes the folder in which a notebook adds an environment of one's own, and runs the project's commands there."""

from __future__ import annotations

import shutil
from pathlib import Path

from environments import example
from environments.base import Environment
from graph.report.digest import calls_words, task_words, verification_words, weakness_words
from graph.report.lineage import History
from graph.report.tables import Table, table
from graph.walkthrough.small_run import run_module, temporary_folder

__all__ = ["RECIPE", "coevolve", "contract", "outcomes_table", "tools_table", "workshop"]

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


def coevolve(folder: Path, *words: str) -> str:
    """Run ``coevolve WORDS`` in ``folder`` and return what it prints on stdout.

    Raises RuntimeError with the end of what it wrote when it fails.
    """
    return run_module("graph.command", *words, folder=folder)


def contract(folder: Path) -> str:
    """Hold ``my_depot.py`` to the contract of environments, and return what the command prints.

    Raises RuntimeError with the end of its output where a property does not hold.
    """
    return coevolve(folder, "environment", "check", "my_depot:depot").strip()


def outcomes_table(history: History, iteration: int = 0) -> Table:
    """Show one row per draft of an iteration: its weakness, its text, its reference, its verification result."""
    rows = [
        (
            weakness_words(chain.context),
            task_words(one.draft),
            calls_words(call for calls in one.draft.reference for call in calls),
            verification_words(one.verification),
        )
        for chain in history.chains.values()
        if chain.iteration == iteration
        for one in chain.outcomes
    ]
    return table(("weakness", "draft: the user says", "its reference", "result"), rows)


def tools_table(environment: Environment) -> Table:
    """Show the tools of an environment's first start state as they are documented."""
    tools = environment.tools(environment.starts()[0].tools)
    rows = [(one.name, one.description, ", ".join(f"{p.name}: {p.type}" for p in one.parameters)) for one in tools]
    return table(("tool", "what it does", "parameters"), rows)
