"""What the notebook on SEAL computes from a round's records; the notebook's own test plays the round."""

from __future__ import annotations

import pytest

from environments.base import ToolCall
from environments.example import depot
from graph.walkthrough.seal import DiagnosedGroup, diagnosis_table, rollouts_chart, weighted
from graph.walkthrough.small_run import acted_out
from memory.records import Task
from training.seal.advantage_weights import first_rho
from training.seal.diagnosis import diagnose
from training.seal.settings import WeightSettings

ENVIRONMENT = depot(4)  # its first start state has a closed gate
GATE = ToolCall(name="open_gate")


@pytest.fixture(scope="module")
def group() -> DiagnosedGroup:
    """A success; a failure that called nothing; a success that called something where nothing was asked for."""
    start = ENVIRONMENT.starts()[0]
    talk = Task(
        id="task-gate",
        origin="seed",
        environment="depot",
        split="train",
        classes=start.classes,
        turns=("Open the gate.", "Thanks."),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((GATE,), ()),
    )
    rollouts = tuple(
        acted_out(talk, ENVIRONMENT, *turns, sample=number)
        for number, turns in enumerate([((GATE,), ()), ((), ()), ((GATE,), (ToolCall(name="weigh_parcel"),))])
    )
    tools = {tool.name: tool for tool in ENVIRONMENT.tools(talk.tools)}
    diagnoses = tuple(found for one in rollouts if (found := diagnose(one, talk, tools)))
    return DiagnosedGroup(talk, rollouts, diagnoses)


def test_weights_are_the_means_of_the_papers_factors(group: DiagnosedGroup) -> None:
    settings = WeightSettings(unit="turn")  # the picture is of whole rollouts in any case
    rows = weighted(group, first_rho(settings), settings)
    assert group.variety == 3
    successes = [one.success for one in group.rollouts]
    assert successes == [True, False, True]
    assert [row.advantage for row in rows] == pytest.approx([3**-0.5, -2 * 3**-0.5, 3**-0.5], abs=1e-3)
    assert [row.rho for row in rows] == [(1.0, 1.8), (1.5, 1.8), (1.0, 2.0)]
    assert [row.weight for row in rows] == [pytest.approx(1.4), pytest.approx(1.65), pytest.approx(1.5)]


def test_the_table_and_the_dots_show_every_rollout(group: DiagnosedGroup) -> None:
    shown = diagnosis_table(group)
    assert [row[2] for row in shown.rows] == ["pass", "empty_turn_model_response", "pass"]
    assert shown.rows[2][-1] == "spurious_tool_call"
    assert shown.rows[0][1] == "open_gate()"
    good = sum(one.success for one in group.rollouts)
    assert f"{good} of 3, {good} of 3" in rollouts_chart({1: [group], 2: [group]}).words
