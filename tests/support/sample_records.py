"""Records for the tests of memory: small, and valid."""

from environments.base import ToolCall
from memory.records import Cause, FailureContext, SignalKind, Task


def task(identifier="task-a", origin="seed", admitted_at=None, **changes):
    values = {
        "id": identifier,
        "environment": "bfcl",
        "split": "train",
        "origin": origin,
        "classes": ("GorillaFileSystem",),
        "turns": ('Make a folder called "notes".',),
        "initial_state": {"GorillaFileSystem": {"root": {"workspace": {"type": "directory", "contents": {}}}}},
        "tools": ("ls", "mkdir"),
        "reference": ((ToolCall(name="mkdir", arguments={"dir_name": "notes"}),),),
        "admitted_at": admitted_at,
    }
    return Task(**(values | changes))


def context(identifier, facts=("dir_name='notes'",), iteration=0, **changes):
    values = {
        "id": identifier,
        "signal_id": "signal-1",
        "iteration": iteration,
        "kind": SignalKind.BOUNDARY,
        "environment": "bfcl",
        "cause": Cause.WRONG_ARGUMENT,
        "tool": "mkdir",
        "error_class": "no such file or directory",
        "how": "",
        "facts": facts,
        "classes": ("GorillaFileSystem",),
        "initial_state": {},
        "tools": ("ls", "mkdir"),
    }
    return FailureContext(**(values | changes))
