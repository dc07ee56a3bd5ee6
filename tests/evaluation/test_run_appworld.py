"""The evaluation command on the real AppWorld engine; skipped, with the reason, where that is not installed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support import ROOT
from support.commands import run_here

from environments.appworld.evaluation_sets import METRICS
from environments.appworld.installation import Installation, official_task
from environments.registry import open_named
from evaluation.attempts import task_outcome
from evaluation.outcomes import TaskOutcome, score
from evaluation.sets import select
from evaluation.settings import ScoringSettings
from memory.jsonl import read_jsonl
from memory.records import Step, TrajectoryTurn

pytestmark = pytest.mark.usefixtures("engine")  # which the command opens: one for all files of a worker


@pytest.fixture(scope="module")
def made(installation: Installation) -> Installation:
    if not installation.task_ids("train")[0].startswith("made"):
        pytest.skip("the world is no made one: unset COEVOLVE_APPWORLD")
    return installation


@pytest.fixture(scope="module")
def policy(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model with a real chat template: it says nothing sensible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests" / "training")
        from support.chat_models import save_model
    return str(save_model(tmp_path_factory.mktemp("policy"), "qwen2_5"))


def command(*options: str) -> tuple[str, ...]:
    return ("evaluation.run", "--environment", "appworld", *options)


FEW = ("--max-actions", "2", "--max-new-tokens", "8")


def test_a_chat_model_is_scored_on_dev(installation: Installation, policy: str, tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes.jsonl"
    options = ("--evaluation-set", "dev", "--model", policy, *FEW, "--limit", "4", "--output", str(outcomes))
    done = run_here(*command(*options))
    assert done.returncode == 0, done.stderr
    head = next(line for line in done.stdout.splitlines() if "tgc" in line)
    assert head.index("tgc") < head.index("sgc") < head.index("checks_passed")
    assert "difficulty=" in done.stdout
    written = read_jsonl(outcomes, TaskOutcome)
    ids = installation.task_ids("dev")[:4]
    assert [one.task_id for one in written] == list(ids)
    assert [one.cluster for one in written] == [one.partition("_")[0] for one in ids]
    assert all(one.infrastructure_error is None and one.strata["difficulty"] for one in written)
    for task_id in ids:
        (text,) = official_task(installation, task_id, "dev").turns
        assert text not in outcomes.read_text()
        assert text not in done.stdout + done.stderr


def test_what_solves_a_task_is_a_success_with_its_goals(made: Installation) -> None:
    """The benchmark's solutions of one scenario and of one variant of the next, in the set's own environment."""
    opened = select(
        ScoringSettings(
            environment="appworld",
            model="recipes/starter",
            evaluation_set=("dev",),
            limit=5,
        )
    )
    environment, outcomes = opened.environment(30), []
    for item in opened.items:
        (solution,) = official_task(made, item.task.id, "dev").reference[0]
        with closing(environment.open(item.task)) as episode:
            shown = episode.start()
            solved = len(outcomes) != 4
            steps = (Step(action=solution, observation=episode.step(solution)),) if solved else ()
            outcomes.append(task_outcome(item, _result(item.task, shown.text, steps, episode.outcome())))
    assert [one.success for one in outcomes] == [True, True, True, True, False]
    assert all(one.calls == one.reference_calls > 1 and one.extra_calls == 0 for one in outcomes[:4])
    assert score("dev", outcomes, METRICS).metrics == {"success": 0.8, "tgc": 80.0, "sgc": 50.0, "checks_passed": 0.8}


def test_the_commands_actions_are_the_environments_steps(installation: Installation) -> None:
    assert open_named("appworld", max_actions=7)._max_steps == 7


def _result(task, text, steps, outcome):  # type: ignore[no-untyped-def]
    from training.rollout.episodes import EpisodeResult

    return EpisodeResult(
        task=task,
        turns=(TrajectoryTurn(text=text, steps=steps, ended=True),),
        outcome=outcome,
        infrastructure_error=None,
        prompt_ids=(1,),
        completion_ids=(),
        logprobs=(),
        mask=(),
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--evaluation-set", "dev", "--limit", "1"), "the policy's vocabulary has no token for python"),
        (("--evaluation-set", "test_normal"), "add --access-log FILE"),
    ],
)
def test_a_mistake_is_one_sentence(installation: Installation, options: tuple[str, ...], says: str) -> None:
    done = run_here(*command(*options))
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert says in last


def test_a_served_model_solves_a_task_with_blocks_of_code(
    made: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark's solution of the first task, which the second one is not solved by."""
    from support.faulty_server import KEY, FaultyServer
    from support.served_policy import player

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    scripts: dict[str, list[list[list[str]]]] = {}
    first, second = (official_task(made, task_id, "dev") for task_id in made.task_ids("dev")[:2])
    (solution,) = first.reference[0]
    for task in (second, first):
        scripts[task.turns[0]] = [[[f"I try.\n```python\n{solution.arguments['code']}\n```"]]]
    path = tmp_path / "outcomes.jsonl"
    with FaultyServer(player(scripts)) as server:
        options = ("--model", "openai:m", "--base-url", server.url, "--limit", "2", "--output", str(path))
        done = run_here(*command("--evaluation-set", "dev", *options))
        assert not any("tools" in request.body for request in server.requests)
        assert {request.messages[0]["role"] for request in server.requests} == {"system"}
    assert done.returncode == 0, done.stderr
    assert "tgc" in done.stdout
    written = read_jsonl(path, TaskOutcome)
    assert written[0].success, "the solution of the task"
    assert all(one.infrastructure_error is None and one.malformed == 0 for one in written)
    for file in tmp_path.iterdir():
        assert first.turns[0] not in file.read_text(), "the licence forbids it"
