"""SEAL's diagnosis: a label for each user turn of a trajectory, and a cause for each failed one; pure functions.

The labels are SEAL's (arXiv 2605.24426), decided by the outcome's checks of every turn. The causes are ours, decided by
comparing the turn's calls with the reference. ``TurnLabel`` and ``TurnCause`` define them. A diagnosis reads references
but contains no call or value of them. It does not depend on the order of trajectories, and trajectories with an
infrastructure error have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from environments.base import Environment, MalformedCall, Record, TaskSpec, ToolSpec, TurnOutcome
from environments.benchmark import PLAIN, AnyBenchmark
from environments.registry import benchmark_of
from environments.verification.arguments import argument_problem
from environments.verification.turn_comparison import Played, TurnComparison
from memory.records import Evidence, FailureContext, Trajectory
from training.seal.labels import EXCLUDED, FAILED, TurnCause, TurnLabel, Unreached


class TurnDiagnosis(Record):
    """The label of one user turn; ``cause`` is None exactly when the label is not one of ``FAILED``."""

    turn: int
    label: TurnLabel
    cause: TurnCause | None = None


class Diagnosis(Record):
    """The turns of a trajectory that have a label, in order: all of the task's, or those that the policy played.

    A turn was played if the policy acted in it or ended it. One that was not reached, or that a limit ended before the
    first action, is labelled as a turn without a call (SEAL's released code), or is left out (ours): the policy did
    nothing in it, and with an empty reference that reads as abstention. The setting is ``training.seal.unreached``.
    """

    trajectory_id: str
    success: bool
    turns: tuple[TurnDiagnosis, ...]

    def labels(self) -> tuple[TurnLabel, ...]:
        """Return the labels of its turns without the excluded ones."""
        return tuple(turn.label for turn in self.turns if turn.label not in EXCLUDED)


def diagnose(
    trajectory: Trajectory,
    task: TaskSpec,
    tools: Mapping[str, ToolSpec],
    benchmark: AnyBenchmark = PLAIN,
    *,
    unreached: Unreached = "left_out",
) -> Diagnosis | None:
    """Diagnose a rollout of ``task``; None for an off-policy demonstration, and after an infrastructure error.

    Args:
        trajectory: the rollout.
        task: its task.
        tools: documentation of the task's tools, by name.
        benchmark: reads what an observation's text says of an action that did not run, or that a tool refused.
        unreached: whether turns that were not played have a label (see ``Diagnosis``).
    """
    if trajectory.outcome is None:
        return None
    checks = trajectory.outcome.turns
    turns = []
    for number, checked in enumerate(checks):
        turn = trajectory.turns[number] if number < len(trajectory.turns) else None
        if unreached == "left_out" and not (turn and (turn.steps or turn.ended)):
            continue
        label, cause = turn_label(checked), None
        if label in FAILED:
            compared = TurnComparison(turn.steps if turn else (), task.reference[number], tools)
            if any(compared.is_program(compared.reference[k]) for k in compared.missing):
                cause = _cause_beside_a_program(compared, tools, trajectory.outcome.partial, benchmark)
            else:
                cause = _cause(compared, tools, any(one.state is False for one in checks[:number]), benchmark)
        turns.append(TurnDiagnosis(turn=number, label=label, cause=cause))
    return Diagnosis(trajectory_id=trajectory.id, success=trajectory.success, turns=tuple(turns))


def with_diagnosis(context: FailureContext, evidence: Evidence, environment: Environment) -> FailureContext:
    """Return ``context`` with the label and cause of the turn of its ``where``, else of the first turn that failed.

    Return it unchanged where no turn has one of the labels that blame the policy (``FAILED``). Only turns that the
    policy played count, whatever the setting: a context is about what the policy did.
    """
    tools = {tool.name: tool for tool in environment.tools(evidence.task.tools)}
    found = diagnose(evidence.trajectory, evidence.task, tools, benchmark_of(environment))
    failed = [turn for turn in found.turns if turn.label in FAILED] if found is not None else []
    if not failed:
        return context
    turn = next((one for one in failed if one.turn == context.where[0]), failed[0])
    cause = None if turn.cause is None else turn.cause.value
    return context.model_copy(update={"label": turn.label.value, "turn_cause": cause})


def turn_label(checks: TurnOutcome) -> TurnLabel:
    """Return the label of a turn with these checks; ``gt_error`` is none of them (see ``TurnLabel``)."""
    if not checks.reference_calls:
        return TurnLabel.SPURIOUS_TOOL_CALL if checks.calls else TurnLabel.CORRECT_ABSTENTION
    if not checks.calls:
        return TurnLabel.EMPTY_TURN
    if checks.instances is False:
        return TurnLabel.INSTANCE_MISMATCH
    if checks.checker_error is not None:
        return TurnLabel.CHECKER_ERROR
    if checks.state is False:
        return TurnLabel.STATE_MISMATCH
    return TurnLabel.RESPONSE_MISMATCH if checks.response is False else TurnLabel.PASS


def _cause(
    compared: TurnComparison, tools: Mapping[str, ToolSpec], wrong_before: bool, benchmark: AnyBenchmark
) -> TurnCause:
    """Return the cause of a failed turn; ``wrong_before``: an earlier turn did not end in its reference's state."""
    surplus = any(compared.beside)
    if compared.missing or not (compared.reference or surplus):
        return _cause_of_lack(compared, tools, benchmark)
    if wrong_before and compared.reference:
        return TurnCause.EARLIER_TURN
    if surplus:
        return TurnCause.SURPLUS_CALL
    order = [place for _, place in sorted(compared.made.items())]
    swapped = any(second < first for first, second in pairwise(order))
    return TurnCause.WRONG_ORDER if swapped else TurnCause.EARLIER_TURN


def _cause_of_lack(compared: TurnComparison, tools: Mapping[str, ToolSpec], benchmark: AnyBenchmark) -> TurnCause:
    errors = _errors(compared, benchmark)
    if any(_is_invalid(step, tools, benchmark) for step in errors):
        return TurnCause.INVALID_CALL
    if any(_differs(compared, place) for place in range(len(compared.steps))):
        return TurnCause.WRONG_ARGUMENT
    return TurnCause.NO_RECOVERY if errors else TurnCause.MISSING_CALL


def _cause_beside_a_program(
    compared: TurnComparison, tools: Mapping[str, ToolSpec], partial: float | None, benchmark: AnyBenchmark
) -> TurnCause:
    """Return the cause of a failed turn whose reference is a program, by tools, errors and checks instead of values.

    ``partial`` is the outcome's: if it is 1, everything that was asked for is there and something else was changed.
    """
    errors = _errors(compared, benchmark)
    if any(_is_invalid(step, tools, benchmark) for step in errors):
        return TurnCause.INVALID_CALL
    ran = {call.name for step in compared.steps for call in step.observation.calls}
    if compared.missing_tools() - ran:
        return TurnCause.NO_RECOVERY if errors else TurnCause.MISSING_CALL
    if partial == 1.0:
        return TurnCause.SURPLUS_CALL
    return TurnCause.NO_RECOVERY if errors else TurnCause.WRONG_ARGUMENT


def _errors(compared: TurnComparison, benchmark: AnyBenchmark) -> list[Played]:
    """Return the steps that failed without recovery, except those that came too late to run."""
    return [
        step
        for place, step in enumerate(compared.steps)
        if step.observation.failed and not benchmark.never_ran(step.observation) and not _recovered(compared, place)
    ]


def _recovered(compared: TurnComparison, place: int) -> bool:
    due = _names(compared, compared.steps[place]) & compared.missing_tools()
    later = (step for step in compared.steps[place + 1 :] if not step.observation.failed)
    return any(not due or due & _names(compared, step) for step in later)


def _names(compared: TurnComparison, step: Played) -> frozenset[str]:
    """Return the tool of the step's action, and those that its program calls."""
    if isinstance(step.action, MalformedCall):
        return frozenset()
    return frozenset({step.action.name, *(call.name for call in step.observation.calls)}) | compared.mentioned(
        step.action
    )


def _is_invalid(step: Played, tools: Mapping[str, ToolSpec], benchmark: AnyBenchmark) -> bool:
    """Return whether the action of an error is malformed or does not fit the documentation.

    A program is invalid if it failed by an error of its own: only a refusal by the tool is a call that failed.
    """
    if isinstance(step.action, MalformedCall):
        return True
    tool = tools.get(step.action.name)
    if tool is None or argument_problem(step.action, tool) is not None:
        return True
    return tool.program is not None and not benchmark.refused_by_tool(step.observation)


def _differs(compared: TurnComparison, place: int) -> bool:
    """Return whether a tool whose call is missing was called in the step at ``place``, with other arguments.

    A refused call that equals a missing one does not differ.
    """
    action, missing = compared.steps[place].action, compared.missing_names()
    if isinstance(action, MalformedCall):
        return False
    if compared.is_program(action):
        return any(call.name in missing for call in compared.beside[place])
    return (
        action.name in missing
        and place not in compared.made.values()
        and not any(compared.same(action, compared.reference[k]) for k in compared.missing)
    )
