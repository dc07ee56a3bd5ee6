"""The scripted explorers: a guided one, and one that draws calls uniformly for D_0, warm starts and the baseline.

CoEvolve (section 3) lets an LLM explore for several rounds of several steps; these rules are our stand-in. A round
that is not independent reuses what earlier ones learned: which calls a tool needs first, which values it takes, what is
visible at the start (ours).

The guided one acts around a failure context, resolves errors, and prefers tools not reached yet. In a round (one live
episode) it aims at one tool after another. A refused call is retried after the calls that the
error message asks for. If the values that a tool takes are elsewhere in the state's tree, it goes there first; after a
surprising answer it looks again. Which tools move or look is read from documentation; how often the rules apply is our
choice. Both often follow an answer with a tool that takes a value of it, so that tasks are found in which one call
needs another's answer; and neither calls a tool with a required argument that nothing fits.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import ClassVar

from pydantic import JsonValue

from agents.evidence import LiveRun, error_message, executed, is_success, live_run
from agents.scripted.arguments import Aim, GuidedArguments, UniformArguments
from agents.scripted.knowledge import (
    PLAIN,
    Aims,
    Guidance,
    about,
    listed_values,
    makers,
    name_words,
    overlap,
    parameter_words,
    read_context,
    remedies,
    sign_in_tools,
    sources_of_values,
)
from agents.scripted.values import Experience, Sightings
from agents.settings import ExplorationSettings, own_roles
from environments.base import Environment, Observation, ObservationStatus, ToolCall, ToolSpec
from environments.benchmark import KnownValue
from environments.registry import benchmark_of
from memory.jsonl import derive_seed
from memory.records import FailureContext, Interaction

_MAX_DEPTH = 4
_DRAWS = 6
_REMEDIES = 2
_MAX_MOVES = 3
_STRAY = 0.25
_CONSUMED = 0.5  # probability that a tool is aimed at which takes a value of the last answer, where there is one
_PATIENCE = 3
_AVOIDED = 99  # as if a call had been made so often
_MOVES = frozenset({"chang", "current"})


class GuidedRounds:
    """Acts in one live episode after another at a context, with what earlier ones found.

    ``needs`` are the calls that a tool was found to need before it, ``in_view`` what a round saw at its start.
    """

    _purpose = 0

    def __init__(
        self, context: FailureContext, environment: Environment, given: Sequence[KnownValue], rng: random.Random
    ) -> None:
        self._context = context
        self._given = given
        self._rng = rng
        self._tools = {tool.name: tool for tool in environment.tools(context.tools)}
        self._all = tuple(self._tools.values())
        self._experience = Experience()
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        wanted = (context.tool, *context.explore) if context.tool else context.explore
        self._aims = Aims(sorted(self._tools), wanted, _PATIENCE, rng)
        self._needs: dict[str, tuple[ToolCall, ...]] = {}
        self._in_view: dict[str, tuple[ToolCall, Observation]] = {}

    def play(self, run: LiveRun, steps: int, guidance: Guidance) -> None:
        """Aim at one tool after another until the steps are used up; first at a wanted one that was not reached."""
        self._aims.follow(guidance)
        self._guidance, self._run, self._steps = guidance, run, steps
        self._sightings = self._visible()
        self._arguments = GuidedArguments(self._sightings, self._experience, self._rng, self._all, self._guidance)
        self._done: list[ToolCall] = []
        self._looked: set[str] = set()
        self._only_looked = True
        self._aimed: set[str] = set()
        self._takers: list[Aim] = []
        aim, missed = self._aims.next(), 0
        while self._may_act() and missed < _PATIENCE * len(self._tools):
            self._aims.aimed[aim] += 1
            before = len(self._done)
            self._reach(self._tools[aim])
            self._consume()
            missed = 0 if len(self._done) > before else missed + 1
            aim = self._aims.any()

    def _visible(self) -> Sightings:
        seen = Sightings()
        seen.see_state(self._context.initial_state)
        for value in self._given:
            if value.tool in self._tools:
                seen.see_for(value.tool, value.parameter, value.value, value.near)
        seen.see_facts(self._context.facts)
        for call, observation in self._in_view.values():
            seen.see_observation(call, observation)
        return seen

    def _may_act(self) -> bool:
        return len(self._run.interactions) < self._steps

    def _reach(self, tool: ToolSpec) -> None:
        """Make one successful call of a tool: meet its known needs, go where its values are, overcome errors."""
        guidance = self._guidance
        if not guidance.bold or tool.name in self._aimed:
            self._meet_needs(tool)
            self._approach(tool)
        self._aimed.add(tool.name)
        if guidance.looks and tool.name in guidance.turn:
            self._look(tool)
        if self._may_act():
            self._attempt(partial(self._new_call, tool), 0)

    def _meet_needs(self, tool: ToolSpec) -> None:
        """Make the calls that an earlier round found to be needed, unless the last of them was just made."""
        for need in self._needs.get(tool.name, ()):
            latest = next((made for made in reversed(self._done) if made.name == need.name), None)
            if latest != need and self._may_act():
                self._act(need)

    def _consume(self) -> None:
        """Sometimes call a tool that takes a value of the last answer."""
        takers = self._takers if self._rng.random() < _CONSUMED else []
        if takers and self._may_act():
            tool, given = self._rng.choice(takers)
            self._attempt(partial(self._draw, tool, given), 0)

    def _draw(self, tool: ToolSpec, given: Mapping[str, JsonValue]) -> ToolCall | None:
        """Draw a call with the arguments ``given`` that is made for its answer, or for what it takes."""
        return self._arguments.draw(tool, given)

    def _new_call(self, tool: ToolSpec) -> ToolCall | None:
        """Draw the call that was made least often at this context, failures counted double; the first of equals."""

        def times(call: ToolCall) -> int:
            avoided = bool(self._guidance.avoided) and executed(call) in self._guidance.avoided
            return self._made[key_of(call)] + 2 * self._failed[key_of(call)] + _AVOIDED * avoided

        drawn = (self._arguments.draw(tool) for _ in range(_DRAWS if tool.parameters else 1))
        return min((call for call in drawn if call is not None), key=times, default=None)

    def _attempt(self, draw: Callable[[], ToolCall | None], depth: int) -> bool:
        """Draw and make a call; on an error do what it asks for, or look and draw again. True once it succeeded."""
        before = len(self._done)
        for last in (False, True):
            call = draw() if self._may_act() else None
            if call is None:
                return False
            observation = self._act(call)
            if not observation.failed:
                empty = observation.status is ObservationStatus.EMPTY and not last
                if empty and self._obtain(call, None, depth) and self._may_act():
                    continue
                return True
            if not self._may_act() or depth >= _MAX_DEPTH:
                return False
            asked = self._asked(call, observation.text)
            if asked:
                if not self._overcome(call, observation.text, asked, depth):
                    return False
                between = tuple(made for made in self._done[before:] if made.name != call.name)
                if between:
                    self._needs.setdefault(call.name, between)
                return True
            if not last and not self._obtain(call, observation.text, depth):
                self._look(self._tools[call.name])
        return False

    def _overcome(self, call: ToolCall, text: str, asked: Sequence[ToolSpec], depth: int) -> bool:
        """Make the calls that the error text asks for and retry ``call`` after each; go on while the error changes."""
        for tool in asked[:_REMEDIES]:
            self._meet_needs(tool)
            if self._may_act():
                self._attempt(partial(self._arguments.draw_for, tool, text), depth + 1)
            if not self._may_act():
                return False
            call = self._with_what_was_made(call)
            observation = self._act(call)
            if not observation.failed:
                return True
            if observation.text != text and depth < _MAX_DEPTH:
                further = self._asked(call, observation.text)
                return self._overcome(call, observation.text, further, depth + 1)
        return False

    def _asked(self, call: ToolCall, text: str) -> tuple[ToolSpec, ...]:
        return sign_in_tools(call, text, self._all) or remedies(call, text, self._all)

    def _obtain(self, call: ToolCall, text: str | None, depth: int) -> bool:
        """Call a tool that returns or makes what ``call`` lacks, by its error or (None) its empty answer."""
        sources = sources_of_values(call, text, self._all) if text is not None else ()
        found = sources or makers(call, text, self._all)
        may = bool(found) and depth < _MAX_DEPTH and self._may_act()
        return may and self._attempt(partial(self._draw, found[0], {}), depth + 1)

    def _with_what_was_made(self, call: ToolCall) -> ToolCall:
        """Return ``call`` with the values that the last answer gives under its parameters' names."""
        last = self._done[-1].name if self._done else ""
        given = {
            name: sighting.value
            for name in call.arguments
            for sighting in self._sightings
            if self._sightings.is_fresh(sighting) and sighting.source == f"{last}:{name}"
        }
        return call.model_copy(update={"arguments": {**call.arguments, **given}})

    def _approach(self, tool: ToolSpec) -> None:
        """Go to a place with names of the kind that ``tool`` takes, and sometimes further than needed."""
        taken = (self._arguments.kinds(tool, p) for p in tool.parameters if p.required)
        kinds = next(filter(None, taken), frozenset())
        movers = [mover for _, mover in sorted(self._tools.items()) if _moves(mover)]
        if not kinds or not movers:
            return
        for _ in range(_MAX_MOVES):
            here = [s for s in self._sightings if self._sightings.in_place(s)]
            if any(s.kind in kinds for s in here) and self._rng.random() >= _STRAY:
                return
            below = {name for s in self._sightings if s.kind in kinds for name in s.near}
            ways = sorted({str(s.value) for s in here if s.value in below})
            if not ways or not self._may_act():
                return
            mover = self._rng.choice(movers)
            self._act(ToolCall(name=mover.name, arguments={mover.parameters[0].name: self._rng.choice(ways)}))

    def _look(self, tool: ToolSpec) -> None:
        """Call a tool without required arguments whose documentation mentions what ``tool`` takes."""
        wanted = frozenset(w for p in tool.parameters for w in (*name_words(p.name), *parameter_words(p.description)))
        options = {
            other.name: overlap(wanted, about(other)) / len(about(other)) ** 0.5
            for _, other in sorted(self._tools.items())
            if other.group == tool.group
            and other.name not in self._looked
            and not any(p.required for p in other.parameters)
        }
        likely = [name for name, score in options.items() if score > 0.5]
        if likely and self._may_act():
            chosen = self._rng.choices(likely, [options[name] ** 2 for name in likely])[0]
            self._looked.add(chosen)
            self._act(ToolCall(name=chosen))

    def _act(self, call: ToolCall) -> Observation:
        interaction = self._run.act(call, purpose=self._purpose)
        observation, tool = interaction.observation, self._tools[call.name]
        fine, key, since = is_success(observation), key_of(call), len(self._sightings.items)
        self._takers = []
        self._made[key] += fine
        self._failed[key] = 0 if fine else self._failed[key] + 1
        self._aims.succeeded[call.name] += fine
        self._experience.learn(call, observation, self._sightings)
        if observation.failed:
            self._sightings.doubt(call, observation.text)
            what = error_message(observation.text).partition("[")[0]
            self._sightings.see_listed(what, listed_values(call, observation.text))
            return observation
        self._done.append(call)
        looked = not call.arguments and not any(p.required for p in tool.parameters) and not interaction.changed
        if not looked:
            self._only_looked = False
            self._looked.clear()
        elif fine and self._only_looked:
            self._in_view[call.name] = (call, observation)
        if fine:
            self._sightings.see_call(call, self._arguments.made_kinds(call, interaction.changed))
        self._sightings.see_observation(call, observation)
        self._takers = self._arguments.consumers(call, since)
        if _moves(tool) and not interaction.changed:
            self._sightings.move(str(next(iter(call.arguments.values()))))
        return observation


def key_of(call: ToolCall) -> str:
    """Return a call as text, equal for equal calls."""
    return f"{call.name}{sorted(call.arguments.items())}"


def _moves(tool: ToolSpec) -> bool:
    """Return whether a tool changes the current place: one text argument, described as "change the current ..."."""
    single = len(tool.parameters) == 1 and tool.parameters[0].type == "string" and not tool.parameters[0].choices
    return single and about(tool) >= _MOVES


class GuidedExplorer:
    """Explorer guided by the context: its tool, the tools worth reaching, its facts.

    With ``exploration.guidance: context`` also by its kind, cause and focus pattern (``agents.scripted.knowledge``).
    A benchmark's own rules explore where it has some.
    """

    _guided: ClassVar[bool] = True

    def __init__(self, settings: ExplorationSettings) -> None:
        self._settings = settings

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of S steps, in a thread; equal arguments give equal interactions."""
        return await asyncio.to_thread(self.explore_now, context, environment, seed)

    def explore_now(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore without an event loop."""
        own = own_roles(environment)
        if own is not None:
            return own.explore(context, environment, self._settings, seed, guided=self._guided)
        return self._explore(context, environment, seed)

    def _explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        # Both scripted explorers get these values: they differ in their aims, not in their knowledge (ours).
        values = benchmark_of(environment).known_values(environment)
        rounds = self._rounds(context, environment, values, random.Random(seed))
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            if self._settings.independent and number > 0:
                rng = random.Random(derive_seed(seed, "round", number))
                rounds = self._rounds(context, environment, values, rng)
            guidance = read_context(context, number) if self._settings.guidance == "context" else PLAIN
            with live_run(environment, context, number, self._settings.steps) as run:
                rounds.play(run, self._settings.steps, guidance)
                interactions += run.interactions
        return tuple(interactions)

    def _rounds(
        self, context: FailureContext, environment: Environment, values: Sequence[KnownValue], rng: random.Random
    ) -> GuidedRounds:
        return GuidedRounds(context, environment, values, rng)


_UNREAD = {"kind": None, "cause": None, "focus_pattern": (), "do_not_repeat": ()}
"""The fields that ``read_context`` reads, in a context that guides nobody."""


class UnguidedExplorer(GuidedExplorer):
    """Explorer that uses nothing of a context but its start state.

    D_0 and the unguided baseline use it, within the limits of ``agents.roles.unguided_exploration``; the baseline
    has as many contexts as make its environment calls equal. ``exploration.unguided`` says how much it has in common
    with the guided one: nothing (calls are drawn uniformly), or everything but the aim (ours).
    """

    _guided = False

    def _explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        if self._settings.unguided == "uniform_calls":
            return self._uniform_calls(context, environment, seed)
        # Aims are drawn from the tools alone: of the context only the start state is left.
        bare = context.model_copy(update={"tool": "", "explore": (), "facts": (), **_UNREAD})
        return super()._explore(bare, environment, seed)

    def _uniform_calls(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        rng = random.Random(seed)
        tools = environment.tools(context.tools)
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            sightings = Sightings()
            sightings.see_state(context.initial_state)
            for one in benchmark_of(environment).known_values(environment):
                sightings.see_for(one.tool, one.parameter, one.value, one.near)
            arguments = UniformArguments(sightings, rng, tools)
            takers: list[Aim] = []
            with live_run(environment, context, number, self._settings.steps) as run:
                for _ in range(self._settings.steps):
                    chosen = [rng.choice(takers)] if takers and rng.random() < _CONSUMED else []
                    aims = chain(chosen, map(Aim, rng.sample(tools, len(tools))))
                    call = next(filter(None, (arguments.draw(*aim) for aim in aims)), None)
                    if call is None:
                        break
                    interaction, since = run.act(call), len(sightings.items)
                    takers = []
                    if is_success(interaction.observation):
                        sightings.see_call(call, arguments.made_kinds(call, interaction.changed))
                        sightings.see_observation(call, interaction.observation)
                        takers = arguments.consumers(call, since)
                interactions += run.interactions
        return tuple(interactions)
