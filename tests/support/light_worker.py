"""A worker without AppWorld: ready at once, where the real one takes eight seconds of CPU.

For tests of what becomes of processes. The wall, the zygote and the messages are the real ones; a world runs Python and
has no apps.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

from environments.appworld.engine.protocol import receive
from environments.appworld.engine.wall import SCRATCH, Wall
from environments.appworld.engine.zygote import Operation, inherited_control, serve


def opened(task_id: str, **_: Any) -> dict[str, Any]:
    """An opening as a world's is."""
    who = {"first_name": "A", "last_name": "B", "email": "a@example.org", "phone_number": "1"}
    return {"now": "2023-05-18T12:00:00", "supervisor": who}


def executed(code: str) -> dict[str, Any]:
    """What the code printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    return {"output": printed.getvalue(), "status": "ok", "calls": [], "completed": False}


def operations() -> dict[str, Operation]:
    return {"open": opened, "execute": executed}


def main() -> None:
    control = inherited_control()
    receive(control)
    wall = Wall()
    os.chdir(SCRATCH)
    serve(control, wall, operations)


if __name__ == "__main__":
    main()
