"""What the notebooks show: the small runs that they read, and tables of SEAL and of a language model's answers.

The small run has two iterations of the embedded policy and the scripted roles. It takes about a minute of one core, so
several notebooks share one: COEVOLVE_NOTEBOOK_RUN names its folder, and the first notebook makes it there.

The recorded one has the records of a run of recipes/lm.yaml without its weights, and the messages of greedy decoding on
a few of the turns that it trained on, of the model before the run and after its last round.

The round with SEAL plays conversations of two user turns, with real mistakes. Its policy is ``recipes/starter-seal``,
whose tokenizer knows the cues. It takes about half a minute of one core.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from environments.base import InputError, Record
from environments.checkout import GRPO_ALONE, ROOT, child_variables
from graph.report.digest import calls_words, counts_words, task_words
from graph.report.lineage import History
from graph.report.tables import Table, table
from graph.settings import load_recipe
from memory.jsonl import record_id
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_existing, read_jsonl, write_jsonl
from memory.tasks import load_tasks
from training.seal.diagnosis import EXCLUDED, Diagnosis, TurnLabel, diagnose
from training.seal.seal import FIRST_RHO, GUIDELINES, RhoState, SealStep, WeightSettings, moved_rho, trajectory_weight

VARIABLE = "COEVOLVE_NOTEBOOK_RUN"
"""The environment variable that names the run which notebooks read."""

LM_VARIABLE = "COEVOLVE_NOTEBOOK_LM_RUN"
"""The environment variable that names a run of the language model, such as runs/lm, in place of the recorded one."""

RECORDED = ROOT / "notebooks" / "recorded" / "language_model.tar.gz"

OVERRIDES = (
    "iterations=2",
    "tasks.initial_count=40",
    "training.steps=4",
    "signals.contexts_per_iteration=8",
    "evaluation.set=null",
)
"""The differences from recipes/grpo-base.yaml: the sizes, and no evaluation on held-out tasks (ours).

There is no expert step: with so few tasks hardly a failure would be left to follow.
"""

_DEADLINE = 1800.0  # seconds of one command
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}  # as make sets them


def prepared_run() -> RunDirectory:
    """Return the run named by COEVOLVE_NOTEBOOK_RUN, made there where nothing is, or a new one in a temporary folder.

    A run that is there is only read, and may be of any size. Raises InputError for a folder without a finished
    iteration, and RuntimeError with the end of its output when making the run fails.
    """
    named = os.environ.get(VARIABLE)
    root = Path(named).expanduser().resolve() if named else temporary_folder() / "run"
    if not root.exists() or not any(root.iterdir()):
        _make(root)
    run = RunDirectory(root)
    if not run.settings_path.is_file() or not run.iteration(0).summary.is_file():
        raise InputError(
            f"{root} ({VARIABLE}) has no finished iteration: remove it and the notebook makes a run there, "
            "or name a run that has one"
        )
    return RunDirectory.open(root)


def _make(root: Path) -> None:
    settings = [word for setting in OVERRIDES for word in ("--set", setting)]
    run_module("graph.run_iteration", "--recipe", str(GRPO_ALONE), "--run", str(root), *settings)


def temporary_folder() -> Path:
    """Return a new folder, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="coevolve-notebook-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_module(module: str, *words: str, folder: Path = ROOT) -> str:
    """Run ``python -m MODULE WORDS`` in ``folder`` and return what it prints on stdout.

    It imports from this checkout, and finds an environment of the user's also in ``folder``.
    Raises RuntimeError with the end of its output when it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={**_WAITING, **os.environ, **child_variables()},
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE,
    )
    if done.returncode:
        raise RuntimeError(f"{module} ended with status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def language_model_run() -> RunDirectory:
    """Return the run that COEVOLVE_NOTEBOOK_LM_RUN names, else the recorded one, unpacked in a temporary folder."""
    if named := os.environ.get(LM_VARIABLE):
        return RunDirectory.open(Path(named).expanduser().resolve())
    folder = temporary_folder()
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return RunDirectory.open(folder / "run")


class WrittenTurn(Record):
    """What a policy wrote on a user turn, its messages in order, and whether the turn was done.

    ``policy``: before the run, or after its last round.
    """

    task_id: str
    policy: str
    wrote: tuple[str, ...]
    success: bool


def answers_table(history: History) -> Table:
    """Return what the recorded model wrote on some human turns before and after the run, beside their references.

    Of another run nothing is recorded: the table has no row.
    """
    rows: list[tuple[str, str, str]] = []
    recorded = read_existing(history.run.root.parent / "answers.jsonl", WrittenTurn)
    for task_id, answers in groupby(recorded, lambda one: one.task_id):
        task = history.tasks[task_id]
        rows.append(("user", task_words(task, 400), ""))
        rows.append(("reference", calls_words(task.reference[-1], 400), ""))
        for one in answers:
            rows.append((one.policy, " ".join(one.wrote), "done" if one.success else "failed"))
    return table(("", "text", "result"), rows, width=400)


_SEEDED = 32
_CHOSEN = (0, 3, 10, 15, 16, 24)
"""Places of the tasks that are played (ours): at first the policy solves each of them sometimes."""
SEAL_OVERRIDES = (
    f"policy.path={ROOT / 'recipes' / 'starter-seal'}",
    "iterations=1",
    "evaluation.set=null",
    "training.steps=8",
    f"training.tasks_per_step={len(_CHOSEN)}",
    "training.rollouts_per_task=8",
    "training.learning_rate=6.0e-4",
    "training.length_cost=0.0",
    "training.seal={interface: {schema_cues: false}}",
)
"""The differences from recipes/grpo-base.yaml (ours): every step plays the same few tasks, and learns fast from them.

The thresholds of the interface are the defaults, and so is rho. Schema cues are off, because the embedded policy reads
no documentation. There is no length cost, so that an advantage follows from successes alone.
"""

THANKS = "Thanks."
"""The last user turn of every conversation: it asks for nothing."""


def conversations(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks with one more user turn, ``THANKS``, in which nothing is asked for (ours).

    SEAL's labels need such a turn to separate an abstention from a spurious call. Verification would refuse it,
    because it has no effect.
    """
    return tuple(
        task.model_copy(
            update={
                "id": record_id("task", "conversation", task.id),
                "turns": (*task.turns, THANKS),
                "reference": (*task.reference, ()),
            }
        )
        for task in tasks
    )


def seal_round() -> RunDirectory:
    """Return a run with one round of GRPO with SEAL, in a temporary folder that goes with this process.

    Raises RuntimeError with the end of its output when a command fails.
    """
    folder = temporary_folder()
    seeds = folder / "seeds.jsonl"
    given = ("--recipe", str(GRPO_ALONE), "--count", str(_SEEDED), "--set", "evaluation.set=null")
    run_module("graph.seed_tasks", *given, "--output", str(seeds))
    run = RunDirectory.create(folder / "run", load_recipe(GRPO_ALONE, SEAL_OVERRIDES))
    made = read_jsonl(seeds, Task)
    write_jsonl(run.tasks_path, conversations([made[place] for place in _CHOSEN]))
    run_module("training.run_round", "--run", str(run.root), "--iteration", "0")
    return run


class DiagnosedGroup(NamedTuple):
    """The rollouts of one task in one step, and their diagnoses in the same order."""

    task: Task
    rollouts: tuple[Trajectory, ...]
    diagnoses: tuple[Diagnosis, ...]

    @property
    def variety(self) -> int:
        """How many different rows of labels its rollouts have."""
        return len({one.turns for one in self.diagnoses})


def diagnosed_groups(run: RunDirectory, step: int) -> tuple[DiagnosedGroup, ...]:
    """Diagnose the rollouts of a step of the first round as it did, by task, in the order of the tasks.

    Rollouts without a diagnosis are left out.
    """
    rollouts = [one for one in read_jsonl(run.iteration(0).trajectories, Trajectory) if one.step == step]
    groups = []
    for task in load_tasks(run):
        pairs = [(one, found) for one in rollouts if one.task_id == task.id and (found := diagnose(one))]
        if pairs:
            groups.append(DiagnosedGroup(task, tuple(one for one, _ in pairs), tuple(found for _, found in pairs)))
    return tuple(groups)


def profile_table(step: SealStep) -> Table:
    """Show the failure profile of a step."""
    rows = []
    for label, found in step.profile.labels.items():
        share, pressure = step.profile.share_of_failures(label), step.profile.pressure(label)
        rows.append((label, found.count, f"{share:.0%}", f"{found.mean_reward:.2f}", f"{pressure:.2f}"))
    return table(("label", "turns", "share of the failed turns", "mean reward", "pressure"), rows)


def weights_table(group: DiagnosedGroup, state: RhoState) -> Table:
    """Show a row for each rollout: each turn's label with its rho, the weight, the advantage without and with it."""
    import torch

    from training.grpo.advantages import group_advantages

    plain = group_advantages(torch.tensor([float(one.success) for one in group.rollouts]), len(group.rollouts)).tolist()
    rows = []
    for one, value in zip(group.diagnoses, plain, strict=True):
        weight = trajectory_weight(one, state)
        rho = {label: f"{state.rho.get(label, 1.0):.2f}" for label in one.turns if label not in EXCLUDED}
        turns = ", ".join(f"{label_words(label)} {rho.get(label, 'left out')}" for label in one.turns)
        result = "success" if one.success else "failure"
        rows.append((result, turns, f"{weight:.2f}", f"{value:+.2f}", f"{weight * value:+.2f}"))
    return table(("rollout", "labels, each with its rho", "weight", "advantage", "weighted"), rows)


def rho_table(steps: Sequence[SealStep]) -> Table:
    """Show rho by step, a row for each label that moved, as the released full run would move it on these profiles."""
    states = [FIRST_RHO]
    for step in steps:
        states.append(moved_rho(states[-1], step.profile, WeightSettings(dynamic=True)))
    moved = [label for label in states[0].rho if any(one.rho[label] != states[0].rho[label] for one in states)]
    rows = [(label_words(label), *(f"{one.rho[label]:.2f}" for one in states)) for label in moved]
    return table(("rho of", "at first", *(f"after step {step.step}" for step in steps)), rows)


def interface_table(steps: Sequence[SealStep]) -> Table:
    """Show a row for each step: its failed turns by label, and the labels whose guideline its profile brings."""
    rows = []
    for step in steps:
        counts = counts_words((label_words(label), step.profile.of(label).count) for label in GUIDELINES)
        labels = () if step.state.interface is None else step.state.interface.guidelines
        rows.append((step.step, counts, ", ".join(map(label_words, labels)) or "none"))
    return table(("step", "turns by label", "guidelines shown from the next step on"), rows)


def label_words(label: TurnLabel) -> str:
    """Return a label in words, such as ``empty turn``."""
    return label.value.removesuffix("_model_response").replace("_", " ")
