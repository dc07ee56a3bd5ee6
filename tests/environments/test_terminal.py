"""Text of others on the terminal: what it holds does not control it, and no line takes another way there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.commands import run_here

from environments.checkout import ROOT
from environments.command import printable, say

OWN_ENVIRONMENT = {"environments/appworld/engine/worker.py", "environments/appworld/synthetic_world/build.py"}
"""Programs of another virtual environment, which cannot import this project; a process of ours reads their stderr."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ä and 日本", "plain text, ä and 日本"),
        ("\x1b[31mred\x1b]0;title\x07", " [31mred ]0;title "),
        ("\x9b31m", " 31m"),
        ("a\rb\x08c\x00d", "a b c d"),
        ("\u202eevil\u2066x\u200f", " evil x "),
        ("\ud800half", " half"),
        ("two\nlines\tand a tab", "two lines and a tab"),
    ],
)
def test_what_is_not_printable_is_a_space(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_on_stderr_keeps_its_line_ends(capsys: pytest.CaptureFixture[str]) -> None:
    say("error: \x1b[2Jone\n\ttwo \u202e\ud800")
    assert capsys.readouterr().err == "error:  [2Jone\n\ttwo   \n"


def test_a_recipes_key_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('"see\\e]0;PWN\\a \\u202Edne": 1\n')
    done = run_here("graph.check_recipe", str(recipe))
    assert (done.returncode, done.stderr.rstrip("\n").isprintable(), "PWN" in done.stderr) == (2, True, True)


def test_nothing_else_writes_to_stderr() -> None:
    packages = ("agents", "environments", "evaluation", "graph", "memory", "training")
    paths = {str(path.relative_to(ROOT)): path for name in packages for path in (ROOT / name).rglob("*.py")}
    found = {
        name
        for name, path in paths.items()
        if "stderr" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and (
            any(word.arg == "file" and ast.unparse(word.value) == "sys.stderr" for word in call.keywords)
            or ast.unparse(call.func) == "sys.stderr.write"
        )
    }
    assert found - OWN_ENVIRONMENT == {"environments/command.py"}
