"""Tells what an execution came to as an observation: its text within a limit, its status, the calls that ran."""

from __future__ import annotations

from collections.abc import Collection

from environments.appworld.records import ApiCall, Executed, ExecutionStatus
from environments.base import Observation, ObservationStatus, ToolCall

MAX_CHARACTERS = 8000
"""Longest text of an observation (ours; the benchmark leaves it to the agent). Of a longer one the middle is cut."""

_NOTHING_PRINTED = "Execution successful."  # the engine's words for it
_TELLS_NOTHING = frozenset({_NOTHING_PRINTED.casefold(), "", "none", "null", "[]", "{}"})


def observe(executed: Executed, reads: Collection[str]) -> Observation:
    """The observation of ``executed``.

    Args:
        executed: the engine's answer.
        reads: names of the APIs that change nothing.

    ``empty`` is what ended, printed nothing (or only null, [] or {}) and called no API that could have changed
    something. ``calls`` are those that the apps accepted, also where the code failed later.
    """
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in executed.calls if accepted(call))
    return Observation(text=shortened(executed.output), status=_status(executed, reads), calls=calls)


def accepted(call: ApiCall) -> bool:
    """Whether the app did what the call asked for."""
    return call.status is not None and 200 <= call.status < 300


def may_change(executed: Executed, reads: Collection[str]) -> bool:
    """Whether an API other than ``reads`` was called, accepted or not."""
    return any(call.name not in reads for call in executed.calls)


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """``text`` without its outer white space and, beyond ``limit`` characters, without its middle, which is said."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - tail :]}"


def refused(reason: str) -> Observation:
    """The answer to a call that was not run."""
    return Observation(text=f"Execution failed: {reason}", status=ObservationStatus.ERROR)


def _status(executed: Executed, reads: Collection[str]) -> ObservationStatus:
    if executed.status is not ExecutionStatus.OK:
        return ObservationStatus.ERROR
    silent = executed.output.strip().casefold() in _TELLS_NOTHING
    return ObservationStatus.EMPTY if silent and not may_change(executed, reads) else ObservationStatus.OK
