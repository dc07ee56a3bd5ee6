"""The scripted roles in the synthetic world: they sign in, reach what they aim at, and their drafts are verified."""

from __future__ import annotations

import pytest

from agents.evidence import call_of
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.settings import ExplorationSettings
from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import AppWorldEnvironment
from environments.base import StartState
from environments.settings import VerificationSettings
from environments.verification.verify import verify
from memory.records import FailureContext

pytestmark = pytest.mark.slow

EXPLORATION = ExplorationSettings(rounds=1, steps=12, drafts_per_context=2, max_reference_calls=8)


@pytest.fixture(scope="module")
def environment(engine: AppWorldEngine) -> AppWorldEnvironment:
    return AppWorldEnvironment(engine=engine)


def context_at(start: StartState, tool: str = "") -> FailureContext:
    return FailureContext(
        id=f"at-{start.id}-{tool}",
        environment=start.environment,
        tool=tool,
        explore=(tool,) if tool else (),
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )


def notes(environment: AppWorldEnvironment) -> StartState:
    return next(start for start in environment.starts() if "simple_note" in start.classes)


def test_the_guided_explorer_signs_in_and_reaches_its_tool(environment: AppWorldEnvironment) -> None:
    context = context_at(notes(environment), "simple_note.delete_note")
    interactions = GuidedExplorer(EXPLORATION).explore_now(context, environment, 0)
    done = [call_of(one).name for one in interactions if one.changed]
    made = [call_of(one).name for one in interactions]
    assert made.index("simple_note.login") < made.index("simple_note.delete_note")
    assert "simple_note.delete_note" in done
    assert interactions == GuidedExplorer(EXPLORATION).explore_now(context, environment, 0)


def test_its_drafts_hold_and_say_what_to_do(environment: AppWorldEnvironment) -> None:
    context = context_at(notes(environment), "simple_note.delete_note")
    interactions = GuidedExplorer(EXPLORATION).explore_now(context, environment, 0)
    drafts = TemplateAbstractor(EXPLORATION).abstract_now(context, interactions, environment, 0)
    first = drafts[0]
    calls = [call.name for call in first.reference[0]]
    assert calls[-2:] == ["simple_note.delete_note", "supervisor.complete_task"]
    assert 'the note with title "' in first.turns[0]
    result = verify(first, environment, (), (), VerificationSettings(max_calls=8))
    assert result.accepted, result.detail


def test_the_unguided_explorer_acts_alike_and_aims_anywhere(environment: AppWorldEnvironment) -> None:
    context = context_at(notes(environment))
    interactions = UnguidedExplorer(EXPLORATION).explore_now(context, environment, 1)
    assert "simple_note.login" in [call_of(one).name for one in interactions]
    aimed = {call_of(one).name for one in interactions if one.changed}
    assert aimed or len(interactions) == EXPLORATION.steps
