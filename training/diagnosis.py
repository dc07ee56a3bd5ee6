"""SEAL's diagnosis: a label for each user turn of a trajectory, and the cause behind a failed one; pure functions.

The labels are those of SEAL (arXiv 2605.24426), decided on the checks that an outcome holds of every turn; the causes
are ours, read from the turn's calls beside the reference. ``TurnLabel`` and ``TurnCause`` say exactly what is given.
References serve the diagnosis only: it holds no call and no value of them. No result depends on an order of
trajectories, and none with an infrastructure error takes part.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from environments.arguments import argument_problem
from environments.base import MalformedCall, Record, TaskSpec, ToolSpec, TurnOutcome
from environments.learning_interface.profile import EXCLUDED, FAILED, TurnCause, TurnLabel
from environments.replay import failed
from environments.turn_comparison import Played, TurnComparison
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


def diagnose(trajectory: Trajectory, task: TaskSpec, tools: Mapping[str, ToolSpec]) -> Diagnosis | None:
    """The diagnosis of a rollout of ``task``; None for a lent reference, and where an infrastructure error ended it.

    ``tools`` documents the task's tools by name.
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
            before = any(one.state is False for one in checks[:number])
            cause = _cause(TurnComparison(turn.steps, task.reference[number], tools), tools, before)
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


def _cause(compared: TurnComparison, tools: Mapping[str, ToolSpec], wrong_before: bool) -> TurnCause:
    """The cause of a failed turn; ``wrong_before``: an earlier turn ended in another state than its reference."""
    surplus = [
        step
        for place, step in enumerate(compared.steps)
        if step.observation.calls and place not in compared.made.values()
    ]
    if compared.missing or not (compared.reference or surplus):
        return _cause_of_lack(compared, tools)
    if wrong_before and compared.reference:
        return TurnCause.EARLIER_TURN
    if surplus:
        return TurnCause.SURPLUS_CALL
    order = [place for _, place in sorted(compared.made.items())]
    swapped = any(second < first for first, second in pairwise(order))
    return TurnCause.WRONG_ORDER if swapped else TurnCause.EARLIER_TURN


def _cause_of_lack(compared: TurnComparison, tools: Mapping[str, ToolSpec]) -> TurnCause:
    missing = compared.missing_names()
    steps = compared.steps
    errors = [step for place, step in enumerate(steps) if failed(step.observation) and not _recovered(compared, place)]
    if any(_is_invalid(step, tools) for step in errors):
        return TurnCause.INVALID_CALL
    if any(_name(step) in missing and _differs(compared, place) for place, step in enumerate(steps)):
        return TurnCause.WRONG_ARGUMENT
    return TurnCause.NO_RECOVERY if errors else TurnCause.MISSING_CALL


def _recovered(compared: TurnComparison, place: int) -> bool:
    name, missing = _name(compared.steps[place]), compared.missing_names()
    later = (step for step in compared.steps[place + 1 :] if not failed(step.observation))
    return any(name not in missing or _name(step) == name for step in later)


def _name(step: Played) -> str | None:
    return None if isinstance(step.action, MalformedCall) else step.action.name


def _is_invalid(step: Played, tools: Mapping[str, ToolSpec]) -> bool:
    """Whether the action of an error is no call, or not one by the documentation."""
    if isinstance(step.action, MalformedCall):
        return True
    tool = tools.get(step.action.name)
    return tool is None or argument_problem(step.action, tool) is not None


def _differs(compared: TurnComparison, place: int) -> bool:
    """Whether the call at ``place`` neither made a call of the reference nor is, refused, the same as a missing one."""
    action = compared.steps[place].action
    return (
        not isinstance(action, MalformedCall)
        and place not in compared.made.values()
        and not any(compared.same(action, compared.reference[k]) for k in compared.missing)
    )
