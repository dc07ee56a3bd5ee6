"""Draws arguments for a tool: documented choices, else values that are documented, that people gave, or that fit.

Generic over ``ToolSpec``: it uses parameter types, documentation and sightings, never a tool's name. What fits is
decided in ``agents.scripted.fitting``. A tool with a required parameter that nothing fits gets no call. The guided
explorer draws fitting values with weights exp(score); the scores are our choice. Only names of a kind that the state
declares (files, directories), dates, and texts of a format are made up.
"""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from agents.scripted.fitting import (
    constants,
    converted,
    date_format,
    fitting,
    in_range,
    mentioned,
    numbers,
    wanted,
)
from agents.scripted.knowledge import (
    PLAIN,
    Guidance,
    about,
    makers,
    name_words,
    overlap,
    parameter_words,
)
from agents.scripted.schema_values import fitting_call
from agents.scripted.values import (
    Experience,
    Scalar,
    Sighting,
    Sightings,
    ending,
    invented_name,
    scalars,
)
from environments.base import Parameter, ToolCall, ToolSpec
from environments.schema_check import Unchecked
from environments.task_text import words

_MISFITS = 3  # draws without a call that fits a tool's schema, after which none is looked for (ours)
_FIRST_DATE = datetime.date(2024, 1, 1)
_DATES = 3 * 365  # days after it that an invented date may have (ours)
_FIELDS = 2  # of an object that changes fields, at most (ours)
_NUMBERS = (2, 4)  # items of a list of numbers, fewest and most (ours)
_TEXTS = (1, 2)  # items of any other list (ours)
_LEAVES = 20  # of one answer, whose consumers are looked for (ours)


Chosen = Mapping[str, JsonValue]
"""Arguments of the same call that were drawn before."""


class Aim(NamedTuple):
    """A tool, and arguments that a call of it is to have."""

    tool: ToolSpec
    given: Mapping[str, JsonValue] = {}


Fitting = Mapping[Scalar, Sequence[Sighting]]
"""Values that fit a parameter, each with its sightings."""


class UniformArguments:
    """Draws every value with equal weight, of those that fit the parameter.

    One source of values that holds any is drawn (the description, the documented range, given by people, seen), then a
    value. The guided explorer differs in the weights alone. ``optional`` is the probability of an optional parameter.
    """

    def __init__(
        self,
        sightings: Sightings,
        rng: random.Random,
        tools: Sequence[ToolSpec] = (),
        optional: float = PLAIN.optional,
    ) -> None:
        self.sightings = sightings
        self._rng = rng
        self._tools = tools
        self._optional = optional
        self._misfits: Counter[str] = Counter()

    def draw(self, tool: ToolSpec, given: Chosen | None = None) -> ToolCall | None:
        """Draw a call of ``tool`` with the arguments ``given``: the other required parameters always, each optional one
        by its probability. Return None where nothing fits a required one."""
        arguments: dict[str, JsonValue] = {}
        for parameter in tool.parameters:
            if given and parameter.name in given:
                arguments[parameter.name] = given[parameter.name]
            elif parameter.required or self._rng.random() < self._optional:
                value = self._value(tool, parameter, {**(given or {}), **arguments})
                if value is not None:
                    arguments[parameter.name] = value
        return self._fitting(ToolCall(name=tool.name, arguments=arguments), tool)

    def consumers(self, call: ToolCall, since: int) -> list[Aim]:
        """Return the tools that take a value of the answer to ``call``, each with it; else those that take its things.

        ``since`` is the number of sightings before the call. A value of the answer is none of the call's, and the only
        one of its key; a number is taken by a parameter of identifiers, or beside another required one.
        """
        new = [one for one in self.sightings.items[since:] if not one.piece]
        counts, own = Counter(one.source for one in new), set(scalars(call.arguments))
        answered = [one for one in new if one.source.startswith(f"{call.name}:") and counts[one.source] == 1]
        takers = self._takers([one for one in answered if one.value not in own], call.name)
        return takers or self._takers([one for one in new if one.source.startswith(f"{call.name}(")], call.name)

    def _takers(self, seen: Sequence[Sighting], maker: str) -> list[Aim]:
        found: list[Aim] = []
        for tool in self._tools if seen else ():
            required = [one for one in tool.parameters if one.required and not constants(one)]
            for parameter in required if tool.name != maker else ():
                asked, kinds = wanted(tool.name, parameter.name, parameter.description), self.kinds(tool, parameter)
                for sighting in seen[:_LEAVES] if not asked.prose else ():
                    value = self._fit(sighting, tool, parameter, kinds)
                    if isinstance(value, str) or (value is not None and (asked.identifier or len(required) > 1)):
                        found.append(Aim(tool, {parameter.name: value}))
        return found

    def _fit(self, sighting: Sighting, tool: ToolSpec, parameter: Parameter, kinds: frozenset[str]) -> Scalar | None:
        """Return the value where it fits: of a parameter that takes ``kinds`` of names, by what the state declares."""
        if not kinds or sighting.only_for is not None:
            return fitting(sighting, tool, parameter)
        named = not sighting.piece and kinds & self.sightings.kinds_of(sighting.value)
        return converted(sighting.value, parameter) if named else None

    def kinds(self, tool: ToolSpec, parameter: Parameter) -> frozenset[str]:
        """Return the kinds of names that a text parameter takes, by its name, else by its description."""
        if parameter.type != "string" or parameter.choices:
            return frozenset()
        known = self.sightings.kinds()
        named = name_words(parameter.name)
        by_name = frozenset(kind for kind in known if overlap(named, {kind}))
        asked = wanted(tool.name, parameter.name, parameter.description)
        said = frozenset() if asked.prose or asked.searched else parameter_words(parameter.description)
        return by_name or known & said

    def made_kinds(self, call: ToolCall, changed: bool) -> dict[str, str]:
        """Return the kind of each name that a call which ``changed`` the state may have made, by parameter."""
        tool = next((one for one in self._tools if one.name == call.name), None) if changed else None
        kinds = {one.name: self.kinds(tool, one) for one in tool.parameters} if tool else {}
        return {name: next(iter(own)) for name, own in kinds.items() if len(own) == 1}

    def _fitting(self, call: ToolCall, tool: ToolSpec) -> ToolCall | None:
        """Return the call, or another one where the tool's schema does not take it; None where there is none."""
        if not tool.json_schema:
            return None if any(p.required and p.name not in call.arguments for p in tool.parameters) else call
        if self._misfits[tool.name] >= _MISFITS:
            return None
        try:
            found = fitting_call(call, tool, lambda name: self._known(tool, name), self._rng, self._optional)
        except Unchecked:  # it took seconds
            self._misfits[tool.name], found = _MISFITS, None
        self._misfits[tool.name] += found is None
        return found

    def _known(self, tool: ToolSpec, name: str) -> Sequence[Scalar]:
        """Return the texts and numbers that fit a parameter or field of this name."""
        kinds = ("string", "float")
        plain = [Parameter(name=name, type=kind, description="", required=True) for kind in kinds]
        return [value for parameter in plain for value in self._fits(tool, parameter, {})]

    def _value(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a value, None where nothing fits."""
        if parameter.type == "array":
            return self._list(tool, parameter, chosen)
        known = constants(parameter) or self._constants_of_namesake(tool, parameter)
        if known:
            return self._constant(tool, parameter, known)
        if parameter.type == "dict":
            owner, picked = self._picked_fields(tool, parameter)
            fields = {field.name: self._value(owner, field, chosen) for field in picked}
            return {name: value for name, value in fields.items() if value is not None} or None
        if (form := date_format(parameter)) is not None:
            return self._date(tool, parameter, chosen, form)
        if parameter.type == "string":
            return self._text(tool, parameter, chosen)
        return self._number(tool, parameter, chosen)

    def _constants_of_namesake(self, tool: ToolSpec, parameter: Parameter) -> tuple[JsonValue, ...]:
        """Return the choices that another tool of the group documents for a parameter of the same name."""
        if parameter.type != "string":
            return ()
        namesakes = (other.parameter(parameter.name) for other in self._tools if other.group == tool.group)
        return next((one.choices for one in namesakes if one and one.type == "string" and one.choices), ())

    def _picked_fields(self, tool: ToolSpec, parameter: Parameter) -> tuple[ToolSpec, list[Parameter]]:
        """Draw the fields of an object: its documented ones as a call's parameters, else of what ``tool`` changes.

        Those are the parameters of the tool of its group that makes such a thing, which is returned with them, without
        lists and objects.
        """
        if parameter.fields:
            return tool, [one for one in parameter.fields if one.required or self._rng.random() < self._optional]
        maker = next(iter(makers(ToolCall(name=tool.name), None, self._tools)), tool)
        fields = [one for one in maker.parameters if maker is not tool and one.type not in ("array", "dict")]
        return maker, self._rng.sample(fields, self._rng.randint(1, min(_FIELDS, len(fields)))) if fields else []

    def _date(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen, form: str) -> str:
        """Draw a fitting date of the documented format half of the time, else invent one."""
        known = {value: seen for value, seen in self._fits(tool, parameter, chosen).items() if _is(value, form)}
        if known and self._rng.random() < 0.5:
            return str(self._pick(tool, parameter, chosen, known))
        return (_FIRST_DATE + datetime.timedelta(days=self._rng.randrange(_DATES))).strftime(form)

    def _list(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a uniform number of documented items, in the documented order; else a few different values."""
        if parameter.choices:
            size = self._rng.randint(1, len(parameter.choices))
            picked = set(self._rng.sample(range(len(parameter.choices)), size))
            return [choice for place, choice in enumerate(parameter.choices) if place in picked]
        item = parameter.item or parameter.model_copy(update={"type": parameter.items or "string"})
        least, most = _NUMBERS if item.type in ("integer", "float") else _TEXTS
        found: list[JsonValue] = []
        for _ in range(self._rng.randint(least, most)):
            value = self._value(tool, item, chosen)
            found += [value] if value is not None and value not in found else []
        return found if len(found) >= least else None

    def _number(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a number of one source that holds any: description, its range, values that people gave, those seen."""
        described = [converted(number.value, parameter) for number in numbers(parameter)]
        sources: list[Sequence[Scalar]] = [[one for one in described if one is not None]]
        sources.append([one for value in in_range(parameter) if (one := converted(value, parameter)) is not None])
        fits = self._fits(tool, parameter, chosen)
        if fits and wanted(tool.name, parameter.name, parameter.description).identifier:
            sources = []
        picked = self._rng.choice([source for source in (*sources, [*fits]) if source] or [()])
        if not picked:
            return None
        return self._pick(tool, parameter, chosen, fits) if picked == [*fits] else self._rng.choice(picked)

    def _text(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> JsonValue:
        """Draw a quoted word of the description, a new name of the parameter's kind, or a value that fits."""
        said, kinds = mentioned(parameter), self.kinds(tool, parameter)
        fits = self._fits(tool, parameter, chosen)
        if said and (self._rng.random() < 0.3 or not fits):
            return self._rng.choice(said)
        if kinds and (self._rng.random() < self._share_of_new(tool, parameter) or not fits):
            like = next((value for value in chosen.values() if isinstance(value, str)), None)
            made = invented_name(self.sightings, kinds, like, self._rng)
            given = [value for value, seen in fits.items() if any(one.only_for for one in seen)]
            alike = [one for one in given if like is None or ending(str(one)) == ending(like)]
            new = [*alike, *([made] if made else [])]
            return self._rng.choice(new) if new else None
        return self._pick(tool, parameter, chosen, fits) if fits else None

    def _constant(self, tool: ToolSpec, parameter: Parameter, known: Sequence[JsonValue]) -> JsonValue:
        return self._rng.choice(known)

    def _share_of_new(self, tool: ToolSpec, parameter: Parameter) -> float:
        """Return the probability of a new name: high where the documentation mentions something new.

        If a tool takes names of a kind, the first parameter usually wants an existing one; a later one may be a target.
        """
        if "new" in parameter_words(parameter.description):
            return 0.85 if "creat" in about(tool) else 0.4
        return 0.05 if parameter == tool.parameters[0] else 0.25

    def _fits(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen) -> dict[Scalar, list[Sighting]]:
        """Return the seen and given values that fit, but texts of other arguments of the call, with their sightings."""
        near = [value for value in chosen.values() if isinstance(value, str)]
        kinds = self.kinds(tool, parameter)
        found: defaultdict[Scalar, list[Sighting]] = defaultdict(list)
        for sighting in self.sightings:
            value = self._fit(sighting, tool, parameter, kinds)
            if value is not None and value not in near:
                found[value].append(sighting)
        return found

    def _pick(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen, fits: Fitting) -> Scalar:
        """Draw one of the values: first whether one that people gave or one that was seen, where there are both."""
        given = [value for value, seen in fits.items() if any(one.only_for for one in seen)]
        others = [value for value in fits if value not in given]
        return self._rng.choice(self._rng.choice([source for source in (given, others) if source]))


def _is(value: Scalar, form: str) -> bool:
    try:
        datetime.datetime.strptime(str(value), form)
    except ValueError:
        return False
    return True


_ALL = re.compile(r"\b(all|each|every)\b", re.IGNORECASE)


class GuidedArguments(UniformArguments):
    """Draws values by what was seen: visible ones first, later ones near the earlier ones."""

    def __init__(
        self,
        sightings: Sightings,
        experience: Experience,
        rng: random.Random,
        tools: Sequence[ToolSpec] = (),
        guidance: Guidance = PLAIN,
    ) -> None:
        super().__init__(sightings, rng, tools, guidance.optional)
        self._each = guidance.wear
        self._experience = experience

    def draw_for(self, tool: ToolSpec, requirement: str) -> ToolCall | None:
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
            if value is not None:
                arguments[parameter.name] = value
        return self._fitting(ToolCall(name=tool.name, arguments=arguments), tool)

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
            return converted(number.value, parameter)
        return self._value(tool, parameter, chosen)

    def _constant(self, tool: ToolSpec, parameter: Parameter, known: Sequence[JsonValue]) -> JsonValue:
        """Draw a documented value; one that was given already, or refused, is less likely."""
        worn = (self._experience.wear(tool.name, parameter.name, value, self._each) for value in known)
        return self._rng.choices(known, [math.exp(-wear) for wear in worn])[0]

    def _pick(self, tool: ToolSpec, parameter: Parameter, chosen: Chosen, fits: Fitting) -> Scalar:
        """Draw one of the values by score."""
        near = frozenset(value for value in chosen.values() if isinstance(value, str | int | float))
        kinds = self.kinds(tool, parameter)

        def score(sighting: Sighting) -> float:
            """Names in the current place fit a parameter of names, just observed values any."""
            score = 3.0 if not near.isdisjoint(sighting.near) else 0.0
            score += 2.0 * self._experience.trust(tool.name, parameter.name, sighting.source)
            if kinds and self.sightings.in_place(sighting):
                return score + 3.0
            if self.sightings.is_fresh(sighting):
                return score + 2.0
            elsewhere = sighting.parent is not None and self.sightings.place is not None
            return score - 2.0 if elsewhere else score

        scores = {value: max(map(score, seen)) for value, seen in fits.items()}
        for value in scores:
            scores[value] -= self._experience.wear(tool.name, parameter.name, value, self._each)
        highest = max(scores.values())
        return self._rng.choices(list(scores), [math.exp(one - highest) for one in scores.values()])[0]
