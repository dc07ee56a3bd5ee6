"""Settings of an evaluation: one dialect for recipe, command and the file that a parent writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.commands import run_here
from typer.main import get_command

from environments.base import InputError
from evaluation.run import app
from evaluation.settings import LimitSettings, ScoringSettings, read_settings
from graph.run.stages import scoring_settings
from graph.settings import load_recipe
from memory.jsonl import write_json

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"

A_NEW_SETTING = """
import sys, types
from pathlib import Path

text = Path("evaluation/settings.py").read_text()
new = '    patience: float = Field(0.0, ge=0.0, le=9.0, description="of the reader")\\n'
changed = text.replace("    limit: int", new + "    limit: int", 1)
assert changed != text
module = sys.modules["evaluation.settings"] = types.ModuleType("evaluation.settings")
exec(compile(changed, "evaluation/settings.py", "exec"), module.__dict__)

from typer.main import get_command
from typer.testing import CliRunner
from evaluation.run import app
from graph.settings import load_recipe
from graph.run.stages import scoring_settings
from memory.jsonl import write_json

settings = load_recipe(Path("recipes/quickstart.yaml"), ["evaluation.patience=0.5"])
file = Path(sys.argv[1])
write_json(file, scoring_settings(settings))
print(module.read_settings(file)["patience"])
print(CliRunner().invoke(app, ["--patience", "10"]).stderr)
"""


@pytest.mark.process
def test_a_new_setting_needs_one_place(tmp_path: Path) -> None:
    """One field more in ``LimitSettings``: a recipe's key, an option, and what a run hands to the command."""
    argv = [sys.executable, "-c", A_NEW_SETTING, str(tmp_path / "settings.json")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    stated, refusal, *_ = done.stdout.splitlines()
    assert stated == "0.5"
    assert refusal.startswith("error: invalid value for '--patience': Input should be less than or equal to 9")


@pytest.mark.parametrize("name", LimitSettings.model_fields)
def test_each_setting_of_a_recipe_reaches_the_evaluation_of_a_run(name: str) -> None:
    settings = scoring_settings(load_recipe(QUICKSTART, [f"evaluation.{name}=37"]))
    assert getattr(settings, name) == 37


@pytest.mark.parametrize("strict", [True, False])
def test_a_run_scores_messages_as_it_trains_on_them(strict: bool) -> None:
    settings = scoring_settings(load_recipe(QUICKSTART, [f"training.strict_messages={strict}"]))
    assert settings.strict_messages is strict


@pytest.mark.slow
def test_a_file_of_settings_is_what_the_options_are_and_options_replace_its_values(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    write_json(file, ScoringSettings(evaluation_set=("templated-dev",), limit=9, device="cpu"))
    options = ["--settings", str(file), "--model", "recipes/starter", "--limit", "2", "--json"]
    done = run_here("evaluation.run", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (found,) = report["scores"]
    assert (report["model"], found["group"], found["n"]) == ("recipes/starter", "templated-dev", 2)
    assert any("first 2 tasks" in note for note in report["notes"])


def test_a_file_of_settings_names_no_program_and_options_by_hand_do(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(
        json.dumps({"environment": "mcp", "options": {"command": ["cat"], "reset": "clear"}, "tasks": "none"})
    )
    for options, says in (
        ([], "environment.options.command: a recipe does not decide which programs run, and this one runs "),
        (["--option", "reset=empty"], "a recipe does not decide which programs run"),
        (["--option", "command=[cat]"], "none does not exist: check the path"),
    ):
        done = run_here("evaluation.run", "--settings", str(file), *options)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("limt: 3", "limt: Extra inputs"),
        ("limit: 0", "limit: Input should be greater"),
        ("evaluation_set: templated-dev", "evaluation_set: Input should be a valid"),
        ("[1", "not YAML"),
        ("- 1", "Input should be an object"),
    ],
)
def test_a_mistake_in_the_file_names_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"settings\.yaml: ") as mistake:
        read_settings(file)
    assert says in str(mistake.value)


def test_the_help_shows_first_what_is_scored_on_what_and_where() -> None:
    shown = [one.name for one in get_command(app).params if not one.hidden]
    assert shown[:4] == ["environment", "evaluation_set", "tasks", "model"]
    assert shown.index("device") < shown.index("limit") < shown.index("output")
    assert set(shown) >= {*ScoringSettings.model_fields} - {"options", "sampling"}, "no option is lost"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"samples": 8}, "greedy attempts at a task are all equal"),
        ({"samples": 8, "temperature": 1.0, "model": "openai:m"}, "an endpoint's is attempted once"),
        ({"samples": 8, "temperature": 1.0, "model": "lookup", "train": "t.jsonl"}, "a control has none"),
        ({"temperature": 1.0, "model": "lookup", "train": "t.jsonl"}, "a control has none"),
        ({"temperature": 1.0, "controls": True, "train": "t.jsonl"}, "a control has none"),
        ({"temperature": 1.0, "controls": True, "train": "t.jsonl", "model": "recipes/starter"}, ""),
        ({"controls": True, "train": "t.jsonl", "model": "openai:m"}, "a command of its own"),
        ({"controls": True}, "--train FILE goes with"),
        ({"model": "nearest-turn"}, "--train FILE goes with"),
        ({"train": "t.jsonl"}, "--train FILE goes with"),
        ({"samples": 8, "temperature": 1.0}, ""),
        ({"temperature": 0.5}, ""),
        ({"temperature": 0.5, "model": "openai:m"}, ""),
    ],
)
def test_samples_are_of_a_local_model_with_a_temperature(given: dict, says: str) -> None:
    settings = ScoringSettings.model_validate({"evaluation_set": ("templated-dev",)} | given)
    if not says:
        settings.check_model()
        return
    with pytest.raises(InputError, match=says):
        settings.check_model()


def test_an_evaluation_of_a_run_renders_as_its_training_does() -> None:
    chosen = ["policy.thinking=false", "policy.documentation=lines", "policy.tools_shown=5"]
    settings = load_recipe(QUICKSTART, chosen)
    assert scoring_settings(settings).given_options == settings.policy.given_options
    assert scoring_settings(settings).given_options == {"thinking": False, "documentation": "lines", "tools_shown": 5}
