"""Run one attempt at one AppWorld task: user turns, actions, observations and the outcome.

The outcome is by the benchmark's checks, or by comparison with the reference. Answers to a task are compared by
content, which is the benchmark's rule: 5, "5" and "5.0" are one answer.

``preface`` writes AppWorld's introduction before a task in our own words: the user, the time, and how to act.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from pydantic import JsonValue

from environments.appworld.records import (
    NO_OP_FAIL,
    NOT_GIVEN,
    PYTHON,
    Difference,
    Evaluation,
    ModelChanges,
    WorldOpening,
    start_of,
)
from environments.appworld.worlds import PlayedWorld, RecordedWorld, refused
from environments.base import (
    Action,
    EnvironmentFault,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    Record,
    TaskSpec,
    TurnOutcome,
    UserTurn,
)
from environments.turns import FailureNames, References, WorldEpisode, outcome_of_turns

_QUOTES = ("'", '"')


def same_answer(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two answers are equal by content.

    Case, outer white space, a pair of quotes around a text and the order of a list's items do not matter, and neither
    does how a number is written; numbers are compared to two decimals.
    """
    return _said(one) == _said(other)


def _said(answer: JsonValue) -> str:
    if isinstance(answer, list):
        return " | ".join(sorted(_said(item) for item in answer))
    text = "null" if answer is None else str(answer).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        text = text[1:-1]
    try:
        number = float(text)
    except ValueError:
        return text.strip().casefold()
    return str(round(number, 2)) if math.isfinite(number) else text.casefold()


CHECKS_FAILED = "appworld:checks_failed"
STATE_MISMATCH = "appworld:state_mismatch"
RESPONSE_MISMATCH = "appworld:answer_mismatch"
NOT_REACHED = "appworld:turn_not_reached"
WORLD_LOST = "appworld:world_lost"
"""The agent's code ended or damaged its world (``client.WorldLost``)."""
_FAILURES = FailureNames(STATE_MISMATCH, RESPONSE_MISMATCH, NOT_REACHED)
_ANSWER_CHECK = "assert answers match."  # how the package's evaluations name the check of the answer


class PlayedTurn(Record):
    """A played turn: numbers of calls and malformed actions, and the world's difference after it.

    ``end`` is None when the agent's code lost the world.
    """

    calls: int
    malformed: int
    end: Difference | None


class ReferenceTurn(Record):
    """A turn of the reference: its calls, whether one fails, and the world's difference after it.

    ``untouched`` is the difference before the first turn, made by the setup.
    """

    calls: int
    error: bool
    end: Difference
    untouched: dict[str, ModelChanges] = {}

    @property
    def answers(self) -> bool:
        """Return whether it gave an answer by the end of the turn; completing a task without one does not count."""
        return self.end.answer is not None and self.end.answer != NOT_GIVEN


def against_reference(played: Sequence[PlayedTurn], wanted: Sequence[ReferenceTurn], reached: int) -> Outcome:
    """Return the outcome of a task of ours.

    After every turn that the reference acts in, the databases differ from the start as the reference's do (``state``:
    anything else that changed fails), and the task's status and answer are the reference's (``response``). ``played``
    has an entry for each turn of ``wanted``; ``reached`` is how many the agent was shown.

    ``partial`` counts the checks of state and response that fail when an agent only marks the task complete: a turn's
    state where the reference has changed something by then, its response where it has given an answer.
    """
    turns = tuple(_compared(*pair) for pair in zip(played, wanted, strict=True))
    partial = _share([passed for pair in zip(turns, wanted, strict=True) for passed in _earned(*pair)])
    lost = next((index for index, turn in enumerate(played) if turn.end is None), None)
    if lost is not None:
        return Outcome(success=False, turns=turns, failure=WORLD_LOST, failed_turn=lost, partial=partial)
    return outcome_of_turns(turns, reached, _FAILURES, partial)


def against_checks(calls: int, malformed: int, reference_calls: int, evaluation: Evaluation | None) -> Outcome:
    """Return the outcome of an official task, whose single turn made ``calls``: success when every check passes.

    Without an ``evaluation`` the agent's code lost the world: a failure with ``partial`` 0.

    ``response`` is the check of the answer, which the package's evaluations name alike, None where a task has none;
    ``state`` says whether all other checks pass, None where there are none. Checks of the calls that were made, which
    some tasks have, count as state. ``partial`` is the share of the checks labelled no_op_fail that pass.
    """
    turn = TurnOutcome(calls=calls, malformed=malformed, reference_calls=reference_calls, state=False)
    if evaluation is None:
        return Outcome(success=False, turns=(turn,), failure=WORLD_LOST, failed_turn=0, partial=0.0)
    passed = [(check, True) for check in evaluation.passes] + [(check, False) for check in evaluation.failures]
    answer = [passes for check, passes in passed if check.requirement.strip().casefold() == _ANSWER_CHECK]
    others = [passes for check, passes in passed if check.requirement.strip().casefold() != _ANSWER_CHECK]
    state, response = (all(checks) if checks else None for checks in (others, answer))
    turn = turn.model_copy(update={"state": state, "response": response})
    partial = _share([passes for check, passes in passed if check.label == NO_OP_FAIL])
    if evaluation.success:
        return Outcome(success=True, turns=(turn,), partial=partial)
    failure = STATE_MISMATCH if state is False else RESPONSE_MISMATCH if response is False else CHECKS_FAILED
    return Outcome(success=False, turns=(turn,), failure=failure, failed_turn=0, partial=partial)


def _compared(played: PlayedTurn, wanted: ReferenceTurn) -> TurnOutcome:
    end, aim = played.end, wanted.end
    state = end is not None and end.changes == aim.changes
    said = end is not None and end.status == aim.status and same_answer(end.answer, aim.answer)
    return TurnOutcome(
        calls=played.calls,
        malformed=played.malformed,
        reference_calls=wanted.calls,
        reference_error=wanted.error,
        state=state if wanted.calls else None,
        response=said if wanted.calls else None,
    )


def _earned(turn: TurnOutcome, wanted: ReferenceTurn) -> Iterator[bool]:
    """Yield, for each check of the turn that an agent without actions fails, whether it passes."""
    if turn.state is not None and wanted.end.changes != wanted.untouched:
        yield turn.state
    if turn.response is not None and wanted.answers:
        yield turn.response


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed) if passed else 0.0


_WHO = """\
You work for {first_name} {last_name}, your supervisor, and do in the supervisor's apps what they ask for. Their email \
address is {email}, their phone number {phone_number}. The date and time is {now}."""

_HOW = """\
You act by writing Python, one block a step: in your message between a line ```python and a line ```, or as a call of \
the tool python. You are then told what the block printed, or its error, and only that: print what you want to see.
- Variables, functions and imports are kept from block to block.
- Apps are called as apis.APP.API(parameter=value). Do not guess names: apis.api_docs.show_app_descriptions() lists \
the apps, apis.api_docs.show_api_descriptions(app_name=...) an app's APIs, and \
apis.api_docs.show_api_doc(app_name=..., api_name=...) tells an API's parameters and answer.
- apis.supervisor.show_profile() and apis.supervisor.show_account_passwords() tell what signing in to an app needs; \
most APIs want the access_token that an app's login answers with. Addresses and payment cards are there too.
- Long lists come in pages: ask for further ones until a page is empty.
- Only a part of Python is allowed: no files, no network, no operating system. The apps are the only way to act.
- When the task is done, call apis.supervisor.complete_task(); where it asks a question, \
apis.supervisor.complete_task(answer=...) with the bare value and no words around it. Nothing runs after that.
Nobody answers questions: decide yourself, and change nothing that was not asked for."""


_UNCHANGED = Difference(changes={}, status=None, answer=None)


def replayed(play: Callable[[TaskSpec], PlayedWorld | RecordedWorld], task: TaskSpec) -> tuple[ReferenceTurn, ...]:
    """Return the turns of ``task``'s reference in a fresh world, which ``play`` opens.

    Raises EnvironmentFault when that world fails.
    """
    if not any(task.reference):  # a turn without calls is not compared
        return (ReferenceTurn(calls=0, error=False, end=_UNCHANGED),) * len(task.reference)
    with closing(play(task)) as world:
        for call in task.setup:
            world.run(call)
        untouched = _end(world).changes if task.setup else {}
        turns = []
        for calls in task.reference:
            observations = [world.run(call) for call in calls]
            error = any(observation.failed for observation in observations)
            turns.append(ReferenceTurn(calls=len(calls), error=error, end=_end(world), untouched=untouched))
    return tuple(turns)


def _end(world: PlayedWorld | RecordedWorld) -> Difference:
    difference = world.difference()
    if difference is None:
        raise EnvironmentFault("the task's reference lost its world when it was replayed")
    return difference


def preface(opening: WorldOpening, *, by_code: bool) -> str:
    """Return the introduction of a world.

    ``by_code``: whether the agent has the tool python; without it, the text does not explain how to act, which the
    documentation of the tools does.
    """
    who = _WHO.format(now=opening.now.replace("T", " "), **opening.supervisor.model_dump())
    return f"{who}\n\n{_HOW}" if by_code else who


class AppWorldEpisode(WorldEpisode[PlayedWorld | RecordedWorld, PlayedTurn]):
    """Implements ``environments.base.Episode``; single use, and used by one thread at a time.

    The benchmark's checks evaluate an official task; any other is compared with its reference (``outcomes``). An action
    past ``max_steps`` of a turn is answered and not run, and so is one after the task was marked complete. Methods that
    are called out of order raise RuntimeError; all but ``close`` raise EnvironmentFault when the world is gone.
    """

    def __init__(
        self,
        task: TaskSpec,
        world: PlayedWorld | RecordedWorld,
        references: References[tuple[ReferenceTurn, ...]],
        max_steps: int,
    ) -> None:
        super().__init__(task, world)
        self._references = references
        self._max_steps = max_steps

    def start(self) -> UserTurn:
        """Run the setup and return the first user turn, with the benchmark's introduction."""
        turn = super().start()
        return turn.model_copy(update={"preface": preface(self._live().opening, by_code=PYTHON in turn.tools)})

    def step(self, action: Action) -> Observation:
        """Execute one action in the current turn; a malformed one is answered and counted."""
        self._turns.expect_open()
        world = self._live()
        if self._turns.steps >= self._max_steps:
            return refused(f"the limit of {self._max_steps} steps in this turn is reached, nothing was run")
        self._turns.steps += 1
        if isinstance(action, MalformedCall):
            self._turns.malformed += 1
            return Observation(text=f"Malformed action: {action.reason}", status=ObservationStatus.MALFORMED)
        self._turns.calls += 1
        if action.name not in self._turns.shown:
            return refused(f"there is no tool {action.name!r} in this task")
        return world.run(action)

    def outcome(self) -> Outcome:
        """Return the outcome so far; a turn that was not reached is compared with the current state."""
        turns = self._turns
        turns.expect_started()
        if start_of(self._task).official:
            evaluation = self._live().evaluation()
            return against_checks(turns.calls, turns.malformed, len(self._task.reference[0]), evaluation)
        return against_reference(turns.played(), self._references.of(self._task), turns.reached)

    def _measured(self, turn: int, calls: int, malformed: int) -> PlayedTurn:
        return PlayedTurn(calls=calls, malformed=malformed, end=self._live().difference())
