"""Settings of the roles: what does not fit together is an error that names the key."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.settings import ROLES, RoleSettings, RolesSettings
from memory.jsonl import complaint

CHAT = {"kind": "chat", "model": "m"}


def test_a_scripted_role_refuses_what_is_for_a_chat_role() -> None:
    for key, value in {"model": "m", "timeout": 5.0, "temperature": None}.items():
        with pytest.raises(ValidationError, match=f"'{key}' is for kind: chat, scripted would ignore it"):
            RoleSettings.model_validate({key: value})
        RoleSettings.model_validate({"kind": "chat", key: value})


def test_the_roles_are_the_sections_of_a_role() -> None:
    fields = RolesSettings.model_fields.items()
    assert tuple(name for name, field in fields if "RoleSettings" in str(field.annotation)) == ROLES


def test_a_role_has_the_shared_keys_but_for_its_own_also_where_these_are_the_defaults() -> None:
    roles = {
        "chat": {"model": "big", "temperature": 0.7, "max_retries": 9},
        "explorer": {"kind": "chat", "temperature": None, "model": "small"},
        "abstractor": {"kind": "chat"},
    }
    settings = RolesSettings.model_validate(roles)
    again = RolesSettings.model_validate_json(settings.model_dump_json())
    for one in (settings, again):
        explorer, abstractor = one.by_chat().values()
        assert (explorer.model, explorer.temperature, explorer.max_retries) == ("small", None, 9)
        assert (abstractor.model, abstractor.temperature, abstractor.max_retries) == ("big", 0.7, 9)
    assert settings.model_dump()["explorer"] == roles["explorer"]
    assert settings.model_dump()["reflector"] == {"kind": "scripted"}


@pytest.mark.parametrize(
    ("shared", "key"),
    [({"concurrency": 4}, "concurrency"), ({"chat": {"model": "m"}}, "chat"), ({"budget": {"calls": 1}}, "budget")],
)
def test_what_chat_roles_share_needs_a_chat_role(shared: dict, key: str) -> None:
    with pytest.raises(ValidationError, match=f"'{key}' is for reflector.kind: chat or "):
        RolesSettings.model_validate(shared)
    for role in ("reflector", "explorer", "abstractor"):
        RolesSettings.model_validate({role: CHAT, **shared})


@pytest.mark.parametrize("missing", ["price_prompt", "price_completion"])
def test_a_budget_of_money_needs_every_price(missing: str) -> None:
    priced = {**CHAT, "price_prompt": 0.0, "price_completion": 2.0}
    unpriced = {key: value for key, value in priced.items() if key != missing}
    budget = {"money": 5.0}
    with pytest.raises(
        ValidationError, match=rf"'budget\.money' needs '{missing}' of the explorer, .*chat\.{missing} or"
    ):
        RolesSettings.model_validate({"reflector": priced, "explorer": unpriced, "budget": budget})
    RolesSettings.model_validate({"reflector": priced, "explorer": priced, "budget": budget})
    shared = {"price_prompt": 1.0, "price_completion": 1.0}
    RolesSettings.model_validate({"chat": shared, "reflector": priced, "explorer": unpriced, "budget": budget})


def test_an_address_with_a_key_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(ValidationError, match="must be an address such as http://host:8000/v1") as caught:
        RoleSettings.model_validate({**CHAT, "base_url": "https://user:secret-1234@host/v1"})
    assert "1234" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("budget", [{"tokens": 0}, {"calls": 0}, {"money": 0.0}, {"euros": 1}])
def test_wrong_budgets(budget: dict) -> None:
    with pytest.raises(ValidationError):
        RolesSettings.model_validate({"explorer": CHAT, "budget": budget})


def test_a_key_in_the_recipe_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(ValidationError) as caught:
        RoleSettings.model_validate({**CHAT, "api_key": "sk-1234"})
    assert complaint(caught.value, "roles.explorer") == "roles.explorer.api_key: Extra inputs are not permitted"


def test_a_model_on_this_machine_explores_and_abstracts_alone() -> None:
    for name in ("reflector", "validator"):
        with pytest.raises(ValidationError, match=f"{name}.kind must not be local"):
            RolesSettings.model_validate({name: {"kind": "local"}})
    with pytest.raises(ValidationError, match=r"'local' is for explorer\.kind: local or "):
        RolesSettings.model_validate({"local": {"draws": 3}})
    for name in ("explorer", "abstractor"):
        settings = RolesSettings.model_validate({name: {"kind": "local"}, "local": {"draws": 3}})
        assert settings.by_local() == (name,)
        assert settings.plays_locally()
        assert settings.branches_at_once() == 1
    assert RolesSettings().branches_at_once() == RolesSettings().concurrency
