"""Signing in: which calls it takes and what they are given, read from documentation and answers."""

from __future__ import annotations

import pytest
from support.shop import SIGNED_IN, TOOLS, parameter

from agents.evidence import call_of
from agents.scripted.appworld import explorer
from agents.scripted.appworld.explorer import AnswerValue, sightings


def seen(count: int) -> list[AnswerValue]:
    return [
        sighting
        for place, one in enumerate(SIGNED_IN[:count])
        for sighting in sightings(call_of(one).name.partition(".")[0], one.observation, place)
    ]


def test_a_token_names_the_login_that_answers_with_it() -> None:
    token = TOOLS["shop.delete_basket"].parameters[-1]
    assert explorer.login_of(token) == "shop.login"
    assert explorer.login_of(parameter("file_access_token", description="Token obtained from files app login.")) == (
        "files.login"
    )
    assert explorer.login_of(parameter("note", description="A token obtained from shop app login.")) is None


def test_signing_in_asks_who_one_is_and_for_the_password_of_that_app() -> None:
    calls = explorer.sign_in_calls("shop.login", TOOLS)
    assert [call.name for call in calls] == ["supervisor.show_profile", "supervisor.show_account_passwords"]
    assert explorer.login_call(TOOLS["shop.login"], seen(1)) is None
    call = explorer.login_call(TOOLS["shop.login"], seen(2))
    assert call is not None
    assert call.arguments == {"username": "ada@example.com", "password": "s-1"}


def test_without_a_way_to_sign_in_there_is_none() -> None:
    assert explorer.sign_in_calls("bank.login", TOOLS) == ()


def test_the_newest_token_counts_and_only_of_its_app() -> None:
    older = AnswerValue("access_token", "old", "shop", {}, 0)
    assert explorer.last_token("shop.login", [older, *seen(3)]) == "t-1"
    assert explorer.last_token("bank.login", seen(3)) is None


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("shop.login", True),
        ("shop.delete_account", True),
        ("shop.send_password_reset_code", True),
        ("shop.verify_account", True),
        ("shop.delete_basket", False),
        ("shop.update_signup_sheet", True),
    ],
)
def test_what_is_about_accounts(name: str, about: bool) -> None:
    assert explorer.is_about_accounts(name) is about
