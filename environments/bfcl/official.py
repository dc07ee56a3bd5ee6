"""Load the official multi-turn tasks as task specifications, by category and split.

The split of a task depends only on its index, which is shared by all four categories: the other categories reuse the
base task of the same index, so a split by id would leak. Indices whose tasks start from the same configuration stay
together: {63, 83}, {66, 70, 74}, {100, 104, 133}. The test split is the largest, because intervals are over clusters of
tasks that share a path, and fewer than 40 clusters give wide intervals. Our choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from environments.base import InputError, Record, TaskSpec, ToolCall
from environments.bfcl.package import added_functions_message, category_entries, positional_names, tool_names
from environments.python_calls import call_of, expression

Split = Literal["train", "dev", "test", "reserved"]

TASKS = 200
"""Tasks in each official category."""

_RESERVED = frozenset((*range(40, 50), *range(90, 100)))
_SAME_CONFIGURATION: dict[int, Split] = {
    **dict.fromkeys((63, 83), "dev"),
    **dict.fromkeys((66, 70, 74), "test"),
    **dict.fromkeys((100, 104, 133), "train"),
}


_SEAL_LAST = 40  # of each 50: this gives 100 of the 118 test indices, and nearly as many of each kind of task


def split_of(index: int) -> Split:
    """Return the split of a task index, 0 to 199. Raises InputError outside of that."""
    if not 0 <= index < TASKS:
        raise InputError(f"BFCL has no multi-turn task with index {index}: indices are 0 to {TASKS - 1}")
    if index in _RESERVED:
        return "reserved"
    if index in _SAME_CONFIGURATION:
        return _SAME_CONFIGURATION[index]
    position = index % 50
    if position < 11:
        return "train"
    return "dev" if position < 15 else "test"


@cache
def indices(split: Split) -> tuple[int, ...]:
    """Return every index of ``split``, ascending."""
    return tuple(index for index in range(TASKS) if split_of(index) == split)


def in_seal_test(index: int) -> bool:
    """Return whether the index is one of the 100 of a test after SEAL's protocol: 24 to 26 of every 50.

    SEAL (arXiv 2605.24426) trains on 400 tasks and tests on 400, 100 indices of each of the four categories. Ours are
    by index: the test has the same size, 400 tasks. Training has the 45 indices of the split train, 180 tasks. Of the
    other indices, 37 are held out for development or reserved, and the remaining 18 of the split test are not used.

    The two lists in its repository contradict each other, and neither is offered. One draws ids freely: 344 of its 400
    test tasks have the index of a training task, so it leaks. The other is by index, but its 100 training indices
    include 56 of our split test (46 of this test's 100), 12 of dev and 7 that are reserved, and 20 of ours for training
    are in its test. A policy trained on it could be scored on none of our evaluation sets. Raises InputError outside of
    0 to 199.
    """
    return split_of(index) == "test" and index % 50 <= _SEAL_LAST


class CategoryTask(Record):
    """One task of an official category; ``index`` is shared by the four categories, ``id`` is "CATEGORY-INDEX"."""

    id: str
    index: int
    category: str
    spec: TaskSpec


def load_category(
    category: str, splits: Sequence[Split] = ("train", "dev", "test"), *, equality_test: bool = False
) -> tuple[CategoryTask, ...]:
    """Return the tasks of ``category`` (base, miss_func, miss_param or long_context) in ``splits``, in official order.

    Raises InputError for an unknown category, and for the split "reserved" unless ``equality_test`` is set, which
    only the test of equality with the official checker does.
    """
    if "reserved" in splits and not equality_test:
        raise InputError("the split 'reserved' is opened by the equality test alone: leave it out of splits")
    return tuple(_task(category, index) for index in range(len(_entries(category))) if split_of(index) in splits)


@cache
def _entries(category: str) -> tuple[tuple[dict[str, Any], list[list[str]]], ...]:
    return category_entries(category)


@cache  # a set is rebuilt from them at each load, and their calls are Python to parse
def _task(category: str, index: int) -> CategoryTask:
    entry, answers = _entries(category)[index]
    classes = tuple(entry["involved_classes"])
    withheld = {int(turn): tuple(names) for turn, names in entry.get("missed_function", {}).items()}
    spec = TaskSpec(
        environment="bfcl",
        split=split_of(index),
        classes=classes,
        turns=tuple(_user_text(messages, turn in withheld) for turn, messages in enumerate(entry["question"])),
        initial_state=entry["initial_config"],
        tools=tool_names(classes),
        reference=tuple(tuple(_call(entry["id"], text) for text in turn) for turn in answers),
        withheld=withheld,
        long_context="long_context" in entry["id"],
    )
    return CategoryTask(id=f"{category}-{index}", index=index, category=category, spec=spec)


def _user_text(messages: list[dict[str, str]], reveals: bool) -> str:
    return added_functions_message() if reveals else "\n".join(message["content"] for message in messages)


def _call(task: str, text: str) -> ToolCall:
    try:
        return read_call(text)
    except ValueError as error:
        raise InputError(
            f"the reference of {task} holds {text!r}, which is not a call ({error}): reinstall bfcl-eval"
        ) from error


def read_call(text: str) -> ToolCall:
    """Read one call of an official reference, ``f(a=1, b='x')``; it is not evaluated.

    Positional arguments are named in the order of the function's signature. Raises ValueError for anything else.
    """
    name, arguments = call_of(expression(text), positional_names)
    return ToolCall(name=name, arguments=arguments)
