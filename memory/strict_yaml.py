"""YAML as people write recipes: a key stands once, and ``1e-4`` is a number (YAML 1.1 reads it as text)."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from environments.base import InputError

__all__ = ["parse_yaml"]


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:  # noqa: ANN401 - whatever a YAML document holds
    """The document in ``text``. Raises InputError that names ``source`` and the line for what is no YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"{source}: not YAML: {where}{reason}") from error
