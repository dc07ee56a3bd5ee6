"""`coevolve`: its subcommands, how they are found, and what they import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from environments.checkout import ROOT
from graph.command import COMMANDS, main

HEAVY = ("torch", "transformers", "trl", "chromadb", "langgraph", "bfcl_eval")


def run(*code_or_arguments: str, cwd: Path, path: tuple[Path, ...] = (ROOT,)) -> subprocess.CompletedProcess[str]:
    """Run Python in ``cwd``, with the checkout on the search path as the editable install puts it there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    argv = [sys.executable, *code_or_arguments]
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120)


def coevolve(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "graph.command", *arguments, cwd=cwd)


def test_the_installed_script_is_this_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (script,) = project["scripts"].items()
    assert script[0] == "coevolve"
    assert EntryPoint(*script, group="console_scripts").load() is main


def test_the_version_is_the_projects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["coevolve", "--version"])
    main()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"coevolve {project['version']}\n"


@pytest.mark.process
def test_help_of_every_subcommand_imports_nothing_heavy(tmp_path: Path) -> None:
    code = f"""
import contextlib, io, sys
from graph.command import COMMANDS, main

def usage(*arguments):
    sys.argv = ["coevolve", *arguments, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    heavy = [name for name in {HEAVY} if name in sys.modules]
    return "Usage: " + " ".join(["coevolve", *arguments]) in said.getvalue(), heavy

print(usage(), [module for module, _ in COMMANDS.values() if module in sys.modules])
for name in COMMANDS:
    print(name, usage(name))
"""
    done = run("-c", code, cwd=tmp_path)
    assert done.stdout.splitlines() == ["(True, []) []", *(f"{name} (True, [])" for name in COMMANDS)], done.stderr


def test_commands_that_the_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")]
    named = {
        name for page in pages for name in re.findall(r"(?:`|^)coevolve ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert named >= {"evolve", "evaluate", "study", "plan"}
    assert named <= set(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evlove"], "no such command 'evlove'. Did you mean 'evolve'"),
        (["--nonsense"], "no such option: --nonsense"),
        (["evolve", "--steps", "3"], "there is no option --steps: settings are given as --set SECTION.steps=VALUE"),
        (["check"], "missing argument 'recipes'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], says: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["coevolve", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"error: {says}")


@pytest.mark.process
def test_from_a_folder_with_packages_and_recipes_of_its_own(tmp_path: Path) -> None:
    """Modules there replace none and are not run, the default policy is the checkout's, a path is the folder's own."""
    for package in ("training", "environments", "memory"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    for module in ("random", "sitecustomize", "yaml", "trackio"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('the wrong module')")
    (tmp_path / "recipes" / "starter").mkdir(parents=True)
    (tmp_path / "recipes" / "mine.yaml").write_text("iterations: 2\n")
    (tmp_path / "recipes" / "wrong.yaml").write_text("policy: {path: ./recipes/starter}\n")
    (tmp_path / "my_shop.py").write_text("open('ran', 'w')\nfrom environments.example import depot as shop\n")
    (tmp_path / "own.yaml").write_text("environment: {name: 'my_shop:shop'}\nevaluation: {set: null}\n")

    done = coevolve("check", "recipes/quickstart.yaml", "recipes/mine.yaml", "own.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "3 recipes are right"), done.stderr
    assert "own.yaml: my_shop:shop was not opened, since a recipe runs no code here" in done.stdout
    assert not (tmp_path / "ran").exists()
    done = coevolve("check", "recipes/wrong.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "./recipes/starter" in done.stderr


@pytest.mark.process
def test_the_help_of_evaluate_is_short_and_the_rest_is_a_flag_away(tmp_path: Path) -> None:
    short, whole = (coevolve("evaluate", flag, cwd=tmp_path).stdout for flag in ("--help", "--help-all"))
    options = [set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE)) - {"--help-all"} for text in (short, whole)]
    assert len(short.splitlines()) <= 42
    assert options[0] < options[1]
    assert f"--help-all shows {len(options[1]) - len(options[0])} more options." in short
    assert "--help-all" not in whole
    assert coevolve("evaluate", "--concurrency", "0", cwd=tmp_path).returncode == 2, (
        "a hidden option is one all the same"
    )
