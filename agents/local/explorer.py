"""The local explorer: a small language model proposes the calls of one purpose after another (ours).

It acts as the guided explorer does: the same aims, looks, moves and remedies, the same tools behind an answer. What it
calls them with is the model's. The model reads the documentation of the tool and of the nearest ones, values that are
known, and the calls so far with their answers. Of the calls that it proposes, and whose arguments the documentation
allows, the likeliest one is made that was not made yet; where none is of use, rules draw the arguments. After a call it
is asked what people would ask for in the same breath.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agents.evidence import LiveRun, call_of, fact_values
from agents.local.model import LocalModel, in_thread
from agents.said import around, keyed, own_tools, shuffled
from agents.scripted.explorer import GuidedExplorer, GuidedRounds, key_of
from agents.scripted.knowledge import Guidance
from agents.settings import ExplorationSettings, LocalSettings
from environments.base import Environment, Observation, ToolCall, ToolSpec
from environments.benchmark import KnownValue
from environments.task_text import leaves
from environments.turn_lines import (
    FOUND,
    Answered,
    KnownFact,
    TurnView,
    calls_text,
    chosen_facts,
    known_values,
    read_calls,
    with_found,
    writer_prompt,
)
from environments.verification.replay import argument_problem
from memory.records import FailureContext, Interaction

_SHOWN = 3  # tools in one prompt
_FACTS = 10  # known values in one prompt
_MOST_TOKENS = 60  # of a proposal
_MOST_CALLS = 3  # of one purpose
_AGAIN = 2.0  # nats a token that a call costs for each time that it was made
_UNSEEN = 1.0  # nats a token that values cost which nothing gave
_FURTHER = 0.4  # probability that the model is asked how a purpose goes on, where no answer was passed on


class LocalExplorer(GuidedExplorer):
    """Explorer whose calls a language model proposes."""

    def __init__(self, exploration: ExplorationSettings, settings: LocalSettings, model: LocalModel) -> None:
        super().__init__(exploration)
        self._local = settings
        self._model = model

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of S steps, in a thread."""
        return await in_thread(
            self._model,
            lambda model: LocalExplorer(self._settings, self._local, model).explore_now(context, environment, seed),
        )

    def explore_now(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore without an event loop, by the model wherever a benchmark has rules of its own, too."""
        return self._explore(context, environment, seed)

    def _rounds(
        self, context: FailureContext, environment: Environment, values: Sequence[KnownValue], rng: random.Random
    ) -> GuidedRounds:
        return LocalRounds(context, environment, values, self._local, self._model, rng)


class LocalRounds(GuidedRounds):
    """Guided rounds in which a language model says what tools are called with, and what belongs together."""

    def __init__(
        self,
        context: FailureContext,
        environment: Environment,
        given: Sequence[KnownValue],
        settings: LocalSettings,
        model: LocalModel,
        rng: random.Random,
    ) -> None:
        super().__init__(context, environment, given, rng)
        self._settings, self._model = settings, model
        self._documented = own_tools(self._all)
        told = [(name, str(leaf)) for name, value in fact_values(context.facts) for leaf in leaves(value)]
        people = [(one.parameter, str(one.value)) for one in given if one.tool in self._tools]
        self._facts: list[KnownFact] = list(dict.fromkeys((*known_values(context.initial_state), *told, *people)))

    def play(self, run: LiveRun, steps: int, guidance: Guidance) -> None:
        """Play one episode; its purposes are counted from 1."""
        self._purpose, self._joined = 0, False
        super().play(run, steps, guidance)

    def _act(self, call: ToolCall) -> Observation:
        self._purpose += not self._joined
        self._joined = False
        return super()._act(call)

    def _new_call(self, tool: ToolSpec) -> ToolCall | None:
        return self._proposed(tool, {}) or super()._new_call(tool)

    def _draw(self, tool: ToolSpec, given: Mapping[str, JsonValue]) -> ToolCall | None:
        return self._proposed(tool, given) or super()._draw(tool, given)

    def _consume(self) -> None:
        """Pass a value of the last answer on, or do what the model says belongs to the same purpose."""
        before = len(self._done)
        super()._consume()
        if len(self._done) > before or not self._done or not self._may_act() or self._rng.random() >= _FURTHER:
            return
        latest = self._tools[self._done[-1].name]
        self._made_together(self._best([""] * self._settings.draws, latest, None, joined=True), joined=True)

    def _proposed(self, tool: ToolSpec, given: Mapping[str, JsonValue]) -> ToolCall | None:
        """Return a call of ``tool`` with the values ``given``; None where no proposal is of use.

        What is proposed before it, for one of its values or for the same purpose, is called at once.
        """
        if not tool.parameters:
            return ToolCall(name=tool.name)
        values = ", ".join(f'{name}="{FOUND}"' for name in given)
        start = f"{tool.name}({values}" if given else tool.name
        begun = [start if given or number % 2 else "" for number in range(self._settings.draws)]
        calls = self._best(begun, tool, tool.name, joined=bool(given))
        if not calls or not self._made_together(calls[:-1], joined=bool(given)):
            return None
        self._joined = bool(given) or len(calls) > 1
        return self._filled(calls[-1], given)

    def _made_together(self, calls: Sequence[ToolCall], *, joined: bool) -> bool:
        """Make calls of one purpose, that of the call before them if ``joined``; return whether each succeeded."""
        for call in calls:
            filled = self._filled(call, {})
            if filled is None or not self._may_act():
                return False
            self._joined, joined = joined, True
            if self._act(filled).failed:
                return False
        return True

    def _best(self, begun: Sequence[str], tool: ToolSpec, aim: str | None, *, joined: bool) -> tuple[ToolCall, ...]:
        """Draw calls that begin with each of ``begun``, and return the likeliest ones, up to one of ``aim``.

        ``joined``: they go on with the purpose of the last call; none is returned where the likeliest is nothing more.
        """
        shown = shuffled(around([self._documented[tool.name]], tuple(self._documented.values()), _SHOWN), self._rng)
        names = {one.name for one in shown}
        prompt = self._prompt(shown, self._purpose if joined else None)
        seeds = [self._rng.randrange(2**62) for _ in begun]
        texts = self._model.write(
            [prompt + start for start in begun],
            seeds,
            "writer",
            temperature=self._settings.temperature,
            most=_MOST_TOKENS,
        )
        found: tuple[ToolCall, ...] = ()
        best = -math.inf
        for start, (text, likely) in zip(begun, texts, strict=True):
            calls = read_calls(start + text, names, _MOST_CALLS) or ()
            usable = self._usable(calls, aim)
            if usable is not None and likely - self._cost(usable) > best:
                found, best = usable, likely - self._cost(usable)
        return found

    def _prompt(self, shown: Sequence[ToolSpec], purpose: int | None) -> str:
        """Return the tools, some known values, the calls so far, and behind them those of the ``purpose``."""
        wanted = {p.name for one in shown for p in one.parameters}
        facts = chosen_facts(self._facts, wanted, self._rng, _FACTS)
        done, own = list[Answered](), list[Answered]()
        for one in self._succeeded():
            (own if one.purpose == purpose else done).append((call_of(one), one.observation.text))
        calls = with_found([call for call, _ in own], [answer for _, answer in own], "", ())
        return writer_prompt(TurnView(tuple(shown), facts, tuple(done))) + calls_text(calls)

    def _succeeded(self) -> list[Interaction]:
        return [one for one in self._run.interactions if not one.observation.failed]

    def _usable(self, calls: Sequence[ToolCall], aim: str | None) -> tuple[ToolCall, ...] | None:
        """Return the calls up to and with the first of ``aim``; None without one, and where arguments do not fit."""
        names = [call.name for call in calls]
        if aim is not None and aim not in names:
            return None
        kept = tuple(calls if aim is None else calls[: names.index(aim) + 1])
        for call in kept:
            plain = {name: value for name, value in call.arguments.items() if value != FOUND}
            tool = self._tools[call.name]
            if len(plain) == len(call.arguments) and argument_problem(call, tool) is not None:
                return None
            if any(tool.parameter(name) is None for name in call.arguments) and not tool.json_schema:
                return None
        return kept

    def _cost(self, calls: Sequence[ToolCall]) -> float:
        """Return what speaks against calls, in nats a token: they were made, or their values come from nowhere."""
        seen = {value for _, value in self._facts} | {FOUND}
        answers = " ".join(one.observation.text for one in self._succeeded())
        parts = [leaf for call in calls for value in call.arguments.values() for leaf in leaves(value)]
        strange = [part for part in parts if isinstance(part, str) and part not in seen and part not in answers]
        made = sum(self._made[key_of(call)] + self._failed[key_of(call)] for call in calls)
        return _AGAIN * made + _UNSEEN * len(strange) / max(1, len(parts))

    def _filled(self, call: ToolCall, given: Mapping[str, JsonValue]) -> ToolCall | None:
        """Return the call with the values ``given``, and one of an answer or that fits in place of each ``FOUND``.

        None where none fits.
        """
        tool = self._tools[call.name]
        known = {name: value for name, value in call.arguments.items() if value != FOUND} | dict(given)
        for name in [name for name in call.arguments if name not in known]:
            latest = self._latest(name)
            if latest is not None:
                known[name] = latest
        filled: ToolCall | None = ToolCall(
            name=call.name, arguments={n: known[n] for n in call.arguments if n in known}
        )
        if any(name not in known for name in call.arguments):
            filled = self._arguments.draw(tool, known)
        return filled if filled is not None and argument_problem(filled, tool) is None else None

    def _latest(self, name: str) -> JsonValue:
        """Return the last value that an answer has under a key of this name, or one that ends or begins like it."""
        for one in reversed(self._succeeded()):
            for key, value in reversed(keyed(one.observation.text)):
                if key == name or name.endswith(f"_{key}") or key.endswith(f"_{name}"):
                    return value
        return None
