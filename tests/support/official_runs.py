"""The official executor and checker as the tests run them: every run under a name of its own, from clean globals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from environments.base import Outcome, TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import simulator_class

_runs = itertools.count()

# Officially a step may hold several calls; here each is a step, and two long-context references make 34 in a turn.
ENVIRONMENT = BFCLEnvironment(max_steps=100)


def format_call(call: ToolCall) -> str:
    """Return the call as Python source, ``f(a=1, b='x')``."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def official_texts(spec: TaskSpec, turns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Result texts of the official executor for call texts by turn, in one fresh set of instances."""
    with clean_globals() as name:
        return [execute(spec, turn, name)[0] for turn in turns]


def execute(spec: TaskSpec, calls: Sequence[str], name: str) -> tuple[list[str], dict[str, Any]]:
    """Result texts of call texts, and the instances that they ran in, those of the run ``name``."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    configuration, classes = spec.initial_state, list(spec.classes)
    return execute_multi_turn_func_call(
        list(calls), configuration, classes, name, f"{_category(spec)}_0", long_context=spec.long_context
    )


def official_result(
    spec: TaskSpec, reference: Sequence[Sequence[str]], turns: Sequence[Sequence[str]], before: Sequence[str] = ()
) -> dict:
    """The official checker's answer to call texts by turn, one call a step; ``before`` is run before the first turn."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    category = _category(spec)
    entry = {"initial_config": spec.initial_state, "involved_classes": list(spec.classes), "id": f"{category}_0"}
    steps = [[[call] for call in turn] for turn in turns]
    with clean_globals() as name:
        for instances in (f"{name}_eval", f"{name}_ground_truth_eval"):
            execute(spec, before, instances)
        return multi_turn_checker(steps, [list(turn) for turn in reference], entry, category, name)


def _category(spec: TaskSpec) -> str:
    return "multi_turn_long_context" if spec.long_context else "multi_turn_base"


@contextmanager
def clean_globals() -> Iterator[str]:
    """A name that no run had, and afterwards the official module without the run's instances.

    The default lists of ``post_tweet`` are one object for the whole process: they are emptied before.
    """
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    simulator_class("TravelAPI")  # freezes today's date
    for default in simulator_class("TwitterAPI").post_tweet.__defaults__:
        default.clear()
    name = f"run{next(_runs)}"
    try:
        yield name
    finally:
        for key in [key for key in vars(multi_turn_utils) if key.startswith(f"{name}_")]:
            del vars(multi_turn_utils)[key]


def without_set_order(turns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Texts by turn in which the two errors that print a Python set have their characters sorted.

    The order of such a set differs between processes; ours is sorted, the official one as it comes.
    """
    sets = ("Must be one of {", "Invalid fields for update: ")
    return [["".join(sorted(text)) if any(mark in text for mark in sets) else text for text in turn] for turn in turns]


def texts_of(turns: Sequence[Sequence[ToolCall]]) -> list[list[str]]:
    """Calls by turn as Python source."""
    return [[format_call(call) for call in turn] for turn in turns]


def replayed(spec: TaskSpec, turns: Sequence[Sequence[ToolCall]]) -> tuple[list[list[str]], Outcome]:
    """Our observations by turn and our outcome for calls by turn; fewer turns than the task's leave the rest open."""
    episode = ENVIRONMENT.open(spec)
    episode.start()
    observed = []
    for index, turn in enumerate(turns):
        observed.append([episode.step(call).text for call in turn])
        if index + 1 < len(turns):
            episode.end_turn()
    outcome = episode.outcome()
    episode.close()
    return observed, outcome
