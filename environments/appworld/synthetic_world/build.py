"""Build a synthetic world, or a blind root: ``python -m environments.appworld.synthetic_world.build``.

Run it with the AppWorld virtual environment's Python in the repository's folder. It writes ``WORLD/full`` (everything)
and ``WORLD/blind`` (no ground truth), the latter also beside downloaded data: agents' code runs on the blind root, a
copy of the full one with the files that a world needs and without answers. The API documentation is derived from the
apps' own code, as the package does. The package's licence allows publication of such derived data only in encrypted
form: do not publish the world.
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
from environments.appworld.synthetic_world import everyday_scenarios, music_and_money_scenarios
from environments.appworld.synthetic_world.base_databases import write_base_databases
from environments.appworld.synthetic_world.labels import UnsolvableTask, label_tasks
from environments.appworld.synthetic_world.plan import make_plan
from environments.appworld.synthetic_world.tasks import write_tasks
from environments.terminal import say

_WHOLE = ("api_docs", "base_dbs")
_OF_A_TASK = ("specs.json", "dbs")


def write_blind_root(full: Path, blind: Path) -> int:
    """Write ``blind`` anew from ``full``; return the number of tasks.

    Only named files are copied, so that a new kind of file in a later version of the data is left out. They are copies,
    not links, so that a write cannot reach the full root. Raises FileNotFoundError when ``full`` is not a root.
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


def write_documentation(data: Path) -> int:
    """Write both formats under ``data/api_docs`` as the package reads them; return the number of APIs."""
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
    """Build the synthetic world of ``seed`` in ``world``, a new folder, atomically."""
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
    with tempfile.TemporaryDirectory(prefix="synthetic-world-") as outputs:
        label_tasks(data, ids, Path(outputs))
    write_blind_root(unfinished / "full", unfinished / "blind")
    unfinished.rename(world)
    print(f"{world}: {apis} APIs, {len(ids)} tasks, seed {seed}, {time.monotonic() - start:.0f} s", flush=True)


def _wrong(world: Path, blind_only: bool) -> str | None:
    """Return why the world cannot be written there: files in a folder that a user names are not removed."""
    if blind_only:
        return None if (world / "full" / "data").is_dir() else "has no full/data: name the folder of a world"
    return "exists: remove it or name a new folder" if world.exists() else None


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--world", type=Path, required=True, help="folder that the world is written to")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another world")
    parser.add_argument("--blind-only", action="store_true", help="write WORLD/blind from WORLD/full and nothing else")
    given = parser.parse_args()
    world = given.world.resolve()
    wrong = _wrong(world, given.blind_only)
    if wrong:
        say(f"error: --world {world} {wrong}")
        os._exit(2)
    world.parent.mkdir(parents=True, exist_ok=True)
    if given.blind_only:
        print(f"{world / 'blind'}: {write_blind_root(world / 'full', world / 'blind')} tasks", flush=True)
    else:
        try:
            build(world, given.seed)
        except (ValueError, UnsolvableTask) as error:
            say(f"error: seed {given.seed}: {error}")
            os._exit(2)
    sys.stdout.flush()
    os._exit(0)  # the package's threads would keep the process for seconds


if __name__ == "__main__":
    main()
