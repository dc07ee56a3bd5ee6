"""SEAL here against its released code (arXiv 2605.24426, repository yihaohu0118/SEAL at a0d22db), on equal input.

``released_code.json.gz`` holds random input and what the released code answered to it: 600 tasks of the car and the
file system with a policy's messages in each user turn and the labels of the turns; and the rollouts, as labels and
success, of 24 runs of 25 steps (two epochs of twelve, and one more), with rho, weights and guidelines of each step. Its
environment read the messages and executed the calls, its progress scorer labelled the turns, its state and its
weighting took in the labels, its selection chose the guidelines. It ran with bfcl-eval 2026.3.23, unchanged but for
imports of parts that it did not use. Nothing of it is in this repository. There is no difference in 600 trajectories
(1,848 turns) and 600 profiles.

Differences outside of these cases:

- *Reading.* Theirs ignores a block without braces beside a readable one, takes arguments that are JSON in a string, and
  NaN: ours refuses them. Theirs refuses a call without arguments or without its closing tag: ours reads it. Theirs runs
  calls that stand in thinking: ours does not.
- *Trajectories without a label.* They count them in q as one turn ``unknown``. Here a rollout that the environment
  failed is left out of all statistics, and every other one has a label.
- *Guidelines.* Their saved state lacks the mean reward, which their selection then reads as 0. With it, as here, 114 of
  the 600 profiles select others. Labels of equal pressure (5 profiles) go by the order of their first turn there.
- *Guidelines over time.* They select anew from the counts since the run began; here a guideline stays until mastered.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.bfcl_tasks import ENVIRONMENT

from environments.base import TaskSpec
from memory.records import Step, Trajectory, TrajectoryTurn
from training.rendering.base import EndTurn
from training.rendering.tool_calls import HermesReader
from training.rollout.episodes import refused_whole
from training.seal.diagnosis import EXCLUDED, Diagnosis, TurnLabel, diagnose, failure_profile
from training.seal.seal import (
    FIRST_RHO,
    InterfaceSettings,
    InterfaceState,
    WeightSettings,
    moved_rho,
    next_interface,
    trajectory_weight,
)

END = "That is all."
"""A message without a call, which ends the turn."""
SETTINGS = WeightSettings(dynamic=True)


@pytest.fixture(scope="module")
def released() -> dict[str, Any]:
    path = Path(__file__).with_name("released_code.json.gz")
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    assert (len(found["cases"]), [len(steps) for steps in found["runs"]]) == (600, [25] * 24)
    return found


def played(task: TaskSpec, messages_of_turns: Sequence[Sequence[str]]) -> Trajectory:
    """Read the messages and execute them, as a rollout with ``strict_messages`` does."""
    turns = []
    with closing(ENVIRONMENT.open(task)) as episode:
        shown = episode.start()
        for messages in messages_of_turns:
            assert shown is not None
            steps: list[Step] = []
            ended = False
            for message in messages:
                read = HermesReader().read(message, "", "", ())
                ended = isinstance(read, EndTurn)
                for action in () if isinstance(read, EndTurn) else refused_whole(read, shown.tools):
                    steps.append(Step(action=action, observation=episode.step(action)))
            turns.append(TrajectoryTurn(text=shown.text, steps=tuple(steps), ended=ended))
            assert ended == (messages[-1:] == [END])
            shown = episode.end_turn() if ended else shown
        outcome = episode.outcome()
    return Trajectory(
        id="t", task_id="t", iteration=0, step=1, sample=0, turns=tuple(turns), outcome=outcome, reward=0.0
    )


def test_labels_are_those_of_the_released_code(released: dict[str, Any]) -> None:
    seen: set[TurnLabel] = set()
    for number, case in enumerate(released["cases"]):
        diagnosis = diagnose(played(TaskSpec.model_validate(case["task"]), case["messages"]))
        assert diagnosis is not None
        assert list(diagnosis.turns) == case["labels"], (number, case)
        seen.update(diagnosis.turns)
    assert seen == set(TurnLabel) - {TurnLabel.INSTANCE_MISMATCH, TurnLabel.GT_ERROR}


def test_rho_weights_and_guidelines_are_those_of_the_released_code(released: dict[str, Any]) -> None:
    shown = 0
    for steps in released["runs"]:
        state = FIRST_RHO
        for number, step in enumerate(steps):
            diagnoses = [Diagnosis(success=one["success"], turns=tuple(one["turns"])) for one in step["rollouts"]]
            profile = failure_profile(diagnoses)
            state = moved_rho(state, profile, SETTINGS)
            assert state.rho == {TurnLabel(label): rho for label, rho in step["rho"].items()}, number
            assert [trajectory_weight(one, state) for one in diagnoses] == step["weights"], number
            assert (
                list(next_interface(InterfaceState(), profile, InterfaceSettings()).guidelines) == step["guidelines"]
            ), number
            shown += len(step["guidelines"])
    assert shown > 100, "hardly a guideline is selected: the test shows little"
    assert EXCLUDED.isdisjoint(state.rho)
