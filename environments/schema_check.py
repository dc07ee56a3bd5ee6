"""Check values by a stranger's JSON Schema, in the dialect in which it is one, without its regular expressions.

No regular expression of a schema is matched, because one can take longer than any call may. What depends on one is left
to the tool: the check accepts more than the schema does, never less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any
from urllib.parse import quote, unquote

from pydantic import JsonValue

from environments.python_class.time_limit import OutOfTime, time_limit

CHECK_SECONDS = 2.0
"""CPU seconds of the check of one call (our choice): subschemas that combine others can multiply without end."""

MOST_COMBINED = 100
"""Schemas that apply to one value because each combines or refers to the next one, at most (our choice)."""

MOST_CHECKS = 10_000
"""Checks of one value by schemas that combine others, each counted as often as it is combined, at most (our choice)."""

Schema = dict[str, Any]

# The keywords that hold schemas, of all dialects. The values of any other keyword are data.
_OF_ITEMS = {"additionalItems", "contains", "items", "unevaluatedItems"}
_OF_PROPERTIES = {"additionalProperties", "propertyNames", "unevaluatedProperties"}
_ONE = frozenset({"contentSchema", "else", "if", "not", "then", *_OF_ITEMS, *_OF_PROPERTIES})
_SEVERAL = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_NAMED = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)  # of names to schemas
_ALL = _ONE | _SEVERAL | _NAMED
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependencies", "dependentSchemas"})
_NAMES = frozenset({"$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})  # of schemas
_DYNAMIC = frozenset({"$dynamicRef", "$recursiveRef"})
_ANNOTATIONS: dict[str, type] = {
    "title": str,
    "description": str,
    "format": str,
    "examples": list,
    "deprecated": bool,
    "readOnly": bool,
    "writeOnly": bool,
    "$comment": str,
}
_DRAFT_4 = "http://json-schema.org/draft-04/schema"
_DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema",
    _DRAFT_4,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-06/schema",
)
_UNNAMED = 3  # the first ones are tried where a schema names none, or is none by the one that it names


class Unchecked(ValueError):
    """A check came to no result."""


def _inner(schema: Schema, keywords: frozenset[str]) -> list[Schema]:
    """Return the objects that are schemas directly in a schema, by those of the keywords that hold schemas."""
    found: list[Any] = []
    for key, value in schema.items():
        if key not in keywords:
            continue
        if key in _NAMED and isinstance(value, dict):
            found += value.values()
        elif key in _SEVERAL and isinstance(value, list):
            found += value
        elif key in _ONE:
            found.append(value)
    return [one for one in found if isinstance(one, dict)]


def pointed(reference: str, root: Schema) -> Any:  # noqa: ANN401 - any JSON value
    """Return what a reference of the form ``#/a/0/b`` points to. Raises LookupError where that is nothing."""
    target: Any = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal():
            target = target[int(name)]
        elif isinstance(target, dict):
            target = target[name]
        else:
            raise LookupError(reference)
    return target


def in_one_dialect(given: Schema) -> Schema:
    """Return the schema with ``$schema`` as the dialect by which it is checked; none stands for 2020-12.

    The dialect is the named one, else the first of 2020-12, draft 7 and draft 4 in which it is a schema. Where it is
    none, its slips without consequence are left out first: keywords that are null, descriptions and samples of another
    type, the type ``any``, ``required: true`` beside a type. Raises ValueError with the reason for what is no schema.
    """
    named = next((one for one in _DIALECTS if _name(one) in str(given.get("$schema"))), None)
    dialects = list(dict.fromkeys([*([named] if named else []), *_DIALECTS[:_UNNAMED]]))
    slips: list[str] = []
    cleaned = _without_slips(given)
    for schema in (given, cleaned) if cleaned != given else (given,):
        for dialect in dialects:
            if (slip := _slip(schema, dialect)) is not None:
                slips.append(slip)
            elif dialect == named:
                return schema
            else:
                rest = {key: value for key, value in schema.items() if key != "$schema"}
                return rest if dialect == _DIALECTS[0] else {**rest, "$schema": dialect}
    raise ValueError(f"its schema is not JSON Schema ({slips[0]})")


def with_plain_references(given: Schema) -> Schema:
    """Return a copy in which every reference is a JSON pointer from the root, without names of schemas.

    Raises ValueError where one leads outside the schema, to nothing or in a circle.
    """
    from referencing import Registry
    from referencing.jsonschema import specification_with

    root: Schema = json.loads(json.dumps(given))
    dialect = _dialect(root)
    specification = specification_with(dialect)
    resource = specification.create_resource(root)
    # Without a retriever nothing is fetched.
    registry: Registry[Any] = Registry().with_resource(resource.id() or "", resource).crawl()
    keywords, written = _keywords(dialect), schemas(root, dialect, references=False)
    for one in written[1:]:
        one.pop("$schema", None)  # a dialect within another one is not read
    checked, paths = {id(one) for one in written}, _paths(root)
    found: dict[int, Schema] = {}
    plain: list[tuple[Schema, str]] = []
    todo = [(root, registry.resolver(resource.id() or ""))]
    while todo:
        one, resolver = todo.pop()
        if id(one) in found:
            continue
        found[id(one)] = one
        if dynamic := _DYNAMIC & one.keys():
            raise ValueError(f"its schema has {min(dynamic)}, which is not read")
        todo += [(part, resolver.in_subresource(specification.create_resource(part))) for part in _inner(one, keywords)]
        if "$ref" in one:
            base, fragment, target = _followed(one["$ref"], resolver)
            plain.append((one, f"#{quote(paths[id(base)], safe='/~$')}{fragment}"))
            if isinstance(target.contents, bool):
                continue
            if id(target.contents) not in checked:  # it is in data, or in a keyword that the dialect does not have
                if (slip := _slip(target.contents, dialect)) is not None:
                    raise ValueError(f"its schema is not JSON Schema ({slip})")
                checked |= {id(part) for part in schemas(target.contents, dialect, references=False)}
            todo.append((target.contents, target.resolver))
    for one, reference in plain:
        one["$ref"] = reference
    for one in found.values():  # a name, or a keyword of other dialects, has no effect from here on
        for name in one.keys() & {*_NAMES, *(_IN_PLACE - keywords), *({"id"} if dialect == _DRAFT_4 else ())}:
            del one[name]
    _check_circles(root, dialect)
    return root


def _followed(reference: Any, resolver: Any) -> tuple[Any, str, Any]:  # noqa: ANN401 - the library's
    """Return the schema that a reference starts from, the JSON pointer from there, and where both lead to."""
    from referencing.exceptions import NoSuchAnchor, PointerToNowhere

    address, _, fragment = str(reference).partition("#")
    try:
        target, whole = resolver.lookup(reference), resolver.lookup(address or "#").contents
    except (NoSuchAnchor, PointerToNowhere):
        raise ValueError(f"its schema refers to {reference!r:.80}, which it does not have") from None
    except Exception:  # noqa: BLE001 - no text, no address, no number in a list: the library says each in its own way
        raise ValueError(f"its schema refers outside itself, to {reference!r:.80}") from None
    if not isinstance(target.contents, dict | bool) or "/patternProperties/" in unquote(fragment):
        raise ValueError(f"its schema refers to {reference!r:.80}, which is no schema that is read")
    return (whole, fragment, target) if fragment.startswith("/") else (target.contents, "", target)


def schemas(root: Schema, dialect: str, *, references: bool = True) -> list[Schema]:
    """Return the schema, those in it, and those that ``references`` lead to."""
    keywords = _keywords(dialect)
    return _reached(root, lambda one: [*_inner(one, keywords), *(_referred(one, root) if references else ())])


def in_place(root: Schema) -> list[Schema]:
    """Return the schema and those that apply to the same values: parts of combinations, and what references lead to."""
    return _reached(root, lambda one: [*_inner(one, _IN_PLACE - {"not"}), *_referred(one, root)])


def _reached(root: Schema, following: Callable[[Schema], list[Schema]]) -> list[Schema]:
    found: dict[int, Schema] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in found:
            found[id(one)] = one
            todo += reversed(following(one))
    return list(found.values())


def schema_errors(
    tool: str, arguments: Mapping[str, JsonValue], schema: Mapping[str, Any]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the place and words of each error in the arguments of ``tool`` by a ``closed_schema``.

    Raises Unchecked where there is no result within ``CHECK_SECONDS``.
    """
    try:
        with time_limit(f"the check of {tool}", CHECK_SECONDS, of_cpu=True):
            found = _validator(json.dumps(schema)).iter_errors(dict(arguments))
            return [(tuple(error.absolute_path), error.message) for error in found]
    except OutOfTime:
        raise Unchecked(
            f"the arguments of {tool} could not be checked against its schema within {CHECK_SECONDS:g} s of CPU"
        ) from None
    except Exception as error:  # noqa: BLE001 - a schema of a stranger may fail in any way on some arguments
        why = type(error).__name__
        raise Unchecked(f"the arguments of {tool} cannot be checked against its schema ({why})") from None


@lru_cache(maxsize=512)
def _validator(text: str) -> Any:  # noqa: ANN401 - a class that the library makes
    from jsonschema.validators import extend
    from referencing import Registry

    root: Schema = json.loads(text)
    dialect = _dialect(root)
    known, base = schemas(root, dialect), _class(dialect)
    changed = _leaving_to_the_tool(base.VALIDATORS, known, root)
    for one in known:
        for key in ("$schema", "pattern", "patternProperties"):
            one.pop(key, None)
    return extend(base, changed)(root, registry=Registry())


def _leaving_to_the_tool(checks: Mapping[str, Any], known: list[Schema], root: Schema) -> dict[str, Any]:
    """Return the checks of keywords whose result would depend on a regular expression, or on OpenAPI's ``nullable``."""
    patterned = {id(one) for one in known if "patternProperties" in one}
    unread = patterned | {id(one) for one in known if "pattern" in one}
    above: dict[int, list[int]] = {}
    for one in known:
        for part in [*_inner(one, _ALL), *_referred(one, root)]:
            above.setdefault(id(part), []).append(id(one))
    todo = [*unread]
    while todo:
        todo = [one for below in todo for one in above.get(below, ()) if one not in unread]
        unread.update(todo)

    def unless(keyword: str, left: Callable[[Any, Any, Schema], bool], instead: str | None = None) -> Any:  # noqa: ANN401
        def check(validator: Any, value: Any, instance: Any, schema: Schema) -> Iterator[Any]:  # noqa: ANN401
            used = instead if left(value, instance, schema) else keyword
            yield from (checks[used](validator, value, instance, schema) or ()) if used else ()

        return check

    def null(value: Any, instance: Any, schema: Schema) -> bool:  # noqa: ANN401
        return instance is None and schema.get("nullable") is True

    left = {
        "not": unless("not", lambda value, *_: id(value) in unread),
        "if": unless("if", lambda value, *_: id(value) in unread),
        "oneOf": unless("oneOf", lambda value, *_: any(id(one) in unread for one in value), "anyOf"),
        "contains": unless("contains", lambda value, _, schema: id(value) in unread and "maxContains" in schema),
        "additionalProperties": unless("additionalProperties", lambda *given: id(given[2]) in patterned),
        "pattern": unless("pattern", lambda *_: True),  # it is removed, too
        "patternProperties": unless("patternProperties", lambda *_: True),
        "unevaluatedProperties": unless("unevaluatedProperties", lambda *_: bool(unread)),
        "unevaluatedItems": unless("unevaluatedItems", lambda *_: bool(unread)),
        "type": unless("type", null),
        "enum": unless("enum", null),
    }
    return {keyword: check for keyword, check in left.items() if keyword in checks}


def _referred(schema: Schema, root: Schema) -> list[Schema]:
    target = pointed(schema["$ref"], root) if "$ref" in schema else None
    return [target] if isinstance(target, dict) else []


def _check_circles(root: Schema, dialect: str) -> None:
    """Raise ValueError where the same value would be checked without end, or too often."""
    graph = {
        id(one): [id(part) for part in [*_inner(one, _IN_PLACE), *_referred(one, root)]]
        for one in schemas(root, dialect)
    }
    depth: dict[int, int] = {}
    checks: dict[int, int] = {}
    try:
        for place in TopologicalSorter(graph).static_order():
            depth[place] = 1 + max((depth[part] for part in graph[place]), default=0)
            checks[place] = 1 + sum(checks[part] for part in graph[place])
    except CycleError:
        raise ValueError("references of its schema go round in a circle") from None
    if max(depth.values()) > MOST_COMBINED:
        raise ValueError(f"more than {MOST_COMBINED} of its schemas combine or refer to one another in a row")
    if max(checks.values()) > MOST_CHECKS:
        raise ValueError(f"its schemas combine one another in more than {MOST_CHECKS:,} ways")


def _without_slips(given: Any) -> Any:  # noqa: ANN401 - a schema of a stranger
    if not isinstance(given, dict):
        return given
    found: Schema = {}
    for key, value in given.items():
        odd = key in _ANNOTATIONS and not isinstance(value, _ANNOTATIONS[key])
        if odd or (value is None and key not in ("const", "default")) or (key == "type" and value == "any"):
            continue
        if key in _NAMED and isinstance(value, dict):
            found[key] = {name: _without_slips(one) for name, one in value.items()}
        elif key in _SEVERAL and isinstance(value, list):
            found[key] = [_without_slips(one) for one in value]
        else:
            found[key] = _without_slips(value) if key in _ONE else value
    properties = found["properties"] if isinstance(found.get("properties"), dict) else {}
    listed = [name for name, one in properties.items() if isinstance(one, dict) and one.get("required") is True]
    for one in properties.values():
        if isinstance(one, dict) and isinstance(one.get("required"), bool):
            del one["required"]
    if listed and isinstance(found.setdefault("required", []), list):
        found["required"] = [*dict.fromkeys([*found["required"], *listed])]
    return found


def _slip(schema: Schema, dialect: str) -> str | None:
    """Return what makes ``schema`` none of the dialect, else None."""
    made = _class(dialect)
    try:
        # Without formats: that of a regular expression would compile it.
        made.check_schema({key: value for key, value in schema.items() if key != "$schema"}, format_checker=None)
    except Exception as error:  # noqa: BLE001 - its own errors, of the library for references and of recursion
        return " ".join(str(getattr(error, "message", "") or type(error).__name__).split())[:120]
    return None


def _dialect(schema: Schema) -> str:
    return next((one for one in _DIALECTS if _name(one) in str(schema.get("$schema"))), _DIALECTS[0])


def _keywords(dialect: str) -> frozenset[str]:
    """Return the keywords of a dialect that hold schemas."""
    listed = _class(dialect).META_SCHEMA["properties"]
    unknown = {"additionalItems"} if dialect == _DIALECTS[0] else {"prefixItems"}  # to 2020-12 and to 2019-09
    return _ALL & listed.keys() if "draft-0" in dialect else _ALL - unknown


def _name(dialect: str) -> str:
    return dialect.removesuffix("/schema").rpartition("/")[2]


def _class(dialect: str) -> Any:  # noqa: ANN401 - a class that the library makes
    from jsonschema.validators import validator_for

    return validator_for({"$schema": dialect})


def _paths(root: Schema) -> dict[int, str]:
    """Return the JSON pointer to each object, by its identity."""
    found: dict[int, str] = {}
    todo: list[tuple[Any, str]] = [(root, "")]
    while todo:
        value, path = todo.pop()
        if isinstance(value, dict):
            found[id(value)] = path
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        todo += [(one, f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}") for key, one in pairs]
    return found
