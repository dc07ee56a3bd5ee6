"""A run of any size, made of varied copies of the records of a small one; and records with hostile texts.

Ids and parents are consistent, so that every chain can be followed; texts and numbers vary, so that they compress like
those of a real run. 20 iterations with 50,000 rollouts take seconds. Success rises with the iteration.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.outcomes import Score, ScoreChange
from evaluation.statistics import wilson_interval
from graph.records import Evolution, StageSeconds
from graph.report.costs import Cost
from graph.report.summary import Contexts, Summary
from graph.settings import RunSettings
from memory.records import SignalKind
from memory.run import IterationDirectory, RunDirectory, write_json
from training.grpo.record import RoundRecord

Plain = dict[str, Any]

WORDS = ("alpha", "bravo", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper", "kelp", "lumen")
CONTEXTS_PER_TASK = 0.5
SIGNALS_PER_GROUP = 1.5
INTERACTIONS = 32
GROUPS_PER_STEP = 16


@dataclass(frozen=True)
class Sizes:
    """How large the run is. ``trajectories`` and ``tasks`` are of all iterations, ``group`` rollouts make a group.

    ``padding``: characters added to the last observation of each rollout; without them one has about 1 kB.
    """

    iterations: int = 20
    tasks: int = 2_000
    trajectories: int = 50_000
    group: int = 8
    padding: int = 0


SMALL = Sizes(iterations=3, tasks=60, trajectories=480)


class _Source:
    """The records of the small run, and the random words and ids of the copies."""

    def __init__(self, run: RunDirectory, seed: int) -> None:
        folder = run.iteration(0)
        self.draw = random.Random(seed)
        rows = {name: _rows(getattr(folder, name)) for name in ("contexts", "signals", "drafts", "verdicts")}
        self.tasks = {row["id"]: row for row in _rows(run.tasks_path)}
        self.rollouts: dict[str, dict[bool, list[Plain]]] = {}
        for row in _rows(folder.trajectories):
            self.rollouts.setdefault(row["task_id"], {True: [], False: []})[row["outcome"]["success"]].append(row)
        self.contexts: dict[str, list[Plain]] = {}
        for row in rows["contexts"]:
            self.contexts.setdefault(row["task_id"], []).append(row)
        self.signals: dict[str, list[Plain]] = {kind: [] for kind in SignalKind}
        for row in rows["signals"]:
            self.signals[row["kind"]].append(row)
        verifications = {row["draft_id"]: row for row in rows["verdicts"]}
        self.accepted = [
            (row, verifications[row["id"]]) for row in rows["drafts"] if verifications[row["id"]]["accepted"]
        ]
        self.refused = [
            (row, verifications[row["id"]]) for row in rows["drafts"] if not verifications[row["id"]]["accepted"]
        ]
        self.interactions = _rows(folder.interactions)
        self.failing = [name for name in self.contexts if self.rollouts[name][False]]
        self.round = json.loads(folder.round.read_text())
        self.first = 0
        self.noise = " ".join(f"{self.draw.choice(WORDS)}-{self.draw.randrange(1_000)}" for _ in range(50_000))

    def id(self, kind: str) -> str:
        return f"{kind}-{self.draw.getrandbits(64):016x}"

    def padded(self, turns: list[Plain], length: int) -> list[Plain]:
        """The turns with more text in the last observation, where there is one."""
        *before, last = turns
        if not length or not last["steps"]:
            return turns
        start = self.draw.randrange(len(self.noise) - length)
        step = last["steps"][-1]
        text = f"{step['observation']['text']} {self.noise[start : start + length]}"
        step = {**step, "observation": {**step["observation"], "text": text}}
        return [*before, {**last, "steps": [*last["steps"][:-1], step]}]

    def varied(self, text: str) -> str:
        """The text with a few words more, and a number."""
        return f"{text}, {' '.join(self.draw.choices(WORDS, k=4))} {self.draw.randrange(10_000)}"


def make_large_run(root: Path, of: RunDirectory, sizes: Sizes = SMALL, seed: int = 1) -> RunDirectory:
    """Make a finished run of ``sizes`` at ``root`` from the records of the finished iteration 0 of the run ``of``."""
    source = _Source(of, seed)
    run = RunDirectory.create(root, of.settings(RunSettings).model_copy(update={"iterations": sizes.iterations}))
    first = source.first = max(len(source.failing), sizes.tasks // 20)
    tasks = [
        {
            **source.tasks[name],
            "id": source.id("task"),
            "turns": [source.varied(text) for text in source.tasks[name]["turns"]],
            "_of": name,
        }
        for name in (source.failing[n % len(source.failing)] for n in range(first))
    ]
    before = 0.3
    for number in range(sizes.iterations):
        share = sizes.tasks - first
        admitted = share * (number + 1) // sizes.iterations - share * number // sizes.iterations
        after = before + 0.4 / sizes.iterations
        tasks += _iteration(run.iteration(number), source, sizes, number, tasks, admitted, (before, after))
        before = after
    _write(run.tasks_path, ({key: value for key, value in task.items() if key != "_of"} for task in tasks))
    return run


def _iteration(
    folder: IterationDirectory,
    source: _Source,
    sizes: Sizes,
    number: int,
    tasks: Sequence[Plain],
    admitted: int,
    scores: tuple[float, float],
) -> list[Plain]:
    folder.root.mkdir(parents=True)
    failed, groups = _rollouts(folder, source, sizes, number, tasks)
    signals = [
        _signal(source, number, *source.draw.choice(failed)) for _ in range(round(SIGNALS_PER_GROUP * groups) or 1)
    ]
    wanted = max(1, min(len(signals), round(CONTEXTS_PER_TASK * admitted)))
    contexts = [_context(source, number, signal) for signal in signals[:wanted]]
    known = [source.draw.random() < 0.1 and index > 0 for index in range(wanted)]
    judgements = [
        {"context_id": context["id"], "status": "known" if old else "new", "nearest": contexts[0]["id"], "cosine": 0.5}
        for context, old in zip(contexts, known, strict=True)
    ]
    new = [context for context, old in zip(contexts, known, strict=True) if not old]
    drafts, verifications, added = _drafts(source, number, new, admitted, {row["id"]: row for row in signals})
    interactions = [row for context in new for row in _interactions(source, context)]
    for file, rows in (
        (folder.signals, [{key: value for key, value in row.items() if key != "_of"} for row in signals]),
        (folder.contexts, contexts),
        (folder.judgements, judgements),
        (folder.interactions, interactions),
        (folder.drafts, drafts),
        (folder.verdicts, verifications),
        (folder.branch_failures, []),
        (folder.reflection_failures, []),
    ):
        _write(file, rows)
    refused: dict[str, int] = {}
    for verification in verifications:
        if not verification["accepted"]:
            refused[verification["reason"]] = refused.get(verification["reason"], 0) + 1
    kinds = {kind: sum(row["kind"] == kind for row in signals) for kind in SignalKind}
    evolution = Evolution(
        iteration=number,
        signals=kinds,
        new=len(new),
        known=wanted - len(new),
        left_out=len(signals) - wanted,
        drafts=len(drafts),
        admitted=tuple(task["id"] for task in added),
        refused=refused,
        failures={},
    )
    write_json(folder.evolution, evolution)
    record = {**source.round, "iteration": number, "tasks": len(tasks), "policy": f"policy/checkpoint-{number}"}
    write_json(folder.round, RoundRecord.model_validate_json(json.dumps(record)))
    seconds = {"train": 30.0 + number, "evolve": 4.0}
    write_json(folder.seconds, StageSeconds(seconds=seconds))
    sets = [_score(share) for share in scores]
    write_json(folder.evaluation_before, sets[0])
    write_json(folder.evaluation_after, sets[1])
    summary = Summary(
        iteration=number,
        tasks=len(tasks),
        admitted=len(added),
        refused=refused,
        signals=kinds,
        contexts=Contexts(new=len(new), known=wanted - len(new), left_out=len(signals) - wanted),
        evaluation=ScoreChange(before=sets[0], after=sets[1]),
        seconds=seconds,
        cost=Cost(environment_calls=3 * sizes.group * groups, sampled_tokens=60 * sizes.group * groups),
    )
    write_json(folder.summary, summary)
    return added


def _rollouts(
    folder: IterationDirectory, source: _Source, sizes: Sizes, number: int, tasks: Sequence[Plain]
) -> tuple[list[tuple[Plain, Plain]], int]:
    """Write an iteration's rollouts; return those that failed with their tasks, and the number of groups."""
    per_step = min(GROUPS_PER_STEP, source.first)
    whole = sizes.trajectories // sizes.group
    groups = whole * (number + 1) // sizes.iterations - whole * number // sizes.iterations
    lines: list[str] = []
    scores: list[Plain] = []
    failed: list[tuple[Plain, Plain]] = []
    drawn: list[Plain] = []
    for position in range(groups):
        if position % per_step == 0 or not drawn:  # no task twice in a step
            drawn = source.draw.sample(tasks, min(per_step, len(tasks)))
        task = drawn.pop()
        step = number * (whole // sizes.iterations // per_step + 2) + position // per_step + 1
        skill = source.draw.choice((0.0, 0.3, 0.5, 0.8, 1.0)) + number / (4 * sizes.iterations)
        results: list[int] = []
        for sample in range(sizes.group):
            success = source.draw.random() < skill and bool(source.rollouts[task["_of"]][True])
            template = source.draw.choice(source.rollouts[task["_of"]][success])
            text = source.tasks[task["_of"]]["turns"][0]
            row = {**template, "id": source.id("traj"), "task_id": task["id"]}
            row |= {"iteration": number, "step": step, "sample": sample}
            row["turns"] = source.padded(template["turns"], sizes.padding)
            row["measured"] = {**template["measured"], "seconds": source.draw.random()}
            lines.append(json.dumps(row).replace(json.dumps(text), json.dumps(task["turns"][0]), 1))
            results.append(int(success))
            if not success:
                failed.append((task, row))
        mean = sum(results) / len(results)
        scores.append({"task_id": task["id"], "step": step, "mean": mean, "n": len(results), "scores": results})
    _write(folder.scores, scores)
    folder.trajectories.write_text("".join(f"{line}\n" for line in lines))
    if not failed:
        raise ValueError(f"iteration {number} has no failure: make more trajectories")
    return failed, groups


def _signal(source: _Source, number: int, task: Plain, rollout: Plain) -> Plain:
    kind = source.draw.choice([kind for kind in SignalKind if source.signals[kind]])
    row = {**source.draw.choice(source.signals[kind]), "id": source.id("signal"), "iteration": number}
    row.pop("counterpart_id", None)
    return {**row, "task_id": task["id"], "trajectory_id": rollout["id"], "_of": task["_of"]}


def _context(source: _Source, number: int, signal: Plain) -> Plain:
    row = {**source.draw.choice(source.contexts[signal["_of"]]), "id": source.id("context"), "iteration": number}
    row |= {"signal_id": signal["id"], "task_id": signal["task_id"], "trajectory_id": signal["trajectory_id"]}
    return {**row, "kind": signal["kind"], "how": source.varied(row["how"])}


def _drafts(
    source: _Source, number: int, contexts: Sequence[Plain], admitted: int, signals: dict[str, Plain]
) -> tuple[list[Plain], list[Plain], list[Plain]]:
    """Accepted drafts, as many as are to be admitted, over the contexts, and a refused one per context."""
    drafts, verifications, tasks = [], [], []
    for position in range(admitted + len(contexts)):
        context = contexts[position % len(contexts)]
        is_accepted = position < admitted
        draft, verification = source.draw.choice(source.accepted if is_accepted else source.refused or source.accepted)
        if not is_accepted and verification["accepted"]:
            verification = {**verification, "accepted": False, "reason": "duplicate"}
        row = {**draft, "id": source.id("draft"), "context_id": context["id"]}
        row["turns"] = [source.varied(text) for text in draft["turns"]]
        drafts.append(row)
        verifications.append({**verification, "draft_id": row["id"], "context_id": context["id"]})
        if is_accepted:
            signal = signals[context["signal_id"]]
            template = source.tasks[signal["_of"]]
            spec = {key: value for key, value in row.items() if key in template}
            parents = [row["id"], context["id"], signal["id"], signal["trajectory_id"], signal["task_id"]]
            identity = {"id": source.id("task"), "origin": "evolved", "parents": parents, "admitted_at": number}
            tasks.append({**spec, **identity, "_of": signal["_of"]})
    return drafts, verifications, tasks


def _interactions(source: _Source, context: Plain) -> Iterable[Plain]:
    for position in range(INTERACTIONS):
        row = source.draw.choice(source.interactions)
        place = {"id": source.id("interaction"), "context_id": context["id"], "run": position // 16}
        yield {**row, **place, "position": position % 16}


def _score(success: float, n: int = 400) -> Score:
    good = round(success * n)
    interval = wilson_interval(good, n)
    return Score(
        group="held-out",
        n=n,
        successes=good,
        metrics={"success": good / n},
        interval=interval,
        clusters=n,
        infrastructure_errors=0,
    )


def _rows(path: Path) -> list[Plain]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write(path: Path, rows: Iterable[Plain]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
