"""The scripted explorers: a guided one, and one that draws calls uniformly for D_0, warm starts and the baseline.

CoEvolve (section 3) lets an LLM explore for several rounds of several steps; these rules are our stand-in. A round
that is not independent reuses what earlier ones learned: which calls a tool needs first, which values it takes, what is
visible at the start (ours).

The guided one acts around a failure context, resolves errors, and prefers tools not reached yet. In a round (one live
episode) it aims at one tool after another. A refused call is retried after the calls that the
error message asks for. If the values that a tool takes are elsewhere in the state's tree, it goes there first; after a
surprising answer it looks again. Which tools move or look is read from documentation; how often the rules apply is our
choice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

from agents.evidence import about, error_message, name_words, overlap, parameter_words, remedies
from agents.live import LiveRun, live_run
from agents.scripted.arguments import GuidedArguments, UniformArguments
from agents.scripted.knowledge import (
    Knowledge,
    listed_values,
    makers,
    read_context,
    sign_in_tools,
    sources_of_values,
)
from agents.scripted.values import Scalar, Sightings
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
_MAX_OBSERVATION = 400
_MOVES = frozenset({"chang", "current"})


class GuidedRound:
    """Acts in one live episode for a number of steps."""

    def __init__(self, run: LiveRun, knowledge: Knowledge, steps: int) -> None:
        self._run = run
        self._known = knowledge
        self._rng = knowledge.rng
        self._steps = steps
        self._sightings = knowledge.sightings()
        self._tools = tuple(knowledge.tools.values())
        guided = knowledge.guidance
        self._arguments = GuidedArguments(self._sightings, knowledge.experience, knowledge.rng, self._tools, guided)
        self._done: list[ToolCall] = []
        self._looked: set[str] = set()
        self._only_looked = True
        self._aimed: set[str] = set()

    def play(self) -> None:
        """Aim at one tool after another until the steps are used up; first at a wanted one that was not reached."""
        aim = self._known.aims.next()
        while self._may_act():
            self._known.aims.aimed[aim] += 1
            self._reach(self._known.tools[aim])
            aim = self._known.aims.any()

    def _may_act(self) -> bool:
        return len(self._run.interactions) < self._steps

    def _reach(self, tool: ToolSpec) -> None:
        """Make one successful call of a tool: meet its known needs, go where its values are, overcome errors."""
        guidance = self._known.guidance
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
        for need in self._known.needs.get(tool.name, ()):
            latest = next((made for made in reversed(self._done) if made.name == need.name), None)
            if latest != need and self._may_act():
                self._act(need)

    def _new_call(self, tool: ToolSpec) -> ToolCall:
        count = _DRAWS if tool.parameters else 1
        return self._known.newest([self._arguments.draw(tool) for _ in range(count)])

    def _attempt(self, draw: Callable[[], ToolCall], depth: int) -> bool:
        """Draw and make a call; on an error do what it asks for, or look and draw again. True once it succeeded."""
        before = len(self._done)
        for last in (False, True):
            call = draw()
            observation = self._act(call)
            if not observation.failed:
                if not last and observation.status is ObservationStatus.EMPTY and self._obtain(call, None, depth):
                    if not self._may_act():
                        return True
                    continue
                return True
            if not self._may_act() or depth >= _MAX_DEPTH:
                return False
            asked = self._asked(call, observation.text)
            if asked:
                overcome = self._overcome(call, observation.text, asked, depth)
                if overcome:
                    self._remember_needs(call, before)
                return overcome
            if not last and not self._obtain(call, observation.text, depth):
                self._look(self._known.tools[call.name])
            if not self._may_act():
                return False
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
        """Return the tools that an error asks for: to sign somebody in, else by its words."""
        return sign_in_tools(call, text, self._tools) or remedies(call, text, self._tools)

    def _obtain(self, call: ToolCall, text: str | None, depth: int) -> bool:
        """Call a tool that returns or makes what ``call`` lacks, by its error or (None) its empty answer."""
        sources = sources_of_values(call, text, self._tools) if text is not None else ()
        for tool in (sources or makers(call, text, self._tools))[:1]:
            if depth < _MAX_DEPTH and self._may_act():
                return self._attempt(partial(self._arguments.draw, tool), depth + 1)
        return False

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

    def _remember_needs(self, call: ToolCall, before: int) -> None:
        """Keep the calls that came between the first error of ``call`` and its success."""
        between = tuple(made for made in self._done[before:] if made.name != call.name)
        if between:
            self._known.needs.setdefault(call.name, between)

    def _approach(self, tool: ToolSpec) -> None:
        """Go to a place with names of the kind that ``tool`` takes, and sometimes further than needed."""
        wanted = [kinds for p in tool.parameters if p.required for kinds in (self._arguments.kinds(tool, p),) if kinds]
        movers = [mover for _, mover in sorted(self._known.tools.items()) if _moves(mover)]
        if not wanted or not movers:
            return
        kinds = wanted[0]
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
            for _, other in sorted(self._known.tools.items())
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
        """Make a call and learn from its answer."""
        interaction = self._run.act(call)
        observation, tool = interaction.observation, self._known.tools[call.name]
        self._known.record(call, observation.status is ObservationStatus.OK)
        self._known.experience.learn(call, observation, self._sightings)
        if observation.failed:
            self._sightings.doubt(call, observation.text)
            what = error_message(observation.text).partition("[")[0]
            for value in listed_values(call, observation.text):
                self._sightings.see_fact(what, value)
            return observation
        self._done.append(call)
        looked = not call.arguments and not any(p.required for p in tool.parameters) and not interaction.changed
        if not looked:
            self._only_looked = False
            self._looked.clear()
        if observation.status is ObservationStatus.OK and looked and self._only_looked:
            self._known.in_view[call.name] = (call, observation)
        self._take_in(tool, call, observation, interaction.changed)
        return observation

    def _take_in(self, tool: ToolSpec, call: ToolCall, observation: Observation, changed: bool) -> None:
        kinds = {p.name: self._arguments.kinds(tool, p) for p in tool.parameters}
        single = {name: next(iter(found)) for name, found in kinds.items() if len(found) == 1 and changed}
        if observation.status is ObservationStatus.OK:
            self._sightings.see_call(call, single)
        self._sightings.see_observation(call, observation)
        if _moves(tool) and not changed:
            self._sightings.move(str(next(iter(call.arguments.values()))))


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
        """Explore for R rounds of S steps; equal arguments give equal interactions."""
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
        knowledge = Knowledge(context, environment, values, random.Random(seed))
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            if self._settings.independent and number > 0:
                knowledge = Knowledge(context, environment, values, random.Random(derive_seed(seed, "round", number)))
            if self._settings.guidance == "context":
                knowledge.follow(read_context(context, number))
            with live_run(environment, context, number, self._settings.steps) as run:
                GuidedRound(run, knowledge, self._settings.steps).play()
                interactions += run.interactions
        return tuple(interactions)


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
        given = _given(benchmark_of(environment).known_values(environment))
        interactions: list[Interaction] = []
        for number in range(self._settings.rounds):
            sightings = Sightings()
            sightings.see_state(context.initial_state)
            with live_run(environment, context, number, self._settings.steps) as run:
                for _ in range(self._settings.steps):
                    tool = rng.choice(tools)
                    call = UniformArguments(sightings.whole(), given.get(tool.name, {}), rng, tools).draw(tool)
                    observation = run.act(call).observation
                    if len(observation.text) < _MAX_OBSERVATION:
                        sightings.see_observation(call, observation)
                interactions += run.interactions
        return tuple(interactions)


@cache
def _given(values: tuple[KnownValue, ...]) -> dict[str, dict[str, tuple[Scalar, ...]]]:
    """Values given in the training split, by tool and parameter."""
    found: dict[str, dict[str, tuple[Scalar, ...]]] = {}
    for one in values:
        known = found.setdefault(one.tool, {})
        known[one.parameter] = (*known.get(one.parameter, ()), one.value)
    return found
