"""The local explorer: a small language model proposes the calls of one purpose after another (ours).

In a live episode it aims at a tool, as the scripted explorer does: at the context's own first, then at those worth
reaching, then at any. The model reads the documentation of that tool and of the nearest ones, values that are known,
and the calls so far with their answers. Several proposals are drawn, half of them begun with the tool's name. Of those
that are calls of tools on offer, with arguments that the documentation allows, the likeliest one is executed that was
not made yet. A refused call is tried once more behind a call of the tool that its message asks for.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from pydantic import JsonValue

from agents.evidence import LiveRun, error_message, executed, fact_values, live_run
from agents.local.model import LocalModel, around, in_thread, own_tools, shuffled
from agents.scripted.knowledge import PLAIN, Aims, read_context, remedies, sign_in_tools
from agents.settings import ExplorationSettings, LocalSettings
from environments.answers import decoded
from environments.base import Environment, ToolCall, ToolSpec
from environments.registry import benchmark_of
from environments.task_text import leaves
from environments.turn_lines import (
    FOUND,
    KnownFact,
    TurnView,
    chosen_facts,
    known_values,
    read_calls,
    writer_prompt,
)
from environments.verification.replay import argument_problem
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction

_PATIENCE = 3  # aims at a wanted tool before others are preferred
_MISSES = 4  # aims in a row without a proposal, after which a round ends
_SHOWN = 4  # tools in one prompt
_FACTS = 10  # known values in one prompt
_MOST_TOKENS = 60  # of a proposal
_MOST_CALLS = 3  # of one purpose
_AGAIN = 2.0  # nats a token that a call costs for each time that it was made
_UNSEEN = 1.0  # nats a token that values cost which nothing gave


class LocalExplorer:
    """Explorer whose calls a language model proposes."""

    def __init__(self, exploration: ExplorationSettings, settings: LocalSettings, model: LocalModel) -> None:
        self._exploration = exploration
        self._settings = settings
        self._model = model

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of S steps, in a thread."""
        return await in_thread(
            self._model,
            lambda model: LocalExplorer(self._exploration, self._settings, model).explore_now(
                context, environment, seed
            ),
        )

    def explore_now(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore without an event loop."""
        found: list[Interaction] = []
        for number in range(self._exploration.rounds):
            rng = random.Random(derive_seed(seed, "round", number))
            with live_run(environment, context, number, self._exploration.steps) as run:
                _Round(context, environment, self._settings, self._model, run, rng).play(
                    self._exploration.steps, number, self._exploration.guidance == "context"
                )
                found += run.interactions
        return tuple(found)


class _Round:
    """One live episode, and what is known in it."""

    def __init__(
        self,
        context: FailureContext,
        environment: Environment,
        settings: LocalSettings,
        model: LocalModel,
        run: LiveRun,
        rng: random.Random,
    ) -> None:
        self._context, self._settings, self._model, self._run, self._rng = context, settings, model, run, rng
        self._tools = own_tools(environment.tools(context.tools))
        given = benchmark_of(environment).known_values(environment)
        known = [(one.parameter, str(one.value)) for one in given if one.tool in self._tools]
        told = [(name, str(leaf)) for name, value in fact_values(context.facts) for leaf in leaves(value)]
        self._facts: list[KnownFact] = list(dict.fromkeys((*known_values(context.initial_state), *told)))
        self._given = list(dict.fromkeys(known))
        self._done: list[tuple[ToolCall, str]] = []
        self._made: Counter[str] = Counter()
        self._purpose = 0

    def play(self, steps: int, number: int, guided: bool) -> None:
        """Aim at one tool after another until the steps are used up, or nothing is proposed any more."""
        own = (self._context.tool,) if self._context.tool else ()
        aims = Aims(sorted(self._tools), [*own, *self._context.explore], _PATIENCE, self._rng)
        aims.follow(read_context(self._context, number) if guided else PLAIN)
        missed = 0
        aim = aims.next()
        while len(self._run.interactions) < steps and missed < _MISSES:
            aims.aimed[aim] += 1
            calls = self._proposal(self._tools[aim])
            missed = 0 if calls else missed + 1
            self._purpose += 1
            for call in calls:
                if len(self._run.interactions) >= steps or not self._carry_out(call, steps):
                    break
                aims.succeeded[call.name] += 1
            aim = aims.next()

    def _proposal(self, tool: ToolSpec) -> tuple[ToolCall, ...]:
        """Return the calls of one purpose with ``tool`` among them; none where no draw is of use."""
        shown = shuffled(around([tool], tuple(self._tools.values()), _SHOWN), self._rng)
        wanted = {p.name for one in shown for p in one.parameters}
        facts = chosen_facts([*self._facts, *self._given], wanted, self._rng, _FACTS)
        view = TurnView(shown, facts, tuple(self._done))
        prompt = writer_prompt(view)
        draws = self._settings.draws
        begun = [tool.name if number % 2 else "" for number in range(draws)]
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
        names = {one.name for one in shown}
        for start, (text, likely) in zip(begun, texts, strict=True):
            calls = read_calls(start + text, names, _MOST_CALLS)
            calls = self._usable(calls, tool.name) if calls else None
            if calls and likely - self._cost(calls) > best:
                found, best = calls, likely - self._cost(calls)
        return found

    def _usable(self, calls: Sequence[ToolCall], aim: str) -> tuple[ToolCall, ...] | None:
        """Return the calls up to and with the first of ``aim``; None without one, and where arguments do not fit."""
        names = [call.name for call in calls]
        if aim not in names:
            return None
        kept = tuple(calls[: names.index(aim) + 1])
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
        seen = {value for _, value in (*self._facts, *self._given)} | {FOUND}
        answers = " ".join(answer for _, answer in self._done)
        parts = [leaf for call in calls for value in call.arguments.values() for leaf in leaves(value)]
        strange = [part for part in parts if isinstance(part, str) and part not in seen and part not in answers]
        return _AGAIN * sum(self._made[executed(call)] for call in calls) + _UNSEEN * len(strange) / max(1, len(parts))

    def _carry_out(self, call: ToolCall, steps: int) -> bool:
        """Make the call, and once more behind the tool that its error asks for; return whether it succeeded."""
        filled = self._filled(call)
        if filled is None:
            return False
        text = self._act(filled)
        if text is None:
            return True
        tools = tuple(self._tools.values())
        asked = sign_in_tools(filled, text, tools) or remedies(filled, text, tools)
        for tool in asked[:1]:
            for one in self._proposal(tool):
                before = self._filled(one)
                if before is None or len(self._run.interactions) >= steps or self._act(before) is not None:
                    return False
            again = self._filled(call)
            return again is not None and len(self._run.interactions) < steps and self._act(again) is None
        return False

    def _act(self, call: ToolCall) -> str | None:
        """Make a call; return the message of its error, None without one."""
        interaction = self._run.act(call, purpose=self._purpose)
        observation = interaction.observation
        self._made[executed(call)] += 1
        self._done.append((call, observation.text))
        return error_message(observation.text) if observation.failed else None

    def _filled(self, call: ToolCall) -> ToolCall | None:
        """Return the call with a value of an earlier answer in place of each ``FOUND``; None where none fits."""
        found: dict[str, JsonValue] = {}
        tool = self._tools[call.name]
        for name, value in call.arguments.items():
            found[name] = value
            if value == FOUND:
                latest = self._latest(name)
                if latest is None:
                    return None
                found[name] = latest
        filled = call.model_copy(update={"arguments": found})
        return filled if argument_problem(filled, tool) is None else None

    def _latest(self, name: str) -> JsonValue:
        """Return the last value that an answer has under a key of this name, or one that ends or begins like it."""
        for _, answer in reversed(self._done):
            for key, value in reversed(_keyed(answer)):
                if key == name or name.endswith(f"_{key}") or key.endswith(f"_{name}"):
                    return value
        return None


def _keyed(answer: str) -> list[tuple[str, JsonValue]]:
    """Return the plain values in an answer of JSON with their keys."""
    found: list[tuple[str, JsonValue]] = []
    stack: list[tuple[str, JsonValue]] = [("", decoded(answer))]
    while stack and len(found) < 1000:
        name, value = stack.pop()
        if isinstance(value, dict):
            stack += [(str(key), inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            stack += [(name, inner) for inner in reversed(value)]
        elif value is not None and not isinstance(value, bool):
            found.append((name, value))
    return found
