"""SEAL's diagnosis: a label for each user turn of a trajectory, and the cause behind a failed one; pure functions.

The labels are those of SEAL (arXiv 2605.24426), decided on the checks that an outcome holds of every turn; the causes
are ours, read from the turn's calls beside the reference. ``TurnLabel`` and ``TurnCause`` say exactly what is given.
References serve the diagnosis only: it holds no call and no value of them. No result depends on an order of
trajectories, and none with an infrastructure error takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from environments.base import MalformedCall, Record, TaskSpec, ToolSpec, TurnOutcome
from environments.benchmark import PLAIN, AnyBenchmark
from environments.learning_interface.profile import EXCLUDED, FAILED, TurnCause, TurnLabel
from environments.verification.arguments import argument_problem
from environments.verification.turn_comparison import Played, TurnComparison
from memory.records import Trajectory

__all__ = ["EXCLUDED", "FAILED", "Diagnosis", "TurnCause", "TurnDiagnosis", "TurnLabel", "diagnose", "turn_label"]


class TurnDiagnosis(Record):
    """What became of one user turn; ``cause`` is None exactly when the label is not one of ``FAILED``."""

    turn: int
    label: TurnLabel
    cause: TurnCause | None = None


class Diagnosis(Record):
    """The turns of a trajectory in which the policy said something, in order.

    A turn that a limit ended before its first action, and one that was not reached, has no diagnosis (ours): there is
    nothing of the policy's in it, and its empty reference would make it look like abstention.
    """

    trajectory_id: str
    success: bool
    turns: tuple[TurnDiagnosis, ...]

    def labels(self) -> tuple[TurnLabel, ...]:
        """The labels of its turns that are not excluded."""
        return tuple(turn.label for turn in self.turns if turn.label not in EXCLUDED)


def diagnose(
    trajectory: Trajectory, task: TaskSpec, tools: Mapping[str, ToolSpec], benchmark: AnyBenchmark = PLAIN
) -> Diagnosis | None:
    """The diagnosis of a rollout of ``task``; None for a lent reference, and where an infrastructure error ended it.

    ``tools`` documents the task's tools by name. ``benchmark`` reads what an observation's text says of an action that
    did not run, or that a tool refused.
    """
    if trajectory.outcome is None or trajectory.lent:
        return None
    checks = trajectory.outcome.turns
    turns = []
    for number, (turn, checked) in enumerate(zip(trajectory.turns, checks, strict=False)):
        if not (turn.steps or turn.ended):
            continue
        label, cause = turn_label(checked), None
        if label in FAILED:
            compared = TurnComparison(turn.steps, task.reference[number], tools)
            if any(compared.is_program(compared.reference[k]) for k in compared.missing):
                cause = _cause_beside_a_program(compared, tools, trajectory.outcome.partial, benchmark)
            else:
                cause = _cause(compared, tools, any(one.state is False for one in checks[:number]), benchmark)
        turns.append(TurnDiagnosis(turn=number, label=label, cause=cause))
    return Diagnosis(trajectory_id=trajectory.id, success=trajectory.success, turns=tuple(turns))


def turn_label(checks: TurnOutcome) -> TurnLabel:  # noqa: PLR0911 - the rules of TurnLabel, one after the other
    """The label of a turn in which the policy said something."""
    if checks.reference_error:
        return TurnLabel.GT_ERROR
    if not checks.reference_calls:
        return TurnLabel.SPURIOUS_TOOL_CALL if checks.calls or checks.malformed else TurnLabel.CORRECT_ABSTENTION
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
    """The cause of a failed turn; ``wrong_before``: an earlier turn ended in another state than its reference."""
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
    """The cause of a failed turn whose reference is a program: read from tools, errors and checks, not from values.

    ``partial`` is the outcome's: where all that was wanted is there, something else was changed.
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
    """The steps of the turn that failed and were not recovered from; one that came too late to run is none."""
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
    """The tool of the step's action, and those that its program calls."""
    if isinstance(step.action, MalformedCall):
        return frozenset()
    return frozenset({step.action.name, *(call.name for call in step.observation.calls)}) | compared.mentioned(
        step.action
    )


def _is_invalid(step: Played, tools: Mapping[str, ToolSpec], benchmark: AnyBenchmark) -> bool:
    """Whether the action of an error is no call, or not one by the documentation.

    A program is none where it failed by itself: only what a tool refuses is a call that went wrong.
    """
    if isinstance(step.action, MalformedCall):
        return True
    tool = tools.get(step.action.name)
    if tool is None or argument_problem(step.action, tool) is not None:
        return True
    return tool.program is not None and not benchmark.refused_by_tool(step.observation)


def _differs(compared: TurnComparison, place: int) -> bool:
    """Whether a tool whose call is missing was called in the step at ``place``, with other arguments.

    A call that was refused and is the same as a missing one does not differ.
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
