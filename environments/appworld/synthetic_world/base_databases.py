"""Fill the apps' base databases with a plan's people and content, through the apps' own models and APIs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.appworld.synthetic_world.content import CONTENT, Owners
from environments.appworld.synthetic_world.plan import WorldPlan

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
        names = {"first_name": person.first_name, "last_name": person.last_name}
        main = models.admin.MainUser.create_save(
            **names, email=person.email, phone_number=person.phone_number, birthday=person.birthday, sex=person.sex
        )
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
        users.append({app: _user(models, main.id, app, person, names) for app in (*MAIL_APPS, PHONE_APP)})
    return users


def _user(models: Any, main_id: int, app: str, person: Any, names: dict[str, str]) -> Any:  # noqa: ANN401
    password = person.password(app)
    models.admin.AccountPassword.create_save(main_user_id=main_id, account_name=app, password=password)
    model = models[app].User
    address = {"phone_number": person.phone_number} if app == PHONE_APP else {"email": person.email}
    wanted = {"verified": True, "venmo_balance": 400.0}
    extra = {field: value for field, value in wanted.items() if field in model.__fields__}
    return model.create_save(**names, **address, password=password, **extra)


def _tokens(apis: Any, plan: WorldPlan) -> list[dict[str, str]]:  # noqa: ANN401
    from appworld.common.datetime import DateTime

    login: Callable[[str, Any], str] = lambda app, person: apis[app].login(  # noqa: E731
        username=person.phone_number if app == PHONE_APP else person.email,
        password=person.password(app),
        _system_datetime=DateTime(2100, 1, 1),
    )["access_token"]
    return [{app: login(app, person) for app in (*MAIL_APPS, PHONE_APP)} for person in plan.people]
