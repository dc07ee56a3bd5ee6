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
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from environments.appworld.engine.zygote import settle, use_root
from environments.appworld.layout import SPLITS, counted, missing
from environments.appworld.synthetic_world.plan import CONTENT, Owners, Person, WorldPlan, make_plan
from environments.appworld.synthetic_world.scenarios import SCENARIOS, write_tasks

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
        data = world / "full" / "data"
        if not data.is_dir():
            return "has no full/data: name the folder of a world, or download its data again if that was cut off"
        lacks = next(filter(None, (missing(data, split) for split in SPLITS)), None)
        return lacks and f"is not whole, {lacks}: remove full/data in it and download it again"
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
        print(f"error: --world {world} {wrong}", file=sys.stderr)
        os._exit(2)
    world.parent.mkdir(parents=True, exist_ok=True)
    if given.blind_only:
        write_blind_root(world / "full", world / "blind")
        print(f"{world}: {counted(world / 'full' / 'data')}", flush=True)
    else:
        try:
            build(world, given.seed)
        except (ValueError, UnsolvableTask) as error:
            print(f"error: seed {given.seed}: {error}", file=sys.stderr)
            os._exit(2)
    sys.stdout.flush()
    os._exit(0)  # the package's threads would keep the process for seconds


_TASK_LIMIT = 120.0  # seconds for one task, solved once and left alone once


class UnsolvableTask(RuntimeError):
    """A task of the synthetic world whose solution fails, or that succeeds without any action."""


def label_tasks(data: Path, ids: list[str], outputs: Path) -> None:
    """Write the labels, the calls of the solution and the metadata that only a run gives, for every task.

    ``outputs`` is a folder for the files of the runs. The process must be settled (``engine.warm``). Raises
    UnsolvableTask naming the task.
    """
    for identity in ids:
        folder = data / "tasks" / identity / "ground_truth"
        (folder / "test_data.json").write_text("[]")
        solution = (folder / "compiled_solution.py").read_text()
        idle = _in_child(identity, "", outputs / "idle")
        solved = _in_child(identity, f"{solution}\nsolution(apis, requester)", outputs / "solved")
        if solved["failures"] or solved["output"].startswith("Execution failed"):
            raise UnsolvableTask(f"{identity}: its solution fails: {solved['failures']} {solved['output']}")
        done_anyway = [entry["requirement"] for entry in idle["passes"]]
        if not idle["failures"]:
            raise UnsolvableTask(f"{identity}: doing nothing passes every check")
        tests = [
            {"requirement": name, "label": "no_op_pass" if name in done_anyway else "no_op_fail"}
            for name in (entry["requirement"] for entry in solved["passes"])
        ]
        tests.sort(key=lambda test: test["label"])
        (folder / "test_data.json").write_text(json.dumps(tests))
        (folder / "api_calls.json").write_text(json.dumps(solved["calls"]))
        metadata = json.loads((folder / "metadata.json").read_text())
        apis = {(call["method"], call["url"]) for call in solved["calls"]}
        metadata |= {"num_apis": len(apis), "num_api_calls": len(solved["calls"])}
        (folder / "metadata.json").write_text(json.dumps(metadata))


def _run(identity: str, code: str, outputs: Path) -> dict[str, Any]:
    from appworld import AppWorld
    from appworld.evaluator import evaluate_task

    world = AppWorld(task_id=identity, experiment_name=str(outputs), load_ground_truth=False)
    output = world.execute(code) if code else ""
    calls = list(world.requester.requests)
    report = evaluate_task(identity, experiment_name=str(outputs), save_report=False)
    return {"output": output, "calls": calls, "passes": report.passes, "failures": report.failures}


def _in_child(identity: str, code: str, outputs: Path) -> dict[str, Any]:
    """Run in a forked process of its own: two worlds in one process disturb each other."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            theirs.send(_run(identity, code, outputs))
        except BaseException:  # noqa: BLE001 - it is on stderr, and the parent reports that the child ended
            traceback.print_exc()
        finally:
            os._exit(0)
    theirs.close()
    try:
        if not ours.poll(_TASK_LIMIT):
            os.kill(child, signal.SIGKILL)
            raise UnsolvableTask(f"{identity}: its solution did not end within {_TASK_LIMIT:g} s")
        result: dict[str, Any] = ours.recv()
    except EOFError:
        raise UnsolvableTask(f"{identity}: the process that ran its solution died") from None
    finally:
        os.waitpid(child, 0)
    return result


MAIL_APPS = ("amazon", "file_system", "spotify", "venmo", "gmail", "splitwise", "simple_note", "todoist")
PHONE_APP = "phone"
COMPANIES = (*MAIL_APPS, PHONE_APP)
_IN_MEMORY = ":memory:made_base"


def write_base_databases(data: Path, plan: WorldPlan) -> None:
    """Write ``data/base_dbs``. The API documentation must exist already; the time is the package's default."""
    from appworld.apps import get_all_apps
    from appworld.apps.api_lib import CompanyNotifier
    from appworld.collections.apis import ApiCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DEFAULT_SYSTEM_DATETIME
    from appworld.common.random import set_random_seed
    from appworld.common.utils import freeze_time

    apps = list(get_all_apps())
    set_random_seed(plan.seed)
    with freeze_time(DEFAULT_SYSTEM_DATETIME):
        places = {"to_db_home_path": _IN_MEMORY, "from_db_home_path": _IN_MEMORY, "load_apps": apps}
        apis, _ = ApiCollection.load(
            **places, date_and_time=None, create_db=True, max_num_requests=None, allow_datetime_change=True
        )
        models = ModelCollection.load(**places)
        _documentation_rows(models)
        for company in COMPANIES:
            CompanyNotifier(company).create_accounts(skip_if_exists=True)
        owners = Owners(models=models, apis=apis, users=_people(models, plan), tokens=_tokens(apis, plan))
        for fill in CONTENT:
            fill(owners, plan)
        models.save(
            db_home_path=str(data / "base_dbs"),
            format="full",
            app_names=apps,
            delete_if_exists=True,
            save_model_hashes=True,
        )
        models.close()


def _documentation_rows(models: Any) -> None:  # noqa: ANN401 - the package has no types
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection

    fields = ("path", "method", "description", "parameters", "response_schemas")
    for app, apis in ApiDocCollection.load(load_apps=tuple(get_all_apps(skip_admin=True))).items():
        models.api_docs.ApiDoc.save_all(
            [
                models.api_docs.ApiDoc.create(app_name_=app, api_name=name, **{key: document[key] for key in fields})
                for name, document in apis.items()
            ]
        )


def _people(models: Any, plan: WorldPlan) -> list[dict[str, Any]]:  # noqa: ANN401
    """Register every person with the admin app and sign them up everywhere; return their user of each app."""
    users = []
    for index, person in enumerate(plan.people):
        fields = ("first_name", "last_name", "email", "phone_number", "birthday", "sex")
        main = models.admin.MainUser.create_save(**{field: getattr(person, field) for field in fields})
        place = models.admin.GlobalAddress.create_save(
            street_address=f"{index + 3} Birch Lane",
            city="Northfield",
            state="Maine",
            country="United States",
            zip_code=10400 + index,
        )
        models.admin.UserAddress.create_save(global_address_id=place.id, main_user_id=main.id, name="Home")
        for offset, card in enumerate(("Visa", "MasterCard")):
            models.admin.PaymentCard.create_save(
                main_user_id=main.id,
                owner_name=f"{person.first_name} {person.last_name}",
                card_name=card,
                card_number=4 * 10**15 + 10 * index + offset,
                expiry_year=2027,
                expiry_month=6,
                cvv_number=210 + index,
                balance=3000.0,
            )
        users.append({app: _user(models, main.id, app, person) for app in COMPANIES})
    return users


def _user(models: Any, main_id: int, app: str, person: Person) -> Any:  # noqa: ANN401
    password = person.password(app)
    models.admin.AccountPassword.create_save(main_user_id=main_id, account_name=app, password=password)
    address = "phone_number" if app == PHONE_APP else "email"
    given = {field: getattr(person, field) for field in ("first_name", "last_name", address)}
    given |= {"password": password, "verified": True, "venmo_balance": 400.0}
    model = models[app].User
    return model.create_save(**{field: value for field, value in given.items() if field in model.__fields__})


def _tokens(apis: Any, plan: WorldPlan) -> list[dict[str, str]]:  # noqa: ANN401
    from appworld.common.datetime import DateTime

    def login(app: str, person: Person) -> str:
        name = person.phone_number if app == PHONE_APP else person.email
        answer = apis[app].login(username=name, password=person.password(app), _system_datetime=DateTime(2100, 1, 1))
        return str(answer["access_token"])

    return [{app: login(app, person) for app in COMPANIES} for person in plan.people]


if __name__ == "__main__":
    main()
