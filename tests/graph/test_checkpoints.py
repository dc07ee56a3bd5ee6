"""The checkpoints of a run: damaged ones are made anew, whatever they hold."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from graph.checkpoints import discard_damaged, run_checkpoints
from memory.run import RunDirectory


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A checkpointer's own file, of some pages."""
    run = RunDirectory(tmp_path_factory.mktemp("whole"))

    async def fill() -> None:
        async with run_checkpoints(run) as saver:
            await saver.setup()
            await saver.conn.execute("create table filler (text)")
            await saver.conn.executemany("insert into filler values (?)", [("x" * 500,)] * 100)
            await saver.conn.commit()

    asyncio.run(fill())
    assert not discard_damaged(run.checkpoints_path)
    return run.checkpoints_path.read_bytes()


def garbage(path: Path, whole: bytes) -> None:
    path.write_bytes(b"no database" * 1000)


def half(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[: len(whole) // 2])


def overwritten(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[:5000] + b"z" * 20_000 + whole[25_000:])


@pytest.mark.parametrize("damage", [garbage, half, overwritten])
def test_a_damaged_database_is_made_anew(
    database: bytes, tmp_path: Path, damage: Callable[[Path, bytes], None], capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    damage(run.checkpoints_path, database)
    run.checkpoints_path.with_name("checkpoints.sqlite-wal").write_bytes(b"of the damaged one")

    async def tables() -> set[str]:
        async with run_checkpoints(run) as saver:
            await saver.setup()
            rows = await saver.conn.execute_fetchall("select name from sqlite_master where type = 'table'")
            return {name for (name,) in rows}

    assert asyncio.run(tables()) == {"checkpoints", "writes"}
    said = f"warning: {run.checkpoints_path} is damaged and made anew: the iteration's graph begins afresh\n"
    assert capfd.readouterr().err == said


def test_a_database_that_cannot_be_opened_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open database file")

    run = RunDirectory(tmp_path)
    run.checkpoints_path.write_bytes(b"")

    async def opened() -> None:
        async with run_checkpoints(run):
            pytest.fail("it was opened")

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(sqlite3.OperationalError):
        asyncio.run(opened())
    assert run.checkpoints_path.exists()
    assert capfd.readouterr().err == ""
