"""Reads the signals of weakness out of a round's trajectories and chooses those to follow up."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from langgraph.runtime import Runtime

from environments.verification.fingerprints import fingerprint
from graph.assembly import Rooms, open_rooms
from graph.forks import on_its_run
from graph.records import ExtractionRecord, KnownTasks
from graph.state import IterationState, IterationUpdate, RunContext
from memory.jsonl import derive_seed
from memory.records import Trajectory
from memory.run import read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks, tasks_at
from training.signals import GroupScore, choose
from training.signals import extract as extract_signals


@on_its_run
async def extract(state: IterationState, runtime: Runtime[RunContext]) -> IterationUpdate:
    """Reads trajectories.jsonl and the scores of earlier rounds, writes signals.jsonl and scores.jsonl.

    known.json holds the fingerprints of D_t, which every branch refuses as duplicates. Where contexts are made of
    something else than signals, these are recorded all the same and none is chosen.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    return {"signals": await asyncio.to_thread(_extract, rooms, state.iteration)}


def _extract(rooms: Rooms, iteration: int) -> tuple[str, ...]:
    folder = rooms.run.iteration(iteration)
    settings = rooms.settings.signals
    trajectories = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    found = extract_signals(trajectories, _earlier_scores(rooms, iteration), settings, iteration)
    followed = found.signals if settings.contexts == "signals" else ()
    choice = choose(followed, settings, derive_seed(rooms.settings.seed, iteration, "choose"))
    chosen = tuple(signal.id for signal in choice.chosen)
    write_jsonl(folder / "signals.jsonl", found.signals)
    write_jsonl(folder / "scores.jsonl", found.scores)
    current = tasks_at(load_tasks(rooms.run), iteration)
    write_json(folder / "known.json", KnownTasks(fingerprints=tuple(sorted({fingerprint(task) for task in current}))))
    record = ExtractionRecord(
        signals=dict(found.counts()),
        chosen=chosen,
        repeated=dict(choice.repeated),
        left_out=dict(choice.left_out),
        pattern_occurrences=found.pattern_occurrences,
        infrastructure_errors=found.left_out,
    )
    write_json(folder / "extraction.json", record)
    return chosen


def _earlier_scores(rooms: Rooms, iteration: int) -> Mapping[str, Sequence[GroupScore]]:
    earlier: dict[str, list[GroupScore]] = defaultdict(list)
    for number in range(iteration):
        for score in read_jsonl(rooms.run.iteration(number) / "scores.jsonl", GroupScore):
            earlier[score.task_id].append(score)
    return earlier
