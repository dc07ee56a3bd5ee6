"""SEAL's diagnosis: a label for each user turn of a trajectory, and the failure profile of a batch; pure functions.

The labels are SEAL's (arXiv 2605.24426), decided by the outcome's checks of every turn. The advantage weights and the
learning interface follow their counts. A diagnosis reads the checks' results and contains no call or value. It does not
depend on the order of trajectories, and trajectories with an infrastructure error have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from environments.base import Record, TurnOutcome
from memory.records import Evidence, FailureContext, Trajectory


class TurnLabel(StrEnum):
    """The result of one user turn: the first label that applies, in this order (SEAL's released code).

    ``gt_error``: the reference raises; excluded. Here that is a fault of the environment, and the whole rollout has no
    labels. A call of the reference that is answered with an error is compared like any other, as officially.
    ``spurious_tool_call``: the reference is empty, and the policy called something.
    ``correct_abstention``: the reference is empty, and nothing was called.
    ``empty_turn_model_response``: no call was made.
    ``instance_mismatch``: the simulators' instances are not those of the reference. Some environments check this only
    where no call was made; the label before it then comes first.
    ``checker_error``: the state could not be compared; excluded.
    ``state_mismatch``: the state differs from the reference's.
    ``response_mismatch``: a result that the reference returned was never returned.
    ``pass``: none of these.

    A malformed call does not count as a call, so that on a turn with an empty reference it is an abstention. A call of
    a tool that is not on offer counts where the environment answers it; with ``training.strict_messages`` it is
    malformed, with every other call of its message, as in the released code.

    A turn that the episode did not reach is one without a call (the released code; the paper has no rule).

    The paper's own list (appendix C.2, table 5) has other labels, four of them without a rho in its table 6. The
    released code gives none of those four.
    """

    GT_ERROR = "gt_error"
    SPURIOUS_TOOL_CALL = "spurious_tool_call"
    CORRECT_ABSTENTION = "correct_abstention"
    EMPTY_TURN = "empty_turn_model_response"
    INSTANCE_MISMATCH = "instance_mismatch"
    CHECKER_ERROR = "checker_error"
    STATE_MISMATCH = "state_mismatch"
    RESPONSE_MISMATCH = "response_mismatch"
    PASS = "pass"


EXCLUDED = frozenset({TurnLabel.GT_ERROR, TurnLabel.CHECKER_ERROR})
"""Labels that blame the reference or the checker: they are left out of every share and have no weight."""

FAILED = (
    TurnLabel.SPURIOUS_TOOL_CALL,
    TurnLabel.EMPTY_TURN,
    TurnLabel.INSTANCE_MISMATCH,
    TurnLabel.STATE_MISMATCH,
    TurnLabel.RESPONSE_MISMATCH,
)
"""Labels that blame the policy, in the order of the decision."""


class Diagnosis(Record):
    """The label of each user turn of the agent's, in order, and whether the trajectory succeeded.

    ``first`` is the index of the first of them: turns before it are the reference's (``TaskSpec.played``).
    """

    success: bool
    turns: tuple[TurnLabel, ...]
    first: int = 0

    def labels(self) -> tuple[TurnLabel, ...]:
        """Return the labels of its turns without the excluded ones."""
        return tuple(label for label in self.turns if label not in EXCLUDED)


def diagnose(trajectory: Trajectory) -> Diagnosis | None:
    """Diagnose a rollout; None for an off-policy demonstration, and after an infrastructure error."""
    if trajectory.outcome is None:
        return None
    own = trajectory.outcome.turns[trajectory.played :]
    return Diagnosis(success=trajectory.success, turns=tuple(map(turn_label, own)), first=trajectory.played)


def with_diagnosis(context: FailureContext, evidence: Evidence) -> FailureContext:
    """Return ``context`` with the label of the turn of its ``where``, else of the first turn that failed.

    Return it unchanged where no turn has one of the labels that blame the policy (``FAILED``).
    """
    found = diagnose(evidence.trajectory)
    labels = enumerate(found.turns, start=found.first) if found else ()
    failed = {number: label for number, label in labels if label in FAILED}
    if not failed:
        return context
    label = failed.get(context.where[0], next(iter(failed.values())))
    return context.model_copy(update={"label": label.value})


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


class LabelStatistics(Record):
    """One label in a batch.

    ``count``: turns that have it. ``prevalence``: their share of the turns whose label is not excluded.
    ``mean_reward``: share of these turns whose trajectory succeeded. SEAL's verifier is the official success rule; the
    length cost of our rewards does not count as failure.
    """

    count: int = Field(0, ge=0)
    prevalence: float = Field(0.0, ge=0.0, le=1.0)
    mean_reward: float = Field(0.0, ge=0.0, le=1.0)


class FailureProfile(Record):
    """SEAL's failure profile C of one batch.

    ``turns`` counts those whose label is not excluded. ``labels`` holds those that occurred, excluded ones with their
    count alone. ``left_out`` counts trajectories without a diagnosis.
    """

    trajectories: int = Field(0, ge=0)
    left_out: int = Field(0, ge=0)
    turns: int = Field(0, ge=0)
    labels: dict[TurnLabel, LabelStatistics] = {}

    def of(self, label: TurnLabel) -> LabelStatistics:
        """Return the label's statistics; zeros where it did not occur."""
        return self.labels.get(label, LabelStatistics())

    def share_of_failures(self, label: TurnLabel) -> float:
        """Return the share of ``label`` in the turns that failed; guidelines follow it, in the released code too."""
        failures = sum(self.of(one).count for one in FAILED)
        return self.of(label).count / failures if failures and label in FAILED else 0.0

    def pressure(self, label: TurnLabel) -> float:
        """Return the room for improvement: the label's share of the failed turns, times one minus its mean reward."""
        return self.share_of_failures(label) * (1.0 - self.of(label).mean_reward)


class SealFigures(Record):
    """SEAL's figures of one round.

    ``labels``: turns of the round's rollouts that have them. ``guidelines``: by label, in how many of the round's
    ``steps`` its guideline was shown. ``retired``: by label, how often its guideline was mastered.
    """

    steps: int = Field(ge=0)
    labels: dict[TurnLabel, int] = {}
    guidelines: dict[TurnLabel, int] = {}
    retired: dict[TurnLabel, int] = {}


def failure_profile(diagnoses: Sequence[Diagnosis | None]) -> FailureProfile:
    """Profile a batch by the diagnoses of its trajectories; None is left out."""
    known = [one for one in diagnoses if one is not None]
    counts = Counter(label for one in known for label in one.turns)
    successes = Counter(label for one in known if one.success for label in one.turns)
    turns = sum(count for label, count in counts.items() if label not in EXCLUDED)
    return FailureProfile(
        trajectories=len(known),
        left_out=len(diagnoses) - len(known),
        turns=turns,
        labels={
            label: LabelStatistics(count=counts[label])
            if label in EXCLUDED
            else LabelStatistics(
                count=counts[label],
                prevalence=counts[label] / turns,
                mean_reward=successes[label] / counts[label],
            )
            for label in TurnLabel
            if counts[label]
        },
    )
