"""Measure the failure memory at 300, 3,000 and 30,000 contexts, against a filtered query of Chroma.

300 is about the paper's recipe: 12 iterations of 24 contexts. The contexts are drawn: a history of iterations with 24
contexts each, their signatures distributed over BFCL's tools by Zipf's law, their texts made of tool names and drawn
values. Each memory is built once, through its own interface, and kept in build/benchmarks (0.2 GB and some minutes at
30,000).

A filtered query is the shorter way to write a comparison. It is approximate: the last rows count what it misses.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.bfcl.docs import all_tools
from memory.failures import FailureMemory, embedded_text, hashed_ngrams
from memory.records import Cause, FailureContext
from memory.settings import RECUR_AFTER, MemorySettings

__all__ = ["measure"]

SIZES = (300, 3_000, 30_000)
CACHE = Path("build/benchmarks")
BATCH = 24  # contexts of an iteration
PROBES = 40  # contexts compared in one repeat, each of another signature
LIMIT = 10.0  # milliseconds that one comparison may take
TEXTS = 10  # different texts of the history of repeated ones
REPEATED = (300, 3_000)  # contexts of that history
AGAINST = "get and exact comparison / Chroma query with the same filter"

_ERRORS = ("", "no such file or directory", "invalid value", "missing <number> required positional argument")
_SHAPES = [(tool, cause, error) for tool in sorted(all_tools()) for cause in Cause for error in _ERRORS]
_WORDS = ("report", "notes", "budget", "archive", "draft", "photo", "invoice", "plan", "data", "log", "music", "letter")


def measure(repeats: int, sizes: Sequence[int] = SIZES, cache: Path = CACHE) -> Sequence[Measurement]:
    """Measure milliseconds and recall; ``sizes`` are numbers of remembered contexts."""
    rows = []
    for size in sizes:
        rows.append(_one_by_one(_folder(size, cache), size, repeats))
    return [*rows, *(_recall(size, repeats) for size in REPEATED if size <= max(sizes))]


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
    """Return a memory of ``size`` contexts: the one in ``cache`` if it is complete and of the same history."""
    folder = cache / f"failures-{size}"
    mark = folder / "complete"
    contexts, admitted = _history(size)
    ends = [contexts[0], contexts[-1]]
    text = "\n".join(embedded_text(one) for one in ends)
    if mark.exists() and mark.read_text() == text:
        with closing(FailureMemory(folder, MemorySettings())) as memory:
            if memory.ids.issuperset(one.id for one in ends):
                return folder
    shutil.rmtree(folder, ignore_errors=True)
    with closing(FailureMemory(folder, MemorySettings())) as memory:
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


def _one_by_one(folder: Path, size: int, repeats: int) -> Measurement:
    """Measure single comparisons in an open memory."""
    every: list[float] = []
    pairs = []
    for repeat in range(repeats):
        probes = _probes(size, min(PROBES, size // 10), repeat)
        with closing(FailureMemory(folder, MemorySettings())) as memory:
            acts = [partial(one, memory, now=_now(size)) for one in (_compare, _query)]
            for act in acts:
                act(probes[0])  # the first one after opening loads the index
            ours, other = ([_milliseconds(partial(act, probe)) for probe in probes[1:]] for act in acts)
        every += ours
        pairs.append(Pair(median(ours), median(other)))
    p95 = quantiles(every, n=20)[-1]
    return of_pairs(
        f"deduplication: {size:,} contexts, warm",
        f"compare one context (median of {len(ours)}): {AGAINST}",
        pairs,
        "ms",
        expected=f"p95 under {LIMIT:g} ms",
        met=lambda _: p95 < LIMIT,
        note=f"p50 {median(every):.2f} ms, p95 {p95:.2f} ms, slowest {max(every):.2f} ms",
    )


def _recall(size: int, repeats: int) -> Measurement:
    """Count the contexts whose nearest eligible one a filtered query finds, in a history of few texts.

    Chroma builds its graph in several threads: equal histories give different graphs, and different counts.
    """
    pairs, statuses = [], 0
    for seed in range(repeats):
        contexts, admitted = _history(size)
        draw = random.Random(seed)
        kinds = [_context(0, draw) for _ in range(TEXTS)]
        repeated = [
            draw.choice(kinds).model_copy(
                update={"id": one.id, "iteration": one.iteration, "tool": "", "error_class": ""}
            )
            for one in contexts
        ]
        with tempfile.TemporaryDirectory() as folder, closing(FailureMemory(Path(folder), MemorySettings())) as memory:
            memory.rebuild(repeated, admitted)
            probes = {embedded_text(one): one for one in repeated}.values()
            found = [_found(memory, probe.model_copy(update={"id": "probe"}), _now(size)) for probe in probes]
        compared = [pair for pair in found if pair is not None]
        pairs.append(Pair(1.0, sum(mine == its for mine, its in compared) / len(compared)))
        limit = MemorySettings().duplicate_above
        statuses += sum((mine >= limit) != (its >= limit) for mine, its in compared)
    return of_pairs(
        f"deduplication: {size:,} contexts of {TEXTS} texts, recall",
        f"share of contexts whose nearest eligible one is found: {AGAINST}",
        pairs,
        "",
        note=f"{statuses} results of {repeats} histories would be new instead of known",
    )


def _found(memory: FailureMemory, probe: FailureContext, now: int) -> tuple[float, float] | None:
    """Return the cosine of the nearest eligible context and that which the query finds, 0 if none; None if none is."""
    (result,) = memory.compare([probe], now)
    if result.cosine is None:
        return None
    (distances,) = _query(memory, probe, now)["distances"]
    return round(result.cosine, 3), round(1.0 - distances[0], 3) if distances else 0.0


def _compare(memory: FailureMemory, context: FailureContext, now: int) -> object:
    return memory.compare([context], now)


def _query(memory: FailureMemory, context: FailureContext, now: int) -> Any:  # noqa: ANN401 - Chroma's answer
    """Ask what one would write instead: the nearest neighbour among the eligible contexts."""
    conditions: list[Any] = [
        {"signature": context.signature()},
        {"iteration": {"$gt": now - RECUR_AFTER}},
        {"iteration": {"$lt": now}},
        {"admitted": {"$gt": 0}},
    ]
    return memory._contexts.query(
        query_embeddings=hashed_ngrams([embedded_text(context)]), n_results=1, where={"$and": conditions}
    )


def _milliseconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - began)
