"""Reads the world's own API documentation as tool specifications, at run time: none of it is part of the project."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from pydantic import JsonValue

from environments.appworld.installation import Installation
from environments.base import InputError, Parameter, ToolSpec

_CHOICES = re.compile(r"value in (\[.*\])")
_TYPES = {"string": "string", "integer": "integer", "number": "float", "boolean": "boolean", "dict": "dict"}


def read_api_documentation(installation: Installation) -> dict[str, ToolSpec]:
    """Every API by ``app.api``, apps and APIs in the order of the world's files.

    Raises InputError naming a file that is not as the package writes it.
    """
    folder = installation.blind / "data" / "api_docs" / "standard"
    tools = {}
    for path in sorted(folder.glob("*.json")):
        try:
            for api, document in json.loads(path.read_text()).items():
                tools[f"{path.stem}.{api}"] = _tool(path.stem, api, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is no API documentation ({error!r}): build the world anew") from error
    if not tools:
        raise InputError(f"{folder} has no API documentation: build the world anew with `make appworld`")
    return tools


def _tool(app: str, api: str, document: dict[str, Any]) -> ToolSpec:
    parameters = tuple(_parameter(parameter) for parameter in document["parameters"])
    return ToolSpec(name=f"{app}.{api}", group=app, description=document["description"], parameters=parameters)


def _parameter(document: dict[str, Any]) -> Parameter:
    written = document["type"]
    constraints = "; ".join(document["constraints"])
    description = document["description"] + (f" ({constraints})" if constraints else "")
    # Of several types the last, a text, holds a value of any of them: "number | integer | string".
    first = written.split("|")[-1].strip()
    is_list = first.startswith("list")
    default: JsonValue = document["default"]
    return Parameter(
        name=document["name"],
        type="array" if is_list else _TYPES[first],
        description=description,
        required=document["required"],
        default=default,
        choices=_choices(document["constraints"]),
        items=_TYPES[first.removeprefix("list[").removesuffix("]")] if is_list else None,
    )


def _choices(constraints: list[str]) -> tuple[JsonValue, ...]:
    """The values that a constraint lists ("value in ['append', 'prepend']"), none where none does."""
    listed = next((found for constraint in constraints if (found := _CHOICES.fullmatch(constraint.strip()))), None)
    return tuple(ast.literal_eval(listed.group(1))) if listed else ()
