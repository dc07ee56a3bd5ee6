"""The cache of replies: what is asked once, which files it opens, and what it reads of them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumps
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel
from support.faulty_server import ChatRequest, FaultyServer

from agents.chat.cache import ReplyCache
from environments.base import InputError

pytestmark = pytest.mark.slow

ABOUT: dict[str, Any] = {"subject": "context-1", "iteration": 0}


class Answer(BaseModel):
    """An answer."""

    number: int


def four(request: ChatRequest) -> dict[str, Any]:
    return {"number": 4}


async def test_an_identical_request_is_asked_once_with_a_cache(connect, tmp_path) -> None:
    with FaultyServer(four) as server:
        replies = [
            (await connect(server, cache=str(tmp_path / "replies.sqlite")).ask(Answer, "s", "p", **ABOUT))[0]
            for _ in range(2)
        ]
        assert len(server.requests) == 1
        await connect(server, cache=str(tmp_path / "replies.sqlite")).ask(Answer, "s", "another", **ABOUT)
        assert len(server.requests) == 2
        with pytest.raises(InputError, match=r"roles\.cache: .*none is not a folder"):
            connect(server, cache=str(tmp_path / "none" / "replies.sqlite"))
    assert [one.number for one in replies] == [4, 4]


def database(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()
    return path


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.write_text("not a database " * 100), "is not a cache of replies that this command made"),
        (lambda path: database(path, "CREATE TABLE accounts (name TEXT)"), "is not a cache of replies"),
        (lambda path: database(path, "CREATE TABLE full_llm_cache (prompt, llm, idx, response)"), "is not a cache of"),
        (lambda path: path.mkdir(), "is not a file"),
        (os.mkfifo, "is not a file"),
        (
            lambda path: (
                ReplyCache(str(path)),
                database(path, "CREATE TRIGGER more AFTER INSERT ON full_llm_cache BEGIN SELECT 1; END"),
            ),
            "has 'more', which no cache of replies has",
        ),
        (lambda path: (ReplyCache(str(path)), os.truncate(path, 200)), "cannot be used, "),
        (
            lambda path: (
                ReplyCache(str(path)),
                path.with_name(f"{path.name}-journal").write_bytes(b"x" * 600 + bytes.fromhex("d9d505f920a163d7")),
            ),
            "has a journal that is not its own",
        ),
    ],
)
async def test_no_file_of_anything_else_becomes_a_cache(connect, tmp_path, make: Any, told: str) -> None:
    path = tmp_path / "other.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with FaultyServer(four) as server, pytest.raises(InputError, match=rf"roles\.cache: .*other\.sqlite {told}"):
        connect(server, cache=str(path))
    assert before is None or path.read_bytes() == before, "it was not touched"
    assert {one.name for one in tmp_path.iterdir()} <= {"other.sqlite", "other.sqlite-journal"}


@pytest.mark.parametrize(
    "planted",
    [
        dumps(ChatGeneration(message=AIMessage(content='{"number": 7}'))),
        dumps(ChatPromptTemplate([("human", "x")])),
        '{"content": "x", "more": 1}',
        '{"content": 7}',
        "[" * 100_000,
        "x" * (2 * 10**6),
        "",
    ],
)
async def test_an_entry_that_is_not_ours_is_asked_again(connect, tmp_path, planted: str, monkeypatch) -> None:
    """Nothing of LangChain is built from it."""
    monkeypatch.setattr("langchain_community.cache.loads", lambda *_: pytest.fail("it was decoded"))
    path = tmp_path / "replies.sqlite"
    with FaultyServer(four) as server:
        await connect(server, cache=str(path)).ask(Answer, "s", "p", **ABOUT)
        with closing(sqlite3.connect(path)) as file:
            file.execute("UPDATE full_llm_cache SET response = ?", (planted,))
            file.commit()
        for _ in range(2):
            reply, _ = await connect(server, cache=str(path)).ask(Answer, "s", "p", **ABOUT)
            assert reply.number == 4
    assert len(server.requests) == 2, "the answer took its place"
