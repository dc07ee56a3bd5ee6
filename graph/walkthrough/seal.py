"""Plays the small round with SEAL that a notebook reads: conversations of two user turns, with real mistakes.

Its policy is ``recipes/starter-seal``, whose tokenizer knows the cues. It takes about half a minute of one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from environments.checkout import GRPO_ALONE, ROOT
from environments.registry import benchmark_of, open_environment
from graph.recipe import load_recipe
from graph.report.charts import Chart, DotRow, Dots, dot_chart
from graph.report.digest import calls_words, task_words
from graph.report.seal_charts import WeightedRollout
from graph.report.tables import Table, table
from graph.walkthrough.small_run import run_module, temporary_folder
from memory.jsonl import record_id
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_jsonl, write_jsonl
from memory.tasks import load_tasks
from training.seal.advantage_weights import RhoState, WeighedRollout, group_weights
from training.seal.diagnosis import Diagnosis, diagnose
from training.seal.settings import WeightSettings

__all__ = ["DiagnosedGroup", "diagnosed_groups", "diagnosis_table", "rollouts_chart", "seal_round", "weighted"]

_CHOSEN = (0, 3, 10, 15, 16, 24)
"""Places of the tasks that are played (ours): at first the policy solves each of them sometimes."""

_OVERRIDES = (
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

Schema cues are off, because the embedded policy reads no documentation. There is no length cost, so that an advantage
follows from successes alone.
"""


def seal_round() -> RunDirectory:
    """Return a run with one round of GRPO with SEAL, in a temporary folder that goes with this process.

    Each task gets one more user turn, "Thanks.", in which nothing is asked for (ours): SEAL's labels need it to tell an
    abstention from a spurious call. Raises RuntimeError with the end of its output when a command fails.
    """
    folder = temporary_folder()
    seeds = folder / "seeds.jsonl"
    given = ("--recipe", str(GRPO_ALONE), "--count", "32", "--set", "evaluation.set=null")
    run_module("graph.seed_tasks", *given, "--output", str(seeds))
    made = read_jsonl(seeds, Task)
    run = RunDirectory.create(folder / "run", load_recipe(GRPO_ALONE, _OVERRIDES))
    longer = [
        task.model_copy(
            update={
                "id": record_id("task", "conversation", task.id),
                "turns": (*task.turns, "Thanks."),
                "reference": (*task.reference, ()),
            }
        )
        for task in (made[place] for place in _CHOSEN)
    ]
    write_jsonl(run.tasks_path, longer)
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
        return len({tuple(turn.label for turn in one.turns) for one in self.diagnoses})


def diagnosed_groups(run: RunDirectory, step: int) -> tuple[DiagnosedGroup, ...]:
    """Diagnose the rollouts of a step of the first round as it did, by task; those without a diagnosis are left out."""
    environment = open_environment(load_recipe(run.settings_path).environment)
    benchmark = benchmark_of(environment)
    rollouts = [one for one in read_jsonl(run.iteration(0).trajectories, Trajectory) if one.step == step]
    groups = []
    for task in load_tasks(run):
        tools = {tool.name: tool for tool in environment.tools(task.tools)}
        played = [one for one in rollouts if one.task_id == task.id]
        found = [(one, diagnosis) for one in played if (diagnosis := diagnose(one, task, tools, benchmark))]
        groups.append(DiagnosedGroup(task, tuple(one for one, _ in found), tuple(diagnosis for _, diagnosis in found)))
    return tuple(groups)


def rollouts_chart(played: Mapping[int, Sequence[DiagnosedGroup]]) -> Chart:
    """Draw every rollout of every step: ``played`` has the groups of each step, of the same tasks in the same order."""
    rows = []
    for groups in zip(*played.values(), strict=True):
        solved = [tuple(one.success for one in group.rollouts) for group in groups]
        rows.append(DotRow(task_words(groups[0].task), tuple(map(Dots, played, solved))))
    return dot_chart("The rollouts of one round", "step", rows)


def diagnosis_table(group: DiagnosedGroup) -> Table:
    """Show a row for each rollout: what it called in the turn with a request, and the labels of both turns."""
    rows = []
    for number, (rollout, found) in enumerate(zip(group.rollouts, group.diagnoses, strict=True)):
        calls = [calls_words(call for step in turn.steps for call in step.observation.calls) for turn in rollout.turns]
        first, last = found.turns[0], found.turns[-1]
        rows.append((number, calls[0], first.label, first.cause, " ".join(calls[len(found.turns) - 1 :]), last.label))
    columns = ("rollout", "calls of turn 1", "label", "cause (ours)", "calls of turn 2", "label")
    return table(columns, rows, f"{task_words(group.task)}; reference: {calls_words(group.task.reference[0])}")


def weighted(group: DiagnosedGroup, state: RhoState, settings: WeightSettings) -> tuple[WeightedRollout, ...]:
    """Return the rows of a chart of weights: rho of each turn, the trajectory's weight, and its plain advantage."""
    import torch

    from training.grpo.advantages import group_advantages

    plain = group_advantages(torch.tensor([float(one.success) for one in group.rollouts]), len(group.rollouts)).tolist()
    rollouts = [WeighedRollout(one, value, (1,)) for one, value in zip(group.diagnoses, plain, strict=True)]
    weights = group_weights(rollouts, state, settings.model_copy(update={"unit": "trajectory"}))
    return tuple(
        WeightedRollout(one, tuple(state.rho.get(turn.label, 1.0) for turn in one.turns), own[0], value)
        for one, own, value in zip(group.diagnoses, weights, plain, strict=True)
    )
