"""Turns in which nothing can be called yet, as a policy plays them: what it reads, and which episodes succeed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bfcl_tasks import ENVIRONMENT, FILES, call
from support.chat_models import save_model
from support.scripted_sampler import ScriptedSampler
from support.written_tasks import draft

from environments.base import Environment, TaskSpec, ToolCall
from environments.example import depot
from memory.records import Task
from training.rendering.base import ASKS_BACK, DONE, EndTurn
from training.rollout.episodes import EpisodeLimits, EpisodeRequest, EpisodeResult, play_references, run_episodes
from training.rollout.policy import Policy, load_policy

DEPOT = depot(starts=1)
WIDE = EpisodeLimits(max_new_tokens=200, max_tokens=30000)
ASK = EndTurn(text="Which one?")
MAKE, LOAD = call("mkdir", dir_name="old notes"), call("load_parcel", label="lamp", van="north")
NOW = "You can do that now, please."


def task(spec: TaskSpec, **changes: object) -> Task:
    return Task(**dict(spec.model_copy(update=changes)), id="t", origin="seed")


def parcels(*turns: str, **changes: object) -> Task:
    start = DEPOT.starts()[0]
    state = {"Depot": {"parcels": {"lamp": {"kilograms": 3}, "seeds": {"kilograms": 2}}, "gate_open": False}}
    spec = {"turns": turns, "reference": ((), (LOAD,)), "initial_state": state}
    return task(TaskSpec.model_validate({**start.model_dump(exclude={"id"}), **spec}), **changes)


FILE_TASK = draft(FILES, ("Make a directory.", []), ("Call it 'old notes'.", [("mkdir", {"dir_name": "old notes"})]))
TASKS: dict[str, tuple[Environment, Task]] = {
    "bfcl, detail": (ENVIRONMENT, task(FILE_TASK)),
    "bfcl, tool": (ENVIRONMENT, task(FILE_TASK, turns=("Make 'old notes'.", NOW), withheld={1: ("mkdir",)})),
    "depot, detail": (DEPOT, parcels("Put one parcel into the north van.", "The lamp.")),
    "depot, tool": (DEPOT, parcels("Put the lamp into the north van.", NOW, withheld={1: ("load_parcel",)})),
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_policy(str(save_model(folder, "qwen2_5")), "cpu")


def sampled(policy: Policy, name: str, *actions: ToolCall | EndTurn) -> EpisodeResult:
    environment, made = TASKS[name]
    dialogue = policy.rendering.begin()
    dialogue.first(environment.open(made).start(), environment.tools(made.tools))
    sampler = ScriptedSampler(lambda place: dialogue.demonstrate(actions[int(place)]), *map(str, range(len(actions))))
    (result,) = run_episodes(policy, sampler, environment, [EpisodeRequest(task=made, seed=0)], WIDE, 0.0)
    return result


@pytest.mark.parametrize("name", TASKS)
def test_the_reference_says_that_it_cannot_before_it_can(policy: Policy, name: str) -> None:
    environment, made = TASKS[name]
    ((result,), tool) = play_references(policy, environment, [made], WIDE), made.reference[1][0].name
    assert result.outcome is not None
    assert result.outcome.success
    read, said = policy.tokenizer.decode(result.prompt_ids), policy.tokenizer.decode(result.completion_ids)
    assert (said.index(ASKS_BACK), said.count(DONE)) == (0, 1)
    assert (f'"name": "{tool}"' in read) is not bool(made.withheld)
    assert (f'"name": "{tool}", "description"' in said) is bool(made.withheld)


@pytest.mark.parametrize(
    ("name", "guess", "passes"),
    [
        ("bfcl, detail", None, True),
        ("bfcl, detail", call("ls"), True),
        ("bfcl, detail", call("mkdir", dir_name="new"), False),
        ("bfcl, tool", None, True),
        ("bfcl, tool", call("touch", file_name="old notes"), False),
        ("depot, detail", None, True),
        ("depot, detail", call("list_parcels"), True),
        ("depot, detail", call("load_parcel", label="seeds", van="north"), False),
        ("depot, tool", None, True),
        ("depot, tool", LOAD, True),
        ("depot, tool", call("open_gate"), False),
    ],
)
def test_an_agent_that_asks_back_or_looks_succeeds_and_one_that_guesses_does_not(
    policy: Policy, name: str, guess: ToolCall | None, passes: bool
) -> None:
    actions = [*([guess] if guess else []), ASK, TASKS[name][1].reference[1][0], EndTurn()]
    outcome = sampled(policy, name, *actions).outcome
    assert outcome is not None
    assert outcome.success is passes
    assert [turn.calls for turn in outcome.turns] == [int(guess is not None), 1]


@pytest.mark.parametrize("name", TASKS)
def test_an_agent_that_does_nothing_fails(policy: Policy, name: str) -> None:
    outcome = sampled(policy, name, ASK, ASK).outcome
    assert outcome is not None
    assert not outcome.success


def test_a_tool_that_is_withheld_cannot_be_called_early(policy: Policy) -> None:
    result = sampled(policy, "depot, tool", LOAD, ASK, EndTurn())
    assert result.outcome is not None
    assert not result.outcome.success
    assert result.turns[0].steps[0].observation.failed
