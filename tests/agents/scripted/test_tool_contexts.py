"""Contexts around one tool: every tool of every start state in its turn."""

from __future__ import annotations

from agents.scripted.baselines import tool_context
from agents.scripted.explorer import GuidedExplorer
from agents.settings import ExplorationSettings
from environments.bfcl.environment import BFCLEnvironment
from memory.records import Unsignalled

ENVIRONMENT = BFCLEnvironment(("GorillaFileSystem", "VehicleControlAPI"))
STARTS = ENVIRONMENT.starts()
NAMES = sorted({name for start in STARTS for name in start.tools})


def test_tools_come_in_turn_and_each_time_at_another_start_state_that_has_them() -> None:
    contexts = [tool_context(STARTS, ENVIRONMENT, number) for number in range(3 * len(NAMES))]
    assert [context.tool for context in contexts] == NAMES * 3
    assert len({context.id for context in contexts}) == len(contexts)
    for place, context in enumerate(contexts):
        assert context.kind == Unsignalled.TOOL
        assert context.tool in context.tools
        assert context.explore[0] == context.tool
        assert set(context.explore) <= set(context.tools)
        assert context.initial_state != contexts[(place + len(NAMES)) % len(contexts)].initial_state


def test_a_tool_that_needs_others_first_is_reached() -> None:
    context = tool_context(STARTS, ENVIRONMENT, NAMES.index("startEngine"))
    interactions = GuidedExplorer(ExplorationSettings()).explore_now(context, ENVIRONMENT, 0)
    started = [one for one in interactions if "engineState" in one.observation.text and one.changed]
    assert any(call.name == "startEngine" for one in started for call in one.observation.calls)
