"""Read the tool documentation of the official classes as ``ToolSpec`` records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import JsonValue

from environments.base import Parameter, ToolSpec
from environments.bfcl.package import CLASSES, function_documents

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


@cache
def positional_names(tool: str) -> tuple[str, ...]:
    """Return the parameters of ``tool`` for positional arguments, in the order of the function's Python signature."""
    return _SIGNATURE_ORDER.get(tool) or tuple(parameter.name for parameter in all_tools()[tool].parameters)


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
