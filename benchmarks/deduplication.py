"""Measures the deduplication of failure contexts at 1,000, 10,000 and 100,000, against a filtered Chroma query.

The contexts are drawn: a history of iterations with as many contexts each as the quickstart has, their signatures
spread over BFCL's tools as unevenly as Zipf's law says, their texts made of tool names and drawn values. Each memory is
built once, through its own interface, and kept in build/benchmarks (0.6 GB and some minutes at 100,000).
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.bfcl.docs import all_tools
from memory.failures import FailureMemory, embedded_text
from memory.records import Cause, FailureContext
from memory.settings import MemorySettings

__all__ = ["measure"]

SIZES = (1_000, 10_000, 100_000)
CACHE = Path("build/benchmarks")
BATCH = 24  # contexts of an iteration
PROBES = 40  # contexts judged in one repeat, each of another signature
LIMIT = 10.0  # milliseconds that one judgement may take
EVER = 10**6  # recur_after: a weakness that was explored and admitted something is never explored again

_ERRORS = ("", "no such file or directory", "invalid value", "missing <number> required positional argument")
_SHAPES = [(tool, cause, error) for tool in sorted(all_tools()) for cause in Cause for error in _ERRORS]
_WORDS = ("report", "notes", "budget", "archive", "draft", "photo", "invoice", "plan", "data", "log", "music", "letter")


def measure(repeats: int, sizes: Sequence[int] = SIZES, cache: Path = CACHE) -> Sequence[Measurement]:
    """Measure milliseconds of one decision and of a whole batch; ``sizes`` are numbers of remembered contexts."""
    rows = []
    for size in sizes:
        folder = _folder(size, cache)
        rows += _one_by_one(folder, size, repeats, MemorySettings())
        rows.append(_whole_batch(folder, size, repeats))
    rows += _one_by_one(folder, size, repeats, MemorySettings(recur_after=EVER))
    return rows


def _context(number: int, draw: random.Random) -> FailureContext:
    # The inverse of Zipf's distribution: the first of 4,096 signatures has a twelfth of all contexts.
    tool, cause, error = _SHAPES[int(len(_SHAPES) ** draw.random()) - 1]
    words = [f"{draw.choice(_WORDS)}{draw.randrange(100)}" for _ in range(4)]
    return FailureContext(
        id=f"context-{number:07d}",
        iteration=number // BATCH,
        environment="bfcl",
        cause=cause,
        tool=tool,
        error_class=error,
        how=f"Turn 1, action 2: {tool} answered that {words[0]} cannot be used",
        facts=(f'wrote="{tool}({words[1]!r})"', f'said="use {words[2]} with {words[3]}"'),
        classes=("GorillaFileSystem",),
        initial_state={},
        tools=(tool,),
    )


def _history(size: int) -> tuple[list[FailureContext], dict[str, int]]:
    """Return contexts with the number of tasks that each admitted: two thirds of them one or two."""
    draw = random.Random(size)
    contexts = [_context(number, draw) for number in range(size)]
    return contexts, {one.id: draw.randrange(3) for one in contexts}


def _folder(size: int, cache: Path) -> Path:
    """Return a memory of ``size`` contexts: the one in ``cache`` if it is whole, of the same history and format."""
    folder = cache / f"failures-{size}"
    mark = folder / "complete"
    contexts, admitted = _history(size)
    ends = [contexts[0], contexts[-1]]
    covering = next(one for one in reversed(contexts) if admitted[one.id])
    text = "\n".join(embedded_text(one) for one in ends)
    if mark.exists() and mark.read_text() == text:
        with FailureMemory(folder, MemorySettings()) as memory:
            (judgement,) = memory.judge([covering.model_copy(update={"id": "the same"})], _now(size))
            if judgement.status == "known" and memory.holds([one.id for one in ends]):
                return folder
    shutil.rmtree(folder, ignore_errors=True)
    with FailureMemory(folder, MemorySettings()) as memory:
        memory.rebuild(contexts, admitted)
    mark.write_text(text)
    return folder


def _probes(size: int, count: int, seed: int) -> list[FailureContext]:
    """Return contexts of the next iteration, each of another signature; every second one is like a recent one."""
    draw = random.Random(f"{size} {seed}")
    recent = _history(size)[0][-2 * BATCH :]
    probes: dict[str, FailureContext] = {}
    while len(probes) < count:
        probe = _context(0, draw)
        if draw.random() < 0.5:
            probe = draw.choice(recent)
            probe = probe.model_copy(update={"how": probe.how + "."})
        update = {"id": f"probe-{len(probes):03d}", "iteration": _now(size)}
        probes.setdefault(probe.signature(), probe.model_copy(update=update))
    return list(probes.values())


def _now(size: int) -> int:
    return (size - 1) // BATCH + 1


def _one_by_one(folder: Path, size: int, repeats: int, settings: MemorySettings) -> list[Measurement]:
    cold: list[list[float]] = []
    warm: list[list[float]] = []
    queried: list[list[float]] = []
    now = _now(size)
    for repeat in range(repeats):
        probes = _probes(size, min(PROBES, size // 10), repeat)
        with FailureMemory(folder, settings) as memory:
            memory.holds([probes[0].id])  # the first question of any kind loads the index: see the whole batch
            _query(memory, probes[0])
            cold.append([])
            queried.append([])
            for probe in probes:
                cold[-1].append(_milliseconds(partial(memory.judge, [probe], now)))
                queried[-1].append(_milliseconds(partial(_query, memory, probe)))
            warm.append([_milliseconds(partial(memory.judge, [probe], now)) for probe in probes])
    ever = ", every context counts for ever" if settings.recur_after == EVER else ""
    return [_row(size, f"cold{ever}", cold, queried), _row(size, f"warm{ever}", warm, queried)]


def _row(size: int, state: str, ours: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Measurement:
    every = [one for repeat in ours for one in repeat]
    p95 = quantiles(every, n=20)[-1]
    what = "its signature asked for the first time" if state.startswith("cold") else "its signature in memory"
    return of_pairs(
        f"deduplication: {size:,} contexts, {state}",
        f"judge one context, {what} (median of {len(ours[0])}): ours / Chroma query filtered by signature",
        [Pair(median(mine), median(its)) for mine, its in zip(ours, other, strict=True)],
        "ms",
        expected=f"p95 under {LIMIT:g} ms",
        met=lambda _: p95 < LIMIT,
        note=f"p50 {median(every):.2f} ms, p95 {p95:.2f} ms, slowest {max(every):.2f} ms",
    )


def _whole_batch(folder: Path, size: int, repeats: int) -> Measurement:
    """Measure what an iteration waits for: opening the memory and its decisions, without Chroma's import."""
    pairs = []
    for repeat in range(repeats):
        batch = _probes(size, BATCH, -1 - repeat)
        ours = _milliseconds(partial(_judge_batch, folder, batch, _now(size)))
        pairs.append(Pair(ours, _milliseconds(partial(_query_batch, folder, batch))))
    return of_pairs(
        f"deduplication: {size:,} contexts, a batch",
        f"open the memory and judge {BATCH} contexts: ours / a filtered Chroma query for each",
        pairs,
        "ms",
    )


def _judge_batch(folder: Path, batch: Sequence[FailureContext], now: int) -> None:
    with FailureMemory(folder, MemorySettings()) as memory:
        memory.judge(batch, now)


def _query_batch(folder: Path, batch: Sequence[FailureContext]) -> None:
    with FailureMemory(folder, MemorySettings()) as memory:
        for context in batch:
            _query(memory, context)


def _query(memory: FailureMemory, context: FailureContext) -> object:
    """Query the nearest neighbour within the signature, as a user would write it."""
    return memory._contexts.query(
        query_texts=[embedded_text(context)], n_results=1, where={"signature": context.signature()}
    )


def _milliseconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)
