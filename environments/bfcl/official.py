"""Access the installed ``bfcl_eval`` package: simulators, checkers, documentation, and official tasks by split.

Only this module imports the package, and only on use. ``constants.eval_config`` is never imported, because it makes
folders in site-packages. The simulators and checkers need the standard library and mpmath alone, which is why the
package is installed without its dependencies.

The split of a task depends only on its index, which is shared by all four categories: the other categories reuse the
base task of the same index, so a split by id would leak. Indices whose tasks start from the same configuration stay
together: {63, 83}, {66, 70, 74}, {100, 104, 133}. The test split is the largest, because intervals are over clusters of
tasks that share a path, and fewer than 40 clusters give wide intervals. Our choice.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from pydantic import JsonValue

from environments.base import InputError, Parameter, Record, TaskSpec, ToolCall, ToolSpec
from environments.python_calls import call_of, expression

VERSION = "2026.3.23"
INSTALL_COMMAND = f"pip install --no-deps bfcl-eval=={VERSION} mpmath==1.3.0"

CLASSES = (
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TwitterAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "VehicleControlAPI",
)
"""The official classes of the multi-turn categories, in the package's order."""

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
"""The official multi-turn categories, in the leaderboard's order."""

FROZEN_NOW = datetime.datetime(2024, 9, 1, 10, 30)
"""The travel simulator's current date: the trading simulator's own CURRENT_TIME (our choice)."""


class _FrozenDatetime(datetime.datetime):
    """``datetime.datetime`` whose today is ``FROZEN_NOW``."""

    @classmethod
    def today(cls) -> _FrozenDatetime:
        return cls(FROZEN_NOW.year, FROZEN_NOW.month, FROZEN_NOW.day, FROZEN_NOW.hour, FROZEN_NOW.minute)


def require() -> None:
    """Raise InputError unless the package is installed in the version that splits and sets were measured on."""
    try:
        installed = importlib.metadata.version("bfcl-eval")
    except importlib.metadata.PackageNotFoundError:
        raise _missing("bfcl-eval is not installed") from None
    if installed != VERSION:
        raise _missing(f"bfcl-eval {installed} is installed, but splits and evaluation sets are made for {VERSION}")


def _missing(what: str) -> InputError:
    return InputError(f"{what}: run `{INSTALL_COMMAND}` (`make install` does it)")


def _load(module: str) -> ModuleType:
    require()
    try:
        return importlib.import_module(f"bfcl_eval.{module}")
    except ModuleNotFoundError as error:
        if error.name in ("bfcl_eval", "mpmath"):
            raise _missing(f"the BFCL simulators need {error.name}, which is not installed") from None
        raise


def check_class(name: str) -> None:
    """Raise InputError for a name that is not one of the official classes."""
    if name not in CLASSES:
        raise InputError(f"{name!r} is not a class of BFCL multi-turn: use some of {', '.join(CLASSES)}")


@cache
def simulator_class(name: str) -> type[Any]:
    """Return the official simulator class called ``name``.

    The travel module reads today's date; ``datetime`` is replaced in it alone: a frozen clock would break deadlines.
    """
    check_class(name)
    path = _load("constants.executable_backend_config").CLASS_FILE_PATH_MAPPING[name]
    module = _load(path.removeprefix("bfcl_eval."))
    if name == "TravelAPI":
        vars(module)["datetime"] = _FrozenDatetime
    return cast(type[Any], getattr(module, name))


_StateChecker = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
_ResponseChecker = Callable[[list[str], list[str], int], dict[str, Any]]


@cache
def stateless_classes() -> frozenset[str]:
    """Return the classes that do not load an initial state."""
    return frozenset(_load("constants.executable_backend_config").STATELESS_CLASSES)


@cache
def state_checker() -> _StateChecker:
    """Return the official comparison of instances by class name: ``(model's, reference's) -> {"valid": bool, ...}``."""
    return cast(_StateChecker, _load("eval_checker.multi_turn_eval.multi_turn_checker").state_checker)


@cache
def response_checker() -> _ResponseChecker:
    """Return the official comparison of results: ``(all so far, turn's reference, turn) -> {"valid": bool, ...}``."""
    return cast(_ResponseChecker, _load("eval_checker.multi_turn_eval.multi_turn_checker").response_checker)


@cache
def added_functions_message() -> str:
    """Return the official handler's user message when withheld functions are revealed."""
    return str(_load("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


def _data_folder() -> Path:
    return Path(str(_load("constants.executable_backend_config").__file__)).parent.parent / "data"


def _read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip())


@cache
def category_entries(category: str) -> tuple[tuple[dict[str, Any], list[list[str]]], ...]:
    """Return the official tasks of ``category`` with their references (call texts by turn), as shipped, in order."""
    if category not in CATEGORIES:
        raise InputError(f"{category!r} is not a BFCL multi-turn category: use one of {', '.join(CATEGORIES)}")
    return _with_answers(f"multi_turn_{category}")


def read_single_turn(category: str) -> tuple[tuple[dict[str, Any], list[dict[str, dict[str, list[Any]]]]], ...]:
    """Return the official single-turn questions of ``category`` with their accepted answers, as shipped, in order."""
    return _with_answers(category)


def _with_answers(category: str) -> tuple[tuple[dict[str, Any], Any], ...]:
    name = f"BFCL_v4_{category}.json"
    answers = {
        answer["id"]: answer["ground_truth"] for answer in _read_lines(_data_folder() / "possible_answer" / name)
    }
    return tuple((entry, answers[entry["id"]]) for entry in _read_lines(_data_folder() / name))


_ENUM = re.compile(r"\[Enum\]:\s*(\[.*?\]|.+)", re.DOTALL)
_OPTIONS = re.compile(r"\boptions(?: are)?:\s*(.+)", re.IGNORECASE | re.DOTALL)
_QUOTED_MODES = re.compile(r"'(\w+)' for \w+")

_SIGNATURE_ORDER = {
    "purchase_insurance": ("access_token", "insurance_type", "booking_id", "insurance_cost", "card_id"),
}
"""The only function whose documented order differs from its Python signature."""


@cache
def tool_specs(class_name: str) -> tuple[ToolSpec, ...]:
    """Return the documented functions of an official class, in official order.

    Raises InputError for an unknown class.
    """
    check_class(class_name)
    file = _load("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name]
    return tuple(_tool(document, class_name) for document in _read_lines(_data_folder() / "multi_turn_func_doc" / file))


@cache
def all_tools() -> dict[str, ToolSpec]:
    """Return the 128 functions of the eight classes by name; no two classes share a name."""
    return {spec.name: spec for class_name in CLASSES for spec in tool_specs(class_name)}


def tool_names(classes: Iterable[str]) -> tuple[str, ...]:
    """Return the names of every function of ``classes``, in official order."""
    return tuple(spec.name for class_name in classes for spec in tool_specs(class_name))


def positional_names(tool: str) -> tuple[str, ...] | None:
    """Return the parameters of ``tool`` in the order of the function's Python signature, None for an unknown tool."""
    spec = all_tools().get(tool)
    if spec is None:
        return None
    return _SIGNATURE_ORDER.get(tool) or tuple(parameter.name for parameter in spec.parameters)


@cache
def mutable_defaults(tool: str) -> dict[str, JsonValue]:
    """Return the parameters of ``tool`` that default to a list or dict, which Python would share between all calls."""
    return {p.name: p.default for p in all_tools()[tool].parameters if isinstance(p.default, list | dict)}


def documented_choices(description: str) -> tuple[JsonValue, ...]:
    """Return the values that a parameter's description enumerates, () when it enumerates none.

    The forms are ``[Enum]: ["a", "b"]``, ``[Enum]: A, B``, ``Options are: a, b`` and ``'l' for lines, 'w' for words``.
    """
    match = _ENUM.search(description) or _OPTIONS.search(description)
    if match is None:
        return tuple(_QUOTED_MODES.findall(description))
    listed = match.group(1)
    if listed.startswith("[") and match.re is _ENUM:
        return tuple(json.loads(listed))
    return tuple(value.strip() for value in listed.strip().rstrip(".").split(","))


def _tool(document: dict[str, Any], class_name: str) -> ToolSpec:
    required, properties = document["parameters"]["required"], document["parameters"]["properties"]
    return ToolSpec(
        name=document["name"],
        group=class_name,
        description=document["description"],
        parameters=tuple(_parameter(name, one, name in required) for name, one in properties.items()),
    )


def _parameter(name: str, document: dict[str, Any], required: bool) -> Parameter:
    default = document.get("default")
    return Parameter(
        name=name,
        type=document["type"],
        description=document["description"],
        required=required,
        choices=documented_choices(document["description"]),
        default=None if default == "None" else default,
        items=document["items"]["type"] if "items" in document else None,
    )


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

    SEAL (arXiv 2605.24426) trains on 400 tasks and tests on 400, 100 indices of each category. This test has the same
    size; training has the 45 indices of the split train, 180 tasks. The two lists in its repository contradict each
    other, and neither is offered. One draws ids freely: 344 of its 400 test tasks have the index of a training task, so
    it leaks. The other is by index, but its training has 75 of our held-out indices, and 20 of ours for training are in
    its test: a policy trained on it could be scored on none of our evaluation sets. Raises InputError outside of 0 to
    199.
    """
    return split_of(index) == "test" and index % 50 <= _SEAL_LAST


UNPRODUCIBLE = {
    4: "its last turn posts the lines of a report in an order that no text and no tool gives (sort answers another one)"
}
"""Training indices whose reference no agent can find, by the reason, in all four categories.

They stay among the official training tasks, so that recorded figures can be made again. Every other value that
``verification.replay.ungrounded`` names in the 180 tasks can be found: codes, symbols, ids and names of files by a tool
that the reference leaves out, dates and amounts by rewriting what the user says, and the check does not compare the
message of index 156 or the kind of insurance of 159.
"""


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
    entries = category_entries(category)
    return tuple(_task(category, index) for index in range(len(entries)) if split_of(index) in splits)


@cache  # a set is rebuilt from them at each load, and their calls are Python to parse
def _task(category: str, index: int) -> CategoryTask:
    entry, answers = category_entries(category)[index]
    classes = tuple(entry["involved_classes"])
    withheld = {int(turn): tuple(names) for turn, names in entry.get("missed_function", {}).items()}
    texts = ["\n".join(message["content"] for message in messages) for messages in entry["question"]]
    spec = TaskSpec(
        environment="bfcl",
        split=split_of(index),
        classes=classes,
        turns=tuple(added_functions_message() if turn in withheld else text for turn, text in enumerate(texts)),
        initial_state=entry["initial_config"],
        tools=tool_names(classes),
        reference=tuple(tuple(_call(entry["id"], text) for text in turn) for turn in answers),
        withheld=withheld,
        long_context="long_context" in entry["id"],
    )
    return CategoryTask(id=f"{category}-{index}", index=index, category=category, spec=spec)


def _call(task: str, text: str) -> ToolCall:
    try:
        return read_call(text)
    except ValueError as error:
        problem = f"the reference of {task} holds {text!r}, which is not a call ({error}): reinstall bfcl-eval"
        raise InputError(problem) from error


def read_call(text: str) -> ToolCall:
    """Read one call of an official reference, ``f(a=1, b='x')``; it is not evaluated.

    Positional arguments are named in the order of the function's signature. Raises ValueError for anything else.
    """
    name, arguments = call_of(expression(text), positional_names)
    return ToolCall(name=name, arguments=arguments)
