"""What the notebook on SEAL computes from a round's records; the notebook's own test plays the round."""

from __future__ import annotations

import pytest
from support.bfcl_tasks import acted_out

from environments.base import ToolCall
from environments.example import depot
from graph.walkthrough import (
    THANKS,
    DiagnosedGroup,
    conversations,
    interface_table,
    profile_table,
    rho_table,
    weights_table,
)
from memory.records import Task
from training.seal.diagnosis import FailureProfile, LabelStatistics, TurnLabel, diagnose
from training.seal.seal import FIRST_RHO, InterfaceState, SealState, SealStep

ENVIRONMENT = depot(4)  # its first start state has a closed gate
GATE, LIST = ToolCall(name="open_gate"), ToolCall(name="list_parcels")


@pytest.fixture(scope="module")
def group() -> DiagnosedGroup:
    """A success; a failure that called nothing; a failure that called something where nothing was asked for."""
    start = ENVIRONMENT.starts()[0]
    task = Task(
        id="task-gate",
        origin="seed",
        environment="depot",
        split="train",
        classes=start.classes,
        turns=("Open the gate.",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((GATE,),),
    )
    (talk,) = conversations([task])
    assert (talk.turns, talk.reference) == (("Open the gate.", THANKS), ((GATE,), ()))
    assert talk.id != task.id
    rollouts = tuple(
        acted_out(talk, *turns, environment=ENVIRONMENT, sample=number)
        for number, turns in enumerate([((GATE,), ()), ((), ()), ((GATE,), (ToolCall(name="weigh_parcel"),))])
    )
    diagnoses = tuple(found for one in rollouts if (found := diagnose(one)))
    return DiagnosedGroup(talk, rollouts, diagnoses)


def test_weights_are_the_means_of_the_papers_factors(group: DiagnosedGroup) -> None:
    assert group.variety == 3
    rows = weights_table(group, FIRST_RHO).rows
    assert [row[1] for row in rows] == [
        "pass 1.00, correct abstention 1.80",
        "empty turn 1.50, correct abstention 1.80",
        "pass 1.00, spurious tool call 2.00",
    ]
    assert [row[2] for row in rows] == ["1.40", "1.65", "1.50"]
    assert [float(row[4]) for row in rows] == [
        pytest.approx(float(row[2]) * float(row[3]), abs=0.01) for row in rows
    ]  # fmt: skip


def test_rho_moves_for_labels_of_failures_alone() -> None:
    labels = {
        TurnLabel.PASS: LabelStatistics(count=20, mean_reward=1.0),
        TurnLabel.STATE_MISMATCH: LabelStatistics(count=20),
    }
    profile = FailureProfile(trajectories=40, turns=40, labels=labels)
    steps = [SealStep(step=number, profile=profile, state=SealState()) for number in (1, 2)]
    (row,) = rho_table(steps).rows
    assert row[0] == "state mismatch"
    assert row[1] == "1.00" < row[2] <= row[3]


def test_a_guideline_is_named_beside_the_profile_that_brings_it() -> None:
    def step(number: int, *shown: TurnLabel) -> SealStep:
        labels = {TurnLabel.STATE_MISMATCH: LabelStatistics(count=number)}
        profile = FailureProfile(trajectories=8, turns=number, labels=labels)
        return SealStep(step=number, profile=profile, state=SealState(interface=InterfaceState(guidelines=shown)))

    rows = interface_table([step(1, TurnLabel.STATE_MISMATCH), step(2), step(3)]).rows
    assert [row[1] for row in rows] == ["1 state mismatch", "2 state mismatch", "3 state mismatch"]
    assert [row[2] for row in rows] == ["state mismatch", "none", "none"]


def test_the_profile_of_a_step_is_shown() -> None:
    labels = {
        TurnLabel.PASS: LabelStatistics(count=5, mean_reward=1.0),
        TurnLabel.STATE_MISMATCH: LabelStatistics(count=3, mean_reward=0.5),
        TurnLabel.EMPTY_TURN: LabelStatistics(count=1),
    }
    profile = FailureProfile(trajectories=9, turns=9, labels=labels)
    step = SealStep(step=1, profile=profile, state=SealState())
    rows = {row[0]: row[1:] for row in profile_table(step).rows}
    assert rows["state_mismatch"] == ("3", "75%", "0.50", "0.38")
    assert rows["pass"] == ("5", "0%", "1.00", "0.00")
