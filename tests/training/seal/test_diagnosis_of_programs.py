"""Labels and causes of AppWorld's trajectories: programs and calls by name, failed checks, and what apps answer."""

from __future__ import annotations

import pytest

from environments.appworld.benchmark import BENCHMARK
from environments.appworld.observations import refused
from environments.appworld.outcomes import PlayedTurn, ReferenceTurn, against_checks, against_reference
from environments.appworld.records import NO_OP_FAIL, Check, Difference, Evaluation, ModelChanges
from environments.base import (
    Action,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    Parameter,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.verification.turn_comparison import TurnComparison
from memory.records import Step, Trajectory, TrajectoryTurn
from training.seal.diagnosis import diagnose
from training.seal.labels import TurnCause, TurnLabel

L, C = TurnLabel, TurnCause
ANSWER, PLANTED, UNTOUCHED = "assert answers match.", "the tree is there", "nothing else changed"


def tool(name: str, *parameters: str, kind: str = "string") -> ToolSpec:
    taken = tuple(Parameter(name=one, type=kind, description=one, required=True) for one in parameters)
    return ToolSpec(name=name, group=name.partition(".")[0], description=name, parameters=taken)


TOOLS = {
    one.name: one
    for one in (
        tool("python", "code", kind="code"),
        tool("garden.plant", "tree"),
        tool("garden.show_trees"),
        tool("supervisor.complete_task"),
    )
}
SOLUTION = 'def solution(apis, requester):\n    apis.garden.plant(tree="oak")\n    apis.supervisor.complete_task()\n'
OFFICIAL = ToolCall(name="python", arguments={"code": f"{SOLUTION}\nsolution(apis, None)"})


def call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


OAK, ELM, LOOK = call("garden.plant", tree="oak"), call("garden.plant", tree="elm"), call("garden.show_trees")
COMPLETE = call("supervisor.complete_task")


def ran(*calls: ToolCall) -> Step:
    """A block that ran these calls."""
    code = "\n".join(f"apis.{one.name}(**{one.arguments})" for one in calls) or "print(1)"
    observation = Observation(text="Execution successful.", status=ObservationStatus.OK, calls=calls)
    return Step(action=call("python", code=code), observation=observation)


def raised(code: str, text: str, *calls: ToolCall) -> Step:
    """A block that failed with ``text`` after these calls."""
    told = f'Execution failed. Traceback:\n  File "<python-input>", line 1, in <module>\n{text}'
    return Step(
        action=call("python", code=code),
        observation=Observation(text=told, status=ObservationStatus.ERROR, calls=calls),
    )


def named(action: ToolCall) -> Step:
    """A call by name that went well."""
    return Step(action=action, observation=Observation(text="{}", status=ObservationStatus.OK, calls=(action,)))


def stopped(action: Action, reason: str) -> Step:
    return Step(action=action, observation=refused(reason))


DENIED = raised(
    "apis.garden.plant(tree='oak')", 'Exception: Response status code is 401:\n{"message":"Not authorized."}'
)
UNREAD = raised("apis.garden.plant()", 'Exception: Response status code is 422:\n{"message":"tree: field required"}')
CRASHED = raised("print(oak)", "NameError: name 'oak' is not defined")
NO_API = raised("apis.garden.grow()", "Exception: No API named 'grow' found in the garden app.")
BROKEN = raised("x = (", "Syntax error in line:\nx = (\nMessage: '(' was never closed")
BABBLE = Step(
    action=MalformedCall(text="hm", reason="no block"),
    observation=Observation(text="Malformed action: no block", status=ObservationStatus.MALFORMED),
)
LATE = stopped(call("python", code="apis.garden.plant()"), "the task was marked complete, nothing was run")
PAST_LIMIT = stopped(call("garden.plant"), "the limit of 30 steps in this turn is reached, nothing was run")


def found(
    reference: tuple[ToolCall, ...], steps: tuple[Step, ...], outcome: Outcome
) -> tuple[TurnLabel, TurnCause | None]:
    task = TaskSpec(
        environment="appworld",
        split="train",
        classes=("python",),
        turns=("Plant an oak.",),
        initial_state={},
        tools=tuple(TOOLS),
        reference=(reference,),
    )
    trajectory = Trajectory(
        id="t",
        task_id="t",
        iteration=0,
        step=1,
        sample=0,
        turns=(TrajectoryTurn(text="Plant an oak.", steps=steps, ended=True),),
        outcome=outcome,
        reward=0.0,
    )
    diagnosis = diagnose(trajectory, task, TOOLS, BENCHMARK)
    assert diagnosis is not None
    (turn,) = diagnosis.turns
    return turn.label, turn.cause


def counted(steps: tuple[Step, ...]) -> tuple[int, int]:
    malformed = sum(isinstance(step.action, MalformedCall) for step in steps)
    return len(steps) - malformed, malformed


def checked(steps: tuple[Step, ...], *failures: str) -> Outcome:
    """The result on an official task of three checks, of which these fail."""
    names = {ANSWER: NO_OP_FAIL, PLANTED: NO_OP_FAIL, UNTOUCHED: "no_op_pass"}
    made = {name: Check(requirement=name, label=label) for name, label in names.items()}
    evaluation = Evaluation(
        success=not failures,
        difficulty=1,
        passes=tuple(check for name, check in made.items() if name not in failures),
        failures=tuple(made[name] for name in failures),
    )
    return against_checks(*counted(steps), 1, evaluation)


OFFICIAL_CASES = [
    pytest.param((ran(OAK, COMPLETE),), (), L.PASS, None, id="other code, all that was wanted"),
    pytest.param((), (ANSWER, PLANTED), L.EMPTY_TURN, C.MISSING_CALL, id="nothing"),
    pytest.param((BABBLE,), (ANSWER, PLANTED), L.EMPTY_TURN, C.INVALID_CALL, id="no block"),
    pytest.param((ran(COMPLETE),), (PLANTED,), L.STATE_MISMATCH, C.MISSING_CALL, id="completed and nothing done"),
    pytest.param((ran(OAK),), (ANSWER,), L.RESPONSE_MISMATCH, C.MISSING_CALL, id="never completed"),
    pytest.param((ran(ELM, COMPLETE),), (PLANTED,), L.STATE_MISMATCH, C.WRONG_ARGUMENT, id="the tools, other values"),
    pytest.param((ran(OAK, COMPLETE),), (ANSWER,), L.RESPONSE_MISMATCH, C.WRONG_ARGUMENT, id="another answer"),
    pytest.param((ran(OAK, ELM, COMPLETE),), (UNTOUCHED,), L.STATE_MISMATCH, C.SURPLUS_CALL, id="and something else"),
    pytest.param((DENIED, ran(COMPLETE)), (PLANTED,), L.STATE_MISMATCH, C.NO_RECOVERY, id="an app refused, given up"),
    pytest.param(
        (DENIED, ran(ELM, COMPLETE)), (PLANTED,), L.STATE_MISMATCH, C.WRONG_ARGUMENT, id="refused, tried again"
    ),
    pytest.param(
        (UNREAD, ran(COMPLETE)), (PLANTED,), L.STATE_MISMATCH, C.INVALID_CALL, id="arguments it does not take"
    ),
    pytest.param((ran(OAK), CRASHED), (ANSWER,), L.RESPONSE_MISMATCH, C.INVALID_CALL, id="the code's own error"),
    pytest.param((NO_API,), (ANSWER, PLANTED), L.STATE_MISMATCH, C.INVALID_CALL, id="no such API"),
    pytest.param((BROKEN,), (ANSWER, PLANTED), L.STATE_MISMATCH, C.INVALID_CALL, id="no Python"),
    pytest.param((BROKEN, ran(OAK)), (ANSWER,), L.RESPONSE_MISMATCH, C.MISSING_CALL, id="no Python, then some"),
    pytest.param((ran(COMPLETE), LATE), (PLANTED,), L.STATE_MISMATCH, C.MISSING_CALL, id="went on when it was over"),
    pytest.param((ran(OAK), PAST_LIMIT), (ANSWER,), L.RESPONSE_MISMATCH, C.MISSING_CALL, id="ran out of steps"),
]


@pytest.mark.parametrize(("steps", "failures", "label", "cause"), OFFICIAL_CASES)
def test_an_official_task_is_diagnosed_by_its_checks_its_errors_and_the_solutions_tools(steps, failures, label, cause):  # type: ignore[no-untyped-def]
    assert found((OFFICIAL,), steps, checked(steps, *failures)) == (label, cause)


def world(*trees: str, status: str | None = "success") -> Difference:
    added = tuple({"tree": tree} for tree in trees)
    changes = {"garden.Tree": ModelChanges(added=added, updated=(), removed=())} if added else {}
    return Difference(changes=changes, status=status, answer=None)


def compared(steps: tuple[Step, ...], end: Difference) -> Outcome:
    """The result on a task of ours that wants an oak."""
    calls, malformed = counted(steps)
    wanted = ReferenceTurn(calls=2, error=False, end=world("oak"))
    return against_reference([PlayedTurn(calls=calls, malformed=malformed, end=end)], [wanted], 1)


OURS = (OAK, COMPLETE)
NOT_DONE = world("oak", status=None)
OUR_CASES = [
    pytest.param((ran(OAK, COMPLETE),), world("oak"), L.PASS, None, id="one block"),
    pytest.param((ran(OAK),), NOT_DONE, L.RESPONSE_MISMATCH, C.MISSING_CALL, id="a block, never completed"),
    pytest.param((named(OAK),), NOT_DONE, L.RESPONSE_MISMATCH, C.MISSING_CALL, id="by name, never completed"),
    pytest.param((ran(ELM, COMPLETE),), world("elm"), L.STATE_MISMATCH, C.WRONG_ARGUMENT, id="a block, another value"),
    pytest.param((named(ELM), named(COMPLETE)), world("elm"), L.STATE_MISMATCH, C.WRONG_ARGUMENT, id="another value"),
    pytest.param((ran(OAK, ELM, COMPLETE),), world("oak", "elm"), L.STATE_MISMATCH, C.SURPLUS_CALL, id="one too many"),
    pytest.param(
        (ran(LOOK), ran(COMPLETE)), world(), L.STATE_MISMATCH, C.MISSING_CALL, id="looked, and planted nothing"
    ),
    pytest.param((DENIED, ran(COMPLETE)), world(), L.STATE_MISMATCH, C.NO_RECOVERY, id="an app refused"),
    pytest.param((UNREAD, ran(COMPLETE)), world(), L.STATE_MISMATCH, C.INVALID_CALL, id="arguments it does not take"),
    pytest.param((ran(COMPLETE), LATE), world(), L.STATE_MISMATCH, C.MISSING_CALL, id="went on when it was over"),
    pytest.param((ran(ELM), ran(COMPLETE, OAK)), world("elm"), L.STATE_MISMATCH, C.SURPLUS_CALL, id="two blocks"),
]


@pytest.mark.parametrize(("steps", "end", "label", "cause"), OUR_CASES)
def test_a_block_makes_the_calls_of_a_reference_that_it_ran(steps, end, label, cause):  # type: ignore[no-untyped-def]
    assert found(OURS, steps, compared(steps, end)) == (label, cause)


def test_calls_that_an_app_took_count_though_the_block_failed_later() -> None:
    steps = (raised("apis.garden.plant(tree='oak')\n1/0", "ZeroDivisionError: division by zero", OAK), ran(COMPLETE))
    assert TurnComparison(steps, OURS, TOOLS).missing == ()
    assert TurnComparison(steps, OURS, TOOLS).beside == ((), ())
    assert TurnComparison((DENIED, *steps[1:]), OURS, TOOLS).missing == (0,)


def test_a_reference_in_blocks_is_made_by_the_same_blocks() -> None:
    reference = (ran(OAK).action, ran(COMPLETE).action)
    steps = (ran(OAK), ran(ELM), ran(COMPLETE))
    assert found(reference, steps, compared(steps, world("oak", "elm"))) == (L.STATE_MISMATCH, C.SURPLUS_CALL)
    steps = (ran(OAK),)
    assert found(reference, steps, compared(steps, NOT_DONE)) == (L.RESPONSE_MISMATCH, C.MISSING_CALL)
