"""Define BFCL multi-turn as an environment on the official simulators, and as a benchmark.

An episode is one attempt at one task: user turns, actions, observations and the official outcome. The outcome and the
checks of every turn come from the package's state and response checkers. The official checker stops at the first
failing turn; here every turn is evaluated, and the result follows from the first failure. ``setup`` is a hidden first
turn on both sides: it changes the state, and its results count in no response check.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from pydantic import Field

from environments.base import (
    Action,
    Environment,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    StartState,
    TaskSpec,
    ToolSpec,
    TurnOutcome,
)
from environments.benchmark import (
    AnyBenchmark,
    Benchmark,
    ContentLicence,
    EvaluationSet,
    EvaluationTask,
    HumanTurn,
    KnownValue,
    OfficialTask,
    OfficialTasks,
    Options,
    TestAccess,
)
from environments.bfcl.evaluation_sets import SETS, describe, is_official, open_tasks
from environments.bfcl.official import (
    CATEGORIES,
    CLASSES,
    UNPRODUCIBLE,
    VERSION,
    all_tools,
    check_class,
    load_category,
    require,
    response_checker,
    state_checker,
    tool_names,
)
from environments.bfcl.simulators import ERROR_PREFIX, Simulators, not_defined
from environments.metrics import CALL_METRICS
from environments.task_text import Seen, leaves
from environments.turns import References, WorldEpisode, check_turns
from environments.verification.decontamination import HeldOut, held_out

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
        failed = any(answer.status is ObservationStatus.ERROR for answer in answers)
        turns.append(ExpectedTurn(tuple(answer.text for answer in answers), failed, instances))
    return tuple(turns)


REFERENCES = References(_replayed, "classes", "initial_state", "setup", "reference", "long_context")


def official_outcome(turns: tuple[TurnOutcome, ...], *, reached: int, terminated: int | None) -> Outcome:
    """Return the official result over the checks of every turn.

    ``reached`` user turns were shown to the agent; fewer than all is a forced termination, which officially comes
    before every other check and has no failed turn. ``terminated`` is the turn that the step limit ended, if any.
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
        turns = self._turns
        turns.expect_open()
        if turns.steps >= self._max_steps and turns.index >= self._task.played:
            if turns.index < len(self._task.turns) - 1:
                self._terminated = turns.index
            reached = f"{ERROR_PREFIX}the limit of {self._max_steps} steps in this turn is reached, nothing was run"
            return Observation(text=reached, status=ObservationStatus.ERROR)
        turns.steps += 1
        if isinstance(action, MalformedCall):
            turns.malformed += 1
            return Observation(text=ERROR_PREFIX + action.reason, status=ObservationStatus.MALFORMED)
        answer = self._live().run(action) if action.name in turns.callable else not_defined(action.name)
        turns.calls += 1
        self._results.append(answer.text)
        return Observation(text=answer.text, status=answer.status, calls=(action,) if answer.ran else ())

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


NAME = "bfcl"


class BFCLEnvironment:
    """Implements ``environments.base.Environment``.

    ``classes`` restrict ``starts``; tasks of every class can be opened. ``max_steps`` are the actions in one user turn
    before it is cut off. Raises InputError when bfcl-eval is not installed or a class is not one of its eight.
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
            start = StartState(
                id=task.id,
                environment=NAME,
                split=task.spec.split,
                classes=classes,
                initial_state=states,
                tools=tool_names(classes),
            )
            found += [start] if states else []
        return tuple(found)


def _check_classes(classes: Sequence[str]) -> None:
    if not classes:
        raise InputError(f"no class is given: name some of {', '.join(CLASSES)}")
    for name in classes:
        check_class(name)
    if len(set(classes)) < len(classes):
        raise InputError(f"a class is given twice in {', '.join(classes)}: give each once")


class BFCLOptions(Options):
    """Options of the environment."""

    classes: tuple[str, ...] = Field(
        ("GorillaFileSystem", "VehicleControlAPI"),
        description="official classes that exploration and templated tasks use (ours: two of eight)",
    )
    categories: tuple[Literal["base", "miss_func", "miss_param", "long_context"], ...] = Field(
        ("base", "miss_func", "miss_param", "long_context"),
        min_length=1,
        description="categories of the official training tasks for tasks.initial: official; they repeat the same user "
        "turns",
    )
    max_steps: int = Field(
        20, ge=1, le=10_000, description="actions in one user turn before it is cut off (official: 20)"
    )
    wordings: Literal["table", "human"] = Field(
        "table",
        description="how the user turns of synthesised tasks are written; table: in phrases of a table; human: in "
        "patterns of the 45 human training tasks, in several users' styles, with references to the turn before, and "
        "in phrases of the table where no pattern fits (both ours)",
    )


class BFCL(Benchmark[BFCLOptions]):
    """Berkeley Function Calling Leaderboard, multi-turn categories, with the package's own simulators and checkers.

    ``evaluation_sets`` explains the evaluation sets. The templated ones of the split test open for a committed study
    alone, official tasks and turns of that split for a command that names a test access log.
    """

    name = NAME
    options_type = BFCLOptions
    actions_option = "max_steps"
    metrics = CALL_METRICS
    licence = ContentLicence(
        spdx="apache-2.0",
        notice=f"Start states, tools and their documentation are those of bfcl-eval {VERSION} (Berkeley Function "
        "Calling Leaderboard, Apache-2.0); trajectories hold what its simulators answered.",
    )
    data = (
        f"bfcl-eval {VERSION}; of the 200 tasks in each multi-turn category 20 are reserved for tests of the checker, "
        "so that all@all has 180"
    )
    verdict = (
        "bfcl-eval's own state and response checkers on its own simulators, the official limit of steps and order of "
        "turns; equal to its multi_turn_checker for the references of all 800 tasks and for corrupted attempts at "
        "them (tests/environments/bfcl/test_official_equality.py)"
    )
    evaluation_sets = SETS

    def __init__(self, *, human: bool = False) -> None:
        self._human = human

    def open(self, options: BFCLOptions) -> Environment:
        """Open the environment. Raises InputError when bfcl-eval is not installed or a class is unknown."""
        environment = BFCLEnvironment(options.classes, options.max_steps)
        if options.wordings == "human":
            environment.benchmark = _HUMAN
        return environment

    def explain_no_starts(self, environment: str) -> str:
        """Return a sentence with the key that restricts the start states."""
        return "environment.options.classes: no initial state of the training split has these classes: name others"

    def official_tasks(self, options: BFCLOptions) -> OfficialTasks:
        """Return the tasks of the training split whose classes and categories ``options`` names."""
        chosen = (category for category in CATEGORIES if category in options.categories)
        found = [one for category in chosen for one in load_category(category, ("train",))]
        fitting = [one for one in found if set(options.classes).issuperset(one.spec.classes)]
        if not fitting:
            raise InputError(
                "environment.options.classes: no official training task has these classes alone: name others"
            )
        tasks = tuple(OfficialTask(one.id, one.spec, UNPRODUCIBLE.get(one.index)) for one in fitting)
        return OfficialTasks(tasks=tasks, total=len(found), why="other classes")

    def render(self, environment: Environment, task: TaskSpec, rng: random.Random) -> TaskSpec:
        """Return ``task`` in the wordings of training. Raises InputError for a call without a wording."""
        if self._human:
            from environments.bfcl.templated import human_wordings

            return human_wordings.render_task(environment, task, rng)
        from environments.bfcl.templated import wordings

        return wordings.render_task(environment, task, rng)

    def join(self, first: TaskSpec, second: TaskSpec) -> TaskSpec:
        """Return ``first`` with the classes that only ``second`` has, in their initial states.

        The setup of ``second`` is kept where no class is in both: calls on states of the first would change them.
        """
        shared = set(first.classes) & set(second.classes)
        return first.model_copy(
            update={
                "classes": tuple(sorted({*first.classes, *second.classes})),
                "initial_state": {**second.initial_state, **first.initial_state},
                "setup": first.setup if shared else (*first.setup, *second.setup),
                "tools": tuple(sorted({*first.tools, *second.tools})),
            }
        )

    def known_values(self, environment: Environment) -> tuple[KnownValue, ...]:
        """Return values of human training references: numbers that people wrote, and texts that nothing before held.

        Identifiers are left out: those of one state are nothing in another.

        Only training indices are read. A language model knows or guesses such names (cities), an explorer of rules
        does not.
        """
        return _known_values()

    def written_turns(self, environment: Environment) -> tuple[HumanTurn, ...]:
        """Return the turns of the training tasks, and the single-turn questions."""
        from environments.bfcl.written_turns import human_turns, single_turns

        return (*human_turns(environment), *single_turns())

    def held_out(self) -> HeldOut:
        """Return the held-out sets and official tasks. Raises InputError when a file is missing or altered."""
        return held_out(self.name)

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe an evaluation set by its file, without reading its tasks; an official one by the tasks' ids."""
        return describe(name)

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of an evaluation set. Raises InputError where its file does not match its hash."""
        return open_tasks(name, limit)

    def access_to(self, name: str) -> TestAccess:
        """Return "ledger" for official tasks, which are public, and "study" for the templated ones."""
        return "ledger" if is_official(name) else "study"


@cache
def _known_values() -> tuple[KnownValue, ...]:
    found: dict[tuple[str, str, str | int | float], set[str | int | float]] = {}
    for task in load_category("base", ("train",)):
        known, said = json.dumps(task.spec.initial_state), Seen(task.spec.turns)
        for call in (call for turn in task.spec.reference for call in turn):
            given = [
                (name, leaf)
                for name, value in call.arguments.items()
                for leaf in leaves(value)
                if isinstance(leaf, str | int | float) and not isinstance(leaf, bool)
            ]
            for name, value in given:
                own = value not in known if isinstance(value, str) else said.has(value)
                if own and not name.endswith(_ANSWERED):
                    found.setdefault((call.name, name, value), set()).update({other for _, other in given} - {value})
            known += json.dumps([value for _, value in given])
    return tuple(KnownValue(*key, frozenset(near)) for key, near in found.items())


_ANSWERED = ("_id", "_token")
"""Ends of the names of parameters whose values belong to one state, which has them itself."""

BENCHMARK = BFCL()
_HUMAN = BFCL(human=True)
