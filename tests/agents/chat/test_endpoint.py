"""Model and endpoint: the recipe first, then the environment. The key: where the user bound it, and nowhere else."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agents.chat.endpoint import OPENAI_URL, KeyBinding, destination, model_of, resolve
from agents.settings import RoleSettings
from environments.base import InputError

VARIABLES = (
    "COEVOLVE_KEYS",
    "COEVOLVE_CHAT_MODEL",
    "OPENAI_BASE_URL",
)
KEY = "sk-the-key-0123456789"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "OTHER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.mark.parametrize(
    ("recipe", "environment", "model"),
    [
        ("of-recipe", {"COEVOLVE_CHAT_MODEL": "of-all"}, "of-recipe"),
        (None, {"COEVOLVE_CHAT_MODEL": "of-all"}, "of-all"),
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
        ("http://localhost:1/v1", {"OPENAI_BASE_URL": "http://c/v1"}, "http://localhost:1/v1"),
        (None, {"OPENAI_BASE_URL": "http://c/v1"}, "http://c/v1"),
    ],
)
def test_the_endpoint(monkeypatch, recipe: str | None, environment: dict[str, str], url: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve(RoleSettings(kind="chat", model="m", base_url=recipe), "explorer").base_url == url


BOUND = "https://openrouter.ai=OTHER_KEY, http://node7:8000, http://node8=, http://localhost:9=OTHER_KEY"


@pytest.mark.parametrize(
    ("recipe", "environment", "variable"),
    [
        ("https://api.openai.com/v1", {}, "OPENAI_API_KEY"),
        ("https://API.OpenAI.com:443/v1", {}, "OPENAI_API_KEY"),
        ("https://gateway/v1", {"OPENAI_BASE_URL": "https://gateway/other"}, "OPENAI_API_KEY"),
        ("https://openrouter.ai/api/v1", {"COEVOLVE_KEYS": BOUND}, "OTHER_KEY"),
        ("http://localhost:9/v1", {"COEVOLVE_KEYS": BOUND}, "OTHER_KEY"),
        ("http://node7:8000/v1", {"COEVOLVE_KEYS": BOUND}, None),
        ("http://node8/v1", {"COEVOLVE_KEYS": BOUND}, None),
        ("http://localhost:8000/v1", {}, None),
        ("http://127.0.0.1:11434/v1", {}, None),
        ("http://[::1]:8000/v1", {}, None),
        (None, {"OPENAI_BASE_URL": "https://openrouter.ai/api/v1", "COEVOLVE_KEYS": BOUND}, "OTHER_KEY"),
        (None, {"OPENAI_BASE_URL": "http://node7:8000/v1", "COEVOLVE_KEYS": BOUND}, None),
        (None, {"OPENAI_BASE_URL": "http://localhost:8000/v1"}, "OPENAI_API_KEY"),
        (None, {"OPENAI_BASE_URL": "http://localhost:8000/v1", "OPENAI_API_KEY": ""}, None),
    ],
)
def test_an_address_decides_which_key_goes_to_it(
    monkeypatch: pytest.MonkeyPatch, recipe: str | None, environment: dict[str, str], variable: str | None
) -> None:
    for name, value in {"OTHER_KEY": " another-key-0123456789\n", **environment}.items():
        monkeypatch.setenv(name, value)
    endpoint = resolve(RoleSettings(kind="chat", model="m", base_url=recipe), "explorer")
    assert endpoint.key_variable == variable
    assert (
        endpoint.key.get_secret_value()
        == {None: "", "OPENAI_API_KEY": KEY, "OTHER_KEY": "another-key-0123456789"}[variable]
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com.evil.example/v1",
        "https://api.openai.com./v1",
        "https://api-openai.com/v1",
        "https://xn--pi-7kc.openai.com/v1",
        "https://аpi.openai.com/v1",  # noqa: RUF001 - a Cyrillic letter
        "http://api.openai.com/v1",
        "https://api.openai.com:8443/v1",
        "https://openrouter.ai.evil.example/api/v1",
        "https://api.openai.com@evil.example/v1",
        "https://evil.example/https://api.openai.com/v1",
        "https://evil.example\\@api.openai.com/v1",
        "https://evil.example#@api.openai.com/v1",
        "https://evil.example?@api.openai.com/v1",
        "https://evil.example\t.openai.com/v1",
        "http://localhost.evil.example/v1",
        "http://127.0.0.1.evil.example/v1",
        "http://2130706433/v1",
        "http://0.0.0.0:8000/v1",
        "http://192.168.0.7:8000/v1",
    ],
)
@pytest.mark.parametrize("keys", ["", BOUND])
def test_any_other_address_is_refused_whatever_it_resembles(
    monkeypatch: pytest.MonkeyPatch, url: str, keys: str
) -> None:
    monkeypatch.setenv("COEVOLVE_KEYS", keys)
    monkeypatch.setenv("OTHER_KEY", "another-key-0123456789")
    try:
        settings = RoleSettings(kind="chat", model="m", base_url=url)
    except ValidationError as error:
        assert "must be an address" in str(error)  # noqa: PT017 - some are refused as settings, the others here
        return
    with pytest.raises(
        InputError, match=r"roles\.explorer\.base_url is http.* you bound no key to that address.*COEVOLVE_KEYS"
    ):
        resolve(settings, "explorer")
    assert destination(settings, "explorer").variable is None


def test_the_key_of_openai_follows_the_address_that_the_user_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway/v1")
    with pytest.raises(InputError, match="you bound no key"):
        resolve(RoleSettings(kind="chat", model="m", base_url=OPENAI_URL), "explorer")


@pytest.mark.parametrize(
    "entry",
    ["openrouter.ai=OTHER_KEY", "https://a=sk-secret-1", "https://u:secret-1@a=K", "https://a?b=K"],
)
def test_a_binding_that_cannot_be_read_is_one_sentence_that_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.setenv("COEVOLVE_KEYS", f"https://fine=OTHER_KEY, {entry}")
    settings = RoleSettings(kind="chat", model="m")
    with pytest.raises(InputError, match=r"COEVOLVE_KEYS: entry 2 is not ADDRESS=VARIABLE") as caught:
        resolve(settings, "explorer")
    assert "secret" not in str(caught.value)


def test_two_keys_of_one_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVOLVE_KEYS", "https://a=ONE,https://A:443/v1=TWO")
    with pytest.raises(InputError, match="https://a is bound twice"):
        resolve(RoleSettings(kind="chat", model="m"), "explorer")


def test_the_option_of_a_command_is_the_users_own_word() -> None:
    settings = RoleSettings(kind="chat", model="m", base_url="https://anywhere/v1")
    assert resolve(settings, "policy", commanded=True).key_variable == "OPENAI_API_KEY"


def test_a_destination_says_which_variable_goes_where() -> None:
    assert str(KeyBinding(OPENAI_URL, "OPENAI_API_KEY")) == f"{OPENAI_URL} (OPENAI_API_KEY)"
    assert str(KeyBinding("http://localhost:1", None)) == "http://localhost:1 (no key)"
    assert "refused" in str(KeyBinding("http://a", None, "because"))


def test_no_model() -> None:
    with pytest.raises(InputError, match=r"roles\.chat\.model.*COEVOLVE_CHAT_MODEL"):
        resolve(RoleSettings(kind="chat"), "explorer")


@pytest.mark.parametrize("key", ["", "  \n"])
def test_no_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(
        InputError, match=r"OPENAI_API_KEY is not set: set it to the key of https://api\.openai\.com/v1"
    ):
        resolve(RoleSettings(kind="chat", model="m"), "explorer")


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
