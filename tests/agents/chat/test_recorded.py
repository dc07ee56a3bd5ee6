"""Replies from a file take the place of an endpoint: everything around the model stays as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.faulty_server import KEY, FaultyServer

from agents.chat.recorded import CHARACTERS_OF_A_TOKEN, RecordedReply, exchanges, open_recorded, open_role
from agents.chat.structured import open_model
from agents.roles import RoleRefused
from agents.settings import BudgetSettings, ChatSettings
from agents.spending import BudgetReached, Ledger, read_requests
from environments.base import InputError
from memory.jsonl import write_jsonl


class Said(BaseModel):
    """A reply."""

    word: str


def file_of(folder: Path, *contents: object, role: str = "explorer") -> Path:
    path = folder / "replies.jsonl"
    write_jsonl(path, [RecordedReply(role=role, content=one) for one in contents])
    return path


def ask(model, check=lambda reply, final: None) -> str:
    reply, _ = asyncio.run(model.ask(Said, "You answer.", "What?", check, subject="s", iteration=0))
    return reply.word


def test_replies_come_in_order_and_are_paid_for_by_their_length(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spending.jsonl", BudgetSettings())
    model = open_recorded(file_of(tmp_path, {"word": "one"}, '{"word": "two"}'), "explorer", ledger)
    assert [ask(model), ask(model)] == ["one", "two"]
    first, second = read_requests(tmp_path / "spending.jsonl")
    assert first.measured.completion_tokens == len('{"word": "one"}') // CHARACTERS_OF_A_TOKEN
    assert first.measured.prompt_tokens > 0
    assert (second.role, second.model, second.measured.calls) == ("explorer", "recorded", 1)


def test_a_file_without_the_role_and_a_file_at_its_end_are_named(tmp_path: Path) -> None:
    ledger = Ledger(None, BudgetSettings())
    path = file_of(tmp_path, {"word": "one"})
    with pytest.raises(InputError, match=r"replies.jsonl has no reply of the role 'reflector'"):
        open_recorded(path, "reflector", ledger)
    model = open_recorded(path, "explorer", ledger)
    ask(model)
    with pytest.raises(InputError, match=r"replies.jsonl \(explorer\) has no further reply"):
        ask(model)


def test_an_unusable_reply_is_repaired_once_and_seen(tmp_path: Path) -> None:
    ledger = Ledger(None, BudgetSettings())
    model = open_recorded(file_of(tmp_path, "prose", {"word": "two"}), "explorer", ledger)
    with exchanges() as seen:
        assert ask(model) == "two"
    assert [one.reply for one in seen] == ["prose", '{"word": "two"}']
    assert [one.user for one in seen] == ["What?", "What?"]
    assert not seen[0].repair
    assert "This reply cannot be used" in seen[1].repair
    assert seen[0].system.startswith("You answer.")


def test_a_reply_too_long_for_a_file_is_repeated_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    write_jsonl(path, [RecordedReply(role="explorer", content="[", repeat=300_000)] * 2)
    with pytest.raises(RoleRefused, match="more than 200000 characters"):
        ask(open_recorded(path, "explorer", Ledger(None, BudgetSettings())))


def test_budgets_end_recorded_roles_too(tmp_path: Path) -> None:
    ledger = Ledger(None, BudgetSettings(calls=1))
    model = open_recorded(file_of(tmp_path, {"word": "one"}, {"word": "two"}), "explorer", ledger)
    ask(model)
    with pytest.raises(BudgetReached):
        ask(model)


def test_the_environment_chooses_between_an_endpoint_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = Ledger(None, BudgetSettings()), file_of(tmp_path, {"word": "one"})
    monkeypatch.delenv("COEVOLVE_CHAT_MODEL", raising=False)
    assert ask(open_role("explorer", ledger, path)) == "one"
    monkeypatch.setenv("COEVOLVE_CHAT_MODEL", "some-model")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        open_role("explorer", ledger, path)


@pytest.mark.slow
def test_exchanges_with_a_real_endpoint_are_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FaultyServer(lambda request: {"word": "served"}) as server, exchanges() as seen:
        settings = ChatSettings.model_validate({"model": "some-model", "base_url": server.url})
        model = open_model(settings, "explorer", Ledger(None, BudgetSettings()), concurrency=1)
        assert ask(model) == "served"
    (one,) = seen
    assert one.user == "What?"
    assert '"word": "served"' in one.reply.replace('":"', '": "')
