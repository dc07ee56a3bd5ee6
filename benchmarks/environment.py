"""Measures replay and evaluation of whole tasks: our public interface against bfcl_eval's executor and checker.

Both start from the same call texts. Ours parses each, opens an episode, steps, ends turns and scores; the official one
evaluates the text, executes the reference beside it, and checks. The official executor never evicts its instances,
so each of its runs has a name of its own, and what it left behind is removed outside of the measured time. Seconds
are those of the one core that works, so that other processes on the machine do not count.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.base import TaskSpec
from environments.bfcl import checker
from environments.bfcl.calls import format_call, parse_call
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import load_category
from environments.bfcl.package import CATEGORIES, simulator_class

__all__ = ["measure"]

LEAST = 1000.0  # tasks per second on one core that are expected of ours on the base category
PASSES = 3  # passes over a category in one half of a pair
MAX_STEPS = 100  # officially a step may hold several calls: here each is a step, and a reference has 34 in a turn

_names = itertools.count()


@dataclass(frozen=True)
class _Attempt:
    """A task, its reference as texts to attempt, and the task in the official checker's format."""

    spec: TaskSpec
    category: str
    texts: tuple[tuple[str, ...], ...]
    entry: dict[str, Any]


def measure(repeats: int, limit: int | None = None) -> Sequence[Measurement]:
    """Measure replays and evaluations per second and core: base and all categories, reference cached and not.

    ``limit``: the first tasks of each category only. Raises RuntimeError when the two sides disagree on an outcome.
    """
    attempts = {category: _attempts(category, limit) for category in CATEGORIES}
    rows = []
    for label, categories in (("base", CATEGORIES[:1]), ("all four categories", CATEGORIES)):
        chosen = [attempts[category] for category in categories]
        for kept in (True, False):
            pairs = [_pair(chosen, kept) for _ in range(repeats)]
            rows.append(_row(label, sum(map(len, chosen)), kept, pairs))
    return rows


def _row(label: str, tasks: int, kept: bool, pairs: Sequence[Pair]) -> Measurement:
    how = "kept, as for the rollouts of a group" if kept else "replayed anew, as for a draft"
    row = of_pairs(
        f"environment: {label}, reference {'kept' if kept else 'anew'}",
        f"replay and evaluate {tasks} tasks, reference {how}: public interface / official executor and checker",
        pairs,
        "tasks/core-s",
        expected="ratio at least 1" + (f", {LEAST:,.0f} tasks/core-s" if label == "base" else ""),
        met=lambda ratio: ratio >= 1.0,
    )
    return row if label != "base" else row.model_copy(update={"met": bool(row.met) and row.ours >= LEAST})


def _attempts(category: str, limit: int | None) -> list[_Attempt]:
    attempts = []
    for task in load_category(category)[:limit]:
        spec = task.spec
        texts = tuple(tuple(format_call(call) for call in turn) for turn in spec.reference)
        # Long context is decided by the id.
        entry = {
            "initial_config": spec.initial_state,
            "involved_classes": list(spec.classes),
            "id": f"multi_turn_{category}_0",
        }
        attempts.append(_Attempt(spec, f"multi_turn_{category}", texts, entry))
    return attempts


def _pair(categories: Sequence[Sequence[_Attempt]], kept: bool) -> Pair:
    tasks = PASSES * sum(map(len, categories))
    ours = official = 0.0
    for attempts in categories:
        _forget_references()
        if kept:
            _replay(attempts)
        for _ in range(PASSES):
            if not kept:
                _forget_references()
            ours += _replay(attempts)
            official += _check(attempts)
    return Pair(tasks / ours, tasks / official)


def _forget_references() -> None:
    checker._references.clear()


def _replay(attempts: Sequence[_Attempt]) -> float:
    """Measure the seconds of one pass through the public interface."""
    environment = BFCLEnvironment(max_steps=MAX_STEPS)
    failed = []
    began = time.process_time()
    for attempt in attempts:
        episode = environment.open(attempt.spec)
        episode.start()
        for turn in attempt.texts:
            for text in turn:
                episode.step(parse_call(text))
            episode.end_turn()
        if not episode.outcome().success:
            failed.append(attempt)
        episode.close()
    seconds = time.process_time() - began
    _expect_success(failed, "the environment")
    return seconds


def _check(attempts: Sequence[_Attempt]) -> float:
    """Measure the seconds of one pass through the official checker, which executes both sides itself."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    simulator_class("TravelAPI")  # freezes today's date, as ours does
    prefix = f"benchmark{next(_names)}x"
    before = set(vars(multi_turn_utils))
    failed = []
    began = time.process_time()
    for position, attempt in enumerate(attempts):
        steps = [[[text] for text in turn] for turn in attempt.texts]
        reference = [list(turn) for turn in attempt.texts]
        result = multi_turn_checker(steps, reference, attempt.entry, attempt.category, f"{prefix}{position}")
        if not result["valid"]:
            failed.append(attempt)
    seconds = time.process_time() - began
    for key in set(vars(multi_turn_utils)) - before:
        del vars(multi_turn_utils)[key]
    _expect_success(failed, "the official checker")
    return seconds


def _expect_success(failed: Sequence[_Attempt], who: str) -> None:
    if failed:
        raise RuntimeError(f"{who} refused {len(failed)} references, the first of turns {failed[0].spec.turns}")
