"""Turns that a task's reference plays: they are the agent's prompt, and count for none of its limits and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.bfcl_tasks import ENVIRONMENT, FILES, call
from support.chat_models import save_model
from support.late import Late
from support.made_policy import task, trained_policy
from support.scripted_sampler import ScriptedSampler

from agents.chat.models import ChatReply, WrittenCall
from agents.chat.transcript import trajectory_text
from environments.base import EnvironmentFault
from environments.bfcl.benchmark import BFCLEnvironment
from environments.turns import agent_calls
from evaluation.attempts import task_outcome
from evaluation.baselines import Lookup
from evaluation.baselines import play as play_baseline
from evaluation.served import attempt_served
from evaluation.sets import Item, open_set
from graph.report.digest import one_line, task_words
from memory.records import StopReason, Task, Trajectory, count_stops
from training.rendering.base import EndTurn
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, EpisodeResult, play_references, run_episodes
from training.rollout.policy import Policy, load_policy
from training.seal.diagnosis import TurnLabel, diagnose
from training.signals import SignalSettings, action_pattern

group_rollouts = Late("training.grpo.group_rollouts")

WIDE = EpisodeLimits(max_new_tokens=200, max_tokens=30000)
FIRST = (call("mkdir", dir_name="box"), call("cd", folder="box"))
LAST = (call("touch", file_name="a.txt"),)


_GIVEN = " (given"


def whole(*last: Any) -> Task:
    return task(FIRST, (call("pwd"),), last or LAST, group=FILES)


def behind(made: Task) -> Task:
    return made.model_copy(update={"played": len(made.turns) - 1})


@pytest.fixture(scope="module", params=["compact", "qwen2_5"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    if request.param == "compact":
        return trained_policy(1)
    return load_policy(str(save_model(tmp_path_factory.mktemp("model"), request.param)), "cpu")


def sampled(policy: Policy, made: Task, limits: EpisodeLimits, *actions: Any) -> EpisodeResult:
    """An episode whose agent writes ``actions``."""
    dialogue = policy.rendering.begin()
    dialogue.first(first_turn(made), ENVIRONMENT.tools(made.tools))
    sampler = ScriptedSampler(lambda place: dialogue.demonstrate(actions[int(place)]), *map(str, range(len(actions))))
    tokens = min(limits.max_tokens, policy.positions or limits.max_tokens)
    limits = limits.model_copy(update={"max_tokens": tokens})
    (result,) = run_episodes(policy, sampler, ENVIRONMENT, [EpisodeRequest(task=made, seed=0)], limits, 0.0)
    return result


def first_turn(made: Task) -> Any:
    episode = ENVIRONMENT.open(made)
    return episode.start()


def test_the_history_is_the_prompt_and_the_ids_are_those_of_the_whole_task(policy: Policy) -> None:
    made = whole()
    full, own = play_references(policy, ENVIRONMENT, [made, behind(made)], WIDE)
    assert [*own.prompt_ids, *own.completion_ids] == [*full.prompt_ids, *full.completion_ids]
    assert own.mask == full.mask[-len(own.mask) :]
    stops = [StopReason.PLAYED, StopReason.PLAYED, StopReason.END_OF_TURN]
    assert [turn.stop_reason for turn in own.turns] == stops
    assert [turn.steps for turn in own.turns] == [turn.steps for turn in full.turns]
    assert own.outcome == full.outcome
    assert own.outcome is not None
    assert own.outcome.success
    assert count_stops(own.turns) == {StopReason.END_OF_TURN: 1}
    assert agent_calls(behind(made)) == len(LAST)


@pytest.mark.long
def test_every_human_turns_reference_is_written_and_passes(tmp_path: Path) -> None:
    chat = load_policy(str(save_model(tmp_path, "qwen2_5")), "cpu")
    tasks = [item.task for item in open_set("human-dev")]
    wide = EpisodeLimits(max_new_tokens=2000, max_tokens=100_000)
    results = play_references(chat, BFCLEnvironment(), tasks, wide)
    assert [one.task.id for one in results if one.outcome is None or not one.outcome.success] == []
    for one in results:
        assert {turn.stop_reason for turn in one.turns[:-1]} <= {StopReason.PLAYED}
        assert sum(one.mask) > 0


def test_limits_count_the_agents_own_messages_and_its_result_is_official_over_all_turns(policy: Policy) -> None:
    made = behind(whole())
    narrow = WIDE.model_copy(update={"max_actions": 1, "max_steps": 2})
    done = sampled(policy, made, narrow, *LAST, EndTurn())
    assert done.outcome is not None
    assert done.outcome.success
    assert [turn.calls for turn in done.outcome.turns] == [2, 1, 1]
    idle = sampled(policy, made, narrow, EndTurn())
    assert idle.outcome is not None
    assert (idle.outcome.success, idle.outcome.failed_turn) == (False, 2)


def test_what_is_counted_is_the_agents(policy: Policy) -> None:
    made = behind(whole())
    done = sampled(policy, made, WIDE, *LAST, EndTurn())
    item = Item(task=made, group="g", cluster="c", reference_calls=agent_calls(made))
    found = task_outcome(item, done)
    assert (found.calls, found.reference_calls, found.extra_calls) == (1, 1, 0)
    rollout = Trajectory(
        id="t", task_id=made.id, iteration=0, step=1, sample=0, turns=done.turns, outcome=done.outcome, reward=1.0
    )
    assert rollout.calls() == LAST
    for pattern in ("sequence", "called", "succeeded"):
        assert action_pattern(rollout, SignalSettings.model_validate({"pattern": pattern})) == ("touch",)
    found = diagnose(rollout)
    assert found is not None
    assert (found.turns, found.first) == ((TurnLabel.PASS,), 2)
    told = trajectory_text(rollout).split("\n")
    assert [line.partition(":")[0] for line in told if line.startswith("Turn")] == [
        f"Turn 1{_GIVEN}",
        f"Turn 2{_GIVEN}",
        "Turn 3, user",
    ]
    assert told.count("  the agent ended the turn") == 1
    assert task_words(made) == one_line(made.turns[-1])


@pytest.mark.parametrize("last", [LAST, ()], ids=["a call is wanted", "no call is wanted"])
def test_a_history_without_room_for_a_message_is_a_failure(policy: Policy, last: Any) -> None:
    made = behind(whole()).model_copy(update={"reference": (FIRST, (call("pwd"),), last)})
    (full,) = play_references(policy, ENVIRONMENT, [behind(whole())], WIDE)
    tight = WIDE.model_copy(update={"max_tokens": len(full.prompt_ids)})
    result = sampled(policy, made, tight, *LAST)
    assert result.outcome is not None
    assert not result.outcome.success
    assert (result.infrastructure_error, result.completion_ids, result.outcome.failed_turn) == (None, (), 2)
    assert result.turns[-1].stop_reason is StopReason.EPISODE_TOKENS
    assert len(result.prompt_ids) < tight.max_tokens
    row = group_rollouts.token_row(result, 7)
    assert (row.completion_ids, row.mask) == ([7], [0])


def test_an_environment_that_fails_in_the_history_masks_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    made, opened = behind(whole()), ENVIRONMENT.open

    def fails(one: Task) -> Any:
        episode = opened(one)

        def step(action: Any) -> None:
            raise EnvironmentFault("the worker died")

        monkeypatch.setattr(episode, "step", step)
        return episode

    monkeypatch.setattr(ENVIRONMENT, "open", fails)
    result = sampled(trained_policy(1), made, WIDE, *LAST)
    assert (result.outcome, result.completion_ids) == (None, ())
    assert "the worker died" in str(result.infrastructure_error)


def test_a_baseline_acts_behind_the_history() -> None:
    made = behind(whole())
    item = Item(task=made, group="g", cluster="c", reference_calls=1)
    (found,) = play_baseline([item], ENVIRONMENT, Lookup([whole()]), max_actions=5)
    assert (found.success, found.calls) == (True, 1)


class _Served:
    """Stands for the endpoint: makes the last turn's calls, one a message, and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[list[dict[str, Any]]] = []

    async def reply(self, messages: Any, schemas: Any, *, max_tokens: int, subject: str) -> ChatReply:
        self.sent.append(list(messages))
        calls = [WrittenCall("touch", '{"file_name": "a.txt"}')] if len(self.sent) == 1 else []
        return ChatReply("", tuple(calls), None, False, (10, 5))


async def test_an_endpoint_reads_the_history_as_messages_and_calls() -> None:
    made, model, outcomes = behind(whole()), _Served(), []
    item = Item(task=made, group="g", cluster="c", reference_calls=1)
    stub: Any = model
    await attempt_served([item], stub, ENVIRONMENT, WIDE, outcomes.append)
    (found,) = outcomes
    assert (found.success, found.calls, found.stop_reasons) == (True, 1, {StopReason.END_OF_TURN: 1})
    told = [
        (one["role"], [made["function"]["name"] for made in one.get("tool_calls", ())])
        for one in model.sent[0]
        if one["role"] != "system"
    ]
    begun = [("user", []), ("assistant", ["mkdir"]), ("tool", []), ("assistant", ["cd"]), ("tool", [])]
    middle = [("assistant", []), ("user", []), ("assistant", ["pwd"]), ("tool", []), ("assistant", []), ("user", [])]
    assert told == begun + middle
