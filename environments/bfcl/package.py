"""Access the installed ``bfcl_eval`` package: only this module imports it, and only on use.

``constants.eval_config`` is never imported, because it makes folders in site-packages. The simulators and checkers
need the standard library and mpmath alone, which is why the package is installed without its dependencies.

``tool_specs`` reads the tool documentation of the official classes as ``ToolSpec`` records.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import JsonValue

from environments.base import InputError, Parameter, ToolSpec

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


@cache
def simulator_class(name: str) -> type[Any]:
    """Return the official simulator class called ``name``.

    The travel module reads today's date; the name ``datetime`` is replaced in that module alone, because a clock
    frozen for the whole process would break deadlines.
    """
    if name not in CLASSES:
        raise InputError(f"{name!r} is not a class of BFCL multi-turn: use some of {', '.join(CLASSES)}")
    path = _load("constants.executable_backend_config").CLASS_FILE_PATH_MAPPING[name]
    module = _load(path.removeprefix("bfcl_eval."))
    if name == "TravelAPI":
        vars(module)["datetime"] = _FrozenDatetime
    found: type[Any] = getattr(module, name)
    return found


@cache
def stateless_classes() -> frozenset[str]:
    """Return the classes that do not load an initial state."""
    return frozenset(_load("constants.executable_backend_config").STATELESS_CLASSES)


@cache
def state_checker() -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """Return the official comparison of instances by class name: ``(model's, reference's) -> {"valid": bool, ...}``."""
    checker: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
    checker = _load("eval_checker.multi_turn_eval.multi_turn_checker").state_checker
    return checker


@cache
def response_checker() -> Callable[[list[str], list[str], int], dict[str, Any]]:
    """Return the official comparison of results: ``(all so far, turn's reference, turn) -> {"valid": bool, ...}``."""
    checker: Callable[[list[str], list[str], int], dict[str, Any]]
    checker = _load("eval_checker.multi_turn_eval.multi_turn_checker").response_checker
    return checker


@cache
def added_functions_message() -> str:
    """Return the official handler's user message when withheld functions are revealed."""
    message: str = _load("constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
    return message


def _data_folder() -> Path:
    file = _load("constants.executable_backend_config").__file__
    assert file is not None
    return Path(file).parent.parent / "data"


def _read_lines(path: Path) -> tuple[dict[str, Any], ...]:
    with path.open(encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines if line.strip())


def function_documents(class_name: str) -> tuple[dict[str, Any], ...]:
    """Return the official documentation of every function of ``class_name``, as shipped."""
    files = _load("constants.executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    if class_name not in CLASSES:
        raise InputError(f"{class_name!r} is not a class of BFCL multi-turn: use some of {', '.join(CLASSES)}")
    return _read_lines(_data_folder() / "multi_turn_func_doc" / files[class_name])


def category_entries(category: str) -> tuple[tuple[dict[str, Any], list[list[str]]], ...]:
    """Return the official tasks of ``category`` with their references (call texts by turn), as shipped, in order."""
    if category not in CATEGORIES:
        raise InputError(f"{category!r} is not a BFCL multi-turn category: use one of {', '.join(CATEGORIES)}")
    name = f"BFCL_v4_multi_turn_{category}.json"
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
    return tuple(_tool(document, class_name) for document in function_documents(class_name))


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
    if match := _ENUM.search(description):
        listed = match.group(1)
        return tuple(json.loads(listed)) if listed.startswith("[") else _separated(listed)
    if match := _OPTIONS.search(description):
        return _separated(match.group(1))
    return tuple(_QUOTED_MODES.findall(description))


def _separated(listed: str) -> tuple[JsonValue, ...]:
    return tuple(value.strip() for value in listed.strip().rstrip(".").split(","))


def _tool(document: dict[str, Any], class_name: str) -> ToolSpec:
    required = document["parameters"]["required"]
    return ToolSpec(
        name=document["name"],
        group=class_name,
        description=document["description"],
        parameters=tuple(
            _parameter(name, description, name in required)
            for name, description in document["parameters"]["properties"].items()
        ),
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
