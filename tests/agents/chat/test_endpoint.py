"""Model, endpoint and key: the recipe first, then the environment; what is missing is one sentence."""

from __future__ import annotations

import pytest

from agents.chat.endpoint import OPENAI_URL, model_of, resolve
from agents.settings import RoleSettings
from environments.base import InputError

VARIABLES = ("COEVOLVE_EXPLORER_MODEL", "COEVOLVE_CHAT_MODEL", "COEVOLVE_EXPLORER_BASE_URL", "OPENAI_BASE_URL")
KEY = "sk-the-key-0123456789"


@pytest.fixture(autouse=True)
def _environment(monkeypatch) -> None:
    for name in (*VARIABLES, "OTHER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.mark.parametrize(
    ("recipe", "environment", "model"),
    [
        ("of-recipe", {"COEVOLVE_EXPLORER_MODEL": "of-role", "COEVOLVE_CHAT_MODEL": "of-all"}, "of-recipe"),
        (None, {"COEVOLVE_EXPLORER_MODEL": "of-role", "COEVOLVE_CHAT_MODEL": "of-all"}, "of-role"),
        (None, {"COEVOLVE_CHAT_MODEL": "of-all", "COEVOLVE_REFLECTOR_MODEL": "of-another"}, "of-all"),
    ],
)
def test_the_model(monkeypatch, recipe: str | None, environment: dict[str, str], model: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = RoleSettings(kind="chat", model=recipe)
    assert model_of(settings, "explorer") == resolve(settings, "explorer").model == model


@pytest.mark.parametrize(
    ("recipe", "environment", "url"),
    [
        (None, {}, OPENAI_URL),
        (
            "http://a:1/v1",
            {"COEVOLVE_EXPLORER_BASE_URL": "http://b/v1", "OPENAI_BASE_URL": "http://c/v1"},
            "http://a:1/v1",
        ),
        (None, {"COEVOLVE_EXPLORER_BASE_URL": "http://b/v1", "OPENAI_BASE_URL": "http://c/v1"}, "http://b/v1"),
        (None, {"OPENAI_BASE_URL": "http://c/v1"}, "http://c/v1"),
    ],
)
def test_the_endpoint(monkeypatch, recipe: str | None, environment: dict[str, str], url: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve(RoleSettings(kind="chat", model="m", base_url=recipe), "explorer").base_url == url


def test_two_endpoints_can_have_two_keys(monkeypatch) -> None:
    monkeypatch.setenv("OTHER_KEY", " another-key-0123456789\n")
    endpoint = resolve(RoleSettings(kind="chat", model="m", key_variable="OTHER_KEY"), "explorer")
    assert endpoint.key.get_secret_value() == "another-key-0123456789"


def test_no_model() -> None:
    with pytest.raises(InputError, match=r"roles\.explorer\.model.*COEVOLVE_EXPLORER_MODEL or COEVOLVE_CHAT_MODEL"):
        resolve(RoleSettings(kind="chat"), "explorer")


@pytest.mark.parametrize("key", ["", "  \n"])
def test_no_key(monkeypatch, key: str) -> None:
    monkeypatch.setenv("OTHER_KEY", key)
    with pytest.raises(InputError, match=r"the environment variable OTHER_KEY is not set"):
        resolve(RoleSettings(kind="chat", model="m", key_variable="OTHER_KEY"), "explorer")


@pytest.mark.parametrize("key", ["sk-secret\nX-Injected: 1", "sk-secret with spaces", "sk-secrét"])
def test_a_key_that_cannot_be_sent_is_not_shown(monkeypatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match="OPENAI_API_KEY holds no key") as caught:
        resolve(RoleSettings(kind="chat", model="m"), "explorer")
    assert "secr" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["host:8000/v1", "ftp://host/v1", "http://", "http://user:pass-1234@host/v1", "http://h:x/"]
)
def test_a_wrong_url_names_its_source(monkeypatch, url: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(InputError, match="OPENAI_BASE_URL is not the URL of an endpoint") as caught:
        resolve(RoleSettings(kind="chat", model="m"), "explorer")
    assert "pass-1234" not in str(caught.value)


def test_the_key_is_hidden() -> None:
    endpoint = resolve(RoleSettings(kind="chat", model="m"), "explorer")
    assert KEY not in repr(endpoint)
    assert endpoint.hide(f"Bearer {KEY}: no") == "Bearer [key]: no"


def test_a_placeholder_is_no_secret(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    endpoint = resolve(RoleSettings(kind="chat", model="m"), "explorer")
    assert endpoint.hide("none of the tools") == "none of the tools"
