"""The files of runs and studies are opened in `memory/files.py` alone, which follows no link."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support import ROOT

PACKAGES = ("agents", "evaluation", "graph", "memory", "training")
OPENER = "memory/files.py"
METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "extractall"),
    *("copy2", "copyfile", "copytree", "truncate", "file_digest", "from_conn_string", "save_file"),
}
"""Names of methods and functions that read or write a file by its path, or copy one."""

OWN = "a file that ships with the project"
USERS = "new files in a folder of the user's"
KERNEL = "files of the kernel"
GIT = "files of a repository, of which git reads objects and references alone"
EXCUSED = {
    "agents/chat/cache.py: connect": "SQLite opens a cache of the user's, after it was opened here",
    "agents/chat/transcript.py: read_text": OWN,
    "evaluation/test_access.py: open": GIT,
    "evaluation/test_access.py: read_bytes": "a recipe of the user's",
    "evaluation/test_access.py: symlink_to": GIT,
    "evaluation/test_access.py: write_text": GIT,
    "graph/check_environment.py: read_text": OWN,
    "graph/check_environment.py: write_text": USERS,
    "graph/checkpoints.py: connect": "SQLite opens its files, after they were opened here",
    "graph/checkpoints.py: from_conn_string": "SQLite opens its files, after they were opened here",
    "graph/export/cards.py: read_text": OWN,
    "graph/rehearsal/toy.py: copyfile": "a policy of the user's, into a new folder",
    "graph/report/page.py: read_text": OWN,
    "graph/studio/forks.py: copy2": "copies a run that was looked through, and links as links",
    "graph/studio/forks.py: copytree": "copies a run that was looked through, and links as links",
    "graph/studio/forks.py: link": "copies a run that was looked through, and links as links",
    "graph/studio/server.py: read_text": OWN,
    "graph/walkthrough.py: extractall": OWN,
    "graph/walkthrough.py: open": OWN,
    "memory/processes.py: read_text": KERNEL,
    "training/device_memory.py: read_text": KERNEL,
    "training/elsewhere/round.py: copyfile": "weights that an engine of the user's wrote, into a new folder",
    "training/models/smollm2.py: copyfile": "a model of the hub, into a new folder",
    "training/models/smollm2.py: read_text": OWN,
    "training/models/smollm2.py: write_text": USERS,
    "training/plan.py: read_text": OWN,
    "training/rendering/template_process.py: read_text": KERNEL,
}


def openings(source: str) -> Iterator[str]:
    """The names of the calls that open a file by its path: `path.open("rb")`, but not `environment.open()`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            if node.func.id == "open":
                yield "open"
        elif isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, node.func.value
            module = of.id if isinstance(of, ast.Name) else ""
            mode = name == "open" and [
                one for one in (*node.args, *(word.value for word in node.keywords)) if isinstance(one, ast.Constant)
            ]
            opens = name == "open" and (module in {"os", "io", "gzip", "tarfile", "zipfile"} or mode)
            if (
                opens
                or name in METHODS
                or (module, name)
                in {("sqlite3", "connect"), ("os", "link"), ("shutil", "copy"), ("gzip", "decompress")}
            ):
                yield name
        # A method that is handed on, as in to_thread(path.write_text, text).
        for one in node.args:
            if isinstance(one, ast.Attribute) and one.attr in METHODS:
                yield one.attr


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('path.open("rb")', ["open"]),
        ('path.open(mode="rb")', ["open"]),
        ("open(path)", ["open"]),
        ("os.open(path, flags)", ["open"]),
        ("gzip.decompress(content)", ["decompress"]),
        ("to_thread(path.write_text, text)", ["write_text"]),
        ("shutil.copyfile(one, other)", ["copyfile"]),
        ("settings.environment.open()", []),
        ("environment.open(task)", []),
        ("RunDirectory.open(root)", []),
    ],
)
def test_an_opening_is_found(source: str, found: list[str]) -> None:
    assert list(openings(source)) == found


def test_nobody_else_opens_a_file() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) != OPENER
        for name in openings(path.read_text())
    }
    assert sorted(found - EXCUSED.keys()) == [], "open it by memory/files.py, or say here why not"
    assert sorted(EXCUSED.keys() - found) == []
