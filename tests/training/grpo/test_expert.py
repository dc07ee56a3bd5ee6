"""Supervised updates before a round's GRPO: on which references, in which batches, what they teach, and a kill."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.late import Late
from support.small_policy import CLASSES, small_settings, small_tasks
from typer.testing import CliRunner

from environments.base import ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from memory.records import Task
from memory.run import RunDirectory, append_jsonl, read_json
from memory.settings import TaskSettings
from memory.tasks import admit
from training.grpo.record import RoundRecord
from training.run_round import app
from training.settings import ExpertSettings

pytestmark = pytest.mark.slow

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")
expert = Late("training.grpo.expert")
supervised = Late("training.supervised")

PASSES = 60


def beyond(name: str = "task-beyond", **changes: object) -> Task:
    """A task whose function the policy has never seen: no sampled rollout solves it."""
    calls = (ToolCall(name="mv", arguments={"source": "plan.txt", "destination": "old.txt"}),)
    changes = {"id": name, "turns": ('Rename "plan.txt" to "old.txt".',), "reference": (calls,)} | changes
    return small_tasks()[0].model_copy(update=changes)


def a_set() -> list[Task]:
    return [
        beyond("seed"),
        beyond("official", origin="official"),
        beyond("held-out", origin="panel", split="dev"),
        beyond("first", origin="evolved", admitted_at=0),
        beyond("second", origin="evolved", admitted_at=1),
    ]


@pytest.mark.parametrize(
    ("since", "replay", "new", "old"),
    [
        (None, True, ["seed", "official", "first", "second"], []),
        (0, False, ["first", "second"], []),
        (0, True, ["first", "second"], ["seed", "official"]),
        (1, True, ["second"], ["seed", "official", "first"]),
        (2, True, [], ["seed", "official", "first", "second"]),
    ],
)
def test_what_is_new_is_learnt_from_and_what_is_held_out_never(since, replay, new, old) -> None:
    for share in (None, 0.5):
        evolved = TaskSettings(evolved_share=share).uses_evolved
        found = expert.learnt_from(a_set(), since, replay=replay, evolved=evolved)
        assert [[task.id for task in tasks] for tasks in found] == [new, old]


def test_a_single_turn_is_learnt_from_where_its_task_is_not_there_whole() -> None:
    (calls,) = beyond().reference
    longer = {"turns": (*beyond().turns, "Once more."), "reference": (calls, calls)}
    whole, turn = beyond("whole", origin="official", **longer), beyond("turn", origin="official", parents=("whole",))
    for tasks, learnt in (([turn, beyond()], [turn, beyond()]), ([turn, whole, beyond()], [whole, beyond()])):
        assert expert.learnt_from(tasks, None, replay=False, evolved=True) == (learnt, [])


def test_single_turns_of_a_task_are_learnt_in_one_row_with_every_turn_written() -> None:
    (calls,) = beyond().reference
    longer = {"turns": (*beyond().turns, "Once more."), "reference": (calls, calls), "played": 1}
    official = {"origin": "official", "parents": ("whole",)}
    turns = [beyond("second", **official, **longer), beyond("first", **official)]
    (learnt,), _ = expert.learnt_from(turns, None, replay=False, evolved=True)
    assert (learnt.id, len(learnt.turns), learnt.played) == ("second", 2, 0)
    evolved = beyond("evolved", origin="evolved", parents=("whole",), admitted_at=0)
    assert supervised.in_one_row([*turns, evolved]) == [learnt, evolved]


def test_what_grpo_never_draws_is_not_learnt_from() -> None:
    evolved = TaskSettings(evolved_share=0.0).uses_evolved
    found = [expert.learnt_from(a_set(), since, replay=True, evolved=evolved) for since in (None, 0)]
    official = ["seed", "official"]
    assert [[[task.id for task in tasks] for tasks in pair] for pair in found] == [[official, []], [[], official]]


@given(
    new=st.integers(0, 90),
    old=st.integers(0, 30),
    passes=st.integers(1, 4),
    batch=st.integers(1, 5),
    replay=st.floats(0, 0.99),
    seed=st.integers(0, 99),
)
def test_each_pass_takes_each_new_reference_once(new, old, passes, batch, replay, seed) -> None:
    settings = ExpertSettings(passes=passes, replay=replay)
    made = list(expert.draws(new, old, settings, seed, batch))
    taken = [place for places, _ in made for place in places]
    assert all(sorted(taken[n * new : (n + 1) * new]) == list(range(new)) for n in range(passes))
    assert len(taken) == passes * new
    replayed = min(round(batch * replay), batch - 1)
    for places, again in made:
        assert len(again) == len(set(again)) == min(old, round(len(places) * replayed / (batch - replayed)))
        assert set(again) <= set(range(old))
        assert 1 <= len(places) <= expert.POOL * (batch - replayed)
    assert made == list(expert.draws(new, old, settings, seed, batch))


def in_a_round(starter: Path, **limits: int) -> SimpleNamespace:
    """What the expert step asks of a round's rollouts."""
    from training.rollout.policy import load_policy

    given = {"max_new_tokens": 48, "max_tokens": 512, "max_actions": 8} | limits
    return SimpleNamespace(
        policy=load_policy(str(starter), "cpu"),
        played_in=BFCLEnvironment(CLASSES),
        settings=small_settings(starter, **given).training,
    )


def test_old_references_are_played_when_they_are_drawn_and_left_out_when_they_fail(starter, monkeypatch) -> None:
    asked: list[list[str]] = []
    play = expert.play_references

    def noting(policy, environment, tasks, limits):
        asked.append([task.id for task in tasks])
        return play(policy, environment, tasks, limits)

    monkeypatch.setattr("training.grpo.expert.play_references", noting)
    longer = (ToolCall(name="pwd"), *beyond().reference[0])
    old = [beyond(f"old-{n}", reference=(longer,) if n % 2 else beyond().reference) for n in range(40)]
    settings = ExpertSettings(passes=2, replay=0.5)
    made = expert.played(in_a_round(starter, max_actions=1), [beyond("a"), beyond("b")], old, settings, seed=1, batch=4)
    assert asked[:2] == [["a"], ["b"]]
    replays = [name for (name,) in asked[2:]]
    assert 2 <= len(replays) == len(set(replays)) <= 4
    fail = sum(int(name.removeprefix("old-")) % 2 for name in replays)
    assert 0 < fail < len(replays), "the seed draws one kind alone: the test shows nothing"
    assert (made.references, made.replayed, made.left_out) == (2, len(replays) - fail, fail)
    assert 4 < sum(map(len, made.updates)) < 8


def test_a_reference_is_worded_anew_but_in_its_first_pass(starter) -> None:
    rollouts = in_a_round(starter)
    own, old = [*small_tasks(), beyond("plain", origin="given")], [beyond("old")]
    own[0] = own[0].model_copy(update={"origin": "official"})
    settings = ExpertSettings(passes=3, replay=0.5, reword=True)
    passes = expert.played(rollouts, own, old, settings, seed=0, batch=2 * len(own)).updates
    assert passes == expert.played(rollouts, own, old, settings, seed=0, batch=2 * len(own)).updates
    assert len(passes) == 3

    def texts(rows) -> list[str]:
        return [rollouts.policy.tokenizer.decode(row.prompt_ids) for row in rows]

    (first,) = expert.played(rollouts, own, [], ExpertSettings(passes=1), seed=0, batch=8).updates
    assert set(texts(first)) <= set(texts(passes[0])), "the first pass has the tasks' own words"
    kept = [own[0], own[-1]]
    (kept_texts,) = map(texts, expert.played(rollouts, kept, [], ExpertSettings(passes=1), seed=0, batch=8).updates)
    for number, rows in enumerate(passes):
        assert set(kept_texts) <= set(texts(rows)), "a user's task and an official one keep their words"
        assert len(rows) == len(own) + 1
        new = set(texts(rows)) - set(texts(first))
        assert len(new) > (number > 0) * len(small_tasks()) / 2
        assert "Rename" not in "".join(new), "a replayed reference is worded anew"
    assert len({tuple(sorted(texts(rows))) for rows in passes}) == 3


def processed(data) -> int:
    return sum(row.length for rows in data.updates for row in rows)


@pytest.mark.parametrize(("new", "old", "replay"), [(3, 0, 0.0), (3, 4, 0.5), (1, 1, 0.9)])
@pytest.mark.parametrize("tokens", [1, 700, 4000])
def test_as_many_tokens_go_through_the_model_as_are_asked_for(starter, tokens, new, old, replay) -> None:
    rollouts = in_a_round(starter)
    tasks = [[beyond(f"{kind}-{place}") for place in range(count)] for kind, count in (("new", new), ("old", old))]
    settings = ExpertSettings(tokens=tokens, replay=replay)
    made = expert.played(rollouts, *tasks, settings, seed=0, batch=4)
    longest = max(row.length for rows in made.updates for row in rows)
    assert tokens <= processed(made) < tokens + longest
    assert made == expert.played(rollouts, *tasks, settings, seed=0, batch=4)
    if tokens == 4000:
        assert made.references == new
        assert (made.replayed > 0) == (replay > 0)


def test_a_round_without_new_tasks_learns_as_many_tokens_from_older_ones(starter) -> None:
    rollouts = in_a_round(starter)
    rollouts.ranks = SimpleNamespace(by_first=lambda work: work())
    tasks = [beyond("first"), beyond("second")]

    def data(iteration: int, **changes: object):
        rollouts.plan = SimpleNamespace(iteration=iteration, run_seed=0)
        made: list[object] = []
        return expert.expert_step(rollouts, ExpertSettings(**changes), tasks, True, made.append).data

    assert (data(1).references, processed(data(1))) == (0, 0)
    static = data(1, tokens=2000)
    assert (static.references, static.replayed) == (2, 0)
    assert processed(static) >= 2000
    assert data(0, tokens=2000, initial=False).updates == ()
    assert processed(data(1, tokens=2000, initial=False)) == processed(static)


def test_passes_are_refused_beside_tokens() -> None:
    with pytest.raises(ValueError, match="passes"):
        ExpertSettings(passes=2, tokens=1000)


class Stopped(BaseException):
    """Ends a round in the middle of a step."""


def stop_in(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the next round when the rollouts of ``step`` are logged, with a checkpoint after each step before it."""
    from training.grpo import round as rounds

    logged: list[str] = []

    def stopping(path, records):
        append_jsonl(path, records)
        logged.append(path.name)
        if logged.count("trajectories.jsonl") == step:
            raise Stopped

    monkeypatch.setattr(rounds, "append_jsonl", stopping)
    monkeypatch.setattr(rounds, "CHECKPOINT_STEPS", 1)


def unmeasured(record: RoundRecord) -> dict:
    def without(value):
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key != "measured"}
        return [without(one) for one in value] if isinstance(value, list) else value

    return without(json.loads(record.model_dump_json()))


@pytest.fixture(scope="module")
def rounds(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One round without and one with an expert step, and two that are stopped in step 1 and step 3 and resumed."""
    made = {}
    for name, step in (("without", 0), ("whole", 0), ("before", 1), ("after", 3)):
        learns = None if name == "without" else {"passes": PASSES, "learning_rate": 3e-3}
        settings = small_settings(starter, kl=0.0, rollouts_per_task=4, expert=learns)
        run = RunDirectory.create(tmp_path_factory.mktemp("expert") / name, settings)
        admit(run, [beyond(), beyond("task-as-far"), beyond("task-official", origin="official")])
        argv = ["--run", str(run.root), "--iteration", "0"]
        if step:
            with pytest.MonkeyPatch.context() as monkeypatch:
                stop_in(step, monkeypatch)
                with pytest.raises(Stopped):
                    CliRunner().invoke(app, argv, catch_exceptions=False)
            argv.append("--resume")
        result = CliRunner().invoke(app, argv)
        assert result.exit_code == 0, result
        made[name] = SimpleNamespace(run=run, record=read_json(run.iteration(0).round, RoundRecord))
    return SimpleNamespace(**made)


def test_grpo_alone_never_solves_it_and_behind_an_expert_step_it_does(rounds: SimpleNamespace) -> None:
    assert rounds.without.record.success == 0.0
    assert rounds.without.record.expert is None
    record = rounds.whole.record
    assert record.success > 0.3
    learnt = record.expert
    assert (learnt.references, learnt.left_out, learnt.updates) == (3, 0, PASSES)
    assert learnt.last_loss < 0.7 * learnt.first_loss
    assert learnt.tokens > 0
    assert learnt.tokens % PASSES == 0


@pytest.mark.parametrize("name", ["before", "after"])
def test_a_stopped_round_learns_from_each_reference_as_often_as_an_undisturbed_one(rounds, name: str) -> None:
    from safetensors.torch import load_file

    whole, resumed = rounds.whole, getattr(rounds, name)
    assert unmeasured(resumed.record) == unmeasured(whole.record)
    ones, others = (load_file(one.run.root / one.record.policy / "model.safetensors") for one in (whole, resumed))
    assert all(torch.equal(ones[key], others[key]) for key in ones)


def test_references_that_no_limit_lets_through_are_refused(starter: Path, tmp_path: Path) -> None:
    settings = small_settings(starter, max_new_tokens=1, expert={})
    run = RunDirectory.create(tmp_path / "run", settings)
    admit(run, [beyond()])
    result = CliRunner().invoke(app, ["--run", str(run.root), "--iteration", "0"])
    assert result.exit_code == 1
    assert "none of 1 references succeeds" in result.stderr
    assert not run.iteration(0).expert.exists()
