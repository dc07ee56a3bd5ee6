"""A small run whose trajectories were really acted out in the BFCL environment, by a script instead of a policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.base import Action, MalformedCall, ToolCall
from environments.command import run_interruptible, show_stage
from evaluation.outcomes import Score, ScoreChange
from graph.assembly import RunServices, assemble
from graph.checkpoints import evolve_once
from graph.report.summary import Contexts, Cost, Summary
from graph.settings import RunSettings, load_recipe
from memory.jsonl import record_id
from memory.records import FailureContext, SignalKind, Task, Trajectory
from memory.run import RunDirectory, append_jsonl, read_jsonl, write_json, write_jsonl
from memory.run_files import StageSeconds
from memory.tasks import admit, load_tasks
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES, LIGHTS, LOCK, PRESS, START, acted_out, call, rendered, seed_task
from training.grpo.record import RoundSeconds, StepMetrics, round_record, step_metrics, step_record

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
REFERENCES = {
    FILES: [[call("mkdir", dir_name="reports")], [call("touch", file_name="plan.txt"), call("ls", a=True)]],
    CAR: [
        [call("fillFuelTank", fuelAmount=12.5)],
        [LIGHTS, call("fillFuelTank", fuelAmount=5)],
        [LOCK, PRESS, START],
    ],
}
STEPS = 3
"""Of a round."""
BEFORE = Score(
    group="templated-dev", n=40, successes=10, metrics={"success": 0.25}, interval=(0.14, 0.40), clusters=9,
    infrastructure_errors=0,
)  # fmt: skip
AFTER = BEFORE.model_copy(update={"successes": 14, "metrics": {"success": 0.35}, "interval": (0.22, 0.50)})


def settings_for(folder: Path, *overrides: str) -> RunSettings:
    """The settings of ``RECIPE`` with ``overrides``; the recipe file is written into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return load_recipe(recipe, overrides)


def first_tasks() -> list[Task]:
    """Five tasks on the first initial state of each class, with rendered turns."""
    return [
        seed_task(rendered(cls, reference, seed=position), record_id("task", cls, position))
        for cls, references in REFERENCES.items()
        for position, reference in enumerate(references)
    ]


def mistakes(task: Task) -> list[list[Action]]:
    """Ways to fail ``task``: only looking around, the last call missing, a wrong value, something that is no call."""
    (reference,) = task.reference
    look = ["pwd", "ls"] if task.classes == (FILES,) else ["displayCarStatus", "check_tire_pressure"]
    first, *rest = reference
    wrong = ToolCall(name=first.name, arguments=first.arguments | {next(iter(first.arguments)): 9})
    return [
        [call(name) for name in look],
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
            step = STEPS * iteration + n + 1
            trajectories += [
                acted_out(task, actions, iteration=iteration, step=step, sample=sample)
                for sample, actions in enumerate(play)
            ]
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


def begun_run(root: Path, *overrides: str) -> RunDirectory:
    """A run with D_0 and no round."""
    run = RunDirectory.create(root, settings_for(root.parent / "recipe", *overrides))
    admit(run, first_tasks())
    return run


def make_run(root: Path, *overrides: str) -> RunDirectory:
    """A run with D_0 and the first round of training, which no policy was trained in; its graph has not run."""
    run = begun_run(root, *overrides)
    make_round(run, 0)
    write_json(run.iteration(0).seconds, StageSeconds(seconds={"seed": 0.5, "train": 12.0}))
    return run


def make_round(run: RunDirectory, iteration: int, tasks: Sequence[Task] | None = None) -> None:
    """A round of training, which no policy was trained in, by default on tasks whose first call has an argument.

    The loss of a step is its number.
    """
    if tasks is None:
        tasks = [task for task in load_tasks(run) if task.reference[0][0].arguments]
    made, folder = rollouts(tasks, iteration), run.iteration(iteration)
    write_jsonl(folder.trajectories, made)
    for step in sorted({one.step for one in made}):
        log = {"loss": float(step), "kl": 0.5, "step_time": 0.5, "epoch": 1.0}
        done = step_record(step, [one for one in made if one.step == step], log)
        append_jsonl(folder.metrics, [step_metrics(done, log)])
    record = round_record(
        iteration=iteration,
        policy="policy/none",
        tasks=len(tasks),
        trajectories=made,
        metrics=read_jsonl(folder.metrics, StepMetrics),
        updates=1,
        measured=RoundSeconds(load=1.0, rollouts=2.0),
    )
    write_json(folder.round, record)


def finish_iteration(run: RunDirectory, iteration: int) -> None:
    """The summary of an iteration, of plain numbers."""
    summary = Summary(
        iteration=iteration,
        tasks=5,
        admitted=2,
        refused={"duplicate": 1},
        signals={SignalKind.FORGETTING: 3, SignalKind.BOUNDARY: 4, SignalKind.RARE: 0},
        marked=6,
        contexts=Contexts(new=3, known=1, left_out=0),
        evaluation=ScoreChange(before=BEFORE, after=AFTER),
        seconds={"train": 12.0},
        cost=Cost(sampled_tokens=7),
    )
    write_json(run.iteration(iteration).summary, summary)


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
