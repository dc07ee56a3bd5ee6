"""A small run whose trajectories were really acted out in the BFCL environment, by a script instead of a policy."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.base import Action, MalformedCall, StartState, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.templated.wordings import render_task
from graph.assembly import RunServices, assemble
from graph.checkpoints import evolve_once
from graph.recipe import load_recipe
from graph.records import StageSeconds
from graph.run.progress import run_interruptible, show_stage
from graph.settings import RunSettings
from memory.jsonl import record_id
from memory.records import FailureContext, SignalKind, Step, Task, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, write_json, write_jsonl
from memory.tasks import admit, load_tasks
from training.grpo.record import RoundSeconds, round_record

FILES, CAR = "GorillaFileSystem", "VehicleControlAPI"
ENVIRONMENT = BFCLEnvironment((FILES, CAR))
RECIPE = """
seed: 3
iterations: 2
training: {steps: 3, tasks_per_step: 4, rollouts_per_task: 4}
signals: {contexts_per_iteration: 6, rare_percent: 25, rare_min_patterns: 4}
roles:
  exploration: {rounds: 2, steps: 6, drafts_per_context: 2, independent: false, order: easy_first}
  branch_timeout: 60
evaluation: {set: null}
tasks: {initial_count: 4}
"""
ENGINE = [
    ToolCall(name="lockDoors", arguments={"unlock": False, "door": ["driver", "passenger", "rear_left", "rear_right"]}),
    ToolCall(name="pressBrakePedal", arguments={"pedalPosition": 1.0}),
    ToolCall(name="startEngine", arguments={"ignitionMode": "START"}),
]
REFERENCES = {
    FILES: [
        [ToolCall(name="mkdir", arguments={"dir_name": "reports"})],
        [ToolCall(name="touch", arguments={"file_name": "plan.txt"}), ToolCall(name="ls", arguments={"a": True})],
    ],
    CAR: [
        [ToolCall(name="fillFuelTank", arguments={"fuelAmount": 12.5})],
        [
            ToolCall(name="setHeadlights", arguments={"mode": "on"}),
            ToolCall(name="fillFuelTank", arguments={"fuelAmount": 5}),
        ],
        ENGINE,
    ],
}


def settings_for(folder: Path, *overrides: str) -> RunSettings:
    """The settings of ``RECIPE`` with ``overrides``; the recipe file is written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return load_recipe(recipe, overrides)


def first_tasks() -> list[Task]:
    """Five tasks on the first initial state of each class, with rendered turns."""
    tasks = []
    for cls, references in REFERENCES.items():
        start = next(start for start in ENVIRONMENT.starts() if start.classes == (cls,))
        for position, reference in enumerate(references):
            spec = render_task(ENVIRONMENT, _spec(start, reference), random.Random(position))
            task_id = record_id("task", cls, position)
            tasks.append(
                Task(**{name: getattr(spec, name) for name in TaskSpec.model_fields}, id=task_id, origin="seed")
            )
    return tasks


def _spec(start: StartState, reference: list[ToolCall]) -> TaskSpec:
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=start.classes,
        turns=("?",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=(tuple(reference),),
    )


def act(task: Task, actions: list[Action], iteration: int, step: int, sample: int) -> Trajectory:
    """A rollout of ``task`` in which the agent does ``actions`` and then ends its turn."""
    episode = ENVIRONMENT.open(task)
    turn = episode.start()
    steps = tuple(Step(action=action, observation=episode.step(action)) for action in actions)
    episode.end_turn()
    outcome = episode.outcome()
    episode.close()
    return Trajectory(
        id=record_id("trajectory", task.id, step, sample),
        task_id=task.id,
        iteration=iteration,
        step=step,
        sample=sample,
        turns=(TrajectoryTurn(text=turn.text, steps=steps, ended=True),),
        outcome=outcome,
        reward=float(outcome.success),
        sampled_tokens=10 * len(actions),
    )


def mistakes(task: Task) -> list[list[Action]]:
    """Ways to fail ``task``: only looking around, the last call missing, a wrong value, something that is no call."""
    (reference,) = task.reference
    look = ["pwd", "ls"] if task.classes == (FILES,) else ["displayCarStatus", "check_tire_pressure"]
    looked: list[Action] = [ToolCall(name=name) for name in look]
    first, *rest = reference
    wrong = ToolCall(name=first.name, arguments=first.arguments | {next(iter(first.arguments)): 9})
    return [
        looked,
        list(reference[:-1]),
        [wrong, *rest],
        [MalformedCall(text="mkdir(", reason="unclosed"), *reference[1:]],
    ]


def rollouts(tasks: list[Task], iteration: int) -> list[Trajectory]:
    """Three steps of four rollouts a task: all well, then mixed, then all failed (boundary, then forgetting)."""
    trajectories = []
    for number, task in enumerate(tasks):
        (reference,) = task.reference
        wrong = mistakes(task)
        wrong = wrong[number % 4 :] + wrong[: number % 4]
        plays: list[list[list[Action]]] = [[list(reference)] * 4, [list(reference)] * 2 + wrong[:2], wrong]
        for n, play in enumerate(plays):
            step = 3 * iteration + n + 1
            trajectories += [act(task, actions, iteration, step, sample) for sample, actions in enumerate(play)]
    return trajectories


def weakness_at(task: Task) -> FailureContext:
    """The context of a failure at the task."""
    return FailureContext(
        id="context-1",
        iteration=0,
        kind=SignalKind.BOUNDARY,
        environment=ENVIRONMENT.name,
        classes=task.classes,
        initial_state=task.initial_state,
        tools=task.tools,
    )


def make_run(root: Path, *overrides: str) -> RunDirectory:
    """A run with D_0 and the first round of training, which no policy was trained in; its graph has not run."""
    run = RunDirectory.create(root, settings_for(root.parent / "recipe", *overrides))
    admit(run, first_tasks())
    make_round(run, 0)
    write_json(run.iteration(0).seconds, StageSeconds(seconds={"seed": 0.5, "train": 12.0}))
    return run


def make_round(run: RunDirectory, iteration: int, tasks: Sequence[Task] | None = None) -> None:
    """A round of training, which no policy was trained in, by default on tasks whose first call has an argument."""
    if tasks is None:
        tasks = [task for task in load_tasks(run) if task.reference[0][0].arguments]
    made = rollouts(tasks, iteration)
    write_jsonl(run.iteration(iteration).trajectories, made)
    record = round_record(
        iteration=iteration,
        policy="policy/none",
        tasks=len(tasks),
        trajectories=made,
        metrics=[],
        updates=1,
        measured=RoundSeconds(),
    )
    write_json(run.iteration(iteration).round, record)


def services_of(run: RunDirectory) -> RunServices:
    """What the nodes of ``run`` work with, made anew, as a command makes it."""
    return assemble(RunDirectory.open(run.root.resolve()), load_recipe(run.settings_path))


def run_graph(run: RunDirectory, iteration: int = 0) -> None:
    """The graph's part of one iteration, in this process, as the command does it."""
    with run.lock(), show_stage("graph") as stage:
        run_interruptible(evolve_once(services_of(run), iteration, stage))


def records(root: Path) -> dict[str, str]:
    """Every record file below ``root`` by relative path, without what differs between equal runs."""
    found = {}
    for path in sorted((*root.rglob("*.json"), *root.rglob("*.jsonl"))):
        if path.name == "seconds.json":
            continue
        text = path.read_text()
        rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        found[str(path.relative_to(root))] = json.dumps([_without_measured(row) for row in rows])
    return found


def _without_measured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_measured(item) for key, item in value.items() if key not in ("measured", "seconds")}
    return [_without_measured(item) for item in value] if isinstance(value, list) else value
