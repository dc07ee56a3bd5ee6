"""Read the JSON Schema of a tool's arguments, which a stranger wrote: limits, parameters, and which calls it takes.

A schema is closed: a reference points into the schema itself, and nothing is fetched. A call is checked by the whole
schema (``environments.schema_check``). ``resolved`` shows what it documents, without references and combinations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Any

from pydantic import JsonValue

from environments.base import Parameter, ToolSpec
from environments.schema_check import (
    MOST_COMBINED,
    Schema,
    Unchecked,
    in_one_dialect,
    in_place,
    pointed,
    schema_errors,
    with_plain_references,
)
from environments.task_text import written

MAX_CHARACTERS = 50_000
"""Characters of one schema as JSON, at most (our choice)."""

MAX_DEPTH = 40
"""Levels of lists and objects in a schema, at most (our choice)."""

_TYPES = {"integer": "integer", "number": "float", "boolean": "boolean", "array": "array", "object": "dict"}
_OF_VALUES: dict[type, str] = {bool: "boolean", int: "integer", float: "float", list: "array", dict: "dict"}
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_DEEPEST_FIELD = 4
_MOST_FIELDS = 300  # of one tool, those within objects included: a schema that refers to itself multiplies
_MOST_OF_A_DESCRIPTION = 600
_SHOWN = 5  # names or reasons in one line, at most

COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies"})
_OF_OTHERS = frozenset({"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"})
_LOWEST = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_HIGHEST = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_NUMBERS = {"integer": ("number",), "number": ("integer",)}
_OF_OTHER_TYPES = frozenset({"enum", "const", "items", "prefixItems", "minimum", "maximum", "minLength", "maxLength"})


def documented_tool(name: str, group: str, description: JsonValue, schema: JsonValue, longest: int) -> ToolSpec:
    """Return the documentation that a stranger gives of a tool, its description cut to ``longest`` characters.

    An optional parameter is left out of ``parameters`` where its name is not of letters, digits and _:
    some formats of calls cannot write it. Raises ValueError with the reason where the schema cannot be used.
    """
    closed = closed_schema(schema)
    parameters = parameters_of(closed)
    for one in parameters:
        if one.required and not _NAME.fullmatch(one.name):
            raise ValueError(f"it requires {one.name!r:.80}, whose name is not of 1 to 64 letters, digits and _")
    return ToolSpec(
        name=name,
        group=group,
        description=plain_line(description if isinstance(description, str) else "", longest) or name.replace("_", " "),
        parameters=tuple(one for one in parameters if _NAME.fullmatch(one.name)),
        json_schema=closed,
    )


def notes_of_left_out(tools: Iterable[ToolSpec], reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Return a line for each tool that was left out, with the reason, and for each without some of its parameters."""
    lines = [f"left out   {name}: {reason}" for name, reason in reasons.items()]
    for tool in tools:
        documented = resolved_root(tool.json_schema)["properties"] if tool.json_schema else {}
        odd = [f"{name!r:.60}" for name in documented if tool.parameter(name) is None]
        if odd:
            names = ", ".join(odd[:_SHOWN])
            lines.append(f"left out   of {tool.name} {names}: a name not of 1 to 64 letters, digits and _")
    return tuple(lines)


def why_none(reasons: Mapping[str, str]) -> str:
    """Return why a server has no tool that can be used: the first reasons, behind a colon; empty without any."""
    said = "; ".join(f"{name} is left out, {reason}" for name, reason in [*reasons.items()][:_SHOWN])
    return said and f": {said}"


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
    root = with_plain_references(in_one_dialect(given))
    silent = not any(one.keys() & {"properties", *_OF_OTHERS} for one in in_place(root))
    own = {name: {} if schema is True else schema for name, schema in root.get("properties", {}).items()}
    normal: Schema = {**root, "type": "object", "properties": own, "required": root.get("required", [])}
    if silent:  # about the names of arguments: it takes any
        normal["additionalProperties"] = True
    if "object" not in _types(resolved_root(root)):
        raise ValueError("its arguments are no object")
    view = resolved_root(normal)
    if undocumented := [name for name in view["required"] if name not in view["properties"]]:
        raise ValueError(f"it requires {undocumented[0]!r:.80}, which it does not document")
    return normal


def parameters_of(schema: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Return the parameters that a ``closed_schema`` documents, with what objects and arrays hold to four levels.

    Fields are left out from the deepest level up where there would be more than 300.
    """
    root = resolved_root(schema)
    for levels in range(_DEEPEST_FIELD, -1, -1):
        found = tuple(islice(_fields(root, dict(schema), levels, [_MOST_FIELDS]), _MOST_FIELDS + 1))
        if sum(1 for one in found for _ in one.nested()) <= _MOST_FIELDS:
            return found
    raise ValueError(f"it documents more than {_MOST_FIELDS} parameters")


def takes(schema: Mapping[str, Any], name: str) -> bool:
    """Return whether a ``closed_schema`` names an argument, or says of others than those it names that it takes them.

    Of others it speaks by ``additionalProperties``, ``patternProperties``, ``propertyNames`` or
    ``unevaluatedProperties``. One that names arguments and is silent about others is read as taking none.
    """
    others = (one.get(key, False) is not False for one in in_place(dict(schema)) for key in _OF_OTHERS)
    return name in resolved_root(schema)["properties"] or any(others)


def schema_problem(tool: str, arguments: Mapping[str, JsonValue], schema: Mapping[str, Any]) -> str | None:
    """Return a phrase for the first error in the arguments of ``tool`` by a ``closed_schema``, else None."""
    try:
        errors = schema_errors(tool, arguments, schema)
    except Unchecked as unchecked:
        return str(unchecked)
    if not errors:
        return None
    path, message = min(errors, key=lambda error: [str(part) for part in error[0]])
    place = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{place[1:] or 'the arguments'} of {tool}: {message:.200}"


def shown_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``closed_schema`` with the parameters that its combinations document among its ``properties``."""
    root = resolved_root(schema) if schema else {}
    merged = {key: root[key] for key in ("properties", "required") if root and [*root[key]] != [*schema.get(key, ())]}
    return {**schema, **merged}


def resolved_root(schema: Mapping[str, Any]) -> Schema:
    """Return ``resolved`` of a whole schema of arguments: an object with ``properties`` and ``required``.

    A parameter is documented that any alternative has, and required where every alternative requires it.
    """
    root = _merged(dict(schema), dict(schema), {}, 0, arguments=True)
    properties = {name: one for name, one in root.get("properties", {}).items() if one is not False}
    required = root.get("required", [])
    others = root.get("additionalProperties")
    wanted = [name for one in in_place(dict(schema)) for name in one.get("required", ())]
    for name in wanted if others is not False else ():
        if isinstance(others, dict | bool) or name not in required:  # an alternative may require what it only names
            properties.setdefault(name, others if isinstance(others, dict) else {})
    return {**root, "properties": properties, "required": [*dict.fromkeys(required)]}


def resolved(schema: Any, root: Mapping[str, Any]) -> Schema:  # noqa: ANN401 - a schema of a stranger
    """Return what a schema within the ``closed_schema`` ``root`` documents, without references and combinations.

    Keywords beside a reference or a combination count before those in it. All of ``allOf`` is merged. Of alternatives
    (``anyOf``, ``oneOf``, ``if``) values are listed together, as are the properties of objects; of others the first one
    counts that is not null. What properties and items hold is not resolved: ask again for each.
    """
    return _merged(schema, dict(root), {}, 0)


def _merged(
    given: Any,  # noqa: ANN401 - a schema of a stranger
    root: Schema,
    known: dict[int, tuple[Any, Schema]],
    depth: int,
    *,
    arguments: bool = False,
) -> Schema:
    """Return ``resolved``. ``known`` holds each schema with what was made of it; ``arguments``: they are an object."""
    if not isinstance(given, dict) or depth > MOST_COMBINED:
        return {}
    if not COMBINING & given.keys():
        return given
    if id(given) not in known:

        def merged(one: Any) -> Schema:  # noqa: ANN401
            return _merged(one, root, known, depth + 1, arguments=arguments)

        whole = [merged(pointed(given["$ref"], root))] if "$ref" in given else []
        whole += [merged(one) for one in given.get("allOf", [])]
        outer = reduce(both, [*whole, {key: value for key, value in given.items() if key not in COMBINING}])
        several = [[merged(one) for one in given.get(key, []) if one is not False] for key in ("anyOf", "oneOf")]
        if "if" in given:
            several.append([both(merged(given["if"]), merged(given.get("then", {}))), merged(given.get("else", {}))])
        dependent = {**given.get("dependencies", {}), **given.get("dependentSchemas", {})}
        several += [[{}, merged(one)] for one in dependent.values() if isinstance(one, dict)]
        for options in several:
            usable = [one for one in options if one.get("type") != "null" and not (arguments and _no_object(one))]
            if arguments and options and not usable:
                outer = {**outer, "type": []}
            outer = _beside(_either(usable), outer)
        known[id(given)] = (given, outer)
    return known[id(given)][1]


def both(one: Schema, other: Schema) -> Schema:
    """Return a schema for what both take; where only one keyword may stand, that of ``other``."""
    merged = {**one, **other}
    for key in [key for key in one if key in other and one[key] != other[key]]:
        first, second = one[key], other[key]
        if key == "properties":
            merged[key] = first | {
                name: {"allOf": [first[name], given]} if name in first and first[name] != given else given
                for name, given in second.items()
            }
        elif key == "required":
            merged[key] = [*first, *(name for name in second if name not in first)]
        elif key == "enum":
            taken = {json.dumps(value, sort_keys=True) for value in first}
            merged[key] = [value for value in second if json.dumps(value, sort_keys=True) in taken]
        elif key == "type":
            types = [name for name in _types(other) if {name, *_NUMBERS.get(name, ())} & {*_types(one)}]
            merged[key] = types[0] if len(types) == 1 else types or second
        elif key in _LOWEST or key in _HIGHEST:
            merged[key] = max(first, second) if key in _LOWEST else min(first, second)
        elif key in ("items", "additionalProperties", "propertyNames", "contains"):
            merged[key] = {"allOf": [first, second]} if not isinstance(first, list) else second
    return merged


def _beside(alternatives: Schema, outer: Schema) -> Schema:
    """Return ``outer`` with what ``alternatives`` add to it; a property of both is documented by ``outer``."""
    merged = {**alternatives, **outer}
    for key in ("properties", "required"):
        if key in alternatives and key in outer:
            added = [name for name in alternatives[key] if name not in outer[key]]
            more = {name: alternatives[key][name] for name in added} if key == "properties" else added
            merged[key] = outer[key] | more if isinstance(more, dict) else outer[key] + more
    return merged


def _either(options: Sequence[Schema]) -> Schema:
    """Return what the alternatives document together, else the first of them."""
    if len(options) < 2:
        return options[0] if options else {}
    values = [_values(one) for one in options]
    if all(one is not None for one in values):
        listed = [value for one in values if one is not None for value in one]
        first = {key: value for key, value in options[0].items() if key not in ("const", "enum", "type", "default")}
        kind = options[0].get("type")
        alike = {"type": kind} if kind and all(one.get("type") == kind for one in options) else {}
        return {**first, **alike, "enum": _unique(listed)}
    objects = [one for one in options if not _no_object(one)]
    if objects[:1] != list(options[:1]) or len(objects) < 2:
        return options[0]
    given: dict[str, list[Any]] = {}
    for one in objects:
        for name, schema in one.get("properties", {}).items():
            given.setdefault(name, []).append(schema)
    unique = {name: _unique(several) for name, several in given.items()}
    properties = {name: several[0] if len(several) == 1 else {"anyOf": several} for name, several in unique.items()}
    required = [
        name for name in objects[0].get("required", []) if all(name in one.get("required", ()) for one in objects)
    ]
    return {**objects[0], "properties": properties, "required": required}


def _values(schema: Schema) -> list[Any] | None:
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    return found if isinstance(found, list) else None


def _unique(values: Sequence[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True): value for value in reversed(values)}.values())[::-1]


def _types(schema: Schema) -> list[str]:
    """Return the types of JSON Schema that the schema names; object where it names none."""
    named = schema.get("type", "object")
    return named if isinstance(named, list) else [named]


def _no_object(schema: Schema) -> bool:
    return "object" not in _types(schema) or ("type" not in schema and bool(_OF_OTHER_TYPES & schema.keys()))


def _fields(schema: Schema, root: Schema, levels: int, left: list[int]) -> Iterator[Parameter]:
    properties, required = schema.get("properties"), schema.get("required")
    for name, one in properties.items() if isinstance(properties, dict) else ():
        left[0] -= 1
        if left[0] < -1:
            return
        if one is not False:
            yield _parameter(name, one, root, isinstance(required, list) and name in required, levels, left)


def _parameter(name: str, given: Any, root: Schema, required: bool, levels: int, left: list[int]) -> Parameter:  # noqa: ANN401
    schema = resolved(given, root)
    choices = _values(schema) or []
    kind = _type(schema, choices)
    item, items = None, None
    if kind == "array":
        inner = _parameter(name, _item(schema, root), root, True, levels - 1, left) if levels else None
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
        choices=tuple(choices),
        default=schema.get("default"),
        items=items,
        fields=tuple(fields),
        item=item,
    )


def _item(schema: Schema, root: Schema) -> Any:  # noqa: ANN401 - a schema of a stranger
    """Return the schema of an array's items: of those that differ by place the first one, if all are of one type."""
    items = schema.get("items", {})
    placed = schema.get("prefixItems", items)
    if not isinstance(placed, list) or not placed:
        return items if isinstance(items, dict) else {}
    kinds = {_type(one, _values(one)) for one in (resolved(one, root) for one in placed)}
    return placed[0] if len(kinds) == 1 else {}


def _type(schema: Schema, choices: Any) -> str:  # noqa: ANN401 - any JSON value
    named = schema.get("type")
    named = next((one for one in named if one != "null"), None) if isinstance(named, list) else named
    if isinstance(named, str):
        return _TYPES.get(named, "string")
    if isinstance(choices, list) and choices:
        return _OF_VALUES.get(type(choices[0]), "string")
    return "dict" if "properties" in schema else "array" if {"items", "prefixItems"} & schema.keys() else "string"


def _description(name: str, schema: Schema) -> str:
    said = next((one for one in (schema.get("description"), schema.get("title")) if isinstance(one, str)), "")
    text = plain_line(said, _MOST_OF_A_DESCRIPTION) or name.replace("_", " ")
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{text} (between {low} and {high})" if low is not None and high is not None else text


def argument_types(schema: Mapping[str, Any]) -> Callable[[str], frozenset[str]]:
    """Return a function from an argument's name to the JSON types that the schema allows for it; none for any."""
    root = dict(schema)
    properties = root.get("properties", {})
    return lambda name: _json_types(properties.get(name, root.get("additionalProperties")), root, MOST_COMBINED)


def _json_types(given: Any, root: Schema, levels: int) -> frozenset[str]:  # noqa: ANN401 - a schema of a stranger
    schema = given if isinstance(given, dict) and levels else {}
    if "$ref" in schema:  # keywords beside a reference count first
        target = pointed(schema["$ref"], root)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _json_types({**(target if isinstance(target, dict) else {}), **beside}, root, levels - 1)
    named = schema.get("type")
    found = {named} if isinstance(named, str) else {one for one in named or () if isinstance(one, str)}
    if not found and (values := _values(schema)) is not None:
        found = {json_type(value) for value in values}
    for key in ("anyOf", "oneOf", "allOf"):
        for one in schema[key] if not found and key in schema else ():
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
