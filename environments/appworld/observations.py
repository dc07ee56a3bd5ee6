"""Tells what an execution came to as an observation: its text within a limit, its status, the calls that ran."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from environments.appworld.records import ApiCall, Executed, ExecutionStatus
from environments.base import Observation, ObservationStatus, ToolCall

MAX_CHARACTERS = 8000
"""Longest text of an observation (ours; the benchmark leaves it to the agent). Of a longer one the middle is cut."""

_REFUSED = re.compile(r"^Exception: Response status code is (?!422)\d{3}:", re.MULTILINE)
_REFUSAL = "Execution failed: "
_NOTHING_PRINTED = "Execution successful."  # the engine's words for it
_TELLS_NOTHING = frozenset({_NOTHING_PRINTED.casefold(), "", "none", "null", "[]", "{}"})


def observe(executed: Executed, reads: Collection[str], *, one_call: bool = False) -> Observation:
    """The observation of ``executed``.

    Args:
        executed: the engine's answer.
        reads: names of the APIs that change nothing.
        one_call: whether it was a call by name: of a failure what the app said is shown, as ``{"error": ...}``, and
            not the traceback of the line that was run for it.

    ``empty`` is what ended, printed nothing (or only null, [] or {}) and called no API that could have changed
    something. ``calls`` are those that the apps accepted, also where the code failed later.
    """
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in executed.calls if accepted(call))
    failed = executed.status is not ExecutionStatus.OK
    text = json.dumps({"error": _said(executed.output)}) if one_call and failed else executed.output
    return Observation(text=shortened(text), status=_status(executed, reads), calls=calls)


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
    return Observation(text=f"{_REFUSAL}{reason}", status=ObservationStatus.ERROR)


def refused_by_an_app(text: str) -> bool:
    """Whether the failure that ``text`` tells is an app's answer to a call as its documentation has it.

    Not so an error of the code's own, an app or API that there is not, and arguments that an API does not take (422).
    """
    return _REFUSED.search(text) is not None


def came_too_late(text: str) -> bool:
    """Whether ``text`` answers an action that was not run because the turn or the task was over."""
    return text.startswith(_REFUSAL) and text.endswith("nothing was run")


def _said(traceback: str) -> str:
    """What an app said in the failure that the engine tells as a traceback: its message, else the last line."""
    _, raised, said = traceback.rpartition("Exception: ")
    said = said.strip() if raised else traceback.strip().splitlines()[-1]
    body = said[said.find("{") :] if "{" in said else ""
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        return said
    return message if isinstance(message, str) else json.dumps(message)


def _status(executed: Executed, reads: Collection[str]) -> ObservationStatus:
    if executed.status is not ExecutionStatus.OK:
        return ObservationStatus.ERROR
    silent = executed.output.strip().casefold() in _TELLS_NOTHING
    return ObservationStatus.EMPTY if silent and not may_change(executed, reads) else ObservationStatus.OK
