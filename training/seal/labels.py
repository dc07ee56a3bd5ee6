"""The vocabulary of the diagnosis: labels of user turns (SEAL, arXiv 2605.24426) and causes of failed ones (ours).

``training.seal.diagnosis`` assigns them, ``training.seal.failure_profile`` counts them; the learning interface and the
advantage weights follow the counts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Unreached = Literal["padded", "left_out"]
"""Whether turns that the policy did not play have a label (``training.seal.diagnosis.Diagnosis``)."""


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

    The paper's own list (appendix C.2, table 5) has other labels, four of them without a rho in its table 6. The
    released code gives none of those four. ``TurnCause`` says the same of a failed turn, and more.
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


class TurnCause(StrEnum):
    """Why a turn with one of the ``FAILED`` labels failed, by its calls: the first cause that applies (ours).

    If a call of the reference is missing, or the reference is empty and nothing ran:
    ``invalid_call``: an action was malformed, or was refused with an undocumented name or argument, without recovery.
    ``wrong_argument``: a tool whose call is missing was called with other arguments.
    ``no_recovery``: any other call was refused, without recovery.
    ``missing_call``: none of these.
    The policy recovers from an error by a later call of the turn that succeeds: one of the same tool if a call of that
    tool is missing, any otherwise.

    If every call of the reference was made, or the reference is empty and something ran:
    ``earlier_turn``: the reference is not empty, and an earlier turn ended in another state than its reference.
    ``surplus_call``: a call beside the reference's ran (only a replay could show whether it did the harm).
    ``wrong_order``: the calls ran in another order.
    ``earlier_turn`` again if nothing in this turn explains the failure: something that no check compares had changed.

    A program makes the calls that it ran. One that fails by an error of its own, rather than of a tool, is an
    ``invalid_call``. If the reference is a program that the agent did not write, values cannot be compared: tools that
    only the reference calls give ``no_recovery`` or ``missing_call`` as above; else it is ``surplus_call`` if every
    check passes that doing nothing fails, ``no_recovery`` after an error, and ``wrong_argument`` otherwise.
    """

    INVALID_CALL = "invalid_call"
    WRONG_ARGUMENT = "wrong_argument"
    NO_RECOVERY = "no_recovery"
    MISSING_CALL = "missing_call"
    EARLIER_TURN = "earlier_turn"
    SURPLUS_CALL = "surplus_call"
    WRONG_ORDER = "wrong_order"
