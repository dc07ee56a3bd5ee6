"""What an iteration cost, from its records: references that were lent are played in the environment, not sampled."""

from pathlib import Path

from environments.base import Observation, ObservationStatus, ToolCall
from graph.report.costs import cost_of
from memory.records import Step, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, write_jsonl
from memory.settings import TaskSettings


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
        sampled_tokens=0 if lent else 10,
        lent=lent,
    )


def test_lent_references_cost_environment_calls_and_no_tokens(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", TaskSettings())
    write_jsonl(run.iteration(0) / "trajectories.jsonl", [trajectory("a", 2), trajectory("b", 1)])
    before = cost_of(run, 0, 0)
    write_jsonl(run.iteration(0) / "lent.jsonl", [trajectory("c", 4, lent=True)])
    after = cost_of(run, 0, 0)
    assert (before.environment_calls, after.environment_calls) == (3, 7)
    assert before.sampled_tokens == after.sampled_tokens == 20
