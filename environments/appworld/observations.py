"""Convert an execution to an observation: its text within a limit, its status, the calls that ran."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator

from environments.appworld.engine.protocol import parsed
from environments.appworld.records import ApiCall, Executed, ExecutionStatus
from environments.base import Observation, ObservationStatus, ToolCall

MAX_CHARACTERS = 8000
"""Longest text of an observation (ours; the benchmark has no limit). A longer one is cut in the middle."""

MAX_CALLS = 400_000
"""Most characters of an observation's calls as JSON; further calls are left out (ours).

A thousand ordinary calls have fewer. A rollout is one line of a record, and lines have a limit (``memory.jsonl``).
"""

_REFUSAL = "Execution failed: "
_NOTHING_PRINTED = "Execution successful."  # the engine's words for it
_TELLS_NOTHING = frozenset({_NOTHING_PRINTED.casefold(), "", "none", "null", "[]", "{}"})


def observe(executed: Executed, reads: Collection[str], *, one_call: bool = False) -> Observation:
    """Return the observation of ``executed``.

    Args:
        executed: the engine's answer.
        reads: names of the APIs that change nothing.
        one_call: whether it was a call by name: a failure then shows the app's message, as ``{"error": ...}``, instead
            of the traceback of the executed line.

    ``empty`` is an execution that ended, printed nothing (or only null, [] or {}) and did not call an API that can
    change something. ``calls`` are those that the apps accepted, also where the code failed later, up to ``MAX_CALLS``
    characters.
    """
    calls = tuple(_recorded(executed.calls))
    failed = executed.status is not ExecutionStatus.OK
    text = json.dumps({"error": _said(executed.output)}) if one_call and failed else executed.output
    return Observation(text=shortened(text), status=_status(executed, reads), calls=calls)


def accepted(call: ApiCall) -> bool:
    """Return whether the app did what the call asked for."""
    return call.status is not None and 200 <= call.status < 300


def may_change(executed: Executed, reads: Collection[str]) -> bool:
    """Return whether an API other than ``reads`` was called, accepted or not."""
    return any(call.name not in reads for call in executed.calls)


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return ``text`` stripped and, beyond ``limit`` characters, with a note in place of its middle."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters left out]\n{text[len(text) - tail :]}"


def refused(reason: str) -> Observation:
    """Return the answer to a call that was not run."""
    return Observation(text=f"{_REFUSAL}{reason}", status=ObservationStatus.ERROR)


def _recorded(calls: Iterable[ApiCall]) -> Iterator[ToolCall]:
    left = MAX_CALLS
    for call in filter(accepted, calls):
        left -= len(call.name) + len(json.dumps(call.arguments))
        if left < 0:
            return
        yield ToolCall(name=call.name, arguments=call.arguments)


def _said(traceback: str) -> str:
    """Return the app's message in the traceback of a failure, else the last line."""
    _, raised, said = traceback.rpartition("Exception: ")
    said = said.strip() if raised else "".join(traceback.strip().splitlines()[-1:])
    body = said[said.find("{") :] if "{" in said else ""
    try:
        message = parsed(body)["message"]
    except (ValueError, KeyError, TypeError):
        return said
    return message if isinstance(message, str) else json.dumps(message)


def _status(executed: Executed, reads: Collection[str]) -> ObservationStatus:
    if executed.status is not ExecutionStatus.OK:
        return ObservationStatus.ERROR
    silent = executed.output.strip().casefold() in _TELLS_NOTHING
    return ObservationStatus.EMPTY if silent and not may_change(executed, reads) else ObservationStatus.OK
