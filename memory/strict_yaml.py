"""Reads YAML recipes strictly: a document may hold the values of JSON, and each key once.

``1e-4`` is a number (YAML 1.1 reads it as text) and a date is text. Aliases are refused during parsing, before any
object is built: no recipe needs them, and a few lines of them can expand without end.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml
from pydantic import JsonValue

from environments.base import InputError
from environments.checkout import find_recipe
from memory.jsonl import leaves, read_whole

LONGEST = 2**17
"""Largest YAML file in bytes (ours). The longest recipe of the project has a twentieth."""

_FLOAT = "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - as in PyYAML
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(f"the alias *{event.anchor} is not allowed: write out what it stands for", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)  # a list or mapping is refused below, as a key that cannot be hashed
            if name in seen:
                raise _refused(f"the key '{name}' occurs twice", key)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def _refused(problem: str, at: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=cast(yaml.Mark, at.start_mark))


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    """Writes YAML that ``_Loader`` reads back equal: no aliases, and quotes around text that looks like a number."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401 - as in PyYAML
        return True


for _one in (_Loader, _Dumper):
    _one.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))


def dump_yaml(document: Any) -> str:  # noqa: ANN401 - whatever JSON has
    """Return the JSON values in ``document`` as YAML, in ASCII, that ``parse_yaml`` reads back equal."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def read_yaml(path: Path, what: str = "recipe") -> Any:  # noqa: ANN401 - whatever a YAML document holds
    """Return the document in the file ``path``, which ``what`` names in messages.

    Raises InputError that names the file where it cannot be read, is not a regular file or has more than ``LONGEST``
    bytes, and like ``parse_yaml``.
    """
    try:
        text = read_whole(path, LONGEST).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise InputError(f"{path}: cannot read this {what} ({reason}): name a YAML file") from error
    return parse_yaml(text, str(path))


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the sections of the recipe at ``path``, or of the one shipped under that name; an empty file has none.

    Raises InputError like ``read_yaml``, and for a document that is not a mapping.
    """
    tree = read_yaml(find_recipe(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"{path}: a recipe is a mapping of sections, this is a {type(tree).__name__}")
    return tree


def parse_yaml(text: str, source: str) -> Any:  # noqa: ANN401 - whatever a YAML document holds
    """Return the document in ``text``. Raises InputError that names ``source`` and the line for invalid YAML."""
    return json.loads(_as_json(text, source))


@lru_cache(maxsize=32)  # a command reads one recipe several times, and each takes 20 ms
def _as_json(text: str, source: str) -> bytes:
    try:
        return json.dumps(_Loader(text).get_single_data(), ensure_ascii=False).encode()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"{source}: not YAML: {where}{reason}") from error
    except RecursionError:
        raise InputError(f"{source}: not YAML: lists and mappings are nested too deep for it") from None
    except (ValueError, TypeError, ArithmeticError) as error:  # a value that JSON does not have
        raise InputError(f"{source}: not YAML: {error}: write the values of JSON") from error


def options_given(options: Sequence[str]) -> dict[str, JsonValue]:
    """Return an environment's options as ``--option KEY=VALUE`` states them, values in YAML. Raises InputError."""
    given: dict[str, JsonValue] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise InputError(f"--option {option}: write it as key=value, for example max_steps=5")
        given[key] = parse_yaml(value, f"--option {option}")
    return given


class Override(NamedTuple):
    """One setting that ``--set`` states: the parts of its dotted key, its value, and the option as it was given."""

    keys: tuple[str, ...]
    value: Any
    given: str


def changes_given(overrides: Sequence[str]) -> Iterator[Override]:
    """Yield what ``--set KEY=VALUE`` states, values in YAML, and ``--set @FILE``: every value of a file's sections.

    Raises InputError for an option without a key, and for a file as ``read_recipe`` does.
    """
    for given in overrides:
        if given.startswith("@"):
            yield from (Override(keys, value, given) for keys, value in leaves(read_recipe(Path(given[1:]))))
            continue
        name, equals, value = given.partition("=")
        keys = tuple(name.strip().split("."))
        if not equals or not all(keys):
            raise InputError(f"--set {given}: write it as key=value, for example training.steps=5")
        yield Override(keys, parse_yaml(value, f"--set {given}"), given)


def put(tree: dict[str, Any], keys: Sequence[str], value: JsonValue, source: str) -> None:
    """Set the value behind ``keys`` in the sections of a recipe, which are made where they are missing or null.

    Raises InputError that begins with ``source`` where one of the sections is a value.
    """
    section = tree
    for name in keys[:-1]:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise InputError(f"{source}: '{name}' is a value, not a section")
    section[keys[-1]] = copy.deepcopy(value)  # a section, which further keys may change
