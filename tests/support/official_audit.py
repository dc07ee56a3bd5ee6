"""Audit of admitted tasks with the official executor and checker alone: nothing here uses our replays or results."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from environments.base import TaskSpec
from environments.bfcl.official import tool_specs
from support.official_runs import clean_globals, execute, format_call, official_result, official_texts, texts_of

Turns = Sequence[Sequence[str]]


def audit(task: TaskSpec) -> list[str]:
    """Everything that is wrong with an admitted task, in words; empty for a sound one."""
    functions = {spec.name: spec for cls in task.classes for spec in tool_specs(cls)}
    called = [call.name for turn in (task.setup, *task.reference) for call in turn]
    problems = [f"{name} belongs to none of the classes" for name in called if name not in functions]
    reference = texts_of(task.reference)
    results = [text for texts in official_texts(task, [_setup(task), *reference]) for text in texts]
    problems += [f"a result is an error: {text}" for text in results if _is_error(text)]
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


def _reads(task: TaskSpec, name: str) -> bool:
    """Whether the function runs without arguments after the setup and leaves every public attribute as it was."""
    with clean_globals() as run:
        instances = execute(task, _setup(task), run)[1]
        before = copy.deepcopy(_public(instances))
        (text,), instances = execute(task, [f"{name}()"], run)
        return not _is_error(text) and _public(instances) == before


def _public(instances: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        cls: {key: value for key, value in vars(instance).items() if not key.startswith("_")}
        for cls, instance in instances.items()
    }


def _accepted(task: TaskSpec, turns: Turns) -> bool:
    """The official result, with the setup run before the first turn or, more lenient, as a first turn that counts."""
    reference, setup = texts_of(task.reference), _setup(task)
    if official_result(task, reference, turns, before=setup)["valid"]:
        return True
    return bool(setup) and official_result(task, [setup, *reference], [setup, *turns])["valid"]


def _setup(task: TaskSpec) -> list[str]:
    return [format_call(call) for call in task.setup]
