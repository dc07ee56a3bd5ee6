"""Verification with an agent: what it may accept and refuse, what is kept of its runs, and how it is compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.runtime import Runtime
from support.made_run import ENVIRONMENT, first_tasks, weakness_at

from agents.settings import RoleSettings, RolesSettings
from agents.spending import Breaker, BudgetReached, Ledger, RoleRefused
from environments.base import Environment, ToolCall
from environments.settings import VerificationSettings
from environments.verification.canonical import fingerprint
from graph.assembly import RunServices
from graph.nodes.new_tasks import verify
from graph.settings import RunSettings
from graph.state import BranchState
from memory.records import AgentValidation, Draft, DraftVerification
from memory.run import RunDirectory, iteration_stage, read_jsonl, write_json, write_jsonl
from memory.run_files import KnownTasks

TASK = first_tasks()[0]
SPEC = TASK.model_dump(exclude={"id", "origin", "parents", "admitted_at"})
GOOD = Draft(**SPEC, id="draft-good", context_id="context-1")
LOOSE = GOOD.model_copy(update={"id": "draft-loose", "turns": ("Do the first thing that is needed.",)})
HELD_OUT = Draft(
    **SPEC | {"reference": ((ToolCall(name="mkdir", arguments={"dir_name": "other"}),),)},
    id="draft-held-out",
    context_id="context-1",
)
CONTEXT = weakness_at(TASK)
YES = AgentValidation(accepted=True, completed=True, success=True, reward=1.0, actions=1)
NO = AgentValidation(accepted=False, completed=False, success=False, reward=0.0, actions=1, detail="Nothing was made.")


class Agent:
    """Gives the same result of every run, or raises it; keeps which drafts it was asked about."""

    def __init__(self, result: AgentValidation | Exception) -> None:
        self._result = result
        self.asked: list[str] = []

    async def validate(self, draft: Draft, environment: Environment, iteration: int | None) -> AgentValidation:
        self.asked.append(draft.id)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def verifications(folder: Path, mode: Any, agent: Agent, **verification: Any) -> dict[str, DraftVerification]:
    """The verifications on the three drafts, by the name of each."""
    run = RunDirectory(folder)
    settings = RunSettings(
        verification=VerificationSettings(mode=mode, **verification),
        roles=RolesSettings(validator=RoleSettings(kind="chat", model="m")),
    )
    roles: Any = SimpleNamespace(validator=agent)
    services = RunServices(
        run,
        settings,
        ENVIRONMENT,
        roles,
        roles,
        {fingerprint(HELD_OUT)},
        Ledger(None, settings.roles.budget),
        Breaker(),
    )
    stage = run.iteration(0)
    write_json(stage.known, KnownTasks(fingerprints=()))
    write_json(stage.branch(CONTEXT.id).context, CONTEXT)
    write_jsonl(stage.branch(CONTEXT.id).drafts, [GOOD, LOOSE, HELD_OUT])
    await verify(BranchState(stage=iteration_stage(0), context_id=CONTEXT.id), Runtime(context=services))
    found = read_jsonl(stage.branch(CONTEXT.id).verdicts, DraftVerification)
    return {one.draft_id.removeprefix("draft-"): one for one in found}


@pytest.mark.parametrize(
    ("mode", "result", "good", "loose"),
    [
        ("agent", YES, None, None),
        ("agent", NO, "agent", "agent"),
        ("agent", RoleRefused("no usable reply"), "not_validated", "not_validated"),
        ("agent", BudgetReached("roles.budget.calls (9) is spent"), "not_validated", "not_validated"),
        ("both", YES, None, "ungrounded_argument"),
        ("both", NO, "agent", "ungrounded_argument"),
        ("both", RoleRefused("no usable reply"), "not_validated", "ungrounded_argument"),
    ],
)
async def test_who_decides_and_for_which_reason(tmp_path: Path, mode, result, good, loose) -> None:
    agent = Agent(result)
    found = await verifications(tmp_path, mode, agent)
    assert (found["good"].reason, found["loose"].reason, found["held-out"].reason) == (good, loose, "sealed")
    assert found["good"].accepted is (good is None)
    asked = ["good"] if mode == "both" else ["good", "loose"]
    assert agent.asked == [f"draft-{name}" for name in asked], "a refused draft is shown to no model"
    run = result if isinstance(result, AgentValidation) else None
    assert {name: one.agent for name, one in found.items() if name in asked} == dict.fromkeys(asked, run)
    if result is NO:
        assert found["good"].detail == "The validator did not complete it: Nothing was made."


async def test_a_run_that_was_evaluated_is_not_paid_for_again(tmp_path: Path) -> None:
    first = await verifications(tmp_path, "both", Agent(YES))
    again = Agent(NO)
    assert await verifications(tmp_path, "both", again) == first
    assert again.asked == []


async def test_with_verification_off_no_agent_is_asked(tmp_path: Path) -> None:
    agent = Agent(NO)
    found = await verifications(tmp_path, "agent", agent, enabled=False)
    assert found["good"].accepted
    assert agent.asked == []


async def test_without_an_agent_a_result_is_written_as_ever(tmp_path: Path) -> None:
    plain = DraftVerification(draft_id="d", context_id="c", accepted=True)
    assert "agent" not in plain.model_dump()
