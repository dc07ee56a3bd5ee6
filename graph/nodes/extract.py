"""Reads the signals of weakness out of a round's trajectories and chooses those to follow up."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from langgraph.runtime import Runtime

from environments.verification.fingerprints import fingerprint
from environments.verification.programs import Exercised
from graph.assembly import RunServices
from graph.records import ExtractionRecord, KnownTasks
from graph.report.digest import of_extract
from graph.state import IterationState, IterationUpdate
from memory.jsonl import derive_seed
from memory.records import Trajectory
from memory.run import RunDirectory, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.signals import GroupScore, PatternCount, choose
from training.signals import extract as extract_signals


async def extract(state: IterationState, runtime: Runtime[RunServices]) -> IterationUpdate:
    """Find signals of weakness in a round's rollouts and choose those to follow up.

    Reads trajectories.jsonl and what earlier rounds recorded, writes signals.jsonl, scores.jsonl and patterns.jsonl.
    known.json holds the fingerprints of D_t, which every branch refuses as duplicates. A baseline whose contexts do not
    come from signals records them all the same and chooses none.
    """
    chosen, digest = await asyncio.to_thread(_extract, runtime.context, state.iteration)
    return {"iteration": state.iteration, "signals": chosen, "digest": {"extract": digest}}


def _extract(services: RunServices, iteration: int) -> tuple[tuple[str, ...], list[str]]:
    folder = services.run.iteration(iteration)
    settings = services.settings.signals
    trajectories = read_jsonl(folder.trajectories, Trajectory)
    counted = counted_patterns(services.run, iteration)
    tasks = load_tasks(services.run)
    found = extract_signals(trajectories, earlier_scores(services.run, iteration), settings, iteration, counted)
    followed = found.signals if settings.contexts == "signals" else ()
    choice = choose(followed, settings, derive_seed(services.settings.seed, iteration, "choose"))
    chosen = tuple(signal.id for signal in choice.chosen)
    write_jsonl(folder.signals, found.signals)
    write_jsonl(folder.scores, found.scores)
    write_jsonl(folder.patterns, found.patterns)
    current = tasks_at(tasks, iteration)
    write_json(folder.known, KnownTasks(fingerprints=tuple(sorted({fingerprint(task) for task in current}))))
    offered = sorted({name for task in current for name in task.tools})
    exercised = Exercised(current, services.environment.tools(offered))
    record = ExtractionRecord(
        signals=dict(found.counts()),
        signal_tasks=dict(found.task_counts()),
        marked=found.marked(),
        chosen=chosen,
        repeated=dict(choice.repeated),
        left_out=dict(choice.left_out),
        pattern_occurrences=found.pattern_occurrences,
        different_patterns=found.different_patterns,
        infrastructure_errors=found.left_out,
        functions=len(exercised.functions),
        functions_offered=len(offered),
    )
    write_json(folder.extraction, record)
    name = f"{services.run.root.name}, iteration {iteration}"
    by_id = {task.id: task for task in tasks}
    return chosen, of_extract(name, record, trajectories, choice.chosen, by_id)


def earlier_scores(run: RunDirectory, iteration: int) -> Mapping[str, Sequence[GroupScore]]:
    earlier: dict[str, list[GroupScore]] = defaultdict(list)
    for number in range(iteration):
        for score in read_jsonl(run.iteration(number).scores, GroupScore):
            earlier[score.task_id].append(score)
    return earlier


def counted_patterns(run: RunDirectory, iteration: int) -> Sequence[PatternCount]:
    return [one for number in range(iteration) for one in read_jsonl(run.iteration(number).patterns, PatternCount)]
