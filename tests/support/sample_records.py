"""Records for the tests of memory: small, and valid."""

from memory.records import Cause, FailureContext, SignalKind, Task
from support.bfcl_tasks import call, task_of


def task(identifier="task-a", origin="seed", admitted_at=None, **changes):
    turns = ('Make a folder called "notes".',)
    spec = task_of((call("mkdir", dir_name="notes"),), turns=turns, tools=("ls", "mkdir"))
    values = {"id": identifier, "origin": origin, "admitted_at": admitted_at}
    return Task(**(dict(spec) | values | changes))


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
