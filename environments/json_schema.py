"""Read the JSON Schema of a tool's arguments, which a stranger wrote: limits, parameters, and the check of a call.

A schema is closed: a reference points into the schema itself. Nothing is fetched, and no regular expression of a schema
is matched (``pattern`` and ``patternProperties`` are left to the tool), because one can take longer than any call may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic import JsonValue

from environments.base import Parameter, ToolSpec
from environments.python_class.time_limit import OutOfTime, time_limit
from environments.task_text import written

MAX_CHARACTERS = 50_000
"""Characters of one schema as JSON, at most (our choice)."""

MAX_DEPTH = 40
"""Levels of lists and objects in a schema, at most (our choice)."""

CHECK_SECONDS = 2.0
"""CPU seconds of the check of one call (our choice): subschemas that combine others can multiply without end."""

_Schema = dict[str, Any]
_TYPES = {"integer": "integer", "number": "float", "boolean": "boolean", "array": "array", "object": "dict"}
_OF_VALUES: dict[type, str] = {bool: "boolean", int: "integer", float: "float", list: "array", dict: "dict"}
_NAMED = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})  # of names to schemas
_DATA = frozenset({"enum", "const", "default", "examples", "required", "dependentRequired"})
_REGULAR = ("pattern", "patternProperties")
_BESIDE_REGULAR = ("additionalProperties", "unevaluatedProperties")  # of names that no pattern matches
_OUTSIDE = frozenset({"$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$vocabulary"})
_DEEPEST_FIELD = 4
_MOST_FIELDS = 300  # of one tool, those within objects included: a schema that refers to itself multiplies
_MOST_REFERENCES = 16
_MOST_OF_A_DESCRIPTION = 600


def documented_tool(name: str, group: str, description: str | None, schema: JsonValue, longest: int) -> ToolSpec:
    """Return the documentation that a stranger gives of a tool, its description cut to ``longest`` characters.

    Raises ValueError with the reason where its schema cannot be used.
    """
    closed = closed_schema(schema)
    return ToolSpec(
        name=name,
        group=group,
        description=plain_line(description or "", longest) or name.replace("_", " "),
        parameters=parameters_of(closed),
        json_schema=closed,
    )


def closed_schema(given: JsonValue) -> dict[str, JsonValue]:
    """Return the schema of a tool's arguments in its normal form: an object with ``properties`` and ``required``.

    Raises ValueError for one that is not the schema of an object, is larger or deeper than the limits, refers outside
    itself, or requires what it does not document.
    """
    if not isinstance(given, dict):
        raise ValueError("its schema is no object")
    try:
        written(given, MAX_DEPTH, MAX_CHARACTERS)
    except ValueError as error:
        raise ValueError(f"its schema is {error}") from error
    for schema in _schemas(given):
        if outside := _OUTSIDE & schema.keys():
            raise ValueError(f"its schema has {min(outside)}, which is not read")
        _resolved(schema, given)
    root: _Schema = {key: value for key, value in given.items() if key != "$ref"} | _resolved(given, given)
    if root.get("type", "object") != "object":
        raise ValueError("its arguments are no object")
    properties, required = root.get("properties", {}), root.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise ValueError("its schema has properties or required of another type than JSON Schema")
    if undocumented := [name for name in required if name not in properties]:
        raise ValueError(f"it requires {undocumented[0]!r:.80}, which it does not document")
    properties = {name: {} if schema is True else schema for name, schema in properties.items()}
    normal: _Schema = {**root, "type": "object", "properties": properties, "required": required}
    try:
        _validator(json.dumps(normal)).check_schema(_checked_part(normal))
    except Exception as error:  # its own errors, of the library for references and of recursion: all are the schema's
        said = plain_line(str(getattr(error, "message", error)), 120) or type(error).__name__
        raise ValueError(f"its schema is not JSON Schema ({said})") from error
    return normal


def parameters_of(schema: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters that a ``closed_schema`` documents, with what objects and arrays hold to four levels.

    Fields are left out from the deepest level up where there would be more than 300.
    """
    for levels in range(_DEEPEST_FIELD, -1, -1):
        found = tuple(islice(_fields(dict(schema), dict(schema), levels, [_MOST_FIELDS]), _MOST_FIELDS + 1))
        if sum(1 for one in found for _ in one.nested()) <= _MOST_FIELDS:
            return found
    raise ValueError(f"it documents more than {_MOST_FIELDS} parameters")


def schema_problem(tool: str, arguments: Mapping[str, JsonValue], schema: Mapping[str, Any]) -> str | None:
    """Return a phrase for the first error in the arguments of ``tool`` by a ``closed_schema``, else None."""
    try:
        with time_limit(f"the check of {tool}", CHECK_SECONDS, of_cpu=True):
            found = min(
                _validator(json.dumps(schema)).iter_errors(dict(arguments)),
                key=lambda error: [str(part) for part in error.absolute_path],
                default=None,
            )
            if found is None:
                return None
            place = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in found.absolute_path)
            return f"{place[1:] or 'the arguments'} of {tool}: {found.message:.200}"
    except OutOfTime:
        return f"the arguments of {tool} could not be checked against its schema within {CHECK_SECONDS:g} s of CPU"
    except Exception as error:  # noqa: BLE001 - a schema of a stranger may fail in any way on some arguments
        return f"the arguments of {tool} cannot be checked against its schema ({type(error).__name__})"


@lru_cache(maxsize=512)
def _validator(schema: str) -> Any:  # noqa: ANN401 - a class that the library makes
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry

    part = _checked_part(json.loads(schema))
    made = validators.validator_for(part, default=Draft202012Validator)
    return made(part, registry=Registry())  # without a retriever: nothing is fetched


def _checked_part(schema: _Schema) -> _Schema:
    """Return a copy of the schema without regular expressions, and without what depends on them."""
    part: _Schema = json.loads(json.dumps(schema))
    for one in [*_schemas(part)]:
        for key in (*_REGULAR, *(_BESIDE_REGULAR if "patternProperties" in one else ())):
            one.pop(key, None)
    return part


def _schemas(schema: Any) -> Iterator[_Schema]:  # noqa: ANN401 - any JSON value
    """Yield the schema and every schema in it; names of properties are not read as keywords."""
    if isinstance(schema, list):
        for one in schema:
            yield from _schemas(one)
    elif isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            inner = value.values() if key in _NAMED and isinstance(value, dict) else [value]
            for one in () if key in _DATA else inner:
                yield from _schemas(one)


def _resolved(schema: _Schema, root: _Schema) -> _Schema:
    """Follow ``$ref``; keywords beside one count before those that it refers to. Raises ValueError."""
    for _ in range(_MOST_REFERENCES):
        if "$ref" not in schema:
            return schema
        reference = schema["$ref"]
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ValueError(f"its schema refers outside itself, to {reference!r:.80}")
        target: Any = root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise ValueError(f"its schema refers to {reference!r:.80}, which it does not have")
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    raise ValueError("references of its schema go round in a circle")


def _fields(schema: _Schema, root: _Schema, levels: int, left: list[int]) -> Iterator[Parameter]:
    properties, required = schema.get("properties"), schema.get("required")
    for name, one in properties.items() if isinstance(properties, dict) else ():
        left[0] -= 1
        if left[0] < -1:
            return
        yield _parameter(name, one, root, isinstance(required, list) and name in required, levels, left)


def _parameter(name: str, given: Any, root: _Schema, required: bool, levels: int, left: list[int]) -> Parameter:  # noqa: ANN401
    schema = _alternative(given, root)
    choices = [schema["const"]] if "const" in schema else schema.get("enum", [])
    kind = _type(schema, choices)
    item, items = None, None
    if kind == "array":
        inner = _parameter(name, schema.get("items", {}), root, True, levels - 1, left) if levels else None
        items = inner.type if inner else None
        choices = list(inner.choices) if inner and not inner.fields else []
        item = inner if inner and (inner.fields or inner.type in ("array", "boolean")) else None
        choices = [] if item else choices
    fields = _fields(schema, root, levels - 1, left) if kind == "dict" and levels else ()
    return Parameter(
        name=name,
        type=kind,
        description=_description(name, schema),
        required=required,
        choices=tuple(choices) if isinstance(choices, list) else (),
        default=schema.get("default"),
        items=items,
        fields=tuple(fields),
        item=item,
    )


def _alternative(given: Any, root: _Schema) -> _Schema:  # noqa: ANN401 - a schema of a stranger
    """Return the schema with its references followed, and the first of its alternatives that is not null."""
    schema = _resolved(given, root) if isinstance(given, dict) else {}
    for _ in range(_MOST_REFERENCES):
        lists = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
        options = (one for several in lists for one in several if isinstance(one, dict))
        chosen = next((one for one in options if one.get("type") != "null"), None)
        if chosen is None:
            return schema
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
        schema = {**_resolved(chosen, root), **outer}
    return schema


def _type(schema: _Schema, choices: Any) -> str:  # noqa: ANN401 - any JSON value
    named = schema.get("type")
    named = next((one for one in named if one != "null"), None) if isinstance(named, list) else named
    if isinstance(named, str):
        return _TYPES.get(named, "string")
    if isinstance(choices, list) and choices:
        return _OF_VALUES.get(type(choices[0]), "string")
    return "dict" if "properties" in schema else "array" if "items" in schema else "string"


def _description(name: str, schema: _Schema) -> str:
    said = next((one for one in (schema.get("description"), schema.get("title")) if isinstance(one, str)), "")
    text = plain_line(said, _MOST_OF_A_DESCRIPTION) or name.replace("_", " ")
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{text} (between {low} and {high})" if low is not None and high is not None else text


def argument_types(schema: Mapping[str, Any]) -> Callable[[str], frozenset[str]]:
    """Return a function from an argument's name to the JSON types that the schema allows for it; none for any."""
    root = dict(schema)
    properties = root.get("properties")
    named: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    return lambda name: _json_types(named.get(name, root.get("additionalProperties")), root, _MOST_REFERENCES)


def _json_types(given: Any, root: _Schema, levels: int) -> frozenset[str]:  # noqa: ANN401 - a schema of a stranger
    try:
        schema = _resolved(given, root) if isinstance(given, dict) and levels else {}
    except ValueError:
        return frozenset()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else {one for one in named or () if isinstance(one, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not found and isinstance(values, list):
        found = {json_type(value) for value in values}
    for key in ("anyOf", "oneOf", "allOf"):
        for one in schema[key] if not found and isinstance(schema.get(key), list) else ():
            found |= _json_types(one, root, levels - 1)
    if not found:
        found = {kind for kind, key in (("object", "properties"), ("array", "items")) if key in schema}
    return frozenset(found | {"null"} if found and schema.get("nullable") else found)


def json_type(value: JsonValue) -> str:
    """Return the name that JSON Schema has for the type of a value."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def plain_line(text: str, most: int) -> str:
    """Return a stranger's text as one line of printable characters, ``most`` at most."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:most].strip()
