"""A live episode at a failure context: the task without text that opens it, and the interactions in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from environments.base import Action, Environment, Episode, TaskSpec
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
        setup=context.setup,
        tools=context.tools,
        reference=((),) * turns,
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
