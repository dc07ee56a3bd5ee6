"""Define the scenarios of a synthetic world: three variants of one instruction, their solution and their checks.

``scenarios.toml`` has what the variants share; this module draws persons, values and answers from a plan.
``write_tasks`` writes a scenario's tasks as the package reads them: specification, database changes, ground truth.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from environments.appworld.layout import SPLITS
from environments.appworld.synthetic_world.plan import ARTISTS, PAYMENTS, Person, WorldPlan

VARIANTS = 3

_TITLES = ("Paint colours", "Packing list", "Car service")
_CONTENTS = ("sage green for the hall", "passport, charger, raincoat", "oil and brakes on Friday")
_MESSAGES = ("I am running ten minutes late.", "Dinner is at seven on Sunday.", "Please bring the blue folder.")


@dataclass(frozen=True)
class Variant:
    """One task: its person, its instruction, its values and its answer (None: no answer is expected)."""

    person: int
    instruction: str
    values: dict[str, Any]
    answer: str | int | float | None = None


@dataclass(frozen=True)
class Scenario:
    """Tasks that differ in values only; ``found`` yields as many variants as a plan has.

    ``solution`` is the body of the reference code; it can use ``login(app)`` and ``pages(api, **arguments)``, and has
    ``values`` as ``wanted``. ``checks`` is the body of the package's ``evaluate``, where ``wanted`` are
    the same values; it comes after the check of the answer.
    """

    id: str
    found: Callable[[WorldPlan], Iterator[Variant]]
    split: str
    difficulty: int
    apps: list[str]
    solution: str
    checks: str

    def variants(self, plan: WorldPlan) -> list[Variant]:
        """Return the first three variants. Raises ValueError when the plan gives fewer."""
        variants = [variant for variant, _ in zip(self.found(plan), range(VARIANTS), strict=False)]
        if len(variants) < VARIANTS:
            raise ValueError("this seed's plan has too little for a scenario: use another seed")
        return variants


def _people_from(plan: WorldPlan, first: int) -> Iterator[tuple[int, Person]]:
    """Yield every person once, beginning with ``first``, so that scenarios do not all use the same three people."""
    count = len(plan.people)
    for offset in range(count):
        yield (first + offset) % count, plan.people[(first + offset) % count]


def _new_note(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), title, content in zip(_people_from(plan, 0), _TITLES, _CONTENTS, strict=False):
        text = f"Create a note titled '{title}' with the content '{content}' in Simple Note."
        yield Variant(index, text, {"title": title, "content": content})


def _network_password(plan: WorldPlan) -> Iterator[Variant]:
    for (index, person), network in zip(_people_from(plan, 3), ("guest", "office", "main"), strict=False):
        text = f"What is the password of the {network} network, according to my 'Home Wifi' note in Simple Note?"
        yield Variant(index, text, {"network": network}, person.networks[network])


def _alarm_off(plan: WorldPlan) -> Iterator[Variant]:
    for (index, _), label in zip(_people_from(plan, 6), ("Gym", "Laundry", "Medicine"), strict=False):
        yield Variant(index, f"Disable the phone alarm that I labelled '{label}'.", {"label": label})


def _text_message(plan: WorldPlan) -> Iterator[Variant]:
    for position, ((index, person), message) in enumerate(zip(_people_from(plan, 9), _MESSAGES, strict=False)):
        contact = person.contacts[position]
        number = plan.people[contact.person].phone_number
        text = f"Send a text message to my {contact.relationship}: '{message}'"
        yield Variant(index, text, {"relationship": contact.relationship, "message": message, "phone_number": number})


def _urgent_chores(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 2):
        project = next(iter(person.projects))
        titles = sorted(c.title for c in person.projects[project] if c.priority == "high" and not c.done)
        text = f"Mark every task of high priority in my Todoist project '{project}' as completed."
        yield Variant(index, text, {"project": project, "titles": titles})


def _like_a_playlist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 4):
        for title, songs in person.playlists.items():
            missing = sorted(plan.songs[song].title for song in songs if song not in person.liked)
            if 0 < len(missing) < len(songs):
                text = f"Like all the songs of my Spotify playlist '{title}' that I have not liked yet."
                yield Variant(index, text, {"playlist": title, "titles": missing})
                break


def _songs_of_a_genre(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 7):
        counts = Counter(plan.songs[song].genre for song in person.library)
        genre, count = counts.most_common()[-1]
        if count > 1:
            text = f"How many songs of the genre {genre} are in my Spotify song library?"
            yield Variant(index, text, {"genre": genre}, count)


def _favourite_artist(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 10):
        ranking = Counter(ARTISTS[plan.songs[song].artist] for song in person.liked).most_common()
        if ranking[0][1] > ranking[1][1]:
            text = "Which artist made the most of the songs that I like on Spotify?"
            yield Variant(index, text, {}, ranking[0][0])


def _send_money(plan: WorldPlan) -> Iterator[Variant]:
    for position, (index, person) in enumerate(_people_from(plan, 1)):
        contact = person.contacts[position % len(person.contacts)]
        amount, what = 12 + 7 * (position % 5), PAYMENTS[position % len(PAYMENTS)]
        values = {"relationship": contact.relationship, "amount": amount, "description": what}
        text = f"Send ${amount} to my {contact.relationship} on Venmo with the description '{what}'. "
        text += "Who that is stands in my phone's contacts."
        yield Variant(index, text, values | {"email": plan.people[contact.person].email})


def _money_received(plan: WorldPlan) -> Iterator[Variant]:
    for index, person in _people_from(plan, 5):
        other = person.contacts[0].person
        giver = plan.people[other]
        total = sum(p.amount for p in plan.payments if p.sender == other and p.receiver == index)
        text = f"How many dollars have I received from {giver.first_name} {giver.last_name} on Venmo in total?"
        yield Variant(index, text, {"email": giver.email}, total)


_FOUND = (
    *(_new_note, _network_password, _alarm_off, _text_message, _like_a_playlist),
    *(_songs_of_a_genre, _favourite_artist, _send_money, _money_received, _urgent_chores),
)
_SHARED = tomllib.loads(Path(__file__).with_name("scenarios.toml").read_text(encoding="utf-8"))
SCENARIOS = tuple(Scenario(id=name, found=found, **_SHARED[name]) for name, found in zip(_SHARED, _FOUND, strict=True))


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
