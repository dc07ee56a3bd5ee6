"""Implement the BFCL environment: open episodes on the official simulators and list the training start states.

An episode is one attempt at one task: user turns, actions, observations and the official outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

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
    Turns,
    UserTurn,
)
from environments.benchmark import AnyBenchmark
from environments.bfcl import package
from environments.bfcl.checker import ExpectedTurn, check_turn, official_outcome, reference_turns
from environments.bfcl.docs import all_tools, tool_names
from environments.bfcl.official import CategoryTask, load_category
from environments.bfcl.simulators import ERROR_PREFIX, Simulators, not_defined


class BFCLEpisode:
    """Implements ``environments.base.Episode``; single use, and used by one thread at a time.

    Officially the 21st step of a turn ends the episode, which fails it unless it was the last turn (that one is
    checked by the calls that ran). Here a step past ``max_steps`` is answered and not run, with the same consequence.
    In the turns that the reference plays there is no such limit. Methods that are called out of order raise
    RuntimeError.

    A withheld tool is not among the tools shown before its turn. A call of it still runs, as officially (a reference of
    miss_func has one); a tool that the task does not have at all is answered as not defined.
    """

    def __init__(self, task: TaskSpec, max_steps: int) -> None:
        self._task = task
        self._max_steps = max_steps
        self._simulators: Simulators | None = Simulators(task.classes, task.initial_state, task.long_context)
        self._turns = Turns(task, self._checked)
        self._results: list[str] = []
        self._terminated: int | None = None
        self._reference: tuple[ExpectedTurn, ...] | None = None

    def start(self) -> UserTurn:
        """Run the setup and return the first user turn."""
        self._turns.expect_new()
        for call in self._task.setup:
            self._live().run(call)
        return self._turns.first()

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

    def end_turn(self) -> UserTurn | None:
        """Check the current turn and return the next one, or None when the episode is over."""
        return self._turns.end()

    def state(self) -> str:
        """Return the canonical text of the public state; see ``environments.bfcl.simulators``."""
        return self._live().state()

    def outcome(self) -> Outcome:
        """Return the official result of the actions so far; turns not reached count as turns without a call."""
        return official_outcome(self._turns.played(), reached=self._turns.reached, terminated=self._terminated)

    def close(self) -> None:
        """Drop the simulators. Idempotent."""
        self._simulators = None

    def _checked(self, turn: int, calls: int, malformed: int) -> TurnOutcome:
        if self._reference is None:
            self._reference = reference_turns(self._task)
        reference = self._reference[turn]
        return check_turn(turn, reference, self._live().instances, self._results, calls=calls, malformed=malformed)

    def _live(self) -> Simulators:
        if self._simulators is None:
            raise RuntimeError("the episode is closed: open another one")
        return self._simulators


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

    def __init__(self, classes: Sequence[str] = package.CLASSES, max_steps: int = 20) -> None:
        package.require()
        self._classes = tuple(classes)
        _check_classes(self._classes)
        self._max_steps = max_steps

    def open(self, task: TaskSpec) -> BFCLEpisode:
        """Open a fresh episode. Raises InputError for a task of another environment, or unknown classes or tools."""
        if task.environment != NAME:
            raise InputError(f"a task of the environment {task.environment!r} was given to {NAME!r}: open it there")
        if not task.turns:
            raise InputError("the task has no user turn: give one at least")
        _check_classes(task.classes)
        for turn in task.withheld:
            if not 0 <= turn <= len(task.turns):
                raise InputError(f"tools are withheld until turn {turn}, but the task has {len(task.turns)} turns")
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
        restricted = (self._start(task) for task in load_category("base", ("train",)))
        return tuple(start for start in restricted if start is not None)

    def _start(self, task: CategoryTask) -> StartState | None:
        initial_state = {
            name: task.spec.initial_state[name]
            for name in task.spec.classes
            if name in self._classes and name in task.spec.initial_state
        }
        if not initial_state:
            return None
        classes = tuple(name for name in task.spec.classes if name in self._classes)
        return StartState(
            id=task.id,
            environment=NAME,
            split=task.spec.split,
            classes=classes,
            initial_state=initial_state,
            tools=tool_names(classes),
        )


def _check_classes(classes: Sequence[str]) -> None:
    if not classes:
        raise InputError(f"no class is given: name some of {', '.join(package.CLASSES)}")
    for name in classes:
        if name not in package.CLASSES:
            raise InputError(f"{name!r} is not a class of BFCL multi-turn: use some of {', '.join(package.CLASSES)}")
    if len(set(classes)) < len(classes):
        raise InputError(f"a class is given twice in {', '.join(classes)}: give each once")
