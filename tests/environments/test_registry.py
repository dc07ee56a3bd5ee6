"""Environments by name: BFCL with its options, a user's own by import path, and what is wrong with a name in words."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from environments.base import Environment, InputError
from environments.registry import open_named
from environments.settings import EnvironmentSettings

SHOP = """
from environments.base import Environment, InputError
from environments.example import depot
from environments.python_class.environment import PythonEnvironment

number = 3

def refusing() -> Environment:
    raise InputError("the shop needs its catalogue: put catalogue.json here")

def failing() -> Environment:
    return {}["catalogue"]

def leaving() -> Environment:
    raise SystemExit(0)

def nothing() -> PythonEnvironment:
    return None

def pretending() -> PythonEnvironment:
    environment = depot(1)
    environment.name = "bfcl"
    return environment

def pretending_appworld() -> "PythonEnvironment":
    environment = depot(1)
    environment.name = "appworld"
    return environment

class Shop(PythonEnvironment):
    def __init__(self, *, shelves, **more):
        inner = depot(shelves)
        self.__dict__.update(vars(inner))
"""


def appworld(**options: object) -> dict[str, object]:
    return {"name": "appworld", "options": options}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_for_tests.py").write_text(SHOP)
    (tmp_path / "broken_shop_for_tests.py").write_text("\n\nshop = oak\n")
    (tmp_path / "needy_shop_for_tests.py").write_text("import no_such_library\nshop = no_such_library.made\n")
    (tmp_path / "left_shop_for_tests.py").write_text("import sys\n\nsys.exit(0)\nshop = made\n")
    (tmp_path / "torn_shop_for_tests.py").write_text("def shop(:\n")
    return tmp_path


def test_the_settings_reach_bfcl():
    environment = EnvironmentSettings(options={"classes": ["VehicleControlAPI"], "max_steps": 3}).open()
    assert isinstance(environment, Environment)
    assert environment.name == "bfcl"
    assert {start.classes for start in environment.starts()} == {("VehicleControlAPI",)}


def test_bfcl_is_the_default_and_writes_its_options_out():
    plain = EnvironmentSettings()
    assert (plain.name, plain.is_own) == ("bfcl", False)
    assert plain.options == {
        "classes": ["GorillaFileSystem", "VehicleControlAPI"],
        "max_steps": 20,
        "categories": ["base", "miss_func", "miss_param", "long_context"],
        "wordings": "table",
    }
    assert plain.max_actions == 20
    assert EnvironmentSettings.model_validate_json(plain.model_dump_json()) == plain


def test_appworld_takes_its_official_limit_and_no_evaluation_set():
    plain = EnvironmentSettings(name="appworld")
    assert plain.options == {"max_steps": 30}
    assert not plain.is_own
    assert EnvironmentSettings.model_validate_json(plain.model_dump_json()) == plain
    assert EnvironmentSettings(name="appworld", options={"max_steps": 5}).max_actions == 5


def test_appworld_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("COEVOLVE_APPWORLD", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="make appworld"):
        EnvironmentSettings(name="appworld").open()


def test_appworld_is_opened(installation):
    environment = EnvironmentSettings(name="appworld").open()
    assert isinstance(environment, Environment)
    assert environment.name == "appworld"


def test_an_own_environment_is_opened_with_its_options(shop):
    settings = EnvironmentSettings(name="environments.example:depot", options={"starts": 3})
    assert settings.is_own
    assert EnvironmentSettings.model_validate_json(settings.model_dump_json()) == settings
    assert len(settings.open().starts()) == 3
    built = EnvironmentSettings(name="shop_for_tests:Shop", options={"shelves": 2, "anything": [1]})
    assert len(built.open().starts()) == 2


@pytest.mark.parametrize(
    ("given", "key", "says"),
    [
        ({"name": "webshop"}, ("name",), "write bfcl, appworld, mcp, openenv, or module:callable"),
        (appworld(classes=["spotify"]), ("options",), "appworld would ignore it: choose from max_steps"),
        (appworld(world="made"), ("options",), "appworld would ignore it"),
        (appworld(max_steps=0), ("options", "max_steps"), "greater than or equal to 1"),
        ({"name": "my shop:open"}, ("name",), "module:callable"),
        ({"name": "shop:open:twice"}, ("name",), "module:callable"),
        ({"name": "../shop:open"}, ("name",), "module:callable"),
        ({"name": "shop:open", "classes": ("MathAPI",)}, ("classes",), "Extra"),
        ({"options": {"shelves": 2}}, ("options",), "would ignore it"),
        ({"options": {"clases": []}}, ("options",), "did you mean 'classes'?"),
        ({"options": {"max_steps": 0}}, ("options", "max_steps"), "greater than or equal to 1"),
        ({"options": {"max_steps": "3"}}, ("options", "max_steps"), "valid integer"),
        ({"shelves": 2}, ("shelves",), "Extra"),
    ],
)
def test_options_that_would_be_ignored_are_errors(given, key, says):
    with pytest.raises(ValidationError) as caught:
        EnvironmentSettings(**given)
    (error,) = caught.value.errors()
    assert error["loc"] == key
    assert says in error["msg"]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("no_such_shop:open_shop", {}, "no module 'no_such_shop': start the command in the folder"),
        ("shop_for_tests.inner:open_shop", {}, "no module 'shop_for_tests.inner'"),
        ("needy_shop_for_tests:shop", {}, "cannot be imported: ModuleNotFoundError.*no_such_library.*line 1"),
        ("broken_shop_for_tests:shop", {}, "cannot be imported: NameError.*'oak'.*broken_shop_for_tests.py, line 3"),
        ("torn_shop_for_tests:shop", {}, "cannot be imported: SyntaxError.*line 1"),
        ("shop_for_tests:open_shop", {}, "has no 'open_shop'"),
        ("shop_for_tests:number", {}, "number does not declare that it makes an environment"),
        ("shop_for_tests:Shop", {}, "environment.options: .*does not take them.*'shelves'"),
        ("shop_for_tests:nothing", {"shelves": 3}, "environment.options: .*does not take them.*'shelves'"),
        ("shop_for_tests:nothing", {}, "returned a NoneType: return an Environment"),
        ("shop_for_tests:failing", {}, "failed: KeyError: 'catalogue' .shop_for_tests.py, line 12"),
        ("shop_for_tests:leaving", {}, "failed: SystemExit: 0 .shop_for_tests.py, line 15"),
        ("left_shop_for_tests:shop", {}, "cannot be imported: SystemExit: 0 .left_shop_for_tests.py, line 3"),
        ("shop_for_tests:refusing", {}, "^the shop needs its catalogue"),
        ("shop_for_tests:pretending", {}, "calls itself 'bfcl'"),
        ("shop_for_tests:pretending_appworld", {}, "calls itself 'appworld'"),
    ],
)
def test_what_cannot_be_opened_is_told_in_one_sentence(shop, name, options, says):
    with pytest.raises(InputError, match=says) as caught:
        EnvironmentSettings(name=name, options=options).open()
    assert "\n" not in str(caught.value)


def test_a_command_names_the_environment():
    assert open_named("environments.example:depot", max_actions=3).name == "depot"
    messages = open_named("bfcl", {"classes": ["MessageAPI"]})
    assert {start.classes for start in messages.starts()} == {("MessageAPI",)}
    with pytest.raises(InputError, match=r"^--option\.max_steps: .*greater than or equal to 1"):
        open_named("bfcl", {"max_steps": 0})
    with pytest.raises(InputError, match=r"^--environment: 'nowhere' is not an environment"):
        open_named("nowhere")
