"""Injects errors into a share of drafts: one argument or one call of the reference is changed.

A stress test of verification (ours): scripted abstractors cut references out of calls that ran, so that hardly any is
wrong, while a language model confuses values, forgets calls and names the wrong tool. ``perturbed_of`` counts how many
of the changed drafts verification accepts nevertheless.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from pydantic import JsonValue

from agents.scripted.arguments import draw_uniform
from agents.scripted.values import Scalar, Sightings
from environments.base import Environment, Record, ToolCall, ToolSpec
from environments.verification.verify import Refusal
from memory.jsonl import derive_seed
from memory.records import Draft, DraftVerification

_DRAWS = 8
_LARGEST = 1e9


class Change(StrEnum):
    """The change of a reference. ``argument``: another value for one argument. ``replaced``: a call of another tool.
    ``left_out``: one call less."""

    ARGUMENT = "argument"
    REPLACED = "replaced"
    LEFT_OUT = "left_out"


class Perturbation(Record):
    """One changed draft: at (turn, call), counted from 0, ``after`` replaces ``before``.

    ``after`` is None for a call that was left out.
    """

    draft_id: str
    context_id: str
    change: Change
    where: tuple[int, int]
    before: ToolCall
    after: ToolCall | None


class PerturbedDrafts(Record):
    """Drafts whose reference was changed, and those of them that verification accepted, by change.

    A draft that was accepted and not admitted, because the iteration's quota was full, counts as accepted. Tasks that
    are composed of changed drafts are not counted.
    """

    made: dict[Change, int]
    accepted: dict[Change, int]

    def words(self) -> str:
        """Return one line of a table."""
        by_change = ", ".join(f"{change} {self.accepted.get(change, 0)} of {n}" for change, n in self.made.items())
        return f"{sum(self.accepted.values())} of {sum(self.made.values())} accepted ({by_change})"


def perturb(draft: Draft, share: float, seed: int, environment: Environment) -> tuple[Draft, Perturbation | None]:
    """Return the draft with one change of its reference and the change's record, or unchanged with None.

    ``seed`` and the draft's id decide whether and how it is changed. Where a call has arguments, every second change is
    one of an argument. Values are drawn uniformly, as with ``unguided: uniform_calls``, from those documented and those
    in the draft's initial state and calls. Equal arguments give equal results; text and setup stay as they are.
    """
    rng = random.Random(derive_seed(seed, "perturb", draft.id))
    places = [(t, c) for t, turn in enumerate(draft.reference) for c in range(len(turn))]
    if rng.random() >= share or not places:
        return draft, None
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
        return draft, None
    record = Perturbation(
        draft_id=draft.id, context_id=draft.context_id, change=change, where=where, before=before, after=after
    )
    return draft.model_copy(update={"reference": _put(draft.reference, where, after)}), record


def perturb_all(
    drafts: Iterable[Draft], share: float, seed: int, environment: Environment
) -> tuple[tuple[Draft, ...], list[Perturbation]]:
    """Return every draft as ``perturb`` leaves it, and the records of the changes, in the order of ``drafts``."""
    changed = [perturb(draft, share, seed, environment) for draft in drafts]
    return tuple(draft for draft, _ in changed), [record for _, record in changed if record is not None]


def perturbed_of(changes: Sequence[Perturbation], verifications: Iterable[DraftVerification]) -> PerturbedDrafts | None:
    """Return how many of the changed drafts were accepted; None where none was changed.

    A changed draft without a verification result was not accepted.
    """
    kept = {one.draft_id for one in verifications if one.accepted or one.reason == Refusal.OVER_QUOTA}
    made = Counter(one.change for one in changes)
    accepted = Counter(one.change for one in changes if one.draft_id in kept)
    return PerturbedDrafts(made=dict(sorted(made.items())), accepted=dict(sorted(accepted.items()))) if made else None


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
