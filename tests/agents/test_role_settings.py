"""Settings of the roles: what does not fit together is an error that names the key."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.settings import RoleSettings, RolesSettings
from memory.jsonl import complaint

CHAT = {"kind": "chat", "model": "m"}
VALUES = {
    "model": "m",
    "base_url": "http://host/v1",
    "structured": "tool_call",
    "temperature": 0.5,
    "max_tokens": 10,
    "timeout": 5.0,
    "deadline": 400.0,
    "max_retries": 1,
    "retry_pause": 0.1,
    "max_retry_after": 1.0,
    "price_prompt": 1.0,
    "price_completion": 1.0,
}


def test_the_table_covers_every_option() -> None:
    assert set(VALUES) == set(RoleSettings.model_fields) - {"kind"}


@pytest.mark.parametrize("key", VALUES)
def test_a_scripted_role_refuses_the_options_of_a_chat_role(key: str) -> None:
    with pytest.raises(ValidationError, match=f"'{key}' is for kind: chat, scripted would ignore it"):
        RoleSettings.model_validate({key: VALUES[key]})
    RoleSettings.model_validate({"kind": "chat", key: VALUES[key]})
    RoleSettings.model_validate({key: RoleSettings.model_fields[key].default})


@pytest.mark.parametrize(
    ("shared", "key"),
    [({"concurrency": 4}, "concurrency"), ({"cache": "x"}, "cache"), ({"budget": {"calls": 1}}, "budget")],
)
def test_what_chat_roles_share_needs_a_chat_role(shared: dict, key: str) -> None:
    with pytest.raises(ValidationError, match=f"'{key}' is for reflector.kind: chat or "):
        RolesSettings.model_validate(shared)
    for role in ("reflector", "explorer", "abstractor", "solver"):
        RolesSettings.model_validate({role: CHAT, **shared})


@pytest.mark.parametrize("missing", ["price_prompt", "price_completion"])
def test_a_budget_of_money_needs_every_price(missing: str) -> None:
    priced = {**CHAT, "price_prompt": 0.0, "price_completion": 2.0}
    unpriced = {key: value for key, value in priced.items() if key != missing}
    budget = {"money": 5.0}
    with pytest.raises(ValidationError, match=rf"'budget\.money' needs 'explorer\.{missing}'"):
        RolesSettings.model_validate({"reflector": priced, "explorer": unpriced, "budget": budget})
    RolesSettings.model_validate({"reflector": priced, "explorer": priced, "budget": budget})


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"base_url": "https://user:secret-1234@host/v1"},
            "must be an address such as http://host:8000/v1",
        ),
        ({"timeout": 400.0}, "'deadline' is shorter than 'timeout'"),
    ],
)
def test_wrong_options_of_a_chat_role(wrong: dict, told: str) -> None:
    with pytest.raises(ValidationError, match=told) as caught:
        RoleSettings.model_validate({**CHAT, **wrong})
    assert "1234" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("budget", [{"tokens": 0}, {"calls": 0}, {"money": 0.0}, {"euros": 1}])
def test_wrong_budgets(budget: dict) -> None:
    with pytest.raises(ValidationError):
        RolesSettings.model_validate({"explorer": CHAT, "budget": budget})


def test_a_key_in_the_recipe_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(ValidationError) as caught:
        RoleSettings.model_validate({**CHAT, "api_key": "sk-1234"})
    assert complaint(caught.value, "roles.explorer") == "roles.explorer.api_key: Extra inputs are not permitted"
