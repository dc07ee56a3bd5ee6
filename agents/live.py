"""Live episodes at a failure context, and cuts of them: which calls are the task, and which become its setup.

``context_task`` is the task without text that opens an episode, a ``LiveRun`` the interactions in it. A cut is a
proposal of calls that really ran, in their order. Its setup is the context's setup plus those earlier calls of the run
without which the cut's observations would differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

from environments.base import Action, Environment, Episode, ObservationStatus, TaskSpec, ToolCall
from memory.jsonl import record_id
from memory.records import FailureContext, Interaction, Measured


def context_task(context: FailureContext, turns: int = 1) -> TaskSpec:
    """Return the context as a task with empty turns and no reference, for an explorer to open."""
    return TaskSpec(
        environment=context.environment,
        split="train",
        classes=context.classes,
        turns=("",) * turns,
        initial_state=context.initial_state,
        setup=(*context.setup, *(call for calls in context.made for call in calls)),
        tools=context.tools,
        reference=((),) * turns,
    )


def after_history(task: TaskSpec, context: FailureContext) -> TaskSpec:
    """Return a task that was cut at a context as a continuation of its conversation, whose turns the reference plays.

    A task with calls of its own before the cut keeps its setup, the conversation hidden in it (ours).
    """
    if not context.said or task.setup != context_task(context).setup:
        return task
    return task.model_copy(
        update={
            "setup": context.setup,
            "turns": (*context.said, *task.turns),
            "reference": (*context.made, *task.reference),
            "played": len(context.said),
        }
    )


class LiveRun:
    """One episode of an explorer: executes actions and records every interaction with whether it changed the state.

    ``preface`` is the environment's text before the first action. Every action has a turn of its own, so that an
    environment's limit of actions per turn never cuts the episode off.
    """

    def __init__(self, episode: Episode, context: FailureContext, run: int, preface: str = "") -> None:
        self.preface = preface
        self._episode = episode
        self._context = context
        self._run = run
        self._state = episode.state()
        self.interactions: list[Interaction] = []

    def act(self, action: Action, measured: Measured | None = None) -> Interaction:
        """Execute one action and record it."""
        if self.interactions:
            self._episode.end_turn()
        observation = self._episode.step(action)
        state = self._episode.state()
        position = len(self.interactions)
        interaction = Interaction(
            id=record_id("interaction", self._context.id, self._run, position),
            context_id=self._context.id,
            run=self._run,
            position=position,
            action=action,
            observation=observation,
            changed=state != self._state,
            measured=measured or Measured(),
        )
        self._state = state
        self.interactions.append(interaction)
        return interaction


@contextmanager
def live_run(environment: Environment, context: FailureContext, run: int, steps: int) -> Iterator[LiveRun]:
    """Open a fresh episode on the context's initial state, after its setup, for at most ``steps`` actions."""
    with closing(environment.open(context_task(context, turns=steps))) as episode:
        turn = episode.start()
        yield LiveRun(episode, context, run, turn.preface)


def preface_of(environment: Environment, context: FailureContext) -> str:
    """Return the environment's text before an agent's first action at this context."""
    with closing(environment.open(context_task(context))) as episode:
        return episode.start().preface


_LENGTHS = (1, 1, 2, 2, 3)


class Cut(NamedTuple):
    """Interactions that become the reference, and calls that run before it (the context's own setup left out)."""

    setup: tuple[ToolCall, ...]
    reference: tuple[Interaction, ...]

    def names(self) -> tuple[str, ...]:
        """Return the tools of the reference in order."""
        return tuple(call_of(interaction).name for interaction in self.reference)

    def solved_blindly(self) -> bool:
        """Return whether calls without arguments solve it: one such call, or only reads. Verification refuses those."""
        if any(call_of(interaction).arguments for interaction in self.reference):
            return False
        return len(self.reference) == 1 or not any(interaction.changed for interaction in self.reference)


def call_of(interaction: Interaction) -> ToolCall:
    """Return the call of an interaction whose action is known to be a call."""
    assert isinstance(interaction.action, ToolCall)
    return interaction.action


def successful_runs(interactions: Sequence[Interaction]) -> tuple[tuple[Interaction, ...], ...]:
    """Return the successful calls of each run in order; runs without any are left out."""
    runs: dict[int, list[Interaction]] = {}
    for interaction in sorted(interactions, key=lambda i: (i.run, i.position)):
        if isinstance(interaction.action, ToolCall) and interaction.observation.status is ObservationStatus.OK:
            runs.setdefault(interaction.run, []).append(interaction)
    return tuple(tuple(run) for run in runs.values())


def partition(
    run: Sequence[Interaction], longest: int, rng: random.Random, *, shortest: int = 1, long_only: bool = False
) -> tuple[Cut, ...]:
    """Cut the run into consecutive pieces of up to ``longest`` calls; the earlier changes are each one's setup.

    Lengths are drawn, short ones more often (ours); ``long_only`` makes all pieces as long as may be. A piece of fewer
    than ``shortest`` calls is left out.
    """
    lengths = [
        length for length in (*_LENGTHS, *range(max(_LENGTHS) + 1, longest + 1)) if shortest <= length <= longest
    ]
    if long_only:
        lengths = [longest]
    cuts, start = [], 0
    while start < len(run):
        piece = tuple(run[start : start + rng.choice(lengths)])
        if len(piece) >= shortest:
            cuts.append(Cut(_changes(run[:start]), piece))
        start += len(piece)
    return tuple(cuts)


def around(
    run: Sequence[Interaction], place: int, longest: int, context: FailureContext, environment: Environment
) -> tuple[Cut, ...]:
    """Cut around the call at ``place``: alone, with calls that it needs or takes values from, and with neighbours.

    The calls that it needs are found by leaving out earlier calls, one by one, while its observation stays the same.
    """
    target = run[place]
    needed = _needed(run[:place], target, context, environment)
    cuts = []
    if needed is not None:
        for count in range(min(len(needed), longest - 1) + 1):
            kept = len(needed) - count
            cuts.append(Cut(_calls(needed[:kept]), (*needed[kept:], target)))
        sources = [i for i in run[:place] if i not in needed and _answers(i, call_of(target))][-(longest - 1) :]
        if sources and longest > 1:
            cuts.append(Cut(_calls(needed), (*sources, target)))
    for start in range(max(0, place - longest + 1), place + 1):
        for end in range(place + 1, min(len(run), start + longest) + 1):
            piece = tuple(run[start:end])
            cuts.append(Cut(setup_for(run[:start], piece, context, environment), piece))
    distinct: dict[tuple[str, ...], Cut] = {}
    for cut in cuts:
        distinct.setdefault(tuple(interaction.id for interaction in cut.reference), cut)
    return tuple(distinct.values())


def setup_for(
    before: Sequence[Interaction], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> tuple[ToolCall, ...]:
    """Choose those of the successful calls ``before`` a piece that become its setup.

    These are the calls that changed the state, or all calls if the piece's observations differ without the others (for
    example a change of the working directory).
    """
    changes = _changes(before)
    if len(changes) == len(before) or _same_answers(changes, piece, context, environment):
        return changes
    return _calls(before)


def dependent(
    pieces: Sequence[Interaction], setup: Sequence[ToolCall], context: FailureContext, environment: Environment
) -> bool:
    """Return whether a later call of a reference takes a text of an earlier one's observation, or needs an earlier one.

    ``setup`` are the calls before the reference, without the context's own setup.
    """
    for place, later in enumerate(pieces):
        if any(_answers(earlier, call_of(later)) for earlier in pieces[:place]):
            return True
        if place > 0 and not _same_answers(setup, (later,), context, environment):
            return True
    return False


def _needed(
    before: Sequence[Interaction], target: Interaction, context: FailureContext, environment: Environment
) -> tuple[Interaction, ...] | None:
    """Return the fewest earlier calls after which ``target`` is answered as before; None if not even after all."""
    kept = list(before)
    if not _same_answers(_calls(kept), (target,), context, environment):
        return None
    for candidate in before:
        rest = [interaction for interaction in kept if interaction is not candidate]
        if _same_answers(_calls(rest), (target,), context, environment):
            kept = rest
    return tuple(kept)


def _same_answers(
    setup: Sequence[ToolCall], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> bool:
    task = context_task(context)
    task = task.model_copy(update={"setup": (*task.setup, *setup)})
    with closing(environment.open(task)) as episode:
        episode.start()
        return all(episode.step(call_of(i)).text == i.observation.text for i in piece)


def _answers(source: Interaction, call: ToolCall) -> bool:
    """Return whether a text argument of ``call`` occurs in the observation of ``source``."""
    texts = [value for value in call.arguments.values() if isinstance(value, str) and len(value) > 1]
    return any(f'"{text}"' in source.observation.text for text in texts)


def _changes(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions if interaction.changed)


def _calls(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions)
