"""Records and recipes on disk, JSON lines, JSON and YAML: written whole or not at all, read with errors that say where.

Input may come from anybody: it is opened by ``memory.files`` and parsed within the parser's limits on depth (200
levels), digits and characters. Ids and seeds are hashes of parents and position, so that a resumed run
makes the same ones.

A YAML document may hold the values of JSON, and each key once. ``1e-4`` is a number (YAML 1.1 reads it as text) and a
date is text. Aliases are refused before any object is built: a few lines of them can expand without end.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import yaml
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from environments.base import InputError
from environments.checkout import ROOT, SHIPPED
from memory.files import append, read_lines, read_whole, write_atomically

Model = TypeVar("Model", bound=BaseModel)


def _digest(parts: tuple[object, ...]) -> bytes:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str).encode()).digest()


def record_id(kind: str, *parts: object) -> str:
    """Return a record's id, ``KIND-`` and 16 hex digits, from its parents' ids and its position among siblings."""
    return f"{kind}-{_digest((kind, *parts)).hex()[:16]}"


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from (run seed, iteration, stage, id, ...): draws do not depend on order or concurrency."""
    return int.from_bytes(_digest(parts)[:8], "big") >> 1


def complaint(error: ValidationError, within: str = "") -> str:
    """Return pydantic's first error as ``key: what (got value)``, below ``within``, and how many more there are."""
    first, *more = error.errors(include_url=False)
    key = ".".join(str(part) for part in (within, *first["loc"]) if part != "")
    text = f"{key}: {first['msg']}" if key else str(first["msg"])
    # A value that may be a misplaced secret is not shown: of an unknown key, or an address with a password.
    unsaid = {"missing", "json_invalid", "extra_forbidden", "address"}
    if first["type"] not in unsaid and isinstance(first["input"], str | int | float | bool):
        text += f" (got {first['input']!r:.80})"
    return f"{text}, and {len(more)} more" if more else text


def leaves(tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value of nested mappings behind the keys that lead to it; an empty mapping is a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from (((str(name), *keys), leaf) for keys, leaf in leaves(value))
        else:
            yield (str(name),), value


def dump_line(record: BaseModel, indent: int | None = None) -> str:
    """Return a record as JSON, one line unless indented, with a newline. Raises ValueError for NaN and infinities."""
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, indent=indent) + "\n"


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> None:
    """Replace the file by one line per record, atomically (see ``write_atomically``)."""
    write_atomically(path, (dump_line(record).encode() for record in records))


def append_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Append one line per record, flush to the disk, and return the file's new length in bytes. Raises like ``append``.

    A process killed in the middle leaves half a line: on resumption the file is truncated to its last recorded length.
    """
    return append(path, "".join(map(dump_line, records)).encode())


def parse_json(text: bytes) -> JsonValue:
    """Return the JSON value in ``text``, which can be written to a record again.

    Raises ValueError for other text, and for values that some parsers accept: NaN, numbers that overflow, half of a
    surrogate pair, more than 200 levels.
    """
    value: JsonValue = from_json(text, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # 1e999 is parsed as infinity
    return value


def read_jsonl(path: Path, model: type[Model]) -> list[Model]:
    """Return every line as a ``model``. Raises InputError that names the file, the line and the wrong key."""
    records = []
    for number, line in read_lines(path):
        try:
            records.append(model.model_validate_json(line))
        except ValidationError as error:
            raise InputError(f"{path}, line {number}: {complaint(error)}") from None
    return records


def read_existing(path: Path, model: type[Model]) -> list[Model]:
    """Return every line like ``read_jsonl``; none of a missing file: not every stage of a run writes every file."""
    return read_jsonl(path, model) if path.exists() else []


def write_json(path: Path, record: BaseModel) -> None:
    """Replace the file by one record, indented for reading, atomically (see ``write_atomically``)."""
    write_atomically(path, [dump_line(record, indent=2).encode()])


def read_json(path: Path, model: type[Model]) -> Model:
    """Return the file as a ``model``. Raises InputError that names the file and the wrong key."""
    try:
        return model.model_validate_json(read_whole(path))
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error)}") from None


LONGEST_YAML = 2**17
"""Largest YAML file in bytes (ours). The longest recipe of the project has a twentieth."""

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
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401 - as in PyYAML
        return True


for _one in (_Loader, _Dumper):
    _one.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def dump_yaml(document: Any) -> str:  # noqa: ANN401 - whatever JSON has
    """Return the JSON values in ``document`` as YAML, in ASCII, that ``parse_yaml`` reads back equal."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def read_yaml(path: Path, what: str = "recipe") -> Any:  # noqa: ANN401 - whatever a YAML document holds
    """Return the document in a file, which ``what`` names in messages. Raises InputError that names the file."""
    try:
        text = read_whole(path, LONGEST_YAML).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise InputError(f"{path}: cannot read this {what} ({reason}): name a YAML file") from error
    return parse_yaml(text, str(path))


def find_recipe(path: Path) -> Path:
    """Return ``path`` where it exists, otherwise the recipe shipped under that name, otherwise ``path``."""
    shipped = path.parts[:1] == (SHIPPED,) and (ROOT / path).is_file()
    return ROOT / path if shipped and not path.exists() else path


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
