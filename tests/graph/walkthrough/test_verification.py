"""Each flawed draft is refused for its flaw, and what an agent's run says of it beside that."""

from __future__ import annotations

import pytest
from support import ROOT

from agents.chat.recorded import open_recorded
from agents.settings import BudgetSettings
from agents.spending import Ledger
from graph.walkthrough.verification import FlawedDrafts, agreement_table

REPLIES = ROOT / "notebooks" / "recorded" / "validation.jsonl"
EXPECTED = {
    "good": None,
    "hallucinated tool": "unknown_tool",
    "hallucinated value": "ungrounded_argument",
    "wrong order": "error_result",
    "idle call": "superfluous_call",
    "trivial": "trivial_policy",
    "not deterministic": "nondeterministic",
    "duplicate": "duplicate",
    "leak": "sealed",
    "disguised leak": "sealed",
}


@pytest.fixture(scope="module")
def flawed() -> FlawedDrafts:
    return FlawedDrafts()


def test_every_draft_is_refused_for_its_flaw(flawed: FlawedDrafts) -> None:
    assert {name: flawed.verified(name).reason for name in flawed.drafts} == EXPECTED


async def test_the_scripted_replies_carry_out_every_draft_that_an_agent_is_asked_about(flawed: FlawedDrafts) -> None:
    model = open_recorded(REPLIES, "validator", Ledger(None, BudgetSettings()))
    runs = {name: await flawed.carried_out(name, model) for name in flawed.drafts}
    assert {name for name, run in runs.items() if run is None} == {"duplicate", "leak", "disguised leak"}
    completed = {name: run.completed for name, run in runs.items() if run is not None}
    assert completed == {name: name != "hallucinated tool" for name in completed}
    rewards = {name: run.reward for name, run in runs.items() if run is not None}
    assert {name for name, reward in rewards.items() if reward == 0} == {"not deterministic"}
    assert all(run.accepted for run in runs.values() if run is not None), "the paper's rule: completed or a reward"
    rows = agreement_table(flawed, runs).rows
    assert [row[1:3] for row in rows][:2] == [("accepted", "accepted"), ("refused", "accepted")]
    assert [row[2] for row in rows][-3:] == ["not asked"] * 3
