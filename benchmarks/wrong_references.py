"""Makes drafts wrong for tests of verification: one argument or one call of the reference is changed.

Scripted abstractors cut references out of calls that ran, so that hardly any is wrong, while a language model confuses
values, forgets calls and names the wrong tool.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum

from pydantic import JsonValue

from agents.scripted.arguments import draw_uniform
from agents.scripted.values import Scalar, Sightings
from environments.base import Environment, ToolCall, ToolSpec
from memory.jsonl import derive_seed
from memory.records import Draft

_DRAWS = 8
_LARGEST = 1e9


class Change(StrEnum):
    """The change of a reference. ``argument``: another value for one argument. ``replaced``: a call of another tool.
    ``left_out``: one call less."""

    ARGUMENT = "argument"
    REPLACED = "replaced"
    LEFT_OUT = "left_out"


def perturb(draft: Draft, seed: int, environment: Environment) -> tuple[Change, Draft] | None:
    """Return the draft with one change of its reference, and which; None where there is nothing to change.

    ``seed`` and the draft's id decide how it is changed. Where a call has arguments, every second change is one of an
    argument. Values are drawn uniformly, as with ``unguided: uniform_calls``, from those documented and those in the
    draft's initial state and calls. Equal arguments give equal results; text and setup stay as they are.
    """
    rng = random.Random(derive_seed(seed, "perturb", draft.id))
    rng.random()  # keeps the changes that docs/results.md counts
    places = [(t, c) for t, turn in enumerate(draft.reference) for c in range(len(turn))]
    if not places:
        return None
    where = rng.choice(places)
    before = draft.reference[where[0]][where[1]]
    tools = {tool.name: tool for tool in environment.tools(draft.tools)}
    others = [tool for name, tool in sorted(tools.items()) if name != before.name]
    values = _values(draft)
    after: ToolCall | None = None
    if before.name in tools and before.arguments and (rng.random() < 0.5 or (len(places) == 1 and not others)):
        change, after = Change.ARGUMENT, _with_another_value(before, tools[before.name], values, rng)
    elif others and (len(places) == 1 or rng.random() < 0.5):
        change, after = Change.REPLACED, draw_uniform(rng.choice(others), values, {}, rng)
    elif len(places) > 1:
        change = Change.LEFT_OUT
    else:
        return None
    return change, draft.model_copy(update={"reference": _put(draft.reference, where, after)})


def _with_another_value(call: ToolCall, tool: ToolSpec, values: Sequence[Scalar], rng: random.Random) -> ToolCall:
    name = rng.choice(sorted(call.arguments))
    given = call.arguments[name]
    for _ in range(_DRAWS):
        drawn = draw_uniform(tool, values, {}, rng).arguments.get(name, given)
        if drawn != given:
            return _replacing(call, name, drawn)
    return _replacing(call, name, _next_to(given))


def _replacing(call: ToolCall, name: str, value: JsonValue) -> ToolCall:
    return ToolCall(name=call.name, arguments=call.arguments | {name: value})


def _next_to(value: JsonValue) -> JsonValue:
    """Return another value of the same JSON type, for a draw that found none."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1 if abs(value) < _LARGEST else 0
        case str():
            return f"{value}_2"
        case list():
            return value[:-1] if value else [0]
        case dict():
            return {} if value else {"value": 0}
        case _:
            return 0


def _values(draft: Draft) -> tuple[Scalar, ...]:
    """Return each value of the initial state and of the calls once."""
    sightings = Sightings()
    sightings.see_state(draft.initial_state)
    seen: list[Scalar] = [sighting.value for sighting in sightings if not sighting.piece]
    for call in (*draft.setup, *(call for turn in draft.reference for call in turn)):
        seen += [v for v in call.arguments.values() if isinstance(v, str | int | float) and not isinstance(v, bool)]
    return tuple(dict.fromkeys(seen))


def _put(
    reference: tuple[tuple[ToolCall, ...], ...], where: tuple[int, int], call: ToolCall | None
) -> tuple[tuple[ToolCall, ...], ...]:
    turn, place = where
    calls = reference[turn]
    changed = (*calls[:place], *((call,) if call is not None else ()), *calls[place + 1 :])
    return (*reference[:turn], changed, *reference[turn + 1 :])
