"""Settings of policy and training: what a recipe may say, and the sentence for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT

from environments.base import InputError
from graph.settings import load_recipe

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


PAPER = sorted((ROOT / "recipes").glob("paper-*.yaml"))


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "seal-bfcl").glob("*.yaml")), ids=lambda path: path.stem)
def test_seals_recipes_say_what_the_paper_states(path: Path) -> None:
    """Table 4, and what the released configurations add to it."""
    recipe = load_recipe(path)
    training = recipe.training
    assert (training.tasks_per_step, training.rollouts_per_task, training.updates_per_step) == (32, 8, 4)
    assert (training.learning_rate, training.weight_decay) == (1e-6, 0.01)
    assert (training.clip_low, training.clip_high, training.dual_clip, training.kl) == (0.2, 0.2, 10.0, 1e-3)
    assert (training.max_new_tokens, training.max_tokens, training.max_trained_tokens) == (4096, 16384, 4096)
    assert (training.max_episode_steps, training.strict_messages, training.loss) == (20, True, "grpo")
    assert (recipe.policy.path, recipe.policy.lora) == ("Qwen/Qwen2.5-7B-Instruct", None)
    assert (training.temperature, recipe.iterations * training.steps) == (1.0, 72)


def test_the_papers_recipes_differ_in_their_benchmark_alone() -> None:
    bfcl, appworld = (load_recipe(ROOT / "recipes" / f"paper-{name}.yaml") for name in ("bfcl", "appworld"))
    assert [path.stem for path in PAPER] == ["paper-appworld", "paper-bfcl"]
    assert (bfcl.environment.name, appworld.environment.name) == ("bfcl", "appworld")
    turn = {"max_actions": 30}  # a task has one user turn
    assert bfcl.training.model_copy(update=turn) == appworld.training
    for section in ("policy", "tasks", "signals", "roles", "iterations", "memory"):
        assert getattr(bfcl, section) == getattr(appworld, section), section


def test_the_papers_recipe_becomes_a_configuration_of_the_trainer(tmp_path: Path) -> None:
    """All but the GPU: TRL accepts the split of a step and counts it as one."""
    from training.grpo.record import RoundPlan
    from training.grpo.trl_run import trainer_config

    adapter = "policy.lora={rank: 32, alpha: 64, target_modules: null}"
    recipe = load_recipe(ROOT / "recipes" / "paper-bfcl.yaml", [adapter])
    assert recipe.policy.lora is not None
    assert recipe.training.micro_batch is not None
    plan = RoundPlan(run_seed=0, iteration=1, first_step=11, steps=(("task",) * 32,) * 10)
    config = trainer_config(recipe.training, plan, tmp_path, 10, on_cpu=True, bfloat16=True)
    assert config.bf16
    assert config.gradient_checkpointing
    assert config.per_device_train_batch_size == recipe.training.micro_batch
    assert config.generation_batch_size == 32 * 8
    assert config.gradient_accumulation_steps == config.steps_per_generation == 256 // recipe.training.micro_batch
    assert config.max_steps == 20
    assert config.disable_dropout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy.lora.target_modules=[]", "lora.target_modules: tuple should have at least 1 item"),
        ("training.micro_batch=3", "training: micro_batch is 3 and a step has 128 rollouts"),
        ("training.updates_per_step=3", "updates_per_step is 3 and a step has 16 tasks, whose groups stay whole"),
        ("training={updates_per_step: 2, micro_batch: 48}", "an update has 32 rollouts (tasks_per_step x rollouts_per"),
        ("training.clip_high=0.2", "'clip_high' is for updates_per_step above 1, updates_per_step: 1 would ignore it"),
        ("training={updates_per_step: 2, dual_clip: 1.1}", "dual_clip is 1.1 and clip_high 0.28"),
    ],
)
def test_each_mistake_is_told_in_one_sentence(override: str, message: str) -> None:
    with pytest.raises(InputError) as told:
        load_recipe(QUICKSTART, [override])
    assert message in str(told.value)
    assert "\n" not in str(told.value)
