"""Canonical text of the simulators' public state: what the official state check compares, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

IMPROPER_STATE = "state without a finite text"
"""The text of every state that is no finite tree: a directory copied into itself, or copies of copies."""

MAX_SIZE = 8_000_000
"""Values and characters of text that a state may have."""

MAX_DEPTH = 100
"""Levels of nesting; a directory takes two."""


class _Improper(Exception):
    """The state has more values, characters or levels than a text can hold."""


def state_text(instances: Mapping[str, object]) -> str:
    """JSON of every public attribute by class name, keys sorted.

    Equal texts mean equal states, except for ``IMPROPER_STATE``, which is no JSON and so never equals a proper one.
    Numbers that Python holds for equal have one text (1 and 1.0).
    """
    writer = _Writer()
    try:
        proper = {name: writer.attributes(instance, 0) for name, instance in instances.items()}
    except _Improper:
        return IMPROPER_STATE
    return json.dumps(proper, sort_keys=True, ensure_ascii=False)


class _Writer:
    """Turns attributes into JSON values while it counts their size."""

    def __init__(self) -> None:
        self._size = 0

    def attributes(self, instance: object, depth: int) -> dict[str, JsonValue]:
        return {
            name: self.value(value, depth + 1)
            for name, value in vars(instance).items()
            if not name.startswith("_") and name != "parent"
        }

    def value(self, value: object, depth: int) -> JsonValue:
        self._size += 1 + len(value) if isinstance(value, str) else 1
        if self._size > MAX_SIZE or depth > MAX_DEPTH:
            raise _Improper
        if value is None or isinstance(value, str | bool | int):
            return value
        if isinstance(value, float):
            return int(value) if value.is_integer() else value
        if isinstance(value, list | tuple):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, set | frozenset):
            members: list[JsonValue] = [self.value(item, depth + 1) for item in value]
            return {"set": sorted(members, key=json.dumps)}
        if isinstance(value, dict):
            return self._dict(value, depth)
        return {type(value).__name__: self.attributes(value, depth)}

    def _dict(self, value: dict[object, object], depth: int) -> JsonValue:
        texts = {key: item for key, item in value.items() if isinstance(key, str)}
        if len(texts) == len(value):
            return {key: self.value(item, depth + 1) for key, item in texts.items()}
        keys = sorted(value, key=lambda key: (type(key).__name__, str(key)))
        return {"pairs": [[type(key).__name__, str(key), self.value(value[key], depth + 1)] for key in keys]}
