"""What the documentation names is there: files, links, and the symbols that it says a file holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

from graph.command import COMMANDS

PAGES = sorted(path for path in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")) if path.name != "CHANGELOG.md")
FOLDERS = "agents|benchmarks|docs|environments|evaluation|graph|memory|notebooks|recipes|results|tests|training"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*\w/?)(?:::(\w+))?`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[\w-]+)?\)")
WRITTEN_LATER = {"environments/shelf/benchmark.py"}
"""Files of examples, which a reader writes."""


def named(page: Path) -> set[tuple[str, str]]:
    return set(PATH.findall(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_symbols_are_there(page: Path) -> None:
    wrong = []
    for path, symbol in sorted(named(page)):
        place = ROOT / path
        if path in WRITTEN_LATER:
            continue
        if not place.exists():
            wrong.append(f"{path} is not there")
        elif symbol and not re.search(rf"^(async def|def|class) {symbol}\b|^{symbol}\b", place.read_text(), re.M):
            wrong.append(f"{path} has no {symbol}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    places = {str((page.parent / link).resolve().relative_to(ROOT)) for link in links}
    assert not {place for place in places if not (ROOT / place).exists()}


def test_the_architecture_names_most_of_what_there_is() -> None:
    assert len(named(ROOT / "docs" / "architecture.md")) > 60


VERDICTS = ("faithful", "reading", "departs", "missing")


def rows_of_the_papers() -> list[tuple[str, list[str]]]:
    """The header's last columns and the cells of each row of docs/papers.md, without the table of verdicts."""
    found, columns = [], ""
    for line in (ROOT / "docs" / "papers.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "item":
            columns = line
        elif cells and columns and not set(cells[0]) <= {"-"}:
            found.append((columns, cells))
    return found


def test_every_row_of_the_papers_has_a_verdict_and_its_code_and_test_are_there() -> None:
    rows = rows_of_the_papers()
    assert len(rows) > 90
    for columns, cells in rows:
        named = dict(zip([name.strip() for name in columns.strip("|").split("|")], cells, strict=True))
        verdict = named["verdict"].partition(":")[0].partition(",")[0].partition(" (")[0]
        assert verdict in VERDICTS, cells
        assert verdict != "departs" or ": " in named["verdict"], f"{cells[0]}: the reason is missing"
        if verdict == "missing":
            continue
        for path in named["code"].split(", "):
            assert (ROOT / path).is_file(), (cells[0], path)
        for path in named["test"].split(", "):
            assert (ROOT / "tests" / path).is_file(), (cells[0], path)
        assert named["command"].startswith(("coevolve ", "evolve ", "python -m ")), cells[0]


def test_commands_of_the_papers_name_subcommands_and_recipes_that_are_there() -> None:
    commands = {cells[-1] for _, cells in rows_of_the_papers() if cells[-1]}
    for command in commands:
        first, *rest = command.split()
        assert first != "coevolve" or rest[0] in COMMANDS, command
        assert first != "evolve" or (ROOT / rest[0]).is_file(), command
