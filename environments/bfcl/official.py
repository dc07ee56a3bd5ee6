"""The official multi-turn tasks as task specifications, by category and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from environments.base import InputError, Record, TaskSpec, ToolCall
from environments.bfcl.calls import parse_call
from environments.bfcl.docs import tool_names
from environments.bfcl.package import added_functions_message, category_entries
from environments.bfcl.splits import Split, split_of


class OfficialTask(Record):
    """One task of an official category; ``index`` is shared by the four categories, ``id`` is "CATEGORY-INDEX"."""

    id: str
    index: int
    category: str
    spec: TaskSpec


def load_category(
    category: str, splits: Sequence[Split] = ("train", "dev", "test"), *, equality_test: bool = False
) -> tuple[OfficialTask, ...]:
    """The tasks of ``category`` (base, miss_func, miss_param or long_context) in ``splits``, in official order.

    Raises InputError for an unknown category, and for the split "reserved" unless ``equality_test`` is set, which
    only the test of equality with the official checker and the record for decontamination (hashes alone) do.
    """
    if "reserved" in splits and not equality_test:
        raise InputError(
            "the split 'reserved' is opened by the equality test and the record for decontamination alone: "
            "leave it out of splits"
        )
    return tuple(
        _task(category, index, entry, answers)
        for index, (entry, answers) in enumerate(category_entries(category))
        if split_of(index) in splits
    )


def _task(category: str, index: int, entry: dict[str, Any], answers: list[list[str]]) -> OfficialTask:
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
    return OfficialTask(id=f"{category}-{index}", index=index, category=category, spec=spec)


def _user_text(messages: list[dict[str, str]], reveals: bool) -> str:
    return added_functions_message() if reveals else "\n".join(message["content"] for message in messages)


def _call(task: str, text: str) -> ToolCall:
    call = parse_call(text)
    if not isinstance(call, ToolCall):
        raise InputError(
            f"the reference of {task} holds {text!r}, which is no call ({call.reason}): reinstall bfcl-eval"
        )
    return call
