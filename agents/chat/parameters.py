"""What is sent in place of a parameter that an endpoint does not take, remembered for its model while the process runs.

The limit of tokens goes under its other name, and a format of replies is left out: the prompt describes it, too. Tools
whose schemas cannot be compiled are offered in plain ones, with the whole schema in the description, so that no task
is lost to a keyword. Anything else is left out. Each change is said once, and is in the notes of a report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from environments.command import say

_OTHER_NAME = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}
_PLAIN = frozenset(("type", "description", "properties", "required", "items", "enum"))
"""Keywords that every compiler of schemas reads."""


class Parameters:
    """The parameters that one model at one endpoint does not take. Schemas are remembered each for itself."""

    def __init__(self) -> None:
        self._changed: dict[str, str] = {}

    def applied(self, body: Mapping[str, Any], more: Collection[str] = ()) -> dict[str, Any]:
        """Return the body of a request without what is known, or in ``more``, not to be taken."""
        sent = dict(body)
        for name, value in body.items():
            if name not in more and _key(name, value) not in self._changed:
                continue
            del sent[name]
            if name == "tools":
                sent[name] = [_plain_tool(tool) for tool in value]
            elif name in _OTHER_NAME:
                sent[_OTHER_NAME[name]] = value
        return sent

    def learn(self, model: str, body: Mapping[str, Any], names: Collection[str]) -> None:
        """Remember that a request ``body`` was answered once these were changed, and say so the first time."""
        for name in names:
            key = _key(name, body[name])
            known = key in self._changed or _sentence(name) in self._changed.values()
            self._changed[key] = _sentence(name)
            if not known:
                say(f"{model}: {_sentence(name)}")

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of change."""
        return tuple(dict.fromkeys(self._changed.values()))

    def omits(self, name: str) -> bool:
        """Return whether the parameter is left out of every request."""
        return name in self._changed


@cache
def parameters_of(base_url: str, model: str) -> Parameters:
    """Return what is known of the model at the endpoint, over all roles that use it."""
    return Parameters()


def can_change(names: Collection[str], changed: Collection[str]) -> set[str]:
    """Return those of ``names`` for which something else can be sent than in a request where ``changed`` were."""
    return {name for name in names if name not in changed and _OTHER_NAME.get(name) not in changed}


def _key(name: str, value: object) -> str:
    if name not in ("tools", "response_format"):
        return name
    return f"{name} {hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}"


def _sentence(name: str) -> str:
    if name in _OTHER_NAME:
        return f"the endpoint does not take {name}: it gets {_OTHER_NAME[name]} in its place"
    if name == "response_format":
        return "the endpoint does not take a JSON schema as the format of a reply: the prompt alone describes it"
    if name == "tools":
        return "the endpoint does not take the tools' schemas: it gets plain ones, and the whole ones as descriptions"
    return f"the endpoint does not take {name}: its own is used"


def _plain_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    whole = function.get("parameters") or {}
    plain = {"type": "object", "properties": {}} | _plain(whole)
    if plain == whole:
        return dict(tool)
    description = f"{function.get('description') or ''}\nJSON schema of the arguments: {json.dumps(whole)}".strip()
    return {**tool, "function": {**function, "description": description, "parameters": plain}}


def _plain(schema: object) -> dict[str, Any]:
    """Return the schema in the keywords that are read everywhere, one type for each value."""
    found = {name: one for name, one in schema.items() if name in _PLAIN} if isinstance(schema, dict) else {}
    kind = found.get("type")
    if isinstance(kind, list):  # [string, null]
        kind = next((one for one in kind if one != "null"), "string")
    if not isinstance(kind, str):
        kind = "object" if "properties" in found else "array" if "items" in found else "string"
    plain: dict[str, Any] = {"type": kind}
    if isinstance(found.get("description"), str):
        plain["description"] = found["description"]
    if kind == "object":
        properties = found.get("properties")
        plain["properties"] = {n: _plain(one) for n, one in properties.items()} if isinstance(properties, dict) else {}
        required = found.get("required")
        plain["required"] = [n for n in required if n in plain["properties"]] if isinstance(required, list) else []
    elif kind == "array":
        plain["items"] = _plain(found.get("items"))
    elif kind == "string" and (choices := [one for one in found.get("enum") or () if isinstance(one, str)]):
        plain["enum"] = choices
    return plain
