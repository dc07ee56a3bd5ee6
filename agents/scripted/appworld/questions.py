"""Makes a question of an answer: which of its values is asked for, and in which words."""

from __future__ import annotations

import json
import random

from pydantic import JsonValue

from agents.cuts import call_of
from agents.scripted.appworld.sightings import Scalar, records
from agents.scripted.appworld.wording import name_beside, plain
from environments.base import ToolCall
from memory.records import Interaction

_SHOWN = 4
_LONGEST = 60
_NOT_ASKED = ("_id", "token", "password", "link", "url", "path", "message", "_at")


def question(interaction: Interaction, rng: random.Random) -> tuple[str, str] | None:
    """Words that ask for one text of the interaction's answer, and that text; None where none can be asked for.

    Of a list one of the first ``_SHOWN`` objects is meant, named by a value that no other has. What the call was
    given is not asked for. Texts only: a number's place in an answer says less than the number itself (our choice).
    """
    listed = records(interaction.observation)
    given = {str(value) for value in call_of(interaction).arguments.values()}
    options: list[tuple[str, str]] = []
    for record in listed[:_SHOWN]:
        name = name_beside(record, listed) if len(listed) > 1 else None
        if len(listed) > 1 and name is None:
            continue
        of = "" if name is None else f" of the one with {plain(name[0])} {json.dumps(name[1], ensure_ascii=False)}"
        for key, value in record.items():
            if _can_be_asked(key, value) and str(value) not in given and (name is None or key != name[0]):
                options.append((f"answer with the {plain(key)}{of}", str(value)))
    return rng.choice(options) if options else None


def answer_call(answer: str | None, name: str) -> ToolCall:
    """The call that ends the task, with the answer to its question if it is one."""
    arguments: dict[str, JsonValue] = {} if answer is None else {"answer": answer}
    return ToolCall(name=name, arguments=arguments)


def _can_be_asked(key: str, value: Scalar) -> bool:
    if not isinstance(value, str) or not 1 < len(value.strip()) <= _LONGEST or "\n" in value or '"' in value:
        return False
    return key != "id" and not key.endswith(_NOT_ASKED)
