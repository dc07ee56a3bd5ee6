"""Audit of admitted tasks with the official executor and checker alone: nothing here uses our replays or results."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from environments.base import TaskSpec
from environments.bfcl.official import simulator_class, tool_specs
from support.official_runs import format_call

Turns = Sequence[Sequence[str]]

_runs = itertools.count()


def audit(task: TaskSpec) -> list[str]:
    """Everything that is wrong with an admitted task, in words; empty for a sound one."""
    functions = {spec.name: spec for cls in task.classes for spec in tool_specs(cls)}
    called = [call.name for turn in (task.setup, *task.reference) for call in turn]
    problems = [f"{name} belongs to none of the classes" for name in called if name not in functions]
    reference = [[format_call(call) for call in turn] for turn in task.reference]
    problems += [f"a result is an error: {text}" for text in _results(task, reference) if _is_error(text)]
    if not _accepted(task, reference):
        problems.append("the official checker refuses the reference")
    problems += [f"{words} solves it" for words, calls in _policies(task, list(functions)) if _accepted(task, calls)]
    for t, turn in enumerate(reference):
        for c, call in enumerate(turn):
            if _accepted(task, [*reference[:t], turn[:c] + turn[c + 1 :], *reference[t + 1 :]]):
                problems.append(f"it is solved without {call}")
    return problems


def _policies(task: TaskSpec, functions: list[str]) -> Iterator[tuple[str, Turns]]:
    turns = len(task.reference)
    yield "doing nothing", [[]] * turns
    for name in functions:
        yield f"{name}()", [[f"{name}()"]] * turns
    yield "reading everything", [[f"{name}()" for name in functions if _reads(task, name)]] * turns


def _is_error(text: str) -> bool:
    if text.startswith("Error during execution"):
        return True
    try:
        result = json.loads(text)
    except ValueError:
        return False
    return isinstance(result, dict) and "error" in result


def _results(task: TaskSpec, turns: Turns) -> list[str]:
    with _fresh_name() as name:
        return [text for turn in (_setup(task), *turns) for text in _execute(task, turn, name)[0]]


def _reads(task: TaskSpec, name: str) -> bool:
    """Whether the function runs without arguments after the setup and leaves every public attribute as it was."""
    with _fresh_name() as run:
        instances = _execute(task, _setup(task), run)[1]
        before = copy.deepcopy(_public(instances))
        (text,), instances = _execute(task, [f"{name}()"], run)
        return not _is_error(text) and _public(instances) == before


def _public(instances: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        cls: {key: value for key, value in vars(instance).items() if not key.startswith("_")}
        for cls, instance in instances.items()
    }


def _accepted(task: TaskSpec, turns: Turns) -> bool:
    """The official result, with the setup run before the first turn or, more lenient, as a first turn that counts."""
    reference = [[format_call(call) for call in turn] for turn in task.reference]
    if _checked(task, reference, turns, before=_setup(task)):
        return True
    return bool(task.setup) and _checked(task, [_setup(task), *reference], [_setup(task), *turns], before=[])


def _checked(task: TaskSpec, reference: Turns, turns: Turns, before: Sequence[str]) -> bool:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    entry = {"initial_config": task.initial_state, "involved_classes": list(task.classes), "id": "multi_turn_base_0"}
    steps = [[[call] for call in turn] for turn in turns]
    with _fresh_name() as name:
        _execute(task, before, f"{name}_eval")
        _execute(task, before, f"{name}_ground_truth_eval")
        result = multi_turn_checker(steps, [list(turn) for turn in reference], entry, "multi_turn_base", name)
    return bool(result["valid"])


def _setup(task: TaskSpec) -> list[str]:
    return [format_call(call) for call in task.setup]


def _execute(task: TaskSpec, calls: Sequence[str], name: str) -> tuple[list[str], dict[str, Any]]:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

    return execute_multi_turn_func_call(list(calls), task.initial_state, list(task.classes), name, "multi_turn_base_0")


@contextmanager
def _fresh_name() -> Iterator[str]:
    """A run name that nothing used, because the official executor never evicts instances; evicted here afterwards."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

    simulator_class("TravelAPI")  # freezes today's date in the travel module
    name = f"audit{next(_runs)}x"
    try:
        yield name
    finally:
        for key in [key for key in vars(multi_turn_utils) if key.startswith(name)]:
            del vars(multi_turn_utils)[key]
