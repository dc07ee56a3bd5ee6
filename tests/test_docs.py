"""What the documentation names is there: files, links, and the symbols that it says a file holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

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
