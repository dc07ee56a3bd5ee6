"""Write a scenario's tasks as the package reads them: specification, database changes and ground truth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from environments.appworld.layout import SPLITS
from environments.appworld.synthetic_world.plan import WorldPlan
from environments.appworld.synthetic_world.scenarios import Scenario, Variant

NOW = datetime(2023, 5, 18, 12)  # the package's own default, when every task takes place

_SOLUTION = """from collections import Counter


def solution(apis, requester):
    wanted = {values}
    answer = None
    profile = apis.supervisor.show_profile()
    passwords = {{entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}}

    def login(app):
        username = profile["phone_number"] if app == "phone" else profile["email"]
        return apis[app].login(username=username, password=passwords[app])["access_token"]

    def pages(api, **arguments):
        found, index = [], 0
        while page := api(page_index=index, page_limit=20, **arguments):
            found, index = found + page, index + 1
        return found

{body}
    apis.supervisor.complete_task(answer=answer)
"""

_EVALUATION = """import json


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    wanted = private_data
    with test("assert answers match."):
        test.answer(json.loads(models.end.supervisor.Task.first().answer), ground_truth_answer)
{body}
"""


def task_id(scenario: Scenario, position: int) -> str:
    """Return the id of the variant at ``position``: the scenario's id, one underscore, counted from one."""
    return f"{scenario.id}_{position + 1}"


def write_tasks(data: Path, plan: WorldPlan, scenarios: Iterable[Scenario]) -> list[str]:
    """Write every task's specification and databases, its ground truth but for the test labels, and the data sets.

    Returns the ids. The base databases must exist already.
    """
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.id):
        for position, variant in enumerate(scenario.variants(plan)):
            identity = task_id(scenario, position)
            folder = data / "tasks" / identity
            _write_databases(folder, variant)
            _write_ground_truth(folder / "ground_truth", scenario, variant)
            splits[scenario.split].append(identity)
    (data / "datasets").mkdir()
    for split, ids in splits.items():
        (data / "datasets" / f"{split}.txt").write_text("\n".join(ids) + "\n")
    return [identity for ids in splits.values() for identity in ids]


def _write_databases(folder: Path, variant: Variant) -> None:
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import get_db_home_path
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import CANARY_STRING, DB_VERSION
    from appworld.common.utils import freeze_time

    apps = list(get_all_apps())
    with freeze_time(NOW):
        models = ModelCollection.load(
            to_db_home_path=f":memory:made_{folder.name}",
            from_db_home_path=get_db_home_path(storage_type="disk", type="base"),
            load_apps=apps,
        )
        user = models.admin.MainUser.all()[variant.person]
        _appoint_supervisor(models, user, variant.instruction)
        models.save(
            db_home_path=str(folder / "dbs"),
            app_names=apps,
            format="changes",
            delete_if_exists=True,
            save_model_hashes=True,
        )
        who = {field: getattr(user, field) for field in ("first_name", "last_name", "email", "phone_number")}
        models.close()
    specification = {
        "instruction": variant.instruction,
        "supervisor": who,
        "datetime": NOW.isoformat(),
        "db_version": DB_VERSION,
        "canary_string": CANARY_STRING,
    }
    (folder / "specs.json").write_text(json.dumps(specification, indent=1))


def _appoint_supervisor(models: Any, user: Any, instruction: str) -> None:  # noqa: ANN401 - the package has no types
    """Copy the main user's data into the supervisor app, as the person whom the agent works for."""
    copied = ("first_name", "last_name", "email", "phone_number", "birthday", "sex")
    supervisor = models.supervisor.Supervisor.create_save(**{field: getattr(user, field) for field in copied})
    own = {"supervisor_id": supervisor.id}
    for account in user.account_passwords:
        models.supervisor.AccountPassword.create_save(
            account_name=account.account_name, password=account.password, **own
        )
    for address in user.user_addresses:
        where = address.global_address
        fields = ("street_address", "city", "state", "country", "zip_code")
        models.supervisor.Address.create_save(
            name=address.name, **{field: getattr(where, field) for field in fields}, **own
        )
    for card in user.payment_cards:
        of_a_card = ("owner_name", "card_name", "card_number", "expiry_year", "expiry_month", "cvv_number")
        models.supervisor.PaymentCard.create_save(**{field: getattr(card, field) for field in of_a_card}, **own)
    models.supervisor.Task.create_save(instruction=instruction, **own)


def _write_ground_truth(folder: Path, scenario: Scenario, variant: Variant) -> None:
    folder.mkdir()
    solution = _SOLUTION.format(values=repr(variant.values), body=_body(scenario.solution))
    documents = {
        "required_apps.json": scenario.apps,
        "public_data.json": {},
        "private_data.json": variant.values,
        "answer.json": variant.answer,
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "evaluation.py").write_text(_EVALUATION.format(body=_body(scenario.checks)))
    (folder / "solution.py").write_text(solution)
    (folder / "compiled_solution.py").write_text(solution)
    (folder / "generator.py").write_text("")
    metadata = {
        "mode": "full",
        "difficulty": scenario.difficulty,
        "num_apps": len(scenario.apps),
        "num_solution_code_lines": len(_body(scenario.solution).splitlines()),
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))


def _body(source: str) -> str:
    return indent(dedent(source).strip("\n"), "    ")
