"""What the documentation names is there: files, links, and the symbols that it says a file holds."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_block.table import escapedSplit
from pydantic import BaseModel
from support import ROOT
from support.module_shape import modules

from environments.verification.verify import Refusal
from graph.settings import RunSettings

PAGES = sorted(path for path in (*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")) if path.name != "CHANGELOG.md")
FOLDERS = "agents|benchmarks|docs|environments|evaluation|graph|memory|notebooks|recipes|results|tests|training"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*\w/?)(?:::(\w+))?`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[\w-]+)?\)")
ANCHOR = re.compile(r"\]\(([^)#\s:]*)#([\w-]+)\)")
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
WRITTEN_LATER = {"environments/shelf/benchmark.py"}
"""Files of examples, which a reader writes."""
PACKAGES = "agents|benchmarks|environments|evaluation|graph|memory|training"
DOTTED = re.compile(rf"``((?:{PACKAGES})(?:\.\w+)+)``")
IN_SOURCE = re.compile(rf"(?<![\w/])((?:{FOLDERS})/[\w./-]+\.(?:py|md|txt|yaml))\b")


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


def is_there(name: str, sources: Mapping[str, Path]) -> bool:
    """Return whether a dotted name is a module, a word of one, or a setting."""
    parts = name.split(".")
    module = next(".".join(parts[:count]) for count in range(len(parts), 0, -1) if ".".join(parts[:count]) in sources)
    word = name.removeprefix(module).lstrip(".").partition(".")[0]
    in_module = module != parts[0] and re.search(rf"\b{word}\b", sources[module].read_text())
    return bool(in_module) or is_setting(parts)


def is_setting(names: Sequence[str]) -> bool:
    """Return whether they are the key of a section or of a setting."""
    section: type[BaseModel] = RunSettings
    for name in names:
        if name not in section.model_fields:
            return False
        found = section.model_fields[name].annotation
        kinds = [kind for kind in (found, *get_args(found)) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        section = kinds[0] if kinds else BaseModel
    return True


def test_what_docstrings_and_comments_name_is_there() -> None:
    sources = modules()
    wrong = []
    for name, path in sources.items():
        text = path.read_text()
        wrong += [f"{name}: {one}" for one in DOTTED.findall(text) if not is_there(one, sources)]
        wrong += [f"{name}: {one}" for one in IN_SOURCE.findall(text) if not (ROOT / one).exists()]
    assert not wrong, "\n".join(wrong)


def test_a_name_that_is_not_there_is_found() -> None:
    sources = modules()
    there = ("training.plan", "training.plan.memory_of", "training.kl", "training.expert.passes", "evaluation.tasks")
    assert all(is_there(name, sources) for name in there)
    assert not any(is_there(name, sources) for name in ("training.plans", "training.plan.no_such", "benchmarks.none"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    places = {str((page.parent / link).resolve().relative_to(ROOT)) for link in links}
    assert not {place for place in places if not (ROOT / place).exists()}


def uneven_rows(text: str) -> list[str]:
    """Return the table rows of a Markdown text with another number of cells than their table's head.

    A renderer drops cells beyond the head's, and fills missing ones. As it does, a pipe divides cells unless a
    backslash escapes it, in code as well.
    """
    lines, found = text.splitlines(), []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "table_open" and token.map is not None:
            first, end = token.map
            rows = [line.strip() for line in lines[first:end]]
            cells = [len(escapedSplit(row)) - row.startswith("|") - (row[-1:] == "|") for row in rows]
            found += [row for row, count in zip(rows, cells, strict=True) if count != cells[0]]
    return found


@pytest.mark.parametrize(
    "page", [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "results/README.md"))], ids=lambda page: page.name
)
def test_each_row_of_a_table_has_a_cell_for_each_column(page: Path) -> None:
    assert not uneven_rows(page.read_text())


@pytest.mark.parametrize(
    ("row", "is_even"),
    [
        ("| a | b |", True),
        ("a | b", True),
        (r"| a \| b | c |", True),
        (r"| `a \| b` | c |", True),
        ("| a | b | | c | d |", False),
        ("| a |", False),
        ("| `a | b` | c |", False),
    ],
)
def test_a_row_with_too_many_or_too_few_cells_is_found(row: str, is_even: bool) -> None:
    text = f"before\n\n| one | two |\n|---|---|\n| 1 | 2 |\n{row}\n\nafter | it"
    assert uneven_rows(text) == ([] if is_even else [row])
    assert not uneven_rows(f"```\n{text}\n```"), "code is not a table"


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_are_headings(page: Path) -> None:
    named = [((page.parent / path if path else page), anchor) for path, anchor in ANCHOR.findall(page.read_text())]
    assert not [(path.name, anchor) for path, anchor in named if anchor not in headings(path)]


def pages_of(navigation: list[dict[str, object]]) -> Iterator[str]:
    for entry in navigation:
        for place in entry.values():
            yield from [place] if isinstance(place, str) else pages_of(place)


def test_the_navigation_of_the_site_names_every_page_once(linked_files) -> None:
    there = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    named = sorted(pages_of(SITE["nav"]))
    assert [page for page in named if not page.startswith("repository/")] == there
    assert {page for page in named if page.startswith("repository/")} <= {
        f"repository/{path}" for path in linked_files.gathered()
    }


def test_the_site_loads_nothing_from_others() -> None:
    assert SITE["theme"]["font"] is False
    assert not [page.name for page in (ROOT / "docs").rglob("*.md") if "```mermaid" in page.read_text()]


@pytest.fixture(scope="module")
def linked_files() -> ModuleType:
    """The hook of mkdocs, which is not in a package."""
    place = importlib.util.spec_from_file_location("linked_files", ROOT / "docs" / "linked_files.py")
    assert place is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("results.md", "running.md#checks", "running.md#checks"),
        ("results.md", "images/a.png", "images/a.png"),
        ("results.md", "../SECURITY.md", "repository/SECURITY.md"),
        ("results.md", "../results/history/seal/summary.md#a", "repository/results/history/seal/summary.md#a"),
        ("results.md", "https://arxiv.org/abs/2605.24426", "https://arxiv.org/abs/2605.24426"),
        ("results.md", "#here", "#here"),
        ("repository/README.md", "docs/results.md", "../results.md"),
        ("repository/README.md", "SECURITY.md", "SECURITY.md"),
        ("repository/results/history/seal/summary.md", "../../../docs/seal.md", "../../../../seal.md"),
        ("repository/results/history/seal/summary.md", "plots/a.svg", "plots/a.svg"),
    ],
)
def test_links_that_leave_docs_are_moved_into_the_site(linked_files, page: str, link: str, moved: str) -> None:
    code = f"```\n[in code]({link})\n```"
    assert linked_files.moved(f"{code}\n[a]({link})", page) == f"{code}\n[a]({moved})"


def test_linked_files_come_along_with_what_they_link_to(linked_files) -> None:
    found = linked_files.gathered()
    assert {
        "SECURITY.md",
        "results/history/learning/summary.md",
        "results/history/learning/plots/summary-success.svg",
    } <= found
    assert not {path for path in found if path.startswith("docs/")}


def test_a_page_that_loads_from_another_host_is_found(linked_files) -> None:
    for tag in ('<script src="https://a.example/b.js">', '<link rel="stylesheet" href="//a.example/b.css">'):
        assert linked_files.LOADED.search(tag)
    for tag in (
        '<script src="assets/b.js">',
        '<link rel="canonical" href="https://a.example/">',
        '<a href="https://a">',
    ):
        assert not linked_files.LOADED.search(tag)


def test_the_glossary_has_every_reason_of_a_refusal() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert not [reason.value for reason in Refusal if f"`{reason.value}`" not in glossary]


def test_the_architecture_names_most_of_what_there_is() -> None:
    assert len(named(ROOT / "docs" / "architecture.md")) > 60


STATUSES = ("faithful", "reading", "departs", "missing")


def rows_of_the_papers() -> list[tuple[str, list[str]]]:
    """The header's last columns and the cells of each row of docs/papers.md, without the table of statuses."""
    found, columns = [], ""
    for line in (ROOT / "docs" / "papers.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0].partition(",")[0] == "item":
            columns = line
        elif cells and columns and not set(cells[0]) <= {"-"}:
            found.append((columns, cells))
    return found


def test_every_row_of_the_papers_has_a_status_and_its_code_and_test_are_there() -> None:
    rows = rows_of_the_papers()
    assert len(rows) > 75
    for columns, cells in rows:
        named = dict(zip([name.strip() for name in columns.strip("|").split("|")], cells, strict=True))
        status = named["status"].partition(":")[0].partition(",")[0].partition(" (")[0]
        assert status in STATUSES, cells
        assert status != "departs" or ": " in named["status"], f"{cells[0]}: the reason is missing"
        if status == "missing":
            continue
        for path in named["code"].split(", "):
            assert (ROOT / path).is_file(), (cells[0], path)
        for path in named["test"].split(", "):
            assert (ROOT / "tests" / path).is_file(), (cells[0], path)
