"""Draws arguments for a tool: documented choices, else values that are documented, given or seen, else invented ones.

Generic over ``ToolSpec``: it uses parameter types, documentation and sightings, never a tool's name. The guided
explorer draws values with weights exp(score); the scores are our choice. Where a tool wants something new, names and
short texts are made up from words that were seen.
"""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pydantic import JsonValue

from agents.scripted.knowledge import (
    PLAIN,
    Guidance,
    about,
    head_word,
    makers,
    name_words,
    overlap,
    parameter_words,
)
from agents.scripted.schema_values import fitting_call
from agents.scripted.values import (
    MAX_TEXT,
    Experience,
    Scalar,
    Sighting,
    Sightings,
    constants,
    date_format,
    in_range,
    invented_name,
    invented_text,
    mentioned,
    numbers,
)
from environments.base import Parameter, ToolCall, ToolSpec
from environments.schema_check import Unchecked
from environments.task_text import words

_CONVERSIONS = 8
_MISFITS = 3  # draws without a call that fits a tool's schema, after which none is looked for (ours)
_LARGEST = 1e6
_PLAIN_NUMBERS: tuple[Scalar, ...] = (1, 2, 3, 10, 50.0)
_FIRST_DATE = datetime.date(2024, 1, 1)
_DATES = 3 * 365  # days after it that an invented date may have (ours)
_FIELDS = 2  # of an object that changes fields, at most (ours)


Given = Mapping[str, Sequence[Scalar]]
"""Values that people gave to each parameter of one tool."""
Chosen = Mapping[str, JsonValue]
"""Arguments of the same call that were drawn before."""


class UniformArguments:
    """Draws every value with equal weight, of those ``seen`` in this episode and those ``given`` in the training split.

    One source of values that holds any is drawn (the description, the documented range, given, seen), then a value.
    How a list, a documented value, a number and an optional parameter are drawn holds for the guided explorer, too, so
    that both differ only in their aims and in what they saw. ``optional`` is the probability of an optional parameter.
    """

    def __init__(
        self,
        seen: Sequence[Scalar],
        given: Given,
        rng: random.Random,
        tools: Sequence[ToolSpec] = (),
        optional: float = PLAIN.optional,
    ) -> None:
        self._values = seen
        self._given = given
        self._rng = rng
        self._tools = tools
        self._optional = optional
        self._misfits: Counter[str] = Counter()

    def draw(self, tool: ToolSpec) -> ToolCall:
        """Draw a call of ``tool``: required parameters always, each optional one by its probability."""
        arguments: dict[str, JsonValue] = {}
        for parameter in tool.parameters:
            if parameter.required or self._rng.random() < self._optional:
                arguments[parameter.name] = self._value(tool, parameter, arguments)
        return self._fitting(ToolCall(name=tool.name, arguments=arguments), tool)

    def _fitting(self, call: ToolCall, tool: ToolSpec) -> ToolCall:
        """Return the call, or another one where the tool's schema does not take it."""
        if not tool.json_schema or self._misfits[tool.name] >= _MISFITS:
            return call
        try:
            found = fitting_call(call, tool, self._known, self._rng, self._optional)
        except Unchecked:  # it took seconds
            self._misfits[tool.name], found = _MISFITS, None
        self._misfits[tool.name] += found is None
        return found or call

    def _known(self, name: str) -> Sequence[Scalar]:
        """Return the values that people gave to a parameter of this name, and those seen in this episode."""
        return (*self._given.get(name, ()), *self._values)

    def _value(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        if parameter.type == "array":
            return self._list(tool, parameter, chosen)
        known = constants(parameter) or self._constants_of_namesake(tool, parameter)
        if known:
            return self._constant(tool, parameter, known)
        if parameter.type == "dict" and (fields := self._picked_fields(tool, parameter)):
            return {field.name: self._value(tool, field, chosen) for field in fields}
        if (form := date_format(parameter)) is not None:
            return self._date(tool, parameter, chosen, form)
        if parameter.type == "string":
            return self._text(tool, parameter, chosen)
        return self._drawn_from_a_source(tool, parameter, chosen)

    def _constants_of_namesake(self, tool: ToolSpec, parameter: Parameter) -> tuple[JsonValue, ...]:
        """Return the choices that another tool of the group documents for a parameter of the same name."""
        if parameter.type != "string":
            return ()
        namesakes = (other.parameter(parameter.name) for other in self._tools if other.group == tool.group)
        return next((one.choices for one in namesakes if one and one.type == "string" and one.choices), ())

    def _picked_fields(self, tool: ToolSpec, parameter: Parameter) -> list[Parameter]:
        """Draw the fields of an object: its documented ones as a call's parameters, else of what ``tool`` changes.

        Those are the parameters of the tool of its group that makes such a thing, without lists and objects.
        """
        if parameter.fields:
            return [one for one in parameter.fields if one.required or self._rng.random() < self._optional]
        making = makers(ToolCall(name=tool.name), None, self._tools)[:1]
        fields = [one for maker in making for one in maker.parameters if one.type not in ("array", "dict")]
        return self._rng.sample(fields, self._rng.randint(1, min(_FIELDS, len(fields)))) if fields else []

    def _date(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen, form: str) -> str:
        """Draw a seen or given date of the documented format half of the time, else invent one."""
        values = (*self._seen(tool, parameter, chosen), *self._given.get(parameter.name, ()))
        known = [value for value in values if _is(value, form)]
        if known and self._rng.random() < 0.5:
            return str(self._rng.choice(known))
        return (_FIRST_DATE + datetime.timedelta(days=self._rng.randrange(_DATES))).strftime(form)

    def _list(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a uniform number of documented items, in the documented order; else one or two values."""
        if parameter.choices:
            size = self._rng.randint(1, len(parameter.choices))
            picked = set(self._rng.sample(range(len(parameter.choices)), size))
            return [choice for place, choice in enumerate(parameter.choices) if place in picked]
        if (nested := parameter.item) is not None:
            return [self._value(tool, nested, chosen) for _ in range(self._rng.randint(1, 2))]
        item = parameter.model_copy(update={"type": parameter.items or "string"})
        return [self._item(tool, item, chosen) for _ in range(self._rng.randint(1, 2))]

    def _drawn_from_a_source(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a value of one source that holds any: description, its range, values that people gave, those seen."""
        known = self._seen(tool, parameter, chosen)
        if known and self._identifying(parameter):
            return drawn(parameter.type, known, self._rng)
        described: tuple[Scalar, ...] = (*(number.value for number in numbers(parameter)), *mentioned(parameter))
        seen = (*known, *_PLAIN_NUMBERS)
        given = self._given.get(parameter.name, ())
        sources: tuple[Sequence[Scalar], ...] = (described, in_range(parameter), given, seen)
        return drawn(parameter.type, self._rng.choice([source for source in sources if source]), self._rng)

    def _constant(self, tool: ToolSpec, parameter: Parameter, known: Sequence[JsonValue]) -> JsonValue:
        return self._rng.random() < 0.5 if parameter.type == "boolean" else self._rng.choice(known)

    def _item(self, tool: ToolSpec, item: Parameter, chosen: Chosen) -> JsonValue:
        return drawn(item.type, (*self._seen(tool, item, chosen), *_PLAIN_NUMBERS), self._rng)

    def _text(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        return self._drawn_from_a_source(tool, parameter, chosen)

    def _identifying(self, parameter: Parameter) -> Sequence[Sighting]:
        """Return the seen values that are known to be identifiers of the parameter's kind."""
        return ()

    def _seen(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> Sequence[Scalar]:
        """Return values seen in this episode that the parameter may take."""
        return self._values


def converted(value: Scalar, type_name: str) -> Scalar | None:
    """Convert ``value`` to an integer, float or string; None if it cannot be converted or is too long or large."""
    if type_name == "string":
        text = str(value)
        return text if text.strip() and len(text) <= MAX_TEXT and "\n" not in text else None
    if type_name not in ("integer", "float"):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not math.isfinite(number) or abs(number) > _LARGEST:
        return None
    if type_name == "float":
        return number
    return int(number) if number.is_integer() else None


def _is(value: Scalar, form: str) -> bool:
    try:
        datetime.datetime.strptime(str(value), form)
    except ValueError:
        return False
    return True


def drawn(type_name: str, values: Sequence[Scalar], rng: random.Random) -> JsonValue:
    """Draw one of ``values`` that converts to the type; a plain value of the type if none of a few draws does."""
    for _ in range(_CONVERSIONS):
        value = converted(rng.choice(values), type_name)
        if value is not None:
            return value
    plain: dict[str, JsonValue] = {"integer": rng.randint(0, 5), "float": float(rng.randint(0, 50)), "dict": {}}
    return plain.get(type_name, "x")


_CANDIDATES = 3
_ALL = re.compile(r"\b(all|each|every)\b", re.IGNORECASE)
_PROSE = frozenset(words("content message text list title body"))
_IDENTIFIERS = frozenset({"id", "token"})


class GuidedArguments(UniformArguments):
    """Draws values that fit what was seen: visible ones first, later ones near the earlier ones, also new texts."""

    def __init__(
        self,
        sightings: Sightings,
        experience: Experience,
        rng: random.Random,
        tools: Sequence[ToolSpec] = (),
        guidance: Guidance = PLAIN,
    ) -> None:
        super().__init__((), {}, rng, tools, guidance.optional)
        self.sightings = sightings
        self._each = guidance.wear
        self._experience = experience

    def draw_for(self, tool: ToolSpec, requirement: str) -> ToolCall:
        """Draw a call of ``tool`` with the documented constants that the text of a ``requirement`` asks for.

        "All doors must be locked" makes lists complete, booleans false unless the text names them ("unlock"), and picks
        choices and numbers whose words or gloss ("1 (fully pressed)") occur in the text.
        """
        sentence = requirement.split(". ", maxsplit=1)[0]
        asked, everything = frozenset(words(sentence)), _ALL.search(sentence) is not None
        arguments: dict[str, JsonValue] = {}
        for parameter in (one for one in tool.parameters if one.required):
            whole = everything and parameter.type == "array" and parameter.choices
            value = [*parameter.choices] if whole else self._asked_for(tool, parameter, asked, arguments)
            arguments[parameter.name] = value
        return self._fitting(ToolCall(name=tool.name, arguments=arguments), tool)

    def _known(self, name: str) -> Sequence[Scalar]:
        return self.sightings.whole()

    def kinds(self, tool: ToolSpec, parameter: Parameter) -> frozenset[str]:
        """Return the kinds of names that a text parameter takes, by its name, else by its description."""
        if parameter.type != "string" or parameter.choices:
            return frozenset()
        known = self.sightings.kinds()
        named = name_words(parameter.name)
        by_name = frozenset(kind for kind in known if overlap(named, {kind}))
        return by_name or known & parameter_words(parameter.description)

    def _asked_for(self, tool: ToolSpec, parameter: Parameter, asked: frozenset[str], chosen: Chosen) -> JsonValue:
        if parameter.type == "array":
            return self._value(tool, parameter, chosen)
        if parameter.type == "boolean":
            return name_words(parameter.name) <= asked
        known = constants(parameter)
        if known:
            best = max(overlap(words(str(value)), asked) for value in known)
            return self._rng.choice([value for value in known if overlap(words(str(value)), asked) == best])
        glossed = [number for number in numbers(parameter) if number.gloss]
        if glossed:
            number = max(glossed, key=lambda number: (overlap(number.gloss, asked) - number.denied, number.value))
            return converted(number.value, parameter.type)
        return self._value(tool, parameter, chosen)

    def _constant(self, tool: ToolSpec, parameter: Parameter, known: Sequence[JsonValue]) -> JsonValue:
        """Draw a documented value; one that was given already, or refused, is less likely."""
        worn = (self._experience.wear(tool.name, parameter.name, value, self._each) for value in known)
        return self._rng.choices(known, [math.exp(-wear) for wear in worn])[0]

    def _item(self, tool: ToolSpec, item: Parameter, chosen: Chosen) -> JsonValue:
        return self._value(tool, item, chosen)

    def _text(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        if self._identifying(parameter) and (known := self._seen(tool, parameter, chosen)):
            return known[0]
        said = mentioned(parameter)
        if said and self._rng.random() < 0.3:
            return self._rng.choice(said)
        seen = self._seen(tool, parameter, chosen)
        if seen and self._rng.random() >= self._share_of_new(tool, parameter):
            return seen[0]
        if head_word(parameter.description) in _PROSE:
            return invented_text(self.sightings, self._rng)
        return invented_name(self.sightings, str(seen[0]) if seen else "", self._rng)

    def _share_of_new(self, tool: ToolSpec, parameter: Parameter) -> float:
        """Return the probability of an invented text: high where the documentation mentions something new.

        If a tool takes names of a kind, the first parameter usually wants an existing one; a later one may be a target.
        """
        if "new" in parameter_words(parameter.description):
            return 0.85 if "creat" in about(tool) else 0.4
        if not self.kinds(tool, parameter):
            return 0.15
        return 0.05 if parameter == tool.parameters[0] else 0.25

    def _seen(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> list[Scalar]:
        """Draw a few seen values for a parameter by score."""
        near = frozenset(value for value in chosen.values() if isinstance(value, str | int | float))
        kinds = self.kinds(tool, parameter)

        def fits(sighting: Sighting) -> float:
            """Names in the current place fit a parameter of names, just observed values any."""
            score = _fit(parameter.name, parameter.description, sighting.labels) - 1.0 * sighting.piece
            if not near.isdisjoint(sighting.near):
                score += 3.0
            score += 2.0 * self._experience.trust(tool.name, parameter.name, sighting.source)
            if kinds and self.sightings.in_place(sighting):
                return score + 3.0
            if self.sightings.is_fresh(sighting):
                return score + 2.0
            elsewhere = sighting.parent is not None and self.sightings.place is not None
            return score - 2.0 if elsewhere or (sighting.kind and not kinds) else score

        scores: dict[Scalar, float] = {}
        for sighting in self._identifying(parameter) or self.sightings:
            if sighting.only_for not in (None, (tool.name, parameter.name)):
                continue
            value = converted(sighting.value, parameter.type)
            if value is not None and value not in near:
                scores[value] = max(scores.get(value, -math.inf), fits(sighting))
        if not scores:
            return []
        for value in scores:
            if kinds:
                suits = bool(kinds & self.sightings.kinds_of(value))
                scores[value] += 2.0 if suits else (-6.0 if parameter.required else -3.0)
            scores[value] -= self._experience.wear(tool.name, parameter.name, value, self._each)
        highest = max(scores.values())
        weights = [math.exp(score - highest) for score in scores.values()]
        return self._rng.choices(list(scores), weights, k=_CANDIDATES)

    def _identifying(self, parameter: Parameter) -> list[Sighting]:
        """Return the whole values that may be what a parameter of identifiers takes; empty for any other parameter.

        The value's key has the parameter's noun ("card_id" of {"credit_card_list": {"144": ..}}), or the tool that
        returned it as an "id" has ("ticket_id" of create_ticket's {"id": 1}).
        """
        named = name_words(parameter.name)
        if not named & _IDENTIFIERS:
            return []
        nouns = named - {"id"}
        whole = [sighting for sighting in self.sightings if not sighting.piece]
        exact = [sighting for sighting in whole if named <= sighting.labels]
        return exact or [
            sighting
            for sighting in whole
            if nouns <= sighting.labels
            or ("id" in sighting.labels and nouns and nouns <= name_words(sighting.source.partition(":")[0]))
        ]


@lru_cache(maxsize=65536)
def _fit(name: str, description: str, labels: frozenset[str]) -> float:
    """Score the overlap of a key's words with a parameter: its name counts double, its head word triple."""
    fit = 2.0 * overlap(name_words(name), labels) + 1.0 * overlap(parameter_words(description), labels)
    return fit + 3.0 * (head_word(description) in labels)
