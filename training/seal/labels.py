"""The vocabulary of the diagnosis: labels of user turns (SEAL, arXiv 2605.24426) and causes of failed ones (ours).

``training.seal.diagnosis`` assigns them, ``training.seal.failure_profile`` counts them; the learning interface and the
advantage weights follow the counts.
"""

from __future__ import annotations

from enum import StrEnum


class TurnLabel(StrEnum):
    """What became of one user turn. The first that applies, in this order (SEAL; what is ours is said).

    ``gt_error``: a call of the reference is answered with an error; excluded.
    ``spurious_tool_call``: the reference is empty and a call was made, or something that is no call (ours).
    ``correct_abstention``: the reference is empty, and nothing was called.
    ``empty_turn_model_response``: no call was made; what is malformed is no call, as officially.
    ``instance_mismatch``: the instances of the simulators are not those of the reference. BFCL's episodes give it
    where no call was made, so that there the label before it comes first.
    ``checker_error``: the state could not be compared; excluded.
    ``state_mismatch``: the state differs from the reference's.
    ``response_mismatch``: an answer that the reference got was never got.
    ``pass``: none of these.
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
"""Labels that blame the reference or the checker: they count in no share and have no weight."""

FAILED = (
    TurnLabel.SPURIOUS_TOOL_CALL,
    TurnLabel.EMPTY_TURN,
    TurnLabel.INSTANCE_MISMATCH,
    TurnLabel.STATE_MISMATCH,
    TurnLabel.RESPONSE_MISMATCH,
)
"""Labels that say the policy did something wrong, in the order of the decision."""


class TurnCause(StrEnum):
    """Why a turn with one of the ``FAILED`` labels failed, read from its calls. The first that applies (ours).

    Where a call of the reference was not made, or the reference is empty and nothing ran:
    ``invalid_call``: an action was no call, or was refused with a name or arguments that are not documented; and it
    was not recovered from.
    ``wrong_argument``: a tool whose call is missing was called with other arguments.
    ``no_recovery``: any other call was refused, and not recovered from.
    ``missing_call``: none of these.
    An error is recovered from when a later call of the turn went well: one of the same tool where a call of that tool
    is missing, any otherwise.

    Where every call of the reference was made, or the reference is empty and something ran:
    ``earlier_turn``: the reference is not empty, and an earlier turn had left another state behind.
    ``surplus_call``: something beside the reference ran (only a replay could tell whether it did the harm).
    ``wrong_order``: the calls ran in another order.
    ``earlier_turn`` again where nothing in this turn explains it: what no check compares was different before.

    A program (AppWorld) makes the calls that it ran. One that failed by itself, and not by what a tool answered, is an
    ``invalid_call``. Where the reference is a program that the agent did not write, values cannot be compared: tools
    that it calls and the agent did not are ``no_recovery`` or ``missing_call`` as above, else it is ``surplus_call``
    where every check passes that doing nothing fails, ``no_recovery`` after an error, and ``wrong_argument``.
    """

    INVALID_CALL = "invalid_call"
    WRONG_ARGUMENT = "wrong_argument"
    NO_RECOVERY = "no_recovery"
    MISSING_CALL = "missing_call"
    EARLIER_TURN = "earlier_turn"
    SURPLUS_CALL = "surplus_call"
    WRONG_ORDER = "wrong_order"
