"""Whatever a server does to its folder, nothing outside is read, written or removed, and its trouble is its fault."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from environments.base import EnvironmentFault
from environments.mcp import folder as module
from environments.mcp.folder import OwnFolder
from environments.mcp.options import DEEPEST, FOLDER, MAX_FILE, MAX_FILES, ServerStart, StartFile

START = StartFile(path="plans/a.txt", text="tea")


@pytest.fixture
def own():
    made = OwnFolder()
    yield made
    made.remove()


@pytest.fixture
def foreign(tmp_path):
    """A folder of somebody else's, and what it has to hold afterwards."""
    (tmp_path / "foreign" / "plans").mkdir(parents=True)
    (tmp_path / "foreign" / "plans" / "a.txt").write_text("theirs")
    yield tmp_path / "foreign"
    assert [str(one.relative_to(tmp_path)) for one in sorted(tmp_path.rglob("*"))] == [
        "foreign",
        "foreign/plans",
        "foreign/plans/a.txt",
    ]
    assert (tmp_path / "foreign" / "plans" / "a.txt").read_text() == "theirs"


def nested(folder, levels):
    here = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(levels):
            os.mkdir("d")
            os.chdir("d")
    finally:
        os.chdir(here)


def replaced(path, foreign):
    path.rmdir()
    path.symlink_to(foreign)


FAULTS = {
    "nested beyond Python's recursion": (lambda path, _: nested(path, 1200), "more than 32 levels"),
    "nested beyond the length of a path": (lambda path, _: nested(path, 3000), "more than 32 levels"),
    "removed": (lambda path, _: path.rmdir(), "No such file"),
    "replaced by a link": (replaced, "replaced by another"),
    "replaced by a folder": (lambda path, _: (path.rename(f"{path}-old"), path.mkdir()), "replaced by another"),
    "replaced by a file": (lambda path, _: (path.rmdir(), path.write_text("x")), "replaced by another"),
    "a name that is not UTF-8": (lambda path, _: (path / "caf\udce9").write_text("x"), "not UTF-8"),
    "many files": (lambda path, _: [(path / f"{n}").touch() for n in range(MAX_FILES + 1)], "more than 500 files"),
    "a long file": (
        lambda path, _: os.truncate((path / "a", (path / "a").touch())[0], 1 << 40),
        "more than 32,000,000 bytes",
    ),
    "many hidden files": (lambda path, _: [(path / f".{n}").touch() for n in range(60)], "more than 50 entries"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_folder_that_cannot_be_read_is_the_servers_fault(kind, own, foreign, monkeypatch):
    if kind == "many hidden files":
        monkeypatch.setattr(module, "MAX_ENTRIES", 50)
    prepare, words = FAULTS[kind]
    prepare(own.path, foreign)
    with pytest.raises(EnvironmentFault, match=words):
        own.state()
    if "removed" in kind or "replaced" in kind:
        for act in (own.empty, lambda: own.write(START)):
            with pytest.raises(EnvironmentFault):
                act()
        for other in (own.path, Path(f"{own.path}-old")):
            other.unlink() if other.is_file() or other.is_symlink() else other.is_dir() and other.rmdir()


def test_links_pipes_and_files_that_go_meanwhile_are_no_part_of_the_state(own, foreign, monkeypatch):
    (own.path / "in.txt").write_text("tea")
    (own.path / "bytes").write_bytes(b"\xff")
    (own.path / "empty").mkdir()
    (own.path / "link").symlink_to(foreign)
    (own.path / "theirs.txt").symlink_to(foreign / "plans" / "a.txt")
    (own.path / ".git").symlink_to(foreign)
    os.mkfifo(own.path / "pipe")
    listed = os.scandir

    def scandir(folder):
        (own.path / "journal").touch()
        with listed(folder) as entries:
            found = [*entries]
        (own.path / "journal").unlink()
        return type("Listed", (), {"__enter__": lambda _: iter(found), "__exit__": lambda *_: None})()

    monkeypatch.setattr(module.os, "scandir", scandir)
    state = own.state()
    assert state == {"in.txt": "tea", "bytes": {"sha256": hashlib.sha256(b"\xff").hexdigest()}, "empty/": None}
    assert [*state] == ["bytes", "empty/", "in.txt"], "in one order, whatever the folder lists first"


def large(own, calls, **records):
    """Write what a server keeps: more than a state holds as text, with a log of calls."""
    (own.path / "db.json").write_text(json.dumps({"db": {"story": "x" * MAX_FILE, **records}, "calls": calls}))
    return own.state()


def test_a_large_file_is_compared_by_its_hash_without_what_is_ignored():
    plain, short = OwnFolder(), OwnFolder(["/calls", "/no/such"])
    try:
        first, second = large(plain, [], a=1), large(short, [], a=1)
        assert [len(state["db.json"]["sha256"]) for state in (first, second)] == [64, 64]
        assert large(plain, ["read"], a=1) != first
        assert large(short, ["read"], a=1) == second != large(short, ["read"], a=2)
        (short.path / "small.json").write_text('{"calls": [1], "b": 2}')
        (short.path / "bytes").write_bytes(b"\xff")
        assert short.state()["small.json"] == '{"calls": null, "b": 2}'
    finally:
        plain.remove()
        short.remove()


def test_a_hash_is_the_same_in_every_folder_and_texts_are_kept_while_there_is_room():
    states = []
    for _ in range(2):
        own = OwnFolder()
        try:
            (own.path / "a").write_text(f"{own.path}/b " + "x" * MAX_FILE)
            (own.path / "b").write_text("x" * (MAX_FILE - 3))
            (own.path / "c").write_text("four")
            (own.path / "d").write_text("all")
            states.append(own.state())
        finally:
            own.remove()
    assert states[0] == states[1]
    whole = f"{FOLDER}/b " + "x" * MAX_FILE
    assert states[0]["a"] == {"sha256": hashlib.sha256(whole.encode()).hexdigest()}
    assert states[0]["c"] == {"sha256": hashlib.sha256(b"four").hexdigest()}
    assert (states[0]["b"], states[0]["d"]) == ("x" * (MAX_FILE - 3), "all")


@pytest.mark.parametrize("where", ["plans", "plans/a.txt"])
def test_a_start_is_written_through_no_link(where, own, foreign):
    if where == "plans":
        (own.path / "plans").symlink_to(foreign / "plans")
        with pytest.raises(EnvironmentFault):
            own.write(START)
        return
    (own.path / "plans").mkdir()
    (own.path / where).symlink_to(foreign / where)
    own.write(START)
    os.unlink(own.path / where)
    os.link(foreign / where, own.path / where)  # a second name of their file is not written into either
    own.write(START)
    assert own.state() == {"plans/": None, "plans/a.txt": "tea"}
    assert (own.path / where).stat().st_mtime == 0


@pytest.mark.parametrize("ending", ["empty", "remove"])
def test_emptying_leaves_nothing_and_follows_no_link(ending, own, foreign):
    nested(own.path, 1500)
    (own.path / "link").symlink_to(foreign)
    (own.path / "wide" / "x").mkdir(parents=True)
    (own.path / "wide" / "link").symlink_to(foreign)
    (own.path / "wide" / "x" / "caf\udce9").touch()
    os.mkfifo(own.path / "wide" / "pipe")
    getattr(own, ending)()
    assert own.path.exists() is (ending == "empty")
    assert ending == "remove" or own.state() == {}


def test_emptying_ends_where_a_server_fills_its_folder(own, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 50)
    for number in range(60):
        (own.path / f"{number}").touch()
    with pytest.raises(EnvironmentFault, match="more than 50 entries"):
        own.empty()


MADE = {"a": "x"}
STARTS = {
    "/".join("a" * (DEEPEST + 1)): "levels",
    "a" * 256: "levels",
    "a/b": "inside another",
}


@pytest.mark.parametrize("path", STARTS)
def test_a_start_that_no_folder_can_hold_is_refused_as_such(path):
    with pytest.raises(ValidationError, match=STARTS[path]):
        ServerStart.model_validate({"files": {"a": "x", path: "y"}})


KEPT = [
    "/workspaces/repo",
    "/workspace-2/a",
    "/workspace_old",
    "/workspace.bak/a",
    "/home/me/workspace/a",
    "./workspace/a",
    "../workspace",
    "~/workspace",
    "https://wiki.test/workspace/page",
    "https://wiki.test/workspace-2/page",
    "http://wiki.test//workspace/page",
    "workspace/a",
    "my/workspace",
    "/workspace%20two/a",
    "/workspace@2/a",
    "/workspaceé",
    "%2Fworkspace",
    "-/workspace",
]
REWRITTEN = [
    FOLDER,
    f"{FOLDER}/",
    f"{FOLDER}/a.txt",
    f"{FOLDER}/.",
    f"cat {FOLDER}/a.txt > '{FOLDER}/b.txt'",
    f"--path={FOLDER}",
    f"file://{FOLDER}/a.txt",
    f"a:{FOLDER}/bin:{FOLDER}",
    f"It is in {FOLDER}.",
    f'{{"path": "{FOLDER}"}}',
    f"one\n{FOLDER}/a\n",
    f"({FOLDER}, {FOLDER}/a)",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_not_a_path_of_the_folder_is_given_as_it_is_both_ways(text, own):
    assert own.to_server({text: [text]}) == {text: [text]}
    assert own.to_agent(text) == text


@pytest.mark.parametrize("text", REWRITTEN)
def test_a_path_of_the_folder_is_rewritten_both_ways(text, own):
    given = own.to_server({"a": [text, 1, None]})
    assert given == {"a": [text.replace(FOLDER, str(own.path)), 1, None]}
    assert own.to_agent(given["a"][0]) == text
    sibling = text.replace(FOLDER, f"{own.path}-2")
    assert own.to_agent(sibling) == sibling


def test_a_folders_path_is_found_however_it_is_escaped(own):
    escaped = str(own.path).replace("/", "\\/")
    assert own.to_agent(f'{{"path":"{escaped}\\/a.txt"}}') == f'{{"path":"{FOLDER}\\/a.txt"}}'
    quoted = str(own.path).replace("/", "%2F")
    assert own.to_agent(f"file=%{quoted[1:]}%2Fa") == f"file={FOLDER}%2Fa"
