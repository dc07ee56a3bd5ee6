"""Small tasks written by hand over one file system and one car."""

from __future__ import annotations

from environments.base import TaskSpec, ToolCall
from environments.bfcl.official import tool_names
from support.bfcl_tasks import CAR, FILES, task_of

STATES = {
    FILES: {
        "root": {
            "workspace": {
                "type": "directory",
                "contents": {
                    "notes.txt": {"type": "file", "content": "alpha\nbeta"},
                    "void.txt": {"type": "file", "content": ""},
                    "drafts": {"type": "directory", "contents": {"old.txt": {"type": "file", "content": "x"}}},
                },
            }
        }
    },
    CAR: {
        "fuelLevel": 10.5,
        "doorStatus": dict.fromkeys(("driver", "passenger", "rear_left", "rear_right"), "locked"),
    },
}

Written = tuple[str, dict]


def draft(cls: str, *turns: tuple[str, list[Written]], setup: tuple[Written, ...] = (), **changes: object) -> TaskSpec:
    fields = {
        "classes": (cls,),
        "initial_state": {cls: STATES[cls]},
        "tools": tool_names((cls,)),
        "turns": tuple(text for text, _ in turns),
        "setup": tuple(ToolCall(name=n, arguments=a) for n, a in setup),
    }
    reference = [[ToolCall(name=n, arguments=a) for n, a in calls] for _, calls in turns]
    return task_of(*reference, **(fields | changes))
