"""Plays the small round with SEAL that a notebook reads: conversations of two user turns, with real mistakes.

Its policy is ``recipes/starter-seal``, whose tokenizer knows the cues. It takes about half a minute of one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from environments.base import InputError
from environments.checkout import GRPO_ALONE, ROOT
from graph.recipe import load_recipe
from graph.report.digest import calls_words, counts_words, task_words
from graph.report.tables import Table, table
from graph.walkthrough.runs import run_module, temporary_folder
from memory.jsonl import record_id
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_jsonl, write_jsonl
from memory.tasks import load_tasks
from training.seal.diagnosis import EXCLUDED, Diagnosis, TurnLabel, diagnose
from training.seal.seal import FIRST_RHO, GUIDELINES, RhoState, SealStep, WeightSettings, moved_rho, trajectory_weight

_SEEDED = 32
_CHOSEN = (0, 3, 10, 15, 16, 24)
"""Places of the tasks that are played (ours): at first the policy solves each of them sometimes."""


OVERRIDES = (
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
    run = RunDirectory.create(folder / "run", load_recipe(GRPO_ALONE, OVERRIDES))
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

    Rollouts without a diagnosis are left out. Raises InputError for a run without SEAL.
    """
    settings = load_recipe(run.settings_path)
    if settings.training.seal is None:
        raise InputError(f"{run.root} was made without training.seal: name a run with SEAL")
    rollouts = [one for one in read_jsonl(run.iteration(0).trajectories, Trajectory) if one.step == step]
    groups = []
    for task in load_tasks(run):
        pairs = [(one, found) for one in rollouts if one.task_id == task.id and (found := diagnose(one))]
        if pairs:
            groups.append(DiagnosedGroup(task, tuple(one for one, _ in pairs), tuple(found for _, found in pairs)))
    return tuple(groups)


def diagnosis_table(group: DiagnosedGroup) -> Table:
    """Show a row for each rollout: what it called in the turn with a request, and the labels of both turns."""
    rows = []
    for number, (rollout, found) in enumerate(zip(group.rollouts, group.diagnoses, strict=True)):
        calls = [calls_words(call for step in turn.steps for call in step.observation.calls) for turn in rollout.turns]
        rows.append((number, calls[0], found.turns[0], " ".join(calls[len(found.turns) - 1 :]), found.turns[-1]))
    columns = ("rollout", "calls of turn 1", "label", "calls of turn 2", "label")
    return table(columns, rows, f"{task_words(group.task)}; reference: {calls_words(group.task.reference[0])}")


def profile_table(step: SealStep) -> Table:
    """Show the failure profile of a step."""
    profile = step.profile
    rows = [
        (
            label,
            found.count,
            f"{profile.share_of_failures(label):.0%}",
            f"{found.mean_reward:.2f}",
            f"{profile.pressure(label):.2f}",
        )
        for label, found in profile.labels.items()
    ]
    return table(("label", "turns", "share of the failed turns", "mean reward", "pressure"), rows)


def weights_table(group: DiagnosedGroup, state: RhoState) -> Table:
    """Show a row for each rollout: each turn's label with its rho, the weight, the advantage without and with it."""
    import torch

    from training.grpo.advantages import group_advantages

    plain = group_advantages(torch.tensor([float(one.success) for one in group.rollouts]), len(group.rollouts)).tolist()
    rows = []
    for one, value in zip(group.diagnoses, plain, strict=True):
        weight = trajectory_weight(one, state)
        turns = ", ".join(f"{label_words(label)} {_rho(label, state)}" for label in one.turns)
        result = "success" if one.success else "failure"
        rows.append((result, turns, f"{weight:.2f}", f"{value:+.2f}", f"{weight * value:+.2f}"))
    return table(("rollout", "labels, each with its rho", "weight", "advantage", "weighted"), rows)


def _rho(label: TurnLabel, state: RhoState) -> str:
    return "left out" if label in EXCLUDED else f"{state.rho.get(label, 1.0):.2f}"


def rho_table(steps: Sequence[SealStep]) -> Table:
    """Show rho by step, a row for each label that moved, as the released full run would move it on these profiles."""
    moves, state = WeightSettings(dynamic=True), FIRST_RHO
    states = [state]
    for step in steps:
        state = moved_rho(state, step.profile, moves)
        states.append(state)
    moved = [label for label in states[0].rho if any(one.rho[label] != states[0].rho[label] for one in states)]
    rows = [(label_words(label), *(f"{one.rho[label]:.2f}" for one in states)) for label in moved]
    return table(("rho of", "at first", *(f"after step {step.step}" for step in steps)), rows)


def interface_table(steps: Sequence[SealStep]) -> Table:
    """Show a row for each step: its failed turns by label, and the labels whose guideline it was shown.

    A guideline that a step's profile brings is shown from the next step on.
    """
    rows = []
    labels: Sequence[TurnLabel] = ()
    for step in steps:
        counts = ((label_words(label), step.profile.of(label).count) for label in GUIDELINES)
        rows.append((step.step, counts_words(counts), ", ".join(map(label_words, labels)) or "none"))
        labels = () if step.state.interface is None else step.state.interface.guidelines
    return table(("step", "turns by label", "guidelines shown"), rows)


def label_words(label: TurnLabel) -> str:
    """Return a label in words, such as ``empty turn``."""
    return label.value.removesuffix("_model_response").replace("_", " ")
