"""The recipes that targets of the Makefile name load with the settings that the targets state beside them."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from graph.settings import load_recipe

ROOT = Path(__file__).parents[1]


def _commands() -> list[list[str]]:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    given = dict(re.findall(r"^(\w+) := (\S+)$", text, re.MULTILINE))
    text = re.sub(r"\$\((\w+)\)", lambda found: given.get(found[1], found[0]), text)
    lines = [line.partition(" || exit")[0] for line in text.splitlines() if " --recipe " in line]
    return [shlex.split(line.partition("$(if")[0]) for line in lines if not line.lstrip().startswith(("@", "SERVED"))]


COMMANDS = _commands()


def _values(command: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(command) if name == option]


def test_the_recipes_are_found() -> None:
    assert {"graph.run_iteration", "graph.seed_tasks"} <= {word for command in COMMANDS for word in command}
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:80])
def test_a_target_states_settings_that_its_recipe_takes(command: list[str]) -> None:
    (recipe,) = _values(command, "--recipe")
    load_recipe(ROOT / recipe, _values(command, "--set"))


def _targets() -> dict[str, tuple[list[str], str]]:
    """Return what each target needs, and its commands."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    rules = re.findall(
        r"^([\w./$()-]+):(?!=) ?([^#\n]*)(?:##.*)?\n((?:\t.*\n|ifeq.*\n|else\n|endif\n)*)", text, re.MULTILINE
    )
    return {name: (needs.split(), commands) for name, needs, commands in rules}


def test_only_targets_of_developers_need_the_tools_of_developers() -> None:
    targets = _targets()
    assert "$(HASHED) requirements/develop.txt" in targets["$(DEVELOPING)"][1]
    assert targets["develop"][0] == ["$(DEVELOPING)"]
    tools = re.compile(r"-m pytest|\$\(PYTEST\)|/ruff|/mypy|notebooks\.py|support\.|-m benchmarks")
    developing = {name for name, (needs, _) in targets.items() if "develop" in needs and name != ".PHONY"}
    assert {name for name, (_, commands) in targets.items() if tools.search(commands)} == developing
    assert {"test", "check", "format", "notebooks"} <= developing
    assert {"run", "study", "report", "studio"} <= {name for name, (needs, _) in targets.items() if "install" in needs}


def test_the_policy_that_run_appworld_makes_has_the_positions_that_its_recipe_asks_for() -> None:
    made = re.search(r"warm_start .*--environment appworld .*--max-tokens (\d+)", (ROOT / "Makefile").read_text())
    assert made is not None
    settings = load_recipe(ROOT / "recipes" / "appworld-quickstart.yaml")
    assert int(made[1]) >= max(settings.training.max_tokens, settings.evaluation.max_tokens or 0)
