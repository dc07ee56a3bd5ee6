"""The prompts of the chat roles: text files with ``$name`` placeholders, in ``agents/chat/prompts``.

Every system message ends with ``data.txt``, which says what is data and never an instruction.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "prompts"


class Prompt(NamedTuple):
    """The two messages that open a request."""

    system: str
    user: str


def prompt(name: str, **values: str) -> Prompt:
    """The prompt of a role with its placeholders filled. Raises KeyError for one that is not given."""
    system = f"{_template(f'{name}_system').substitute(values)}\n\n{_template('data').substitute()}"
    return Prompt(system, _template(f"{name}_user").substitute(values))


@cache
def _template(name: str) -> Template:
    return Template((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").strip())
