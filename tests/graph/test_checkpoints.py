"""The checkpoints of a run: what a stranger or a fault left there is made anew, and nothing in it is called."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.types import Interrupt, Send
from support.made_run import run_graph

from graph.checkpoints import StateSerializer, open_checkpoints, run_checkpoints, thread_id
from graph.state import BranchState, IterationInput
from memory.run import RunDirectory

MARK = "marker"
SHELL = ["touch", MARK]


def extension(code: int, module: str, name: str, *rest: Any) -> bytes:
    """A value as LangGraph's reader takes it: a callable, and what it is called with."""
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb([module, name, *rest])))


def around(code: int, value: bytes, *before: Any) -> bytes:
    """An extension whose own content holds ``value``."""
    listed = bytes([0x90 + len(before) + 1]) + b"".join(map(ormsgpack.packb, before)) + value
    return ormsgpack.packb(ormsgpack.Ext(code, listed))


class Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (Path(MARK),)


MKDIR = extension(0, "os", "mkdir", MARK)
FORMS = {
    "one argument": ("msgpack", MKDIR),
    "arguments": ("msgpack", extension(1, "subprocess", "run", [SHELL])),
    "named arguments": ("msgpack", extension(2, "os", "mkdir", {"path": MARK})),
    "a method": ("msgpack", extension(3, "subprocess", "Popen", SHELL, "__call__")),
    "a method that the library allows": (
        "msgpack",
        extension(3, "datetime", "datetime", "2026-01-01", "fromisoformat"),
    ),
    "pydantic 1": ("msgpack", extension(4, "os", "mkdir", {"path": MARK})),
    "pydantic 2": ("msgpack", extension(5, "os", "mkdir", {"path": MARK}, "model_validate_json")),
    "an array": ("msgpack", around(6, MKDIR, "u1", [1], "C")),
    "a snapshot": ("msgpack", ormsgpack.packb(ormsgpack.Ext(7, MKDIR))),
    "an extension of nobody": ("msgpack", ormsgpack.packb(ormsgpack.Ext(99, b"\x01"))),
    "inside a task": ("msgpack", around(1, b"\x92\xa6branch" + MKDIR, "langgraph.types", "Send")),
    "inside a state": ("msgpack", around(5, b"\x81\xa3run" + MKDIR, "graph.state", "IterationState")),
    "a key": ("msgpack", b"\x81" + MKDIR + b"\x01"),
    "a state's module, another name": ("msgpack", extension(0, "graph.state", "BaseModel", {})),
    "a state by another form": ("msgpack", extension(2, "graph.state", "IterationState", {})),
    "another module, a state's name": ("msgpack", extension(5, "graph.checkpoints", "IterationState", {})),
    "a state of other fields": ("msgpack", extension(5, "graph.state", "IterationState", {"extra": 1})),
    "a command": ("msgpack", extension(2, "langgraph.types", "Command", {"goto": "update"})),
    "a pattern": ("msgpack", extension(1, "re", "compile", ["(a{1000}){1000}", 0])),
    "a path": ("msgpack", extension(1, "pathlib", "Path", ["/etc"])),
    "a message": ("msgpack", extension(5, "langchain_core.messages.human", "HumanMessage", {"content": "x"})),
    "deep": ("msgpack", b"\x91" * 5000 + b"\x01"),
    "long": ("msgpack", b"\xdd\xff\xff\xff\xff"),
    "deep extensions": ("msgpack", MKDIR),
    "cut off": ("msgpack", MKDIR[:-2]),
    "json, a constructor": (
        "json",
        json.dumps({"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "kwargs": {"path": MARK}}).encode(),
    ),
    "json, LangChain's": (
        "json",
        json.dumps({"lc": 1, "type": "constructor", "id": ["langchain_core", "prompts", "PromptTemplate"]}).encode(),
    ),
    "json": ("json", b"{}"),
    "a pickle": ("pickle", pickle.dumps(Calls())),
    "bytes": ("bytes", b"x"),
    "text in place of bytes": ("msgpack", "x"),
    "a number for a form": (7, b"\x80"),
    "no form": (None, b"\x80"),
}
for _ in range(400):
    FORMS["deep extensions"] = ("msgpack", around(2, FORMS["deep extensions"][1]))


def in_checkpoint(connection: sqlite3.Connection, form: object, value: object) -> None:
    connection.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (form, value))


def in_channel(connection: sqlite3.Connection, form: object, value: bytes) -> None:
    """Within a checkpoint that is right otherwise."""
    (whole,) = connection.execute("SELECT checkpoint FROM checkpoints ORDER BY checkpoint_id DESC LIMIT 1").fetchone()
    empty = ormsgpack.packb({"channel_values": {}})[1:]
    kept = StateSerializer().loads_typed(("msgpack", whole))
    del kept["channel_values"]
    packed = ormsgpack.packb(kept)
    with_value = bytes([packed[0] + 1]) + packed[1:] + empty[:-1] + b"\x81\xa3run" + value
    connection.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (form, with_value))


def in_write(connection: sqlite3.Connection, form: object, value: object) -> None:
    connection.execute("UPDATE writes SET type = ?, value = ?", (form, value))


def opened(run: RunDirectory) -> list[Any]:
    """What commands and Studio read when they open the run: each thread's newest checkpoint, and all of them."""

    async def read() -> list[Any]:
        async with run_checkpoints(run) as saver:
            newest = await saver.aget_tuple({"configurable": {"thread_id": thread_id(0), "checkpoint_ns": ""}})
            return [one async for one in saver.alist(None)] + ([newest] if newest is not None else [])

    return asyncio.run(read())


@pytest.fixture
def run(evolved: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A copy of a run's checkpoints, in an empty working directory."""
    found = RunDirectory(tmp_path / "run")
    found.root.mkdir()
    with sqlite3.connect(evolved.checkpoints_path) as source, sqlite3.connect(found.checkpoints_path) as copy:
        source.backup(copy)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return found


def warning(run: RunDirectory) -> str:
    return f"warning: {run.checkpoints_path} is damaged and made anew: the iteration's graph begins afresh\n"


def test_what_an_iteration_stores_is_read_and_kept(run: RunDirectory, capfd: pytest.CaptureFixture[str]) -> None:
    before = run.checkpoints_path.read_bytes()
    found = opened(run)
    written = [one for saved in found for _, _, one in saved.pending_writes]
    assert any(isinstance(one, Send) and isinstance(one.arg, BranchState) for one in written)
    assert IterationInput(iteration=0) in [saved.checkpoint["channel_values"].get("__start__") for saved in found]
    assert run.checkpoints_path.read_bytes() == before
    assert capfd.readouterr().err == ""
    serializer = StateSerializer()
    question = [Interrupt(value={"weakness": "w"}, id="1")]
    assert serializer.loads_typed(serializer.dumps_typed(question)) == question


@pytest.mark.parametrize("plant", [in_checkpoint, in_channel, in_write])
def test_what_a_stranger_stored_is_not_called(
    run: RunDirectory,
    plant: Callable[[sqlite3.Connection, object, object], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole = run.checkpoints_path.read_bytes()
    called = [name for name, (_, value) in FORMS.items() if isinstance(value, bytes) and MARK.encode() in value]
    for name in called:
        form, value = FORMS[name]
        run.checkpoints_path.write_bytes(whole)
        with sqlite3.connect(run.checkpoints_path) as connection:
            plant(connection, form, value)
        assert opened(run) == [], name
        assert list(Path().iterdir()) == [], name
        assert capfd.readouterr().err == warning(run), name


@pytest.mark.parametrize("form", FORMS)
def test_the_reader_itself_refuses_it(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can change after it was looked at."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, RecursionError)):
        StateSerializer().loads_typed(FORMS[form])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("type", "CAST(x'ff' AS TEXT)"),
        ("thread_id", "CAST(x'ff' AS TEXT)"),
        ("checkpoint_id", "x'01'"),
        ("parent_checkpoint_id", "x'01'"),
        ("metadata", "'[]'"),
        ("metadata", f"x'{MKDIR.hex()}'"),
        ("metadata", "printf('%.100000c', '[')"),
        ("metadata", "NULL"),
        ("metadata", "zeroblob(17000000)"),
        ("checkpoint", "x'01'"),
        ("checkpoint", f"x'{ormsgpack.packb({'channel_values': [1]}).hex()}'"),
        ("checkpoint", "x''"),
        ("checkpoint", "NULL"),
    ],
)
def test_a_checkpoint_of_another_form_is_not_taken(run: RunDirectory, column: str, value: str) -> None:
    with sqlite3.connect(run.checkpoints_path) as connection:
        connection.execute(f"UPDATE checkpoints SET {column} = {value} WHERE rowid = 1")
    assert opened(run) == []


@pytest.mark.parametrize(
    "words",
    [
        "CREATE TRIGGER t AFTER INSERT ON checkpoints BEGIN UPDATE writes SET type = 'pickle'; END",
        "CREATE VIEW v AS SELECT load_extension('x')",
        "CREATE TABLE filler (text)",
        "CREATE INDEX i ON checkpoints (length(metadata))",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "ALTER TABLE checkpoints ADD COLUMN more AS (hex(checkpoint))",
        "ALTER TABLE writes RENAME TO other; CREATE VIEW writes AS SELECT * FROM other",
        "DROP TABLE writes",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE writes (x)' WHERE name = 'writes'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2 WHERE name = 'writes'",
    ],
)
def test_a_database_of_another_schema_is_made_anew(
    run: RunDirectory, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(run.checkpoints_path) as connection:
        connection.executescript(words)
    assert opened(run) == []
    assert capfd.readouterr().err == warning(run)


def test_a_journal_of_a_stranger_removes_no_file(run: RunDirectory, tmp_path: Path) -> None:
    """SQLite plays a rollback journal back, and then removes the file that it names as the journal above it."""
    source = tmp_path / "source.sqlite"
    with sqlite3.connect(source, isolation_level=None) as other:
        other.execute("PRAGMA cache_size = 2")
        other.execute("CREATE TABLE t (x)")
        other.executemany("INSERT INTO t VALUES (?)", [("y" * 3000,)] * 50)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE t SET x = 'z'")
        shutil.copyfile(source, run.checkpoints_path)
        journal = source.with_name("source.sqlite-journal").read_bytes()
        other.execute("ROLLBACK")
    (victim := tmp_path / "victim").write_text("precious")
    name = str(victim).encode()
    end = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + journal[:8]
    run.checkpoints_path.with_name("checkpoints.sqlite-journal").write_bytes(journal + end)
    assert opened(run) == []
    assert victim.read_text() == "precious"


async def test_studio_opens_the_same_reader(
    run: RunDirectory, evolved: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(evolved.settings_path, run.settings_path)
    monkeypatch.setenv("COEVOLVE_RUN", str(run.root))
    with sqlite3.connect(run.checkpoints_path) as connection:
        in_write(connection, *FORMS["arguments"])
    async with open_checkpoints() as saver:
        assert [one async for one in saver.alist(None)] == []
        assert isinstance(saver.serde, StateSerializer)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("values", [{"iteration": "x"}, {"iteration": 1}, {"iteration": 0, "signals": 7}])
def test_a_state_of_another_iteration_or_form_begins_afresh(
    evolved: RunDirectory, tmp_path: Path, values: dict[str, object]
) -> None:
    shutil.copytree(evolved.root, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    with sqlite3.connect(run.checkpoints_path) as connection:
        query = "SELECT checkpoint_id, checkpoint FROM checkpoints ORDER BY checkpoint_id LIMIT 1 OFFSET 2"
        name, checkpoint = connection.execute(query).fetchone()
        connection.execute("DELETE FROM checkpoints WHERE checkpoint_id > ?", (name,))
        changed = StateSerializer().loads_typed(("msgpack", checkpoint)) | {"channel_values": values}
        connection.execute("UPDATE checkpoints SET checkpoint = ?", (ormsgpack.packb(changed),))
    ended = run.iteration(0).evolution
    before = ended.read_bytes()
    ended.unlink()
    run_graph(run)
    assert ended.read_bytes() == before


def garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def half(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def overwritten(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:5000] + b"z" * 20_000 + whole[25_000:])


@pytest.mark.parametrize("damage", [garbage, half, overwritten])
def test_a_damaged_database_is_made_anew(
    run: RunDirectory, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    damage(run.checkpoints_path)
    run.checkpoints_path.with_name("checkpoints.sqlite-wal").write_bytes(b"of the damaged one")
    assert opened(run) == []
    assert capfd.readouterr().err == warning(run)


def test_a_database_that_cannot_be_opened_is_no_damaged_one(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, connect = run.checkpoints_path.read_bytes(), sqlite3.connect

    def refuse(path: object, **options: Any) -> sqlite3.Connection:
        if path == run.checkpoints_path:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(str(path), **options)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(sqlite3.OperationalError):
        opened(run)
    assert run.checkpoints_path.read_bytes() == whole
    assert capfd.readouterr().err == ""
