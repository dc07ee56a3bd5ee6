"""Run the worker: one warm process on the blind root, which forks a world for each episode."""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path

from environments.appworld.engine.world import EngineWorld
from environments.appworld.engine.zygote import Operation, run

_FIRST_CODE = """
profile = apis.supervisor.show_profile()
for account in apis.supervisor.show_account_passwords():
    app = account["account_name"]
    name = profile["phone_number" if app == "phone" else "email"]
    try:
        apis[app].login(username=name, password=account["password"])
    except Exception as error:
        print(f"{app}: {error}")
"""


def operations() -> dict[str, Operation]:
    """Return the operations of a child of the worker: those of one world."""
    world = EngineWorld()
    names = ("open", "execute", "difference", "saved")
    return {name: getattr(world, name) for name in names}


def _warm(root: Path) -> None:
    """Play a task's first moments, so that children have everything imported and built.

    The first sign-in to an app takes up to ten times what the next ones do: its models are bound and its routes built.
    A sign-in that fails is logged; it only makes the first use of that app in a world slower.
    """
    from appworld import AppWorld, requester

    # What serves the apps depends on their names alone; the package builds it anew in each world, for 40 ms.
    requester.build_main_app = cache(requester.build_main_app)
    first = min(folder.name for folder in (root / "data" / "tasks").iterdir())
    with tempfile.TemporaryDirectory() as folder:
        world = AppWorld(task_id=first, experiment_name=folder, load_ground_truth=False)
        _ = world.task.model_collection
        print(world.execute(_FIRST_CODE), file=sys.stderr)
        world.close()


if __name__ == "__main__":
    run(_warm, operations)
