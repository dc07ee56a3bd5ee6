"""Builds a made world, or a blind root beside downloaded data: ``python -m environments.appworld.made_world.build``.

Run by the AppWorld virtual environment's Python in the repository's folder. It writes ``WORLD/full`` (everything) and
``WORLD/blind`` (no ground truth). The package's licence allows what is derived from its apps to be published encrypted
only: what is built here stays on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from environments.appworld.engine.package import settle, use_root
from environments.appworld.made_world import everyday_scenarios, music_and_money_scenarios
from environments.appworld.made_world.base_databases import write_base_databases
from environments.appworld.made_world.labels import UnsolvableTask, label_tasks
from environments.appworld.made_world.plan import make_plan
from environments.appworld.made_world.tasks import write_tasks

# Copies of a root what a world needs and nothing that tells an answer: the root that agents' code runs on.

_WHOLE = ("api_docs", "base_dbs")
_OF_A_TASK = ("specs.json", "dbs")


def write_blind_root(full: Path, blind: Path) -> int:
    """Write ``blind`` anew from ``full``; the number of tasks.

    Named is what is copied, so that a new kind of file in a later version of the data is left out. Copies, not links:
    what code should manage to write stays out of the full root. Raises FileNotFoundError when ``full`` is no root.
    """
    data = full / "data"
    shutil.rmtree(blind, ignore_errors=True)
    for name in _WHOLE:
        shutil.copytree(data / name, blind / "data" / name)
    tasks = sorted(folder for folder in (data / "tasks").iterdir() if folder.is_dir())
    for task in tasks:
        target = blind / "data" / "tasks" / task.name
        target.mkdir(parents=True)
        for name in _OF_A_TASK:
            copy = shutil.copytree if (task / name).is_dir() else shutil.copy
            copy(task / name, target / name)
    return len(tasks)


# Writes the API documentation that the package derives from the apps' own code.


def write_documentation(data: Path) -> int:
    """Write both formats under ``data/api_docs`` as the package reads them; the number of APIs."""
    from appworld.api_docs import prepare_api_docs
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.constants import CANARY_STRING

    apps = tuple(get_all_apps(skip_admin=True))
    canary = {"canary_string": CANARY_STRING}
    for folder in ("standard", "function_calling"):
        (data / "api_docs" / folder).mkdir(parents=True)
    documents = ApiDocCollection.build(load_apps=apps)
    for app, apis in documents.items():
        standard = {name: {**document, **canary} for name, document in apis.items()}
        calling = [{**document, **canary} for document in prepare_api_docs(app, format="function_calling")]
        (data / "api_docs" / "standard" / f"{app}.json").write_text(json.dumps(standard, indent=1))
        (data / "api_docs" / "function_calling" / f"{app}.json").write_text(json.dumps(calling, indent=1))
    return sum(len(apis) for apis in documents.values())


SCENARIOS = (*everyday_scenarios.SCENARIOS, *music_and_money_scenarios.SCENARIOS)


def build(world: Path, seed: int) -> None:
    """Build the made world of ``seed`` in ``world``, a new folder; it appears whole or not at all."""
    unfinished = world.parent / f".{world.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    data = unfinished / "full" / "data"
    data.mkdir(parents=True)
    use_root(unfinished / "full")
    start = time.monotonic()
    apis = write_documentation(data)
    write_base_databases(data, make_plan(seed))
    ids = write_tasks(data, make_plan(seed), SCENARIOS)
    settle()
    with tempfile.TemporaryDirectory(prefix="made-world-") as outputs:
        label_tasks(data, ids, Path(outputs))
    write_blind_root(unfinished / "full", unfinished / "blind")
    unfinished.rename(world)
    print(f"{world}: {apis} APIs, {len(ids)} tasks, seed {seed}, {time.monotonic() - start:.0f} s", flush=True)


def _wrong(world: Path, blind_only: bool) -> str | None:
    """Why nothing is to be written there: what is in a folder that a user names is not removed."""
    if blind_only:
        return None if (world / "full" / "data").is_dir() else "has no full/data: name the folder of a world"
    return "exists: remove it or name a new folder" if world.exists() else None


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--world", type=Path, required=True, help="folder that the world is written to")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another world")
    parser.add_argument("--blind-only", action="store_true", help="write WORLD/blind from WORLD/full and nothing else")
    given = parser.parse_args()
    world = given.world.resolve()
    wrong = _wrong(world, given.blind_only)
    if wrong:
        print(f"error: --world {world} {wrong}", file=sys.stderr, flush=True)
        os._exit(2)
    world.parent.mkdir(parents=True, exist_ok=True)
    if given.blind_only:
        print(f"{world / 'blind'}: {write_blind_root(world / 'full', world / 'blind')} tasks", flush=True)
    else:
        try:
            build(world, given.seed)
        except (ValueError, UnsolvableTask) as error:
            print(f"error: seed {given.seed}: {error}", file=sys.stderr, flush=True)
            os._exit(2)
    sys.stdout.flush()
    os._exit(0)  # the package's threads would keep the process for seconds


if __name__ == "__main__":
    main()
