"""What an iteration cost, from its records: references that were lent are played in the environment, not sampled."""

from pathlib import Path

from environments.base import Observation, ObservationStatus, ToolCall
from graph.report.summary import cost_of
from memory.records import Step, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, write_json, write_jsonl
from memory.tasks import TaskSettings
from training.grpo.record import ExpertRecord


def trajectory(name: str, calls: int, *, lent: bool = False) -> Trajectory:
    call = ToolCall(name="pwd")
    step = Step(action=call, observation=Observation(text="", status=ObservationStatus.OK, calls=(call,)))
    return Trajectory(
        id=name,
        task_id="task",
        iteration=0,
        step=1,
        sample=0,
        turns=(TrajectoryTurn(text="", steps=(step,) * calls),),
        sampled_tokens=10,
    )


def test_rollouts_cost_environment_calls_and_tokens(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", TaskSettings())
    write_jsonl(run.iteration(0) / "trajectories.jsonl", [trajectory("a", 2), trajectory("b", 1)])
    cost = cost_of(run, 0)
    assert (cost.environment_calls, cost.sampled_tokens) == (3, 20)


def test_what_the_expert_step_learns_from_is_a_cost_of_its_own(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", TaskSettings())
    write_jsonl(run.iteration(0).trajectories, [trajectory("a", 2)])
    assert "supervised" not in cost_of(run, 0).words()
    made = ExpertRecord(references=3, left_out=0, replayed=1, updates=2, tokens=57, first_loss=1.0, last_loss=0.5)
    write_json(run.iteration(0).expert, made)
    assert cost_of(run, 0).words() == "2 environment calls, 10 sampled tokens, 57 supervised tokens"
