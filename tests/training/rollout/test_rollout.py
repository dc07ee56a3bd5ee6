"""Rollouts in the real environment: what is recorded, where episodes are cut off, and whose fault a fault is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.bfcl_tasks import ENVIRONMENT
from support.late import Late
from support.made_policy import made_tasks, trained_policy
from support.scripted_sampler import ScriptedSampler

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    Episode,
    InputError,
    MalformedCall,
    Observation,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from memory.records import StopReason, Task, count_stops
from training.rendering.base import EndTurn
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, EpisodeResult, run_episodes

torch = Late("torch")
in_process = Late("training.rollout.in_process")

LIMITS = EpisodeLimits()


def requests(tasks: Sequence[Task], seed: int = 100) -> list[EpisodeRequest]:
    return [EpisodeRequest(task=made, seed=seed + place) for place, made in enumerate(tasks)]


def play(
    tasks: Sequence[Task], temperature: float = 0.9, limits: EpisodeLimits = LIMITS, world: Environment | None = None
) -> tuple[EpisodeResult, ...]:
    policy = trained_policy()
    sampler = in_process.InProcessSampler(policy.model)
    return run_episodes(policy, sampler, world or ENVIRONMENT, requests(tasks), limits, temperature)


def segments(result: EpisodeResult) -> list[tuple[int, list[int]]]:
    """Maximal stretches of the completion with one mask value."""
    found: list[tuple[int, list[int]]] = []
    for token, mask in zip(result.completion_ids, result.mask, strict=True):
        if not found or found[-1][0] != mask:
            found.append((mask, []))
        found[-1][1].append(token)
    return found


def test_a_policy_that_learnt_the_tasks_solves_them_by_the_official_rule() -> None:
    results = play(made_tasks(), temperature=0.0)
    solved = [result for result in results if result.outcome is not None and result.outcome.success]
    assert len(solved) >= 35
    for result in solved:
        assert all(turn.ended for turn in result.turns)
        made = [step.action for turn in result.turns for step in turn.steps]
        assert all(isinstance(action, ToolCall) for action in made)
        assert len(made) >= sum(map(len, result.task.reference))


def test_the_mask_separates_what_was_sampled_from_what_was_observed() -> None:
    policy = trained_policy()
    for result in play(made_tasks()[:20]):
        assert len(result.completion_ids) == len(result.logprobs) == len(result.mask)
        assert all(lp < 0 for lp, own in zip(result.logprobs, result.mask, strict=True) if own)
        assert all(lp == 0 for lp, own in zip(result.logprobs, result.mask, strict=True) if not own)
        assert result.sampled_tokens == sum(result.mask)
        parts = segments(result)
        assert parts[0][0] == parts[-1][0] == 1
        steps = [step for turn in result.turns for step in turn.steps]
        said = [policy.tokenizer.decode(ids) for mask, ids in parts if mask]
        answered = [policy.tokenizer.decode(ids) for mask, ids in parts if not mask]
        stopped = not result.turns[-1].ended and len(result.turns[-1].steps) == LIMITS.max_actions
        assert len(said) == len(steps) + sum(turn.ended for turn in result.turns) + stopped
        assert all(text.lstrip("\n").startswith(("O ", "U ")) for text in answered)


def test_token_in_token_out_the_episode_is_one_sequence_that_is_never_rendered_again() -> None:
    """A fresh dialogue, given the recorded actions and observations, makes the very ids that are trained on."""
    policy = trained_policy()
    for result in play(made_tasks()[:20]):
        tools = ENVIRONMENT.tools(result.task.tools)
        said = [UserTurn(index=i, text=turn.text, tools=result.task.tools) for i, turn in enumerate(result.turns)]
        answers = [step.observation for turn in result.turns for step in turn.steps]
        dialogue = policy.rendering.begin()
        ids = dialogue.first(said.pop(0), tools)
        assert ids == list(result.prompt_ids)
        actions = [ids for mask, ids in segments(result) if mask]
        for place, action in enumerate(actions):
            ids += action
            ended = isinstance(dialogue.parse(action), EndTurn)
            if place + 1 < len(actions):
                ids += dialogue.next_turn(said.pop(0), tools) if ended else dialogue.observe([answers.pop(0)])
        assert ids == [*result.prompt_ids, *result.completion_ids]
        assert not said


def test_several_user_turns_are_one_episode() -> None:
    two = next(made for made in made_tasks() if len(made.turns) == 2)
    (result,) = play([two], temperature=0.0)
    assert [turn.text for turn in result.turns] == list(two.turns)
    assert result.outcome is not None
    assert result.outcome.success
    suffixes = [trained_policy().tokenizer.decode(ids) for mask, ids in segments(result) if not mask]
    assert any(text.startswith("U ") for text in suffixes)


class Faulty:
    """The real environment, except that it fails for chosen tasks: when opened, or at the n-th step."""

    name = "bfcl"

    def __init__(self, at_open: str, at_step: str) -> None:
        self.at_open, self.at_step = at_open, at_step

    def open(self, spec: TaskSpec) -> Episode:
        assert isinstance(spec, Task)
        if spec.id == self.at_open:
            raise EnvironmentFault("the worker died")
        episode = ENVIRONMENT.open(spec)
        if spec.id == self.at_step:
            episode.step = self._fail  # type: ignore[method-assign]
        return episode

    def _fail(self, action: Action) -> Observation:
        raise EnvironmentFault(f"no answer to {type(action).__name__}")

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        return ENVIRONMENT.tools(names)

    def starts(self) -> tuple[StartState, ...]:
        return ENVIRONMENT.starts()


def test_a_fault_of_the_environment_belongs_to_its_own_episode_only() -> None:
    tasks = made_tasks()[:8]
    sound = play(tasks)
    shaken = play(tasks, world=Faulty(tasks[2].id, tasks[5].id))
    for place, (one, other) in enumerate(zip(sound, shaken, strict=True)):
        if place in (2, 5):
            assert other.outcome is None
            assert other.infrastructure_error is not None
            assert other.prompt_ids == one.prompt_ids
        else:
            assert (other.turns, other.outcome, other.completion_ids) == (one.turns, one.outcome, one.completion_ids)
            assert other.infrastructure_error is None
    assert "the worker died" in (shaken[2].infrastructure_error or "")
    assert shaken[2].completion_ids == ()
    assert "no answer to" in (shaken[5].infrastructure_error or "")
    assert all(shaken[5].mask)


def test_an_action_that_is_too_long_is_malformed_and_counted() -> None:
    (result,) = play([made_tasks()[0]], limits=EpisodeLimits(max_new_tokens=1, max_actions=3))
    actions = [step.action for step in result.turns[0].steps]
    assert len(actions) == 3
    assert all(isinstance(action, MalformedCall) and "cut off" in action.reason for action in actions)
    assert result.outcome is not None
    assert not result.outcome.success
    assert result.outcome.turns[0].malformed == 3
    assert not result.turns[0].ended
    assert sum(result.mask) == 4  # what was sampled after the last allowed action was not run


def test_after_its_last_allowed_action_the_policy_may_still_end_its_turn() -> None:
    results = play(made_tasks(), temperature=0.0, limits=EpisodeLimits(max_actions=2))
    two_calls = [r for r in results if len(r.turns[0].steps) == 2 and r.outcome is not None and r.outcome.success]
    assert two_calls
    assert all(result.turns[0].ended for result in two_calls)
    for result in play(made_tasks(), temperature=0.0, limits=EpisodeLimits(max_actions=1)):
        assert len(result.turns[0].steps) <= 1
        _, last = segments(result)[-1]
        assert result.turns[-1].ended == (trained_policy().tokenizer.decode(last) == "A end\n")


def test_the_token_budget_ends_the_episode() -> None:
    tasks = made_tasks()[:10]
    full = play(tasks)
    budget = max(len(result.prompt_ids) for result in full) + 6
    for result, whole in zip(play(tasks, limits=EpisodeLimits(max_tokens=budget)), full, strict=True):
        used = len(result.prompt_ids) + len(result.completion_ids)
        assert used <= budget
        assert result.outcome is not None
        if used < len(whole.prompt_ids) + len(whole.completion_ids):
            assert not result.turns[-1].ended
        else:
            assert result.completion_ids == whole.completion_ids
        assert result.mask[-1] == 1


LOOK, END = "A @pwd\n", "A end\n"


def scripted(*texts: str, world: Environment | None = None, **limits: int) -> EpisodeResult:
    """One episode of a task of two user turns in which the policy writes ``texts``."""
    policy = trained_policy()
    two = next(made for made in made_tasks() if len(made.turns) == 2 and "pwd" in made.tools)
    sampler = ScriptedSampler(lambda text: policy.tokenizer.encode(text, add_special_tokens=False), *texts)
    (result,) = run_episodes(policy, sampler, world or ENVIRONMENT, requests([two]), EpisodeLimits(**limits), 1.0)
    return result


def stops(result: EpisodeResult) -> list[StopReason | None]:
    return [turn.stop_reason for turn in result.turns]


def test_a_turn_that_the_policy_ends_stops_by_that() -> None:
    result = scripted(LOOK, END, END)
    assert stops(result) == [StopReason.END_OF_TURN] * 2
    assert count_stops(result.turns) == {StopReason.END_OF_TURN: 2}


def test_a_turn_stops_at_the_limit_that_was_reached() -> None:
    assert stops(scripted(END, LOOK, LOOK, LOOK, max_actions=2)) == [StopReason.END_OF_TURN, StopReason.ACTIONS]
    assert stops(scripted(LOOK, LOOK, LOOK, max_steps=3)) == [StopReason.EPISODE_STEPS]
    assert stops(scripted(LOOK, END, END, max_steps=2)) == [StopReason.END_OF_TURN, StopReason.EPISODE_STEPS]
    assert not scripted(LOOK, END, END, max_steps=2).outcome.success, "a turn that was not reached fails"
    assert stops(scripted(LOOK, END, END, max_steps=3)) == [StopReason.END_OF_TURN] * 2, "the last message may end it"
    whole = scripted(LOOK, LOOK, LOOK)
    begins = len(whole.prompt_ids)
    first = begins + whole.mask.index(0)
    assert stops(scripted(LOOK, LOOK, max_tokens=first)) == [StopReason.EPISODE_TOKENS]
    assert scripted(LOOK, LOOK, max_tokens=first).completion_ids == whole.completion_ids[: first - begins]


def test_a_message_that_is_cut_off_where_no_other_fits_is_told_from_an_episode_that_is_full() -> None:
    begins = len(scripted(LOOK).prompt_ids)
    rambling = LOOK.strip() * 30
    assert stops(scripted(rambling, max_new_tokens=8, max_tokens=begins + 9)) == [StopReason.MESSAGE_TOKENS]
    assert stops(scripted(rambling, max_new_tokens=8, max_tokens=begins + 7)) == [StopReason.EPISODE_TOKENS]
    cut = scripted(rambling, END, END, max_new_tokens=8)
    assert cut.turns[0].steps[0].observation.status == "malformed"
    assert stops(cut) == [StopReason.END_OF_TURN] * 2, "a cut message is answered where the episode has room"


def test_a_turn_that_the_environment_fails_stops_by_a_fault() -> None:
    two = next(made for made in made_tasks() if len(made.turns) == 2 and "pwd" in made.tools)
    assert stops(scripted(LOOK, END, END, world=Faulty("", two.id))) == [StopReason.FAULT]
    assert stops(scripted(LOOK, END, END, world=Faulty(two.id, ""))) == [], "no turn began"


def test_stop_reasons_are_those_of_the_limits_that_sampled_episodes_reach() -> None:
    for result in play(made_tasks()[:20], limits=EpisodeLimits(max_actions=1)):
        assert [turn.ended for turn in result.turns] == [s is StopReason.END_OF_TURN for s in stops(result)]
        assert {*stops(result)} <= {StopReason.END_OF_TURN, StopReason.ACTIONS, StopReason.EPISODE_TOKENS}
    dumped = result.turns[0].model_dump_json()
    assert '"stop_reason"' in dumped
    assert "stop_reason" not in result.turns[0].model_copy(update={"stop_reason": None}).model_dump_json()


def test_a_prompt_that_leaves_no_room_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match=r"task made-0 takes \d+ tokens.*raise max_tokens \(5\)"):
        play(made_tasks()[:1], limits=EpisodeLimits(max_tokens=5))


def test_no_request_no_result() -> None:
    assert play([]) == ()
