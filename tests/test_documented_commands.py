"""Commands that the documents and the Makefile show name subcommands and options that are there."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from typing import Any

import pytest
from support import ROOT
from typer.main import get_command

from graph.command import COMMANDS

PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
BLOCK = re.compile(r"```(?:bash|sh)?\n(.*?)```", re.DOTALL)
STARTS = re.compile(r"(?:^|[\s/])(?:(coevolve) |python -m )([\w.-]+)(.*)")
ENDS = {"&&", "||", ";", "|", "&"}


def _shown() -> list[tuple[str, str]]:
    """Return each command with the file that shows it."""
    texts = [(page.name, "\n".join(BLOCK.findall(page.read_text()))) for page in PAGES]
    texts.append(("Makefile", re.sub(r"\$\(BIN\)/", "", (ROOT / "Makefile").read_text())))
    lines = [(name, line) for name, text in texts for line in text.replace("\\\n", " ").splitlines()]
    return sorted({(name, " ".join(line.split())) for name, line in lines if _parts(line)})


def _parts(line: str) -> tuple[str, str] | None:
    """Return the module of a line's command and what follows it, or None where it is no command of the project."""
    found = STARTS.search(line)
    if not found:
        return None
    module = COMMANDS.get(found[2], ("", ""))[0] if found[1] else found[2]
    if found[1] and not module:
        raise AssertionError(f"{line}: there is no coevolve {found[2]}")
    if not (ROOT / module.split(".")[0]).is_dir():
        return None
    return module, found[3]


def _options(command: Any) -> set[str]:
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}


SHOWN = _shown()


def test_commands_are_found() -> None:
    assert {"README.md", "running.md", "exchange.md", "Makefile"} <= {name for name, _ in SHOWN}


@pytest.mark.parametrize(("place", "line"), SHOWN, ids=lambda text: text[:60])
def test_a_shown_command_has_its_options(place: str, line: str) -> None:
    module, rest = _parts(line) or ("", "")
    loaded = import_module(f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module)
    if not hasattr(loaded, "app"):
        pytest.skip("it takes no options")
    words = []
    for word in shlex.split(re.sub(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)", "X", rest), comments=True):
        if word in ENDS:
            break
        words.append(word.rstrip(";"))
    command: Any = get_command(loaded.app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if command.context_settings.get("ignore_unknown_options"):
        return
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - _options(command)
    assert not unknown, f"{place}: {line}"
