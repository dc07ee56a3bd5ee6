"""Rounds of models with real chat templates, from settings to the checkpoint that evaluation loads."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chat_models import save_model
from support.late import Late
from support.small_policy import small_settings, small_tasks

from environments.base import MalformedCall, UserTurn
from environments.bfcl.official import all_tools
from memory.records import Trajectory
from memory.run import RunDirectory, read_jsonl
from memory.tasks import admit
from training.grpo.round import run_round
from training.rollout.policy import load_policy
from training.settings import RenderingOptions

pytestmark = pytest.mark.slow

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")
torch = Late("torch")

LORA = {"rank": 4}
SPOKEN = {"thinking": False, "documentation": "lines", "tools_shown": 1}


def rounds(folder: Path, template: str, count: int, policy: dict[str, object], **training: object) -> SimpleNamespace:
    """``count`` rounds of one step, in this process."""
    starter = save_model(folder / "starter", template, initializer_range=0.2)
    given = {"steps": 1, "rollouts_per_task": 4, "max_new_tokens": 8, "max_tokens": 3000, "max_actions": 2, **training}
    settings = small_settings(starter, **given)
    settings = settings.model_copy(
        update={"policy": settings.policy.model_validate({**settings.policy.model_dump(), **policy})}
    )
    run = RunDirectory.create(folder / "run", settings)
    # Two tools each keep the prompts of a tokenizer with few merges short.
    admit(run, [task.model_copy(update={"tools": (task.reference[0][0].name, "find")}) for task in small_tasks()])
    reported: list = []
    records = [run_round(run.root, number, False, reported.append)[0] for number in range(count)]
    return SimpleNamespace(run=run, starter=starter, records=records, reported=reported)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Two rounds of Qwen3 with an adapter, without thinking, in micro-batches, one of two functions shown as a line."""
    policy = {"lora": LORA, **SPOKEN}
    folder = tmp_path_factory.mktemp("qwen3")
    return rounds(folder, "qwen3", 2, policy, micro_batch=2, gradient_checkpointing=True)


def test_rounds_with_an_adapter_follow_each_other(adapted: SimpleNamespace) -> None:
    assert [record.policy for record in adapted.records] == ["policy/checkpoint-1", "policy/checkpoint-2"]
    assert [line.step for line in adapted.reported] == [1, 1]
    assert [record.steps[0].rollouts for record in adapted.records] == [8, 8]
    assert adapted.records[0].kl == pytest.approx(0.0, abs=1e-6)
    optimizer = torch.load(adapted.run.root / "policy/checkpoint-2/optimizer.pt", weights_only=True)
    assert {int(entry["step"]) for entry in optimizer["state"].values()} == {2}


def test_what_a_random_model_says_is_malformed_or_a_message(adapted: SimpleNamespace) -> None:
    trajectories = read_jsonl(adapted.run.iteration(0) / "trajectories.jsonl", Trajectory)
    actions = [step.action for t in trajectories for turn in t.turns for step in turn.steps]
    assert actions
    assert all(isinstance(action, MalformedCall) for action in actions)
    for trajectory in trajectories:
        assert trajectory.outcome is not None
        assert sum(turn.malformed for turn in trajectory.outcome.turns) == sum(len(t.steps) for t in trajectory.turns)
        assert trajectory.reward == 0.0


def test_a_checkpoint_speaks_as_it_was_trained(adapted: SimpleNamespace) -> None:
    """Its template, its stop ids and the options of its prompts are those of the rounds."""
    loaded = load_policy(str(adapted.run.root / adapted.records[-1].policy), "cpu")
    trained = load_policy(str(adapted.starter), "cpu", options=RenderingOptions.model_validate(SPOKEN))
    assert loaded.adapter
    assert loaded.card is not None
    assert loaded.card.given_options == SPOKEN
    assert loaded.rendering.begin().stop_ids == trained.rendering.begin().stop_ids
    assert len(loaded.rendering.begin().stop_ids) == 2
    tools = [all_tools()[name] for name in ("pwd", "find")]
    turn = UserTurn(index=0, text="find it", tools=("pwd", "find"))
    prompts = [one.rendering.begin().first(turn, tools) for one in (loaded, trained)]
    assert prompts[0] == prompts[1]
    shown = loaded.tokenizer.decode(prompts[0])
    assert shown.endswith("<think>\n\n</think>\n\n")
    assert "find(" in shown
    assert "pwd(" not in shown


def test_a_round_of_all_weights(tmp_path: Path) -> None:
    """The checkpoint holds a whole model that needs no card and ends messages with the same tokens."""
    done = rounds(tmp_path, "llama3_1", 1, {})
    loaded, trained = (load_policy(str(p), "cpu") for p in (done.run.root / done.records[0].policy, done.starter))
    assert (loaded.adapter, loaded.card) == (False, None)
    assert loaded.rendering.begin().stop_ids == trained.rendering.begin().stop_ids
    assert loaded.rendering.prompt("hello", []) == trained.rendering.prompt("hello", [])


def test_an_adapter_learns_from_references_before_its_first_rollout(tmp_path: Path) -> None:
    learns = {"passes": 6, "learning_rate": 1e-2}
    limits = {"max_new_tokens": 160, "rollouts_per_task": 2, "tasks_per_step": 1, "micro_batch": 1}
    policy = {"lora": LORA, "thinking": False}
    (record,) = rounds(tmp_path, "qwen3", 1, policy, expert=learns, gradient_checkpointing=True, **limits).records
    assert record.expert is not None
    assert (record.expert.references, record.expert.left_out, record.expert.updates) == (5, 0, 18)
    assert record.expert.last_loss < 0.9 * record.expert.first_loss
    assert record.kl > 1e-3, "the policy that sampled is still the initial one"
