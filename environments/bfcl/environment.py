"""Implement the BFCL environment: open episodes on the official simulators and list the training start states.

An episode is one attempt at one task: user turns, actions, observations and the official outcome. The outcome and the
checks of every turn come from the package's state and response checkers. The official checker stops at the first
failing turn; here every turn is evaluated, and the result follows from the first failure. ``setup`` is a hidden first
turn on both sides: it changes the state, and its results count in no response check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from environments.base import (
    Action,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    TurnOutcome,
)
from environments.benchmark import AnyBenchmark
from environments.bfcl.official import (
    CLASSES,
    all_tools,
    check_class,
    load_category,
    require,
    response_checker,
    state_checker,
    tool_names,
)
from environments.bfcl.simulators import ERROR_PREFIX, Simulators, not_defined
from environments.turns import References, WorldEpisode, check_turns

FORCE_TERMINATED = "multi_turn:force_terminated"
EMPTY_TURN = "multi_turn:empty_turn_model_response"
STATE_MISMATCH = "multi_turn:instance_state_mismatch"
RESPONSE_MISMATCH = "multi_turn:execution_response_mismatch"
CHECKER_ERROR = "multi_turn:checker_error"
"""Ours: the official checker raises here, because two directory trees contain themselves."""


@dataclass(frozen=True)
class ExpectedTurn:
    """The results and instances of one turn's reference; ``instances`` is None for an empty reference."""

    results: tuple[str, ...]
    error: bool
    instances: dict[str, Any] | None


def _replayed(task: TaskSpec) -> tuple[ExpectedTurn, ...]:
    """Replay the reference of ``task`` from a fresh state, turn by turn."""
    tools = all_tools()
    simulators = Simulators(task.classes, task.initial_state, task.long_context)
    for call in task.setup:
        simulators.run(call)
    called = [{tools[call.name].group for call in calls if call.name in tools} for calls in task.reference]
    turns = []
    for turn, calls in enumerate(task.reference):
        answers = [simulators.run(call) for call in calls]
        # An instance that no later turn calls stays as it is and needs no copy.
        instances = simulators.snapshot(set().union(*called[turn + 1 :])) if calls else None
        turns.append(
            ExpectedTurn(
                results=tuple(answer.text for answer in answers),
                error=any(answer.status is ObservationStatus.ERROR for answer in answers),
                instances=instances,
            )
        )
    return tuple(turns)


REFERENCES = References(_replayed, "classes", "initial_state", "setup", "reference", "long_context")


def official_outcome(turns: tuple[TurnOutcome, ...], *, reached: int, terminated: int | None) -> Outcome:
    """Return the official result over the checks of every turn.

    Args:
        reached: number of user turns that the agent was shown; fewer than all is a forced termination, which officially
            comes before every other check and has no failed turn.
        terminated: the turn in which the step limit ended the episode, None if the limit was not reached.
    """
    if terminated is not None or reached < len(turns):
        return Outcome(success=False, turns=turns, failure=FORCE_TERMINATED, failed_turn=terminated)
    for index, turn in enumerate(turns):
        failure = _failure(turn)
        if failure is not None:
            return Outcome(success=False, turns=turns, failure=failure, failed_turn=index)
    return Outcome(success=True, turns=turns)


def _failure(turn: TurnOutcome) -> str | None:
    if not turn.reference_calls:
        return None
    if not turn.calls:
        return EMPTY_TURN
    if turn.checker_error is not None:
        return CHECKER_ERROR
    if not turn.state:
        return STATE_MISMATCH
    return None if turn.response else RESPONSE_MISMATCH


class BFCLEpisode(WorldEpisode[Simulators, TurnOutcome]):
    """Implements ``environments.base.Episode``; single use, and used by one thread at a time.

    Officially the 21st step of a turn ends the episode, which fails it unless it was the last turn (that one is
    checked by the calls that ran). Here a step past ``max_steps`` is answered and not run, with the same consequence.
    In the turns that the reference plays there is no such limit.

    A withheld tool is not among the tools shown before its turn. A call of it still runs, as officially (a reference of
    miss_func has one); a tool that the task does not have at all is answered as not defined.
    """

    def __init__(self, task: TaskSpec, max_steps: int) -> None:
        super().__init__(task, Simulators(task.classes, task.initial_state, task.long_context))
        self._max_steps = max_steps
        self._results: list[str] = []
        self._terminated: int | None = None
        self._reference: tuple[ExpectedTurn, ...] | None = None

    def step(self, action: Action) -> Observation:
        """Execute one action in the current turn; a malformed one is answered and counted."""
        self._turns.expect_open()
        if self._turns.steps >= self._max_steps and self._turns.index >= self._task.played:
            if self._turns.index < len(self._task.turns) - 1:
                self._terminated = self._turns.index
            return _error(f"the limit of {self._max_steps} steps in this turn is reached, nothing was run")
        self._turns.steps += 1
        if isinstance(action, MalformedCall):
            self._turns.malformed += 1
            return Observation(text=ERROR_PREFIX + action.reason, status=ObservationStatus.MALFORMED)
        return self._call(action)

    def _call(self, call: ToolCall) -> Observation:
        answer = self._live().run(call) if call.name in self._turns.callable else not_defined(call.name)
        self._turns.calls += 1
        self._results.append(answer.text)
        return Observation(text=answer.text, status=answer.status, calls=(call,) if answer.ran else ())

    def outcome(self) -> Outcome:
        """Return the official result of the actions so far; turns not reached count as turns without a call."""
        return official_outcome(self._turns.played(), reached=self._turns.reached, terminated=self._terminated)

    def _measured(self, turn: int, calls: int, malformed: int) -> TurnOutcome:
        """Return every official check of one turn; without a call of the agent's the checker has no instances."""
        if self._reference is None:
            self._reference = REFERENCES.of(self._task)
        reference = self._reference[turn]
        outcome = TurnOutcome(
            calls=calls, malformed=malformed, reference_calls=len(reference.results), reference_error=reference.error
        )
        if reference.instances is None:
            return outcome
        checks: dict[str, Any] = {"instances": calls > 0}
        checks["response"] = response_checker()([*self._results], [*reference.results], turn)["valid"]
        try:
            checks["state"] = state_checker()(self._live().instances, reference.instances)["valid"]
        except RecursionError:
            checks["checker_error"] = "the state check recursed without end: a directory contains itself"
        return outcome.model_copy(update=checks)


def _error(reason: str) -> Observation:
    return Observation(text=ERROR_PREFIX + reason, status=ObservationStatus.ERROR)


NAME = "bfcl"


class BFCLEnvironment:
    """Implements ``environments.base.Environment``.

    Args:
        classes: official classes that ``starts`` is restricted to; tasks of every class can be opened.
        max_steps: actions in one user turn before it is cut off (official: 20).

    Raises InputError when bfcl-eval is not installed or a class is not one of its eight.
    """

    name: str = NAME
    benchmark: AnyBenchmark  # set for a variant of the benchmark (``environments.registry.benchmark_of``)

    def __init__(self, classes: Sequence[str] = CLASSES, max_steps: int = 20) -> None:
        require()
        self._classes = tuple(classes)
        _check_classes(self._classes)
        self._max_steps = max_steps

    def open(self, task: TaskSpec) -> BFCLEpisode:
        """Open a fresh episode. Raises InputError for a task of another environment, or unknown classes or tools."""
        check_turns(task, NAME, len(task.turns))
        _check_classes(task.classes)
        known = set(tool_names(task.classes))
        for name in (*task.tools, *(name for names in task.withheld.values() for name in names)):
            if name not in known:
                raise InputError(f"the tool {name!r} belongs to none of the task's classes {', '.join(task.classes)}")
        return BFCLEpisode(task, self._max_steps)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named functions, in the given order. Raises InputError for an unknown one."""
        known = all_tools()
        for name in names:
            if name not in known:
                raise InputError(f"BFCL has no function {name!r}: use a name from its function documentation")
        return tuple(known[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states of the base tasks of the training split, restricted to the environment's classes."""
        return self._starts

    @cached_property
    def _starts(self) -> tuple[StartState, ...]:
        found = []
        for task in load_category("base", ("train",)):
            classes = tuple(name for name in task.spec.classes if name in self._classes)
            states = {name: task.spec.initial_state[name] for name in classes if name in task.spec.initial_state}
            if states:
                start = StartState(
                    id=task.id,
                    environment=NAME,
                    split=task.spec.split,
                    classes=classes,
                    initial_state=states,
                    tools=tool_names(classes),
                )
                found.append(start)
        return tuple(found)


def _check_classes(classes: Sequence[str]) -> None:
    if not classes:
        raise InputError(f"no class is given: name some of {', '.join(CLASSES)}")
    for name in classes:
        check_class(name)
    if len(set(classes)) < len(classes):
        raise InputError(f"a class is given twice in {', '.join(classes)}: give each once")
