"""The replies of chat models in a SQLite file (``roles.cache``), so that identical requests are asked once.

langchain-community has the table; what is in it is our own JSON. Its class would decode an entry with LangChain's
``loads``, which builds whatever objects of LangChain the entry names. Only a file that this module made is opened, by
its application id: any other database is refused before SQLite sees it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain_community.cache import FullLLMCache, SQLAlchemyCache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import URL, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agents.chat.replies import LONGEST_REPLY
from environments.base import InputError
from memory.files import opened

_OURS = 0x436F4576  # "CoEv"; SQLite keeps an application's id in four bytes of a file's header
_HEADER, _ID_AT = 100, 68
_NAMES_A_FILE = bytes.fromhex("d9d505f920a163d7")
"""The end of a journal that names another one, which SQLite then removes. Only a write into two databases has it."""
_LONGEST = 8 * LONGEST_REPLY
"""Characters of an entry (ours): a longer one is no reply that a role would have read."""


class _Stored(BaseModel):
    """What a role reads of a reply."""

    model_config = ConfigDict(extra="forbid", strict=True)

    content: str
    tool_calls: list[dict[str, Any]] = []
    invalid_tool_calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    refusal: str | None = None


class ReplyCache(SQLAlchemyCache):
    """The cache in a file of our own making, which is begun where there is none. Raises InputError for any other."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            _begin(Path(path))
            super().__init__(create_engine(URL.create("sqlite", database=os.path.abspath(path))))
        except InputError:
            raise
        except (SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:  # a path with a null byte
            raise self._unusable(error) from None

    def lookup(self, prompt: str, llm_string: str) -> list[Generation] | None:
        """Return the reply to a request that was asked before; None for none, and for an entry that is not ours."""
        table = FullLLMCache
        entry: Any = select(table.response).where(
            table.prompt == prompt, table.llm == llm_string, table.idx == 0, func.length(table.response) <= _LONGEST
        )
        try:
            with Session(self.engine) as session:
                found = session.execute(entry).scalar()
            return None if found is None else [ChatGeneration(message=_message(_Stored.model_validate_json(found)))]
        except (ValidationError, ValueError, TypeError):
            return None
        except SQLAlchemyError as error:
            raise self._unusable(error) from None

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """Keep the first reply to a request."""
        (first, *_) = return_val
        message = getattr(first, "message", None)
        if not isinstance(message, AIMessage):
            return
        stored = _Stored(
            content=str(message.text),
            tool_calls=[dict(call) for call in message.tool_calls],
            invalid_tool_calls=[dict(call) for call in message.invalid_tool_calls],
            finish_reason=message.response_metadata.get("finish_reason"),
            refusal=message.additional_kwargs.get("refusal"),
        )
        try:
            row = FullLLMCache(prompt=prompt, llm=llm_string, idx=0, response=stored.model_dump_json())
            with Session(self.engine) as session, session.begin():
                session.merge(row)
        except ValueError:  # half of a surrogate pair, which no file holds
            return
        except SQLAlchemyError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> InputError:
        reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        return InputError(f"roles.cache: {self._path} cannot be used, {reason}: name another file")


def _message(stored: _Stored) -> AIMessage:
    more: dict[str, Any] = {"tool_calls": stored.tool_calls, "invalid_tool_calls": stored.invalid_tool_calls}
    return AIMessage(
        content=stored.content,
        response_metadata={"finish_reason": stored.finish_reason},
        additional_kwargs={"refusal": stored.refusal} if stored.refusal else {},
        **more,
    )


def _begin(path: Path) -> None:
    """Mark a new file as ours. Raises InputError for one that is not, unread but for its header."""
    if not path.parent.is_dir():
        raise InputError(f"roles.cache: {path.parent} is not a folder: make it, or name another file")
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InputError(f"roles.cache: {path} is not a file: name another one")
    if found is not None and found.st_size:
        with opened(path) as file:
            header = file.read(_HEADER)
        if not header.startswith(b"SQLite format 3\0") or header[_ID_AT : _ID_AT + 4] != _OURS.to_bytes(4, "big"):
            raise InputError(f"roles.cache: {path} is not a cache of replies that this command made: name another file")
        _check_journal(path)
        _check_schema(path)
        return
    with closing(sqlite3.connect(os.path.abspath(path))) as new:
        new.execute(f"PRAGMA application_id = {_OURS}")
        new.execute("VACUUM")  # writes the header


def _check_journal(path: Path) -> None:
    """Raise InputError where the journal beside a file is not of a write into it alone."""
    journal = path.with_name(f"{path.name}-journal")
    if not os.path.lexists(journal):
        return
    with opened(journal) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_NAMES_A_FILE)))
        if file.read() == _NAMES_A_FILE:
            raise InputError(f"roles.cache: {path} has a journal that is not its own: remove {journal}")


def _check_schema(path: Path) -> None:
    """Raise InputError where a file with our id has what acts on its own: a trigger, a view, a virtual table."""
    with closing(sqlite3.connect(f"{Path(os.path.abspath(path)).as_uri()}?mode=ro", uri=True)) as file:
        found = file.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if more := [name for name, sql in found if not str(sql).startswith(("CREATE TABLE ", "CREATE INDEX "))]:
        raise InputError(f"roles.cache: {path} has {more[0]!r}, which no cache of replies has: name another file")
