"""Estimates by hand-counted recipes, and what a machine refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.base import InputError
from evaluation.papers import machine
from evaluation.papers.catalogue import Part, Preparation, StudyPlan, load_catalogue, recipe_at
from evaluation.papers.estimate import Rates, billions_of, estimate, gpu_gib, money
from evaluation.papers.machine import (
    Machine,
    analysis_refusals,
    evaluation_refusals,
    set_size,
    study_refusals,
    this_machine,
)

CHAT = {"kind": "chat", "model": "big"}
BASE: dict[str, Any] = {
    "iterations": 12,
    "environment": {"name": "bfcl"},
    "policy": {"path": "Qwen/Qwen3-4B-Instruct", "device": "cuda", "lora": None},
    "training": {"steps": 10, "tasks_per_step": 32, "rollouts_per_task": 8},
    "signals": {"contexts_per_iteration": 20},
    "roles": {
        "reflector": CHAT,
        "explorer": CHAT,
        "abstractor": CHAT,
        "exploration": {"rounds": 3, "steps": 10},
    },
    "tasks": {"initial_count": 100},
}
RATES = Rates(
    gpu_seconds_per_rollout={"bfcl": 36.0},
    billions=4,
    signals_per_evolution=238,
    tasks_per_signal=0.5,
    prompt_tokens=1000,
    completion_tokens=100,
)
BIG = Machine(gpus=8, gpu_gib=8 * 90, vllm=True, variables=frozenset({"OPENAI_API_KEY", "OPENAI_BASE_URL"}))
NONE = Machine(gpus=0, gpu_gib=0, vllm=False, variables=frozenset())


def plan(folder: Path, *arms: dict[str, Any], base: dict[str, Any] = BASE, **fields: Any) -> StudyPlan:
    (folder / "base.yaml").write_text(json.dumps(base))
    return StudyPlan.model_validate(
        {"base": folder / "base.yaml", "sets": {"dev": ["base@dev"], "test": ["base@test"]}, "arms": arms} | fields
    )


def seventeen(environment: str, name: str) -> int:
    return 17


def present(environment: str, name: str) -> None:
    """Everything is here."""


def test_the_papers_run_is_counted_by_hand(tmp_path: Path) -> None:
    """120 steps of 32 x 8 are 30,720 rollouts. A context takes 1 + 3 x 10 + 1 requests, one of D_0 one less."""
    found = estimate(plan(tmp_path, {"name": "grpo", "seeds": 2}), ["base@dev"], seventeen, RATES)
    assert (found.runs, found.rollouts, found.attempts) == (2, 61_440, 34)
    assert found.gpu_hours == pytest.approx((61_440 + 34) * 36 / 3600)
    assert found.requests == 2 * (12 * 20 * 32 + 200 * 31)
    assert (found.prompt_tokens, found.completion_tokens) == (found.requests * 1000, found.requests * 100)
    assert found.money is None


def test_an_untrained_arm_costs_its_attempts_alone(tmp_path: Path) -> None:
    found = estimate(plan(tmp_path, {"name": "zero", "seeds": 3, "untrained": True}), ["a", "b"], seventeen, RATES)
    assert (found.runs, found.rollouts, found.attempts, found.requests) == (0, 0, 3 * 34, 0)


@pytest.mark.parametrize(
    ("overrides", "requests"),
    [
        ({"tasks.initial": "d0.jsonl"}, 12 * 20 * 32),
        ({"tasks.initial": "d0.jsonl", "signals.contexts": "unguided"}, 12 * 20 * 31),
        ({"tasks.initial": "d0.jsonl", "signals.contexts_per_iteration": None}, 12 * 238 * 32),
        ({"tasks.initial": "d0.jsonl", "roles.explorer": {"kind": "scripted"}}, 12 * 20 * 2),
        ({"tasks.initial": "d0.jsonl", "roles.validator": CHAT}, 12 * 20 * (32 + 3 * 30)),
        ({"tasks.initial": "d0.jsonl", "roles.validator": CHAT, "verification.enabled": False}, 12 * 20 * 32),
        ({"roles": {}}, 0),
    ],
    ids=["given", "unguided", "every-signal", "scripted", "validated", "unverified", "no-model"],
)
def test_requests_follow_the_roles(overrides: dict[str, Any], requests: int, tmp_path: Path) -> None:
    arm = {"name": "grpo", "seeds": 1, "overrides": overrides}
    assert estimate(plan(tmp_path, arm), ["base@dev"], seventeen, RATES).requests == requests


def test_a_shared_first_task_set_is_paid_once(tmp_path: Path) -> None:
    made = plan(tmp_path, {"name": "grpo", "seeds": 4, "overrides": {"tasks.initial": "d0.jsonl"}})
    before = estimate(made, ["a"], seventeen, RATES).requests
    prepare = [Preparation(output=Path("d0.jsonl"), recipe=made.base, count=50)]
    assert estimate(made, ["a"], seventeen, RATES, prepare).requests == before + 100 * 31


def test_a_run_that_scores_itself_and_a_limit(tmp_path: Path) -> None:
    arm = {"name": "grpo", "seeds": 1, "overrides": {"evaluation.set": "base@dev"}}
    assert estimate(plan(tmp_path, arm), ["a"], seventeen, RATES).attempts == 17 + 13 * 17
    assert estimate(plan(tmp_path, arm, limit=5), ["a"], seventeen, RATES).attempts == 5 + 13 * 17


def test_a_larger_model_costs_in_proportion_and_an_unknown_one_is_not_guessed(tmp_path: Path) -> None:
    def hours(**policy: Any) -> float | None:
        arm = {"name": "grpo", "seeds": 1, "overrides": {f"policy.{key}": value for key, value in policy.items()}}
        return estimate(plan(tmp_path, arm), ["a"], seventeen, RATES).gpu_hours

    small, large = hours(), hours(path="Qwen/Qwen3-30B-A3B")
    assert small is not None
    assert large == pytest.approx(small * 7.5)
    assert hours(path="mine") is None
    assert hours(device="cpu") == 0.0


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7.0),
        ("Qwen/Qwen3-4B-Instruct-2507", 4.0),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.0),
        ("Team-ACE/ToolACE-2-Llama-3.1-8B", 8.0),
        ("org/model-0.6b", 0.6),
        ("recipes/starter", None),
        ("models-7B/mine", None),
    ],
)
def test_the_size_is_read_from_the_models_name(name: str, billions: float | None) -> None:
    assert billions_of(name) == billions


def test_memory_is_by_parameters_and_adapter() -> None:
    whole = {"policy": {"path": "x-4B", "lora": None}}
    assert gpu_gib(whole) == pytest.approx(4e9 * 18 * 1.2 / 2**30)
    adapter = gpu_gib({"policy": {"path": "x-4B", "lora": {"rank": 32}}})
    assert adapter is not None
    assert adapter < 12
    assert gpu_gib({"policy": {"path": "mine"}}) is None


def test_money_needs_the_prices_of_what_is_used() -> None:
    priced = RATES.model_copy(update={"price_gpu_hour": 2.0, "price_prompt": 1.0, "price_completion": 4.0})
    assert money(10, 3e6, 1e6, priced) == pytest.approx(20 + 3 + 4)
    assert money(0, 3e6, 1e6, priced.model_copy(update={"price_gpu_hour": None})) == pytest.approx(7)
    assert money(10, 3e6, 1e6, priced.model_copy(update={"price_prompt": None})) is None


def test_recorded_rates_have_sources_and_the_papers_numbers() -> None:
    rates = load_catalogue().rates
    for seconds, name in ((45_144, "bfcl"), (100_596, "appworld")):
        assert rates.gpu_seconds_per_rollout[name] == pytest.approx(seconds * 8 / (120 * 256), abs=0.05)
    assert rates.signals_per_evolution == (269 + 256 + 223 + 204) / 4
    assert rates.tasks_per_signal == pytest.approx((0.71 + 0.85 + 0.74 + 0.80) / 4)
    assert set(rates.sources) == set(Rates.model_fields) - {"price_gpu_hour", "price_prompt", "price_completion"}
    own = Rates.recorded(rates, prompt_tokens=5.0)
    assert (own.prompt_tokens, own.billions) == (5.0, rates.billions)


def test_a_machine_with_everything_refuses_nothing(tmp_path: Path) -> None:
    part = Part(name="a", recipe=Path("x"), vllm=True)
    assert study_refusals(plan(tmp_path, {"name": "grpo"}), ["a"], part, BIG, present) == ()


def test_each_thing_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    def missing(environment: str, name: str) -> None:
        raise InputError(f"{name} of {environment} is missing: download it")

    made = plan(
        tmp_path,
        {"name": "grpo", "overrides": {"tasks.initial": "mine.jsonl"}},
        {"name": "full", "overrides": {"tasks.initial": "d0.jsonl"}},
    )
    prepare = (Preparation(output=Path("d0.jsonl"), recipe=made.base, count=1),)
    found = study_refusals(made, ["base@dev"], Part(name="a", prepare=prepare, vllm=True), NONE, missing)
    assert len(found) == len(set(found)) == 6
    assert found[0].startswith("Qwen/Qwen3-4B-Instruct is trained on a GPU and this machine has none")
    assert "tasks.initial: mine.jsonl is missing" in found[1]
    assert found[2] == "base@dev of bfcl is missing: download it"
    roles = "roles.reflector (big), roles.explorer (big), roles.abstractor (big)"
    assert found[3] == f"OPENAI_API_KEY is not set, the key of {roles}: set it"
    assert found[4].startswith(f"no endpoint is named for {roles}: set OPENAI_BASE_URL")
    assert found[-1].endswith("is missing: run `make vllm`")


@pytest.mark.parametrize(
    ("policy", "gib", "refused"),
    [
        ({"path": "x-4B", "lora": None}, 80, True),
        ({"path": "x-4B", "lora": None}, 96, False),
        ({"path": "x-4B", "lora": {"rank": 8}}, 24, False),
        ({"path": "mine", "lora": None}, 1, False),
    ],
)
def test_memory_of_all_gpus_must_hold_the_policy(
    policy: dict[str, Any], gib: float, refused: bool, tmp_path: Path
) -> None:
    base = BASE | {"policy": {**policy, "device": "cuda"}}
    machine = BIG.model_copy(update={"gpus": 1, "gpu_gib": gib})
    found = study_refusals(plan(tmp_path, {"name": "grpo"}, base=base), ["a"], Part(name="a"), machine, present)
    assert bool(found) == refused
    assert not refused or "GiB of GPU memory and this machine has 80" in found[0]


def test_a_study_on_the_cpu_with_scripted_roles_needs_nothing(tmp_path: Path) -> None:
    base = {"policy": {"device": "cpu"}, "roles": {}}
    assert study_refusals(plan(tmp_path, {"name": "grpo"}, base=base), ["a"], Part(name="a"), NONE, present) == ()


def test_a_missing_base_is_named_once(tmp_path: Path) -> None:
    made = plan(tmp_path, {"name": "grpo"}, {"name": "full"})
    made.base.unlink()
    (found,) = study_refusals(made, ["a"], Part(name="a"), BIG, present)
    assert "base.yaml: cannot read this recipe" in found


def test_an_evaluation_needs_its_variables_and_an_analysis_its_inputs(tmp_path: Path) -> None:
    part = Part(name="a", command=("x",), environment="bfcl", sets=("base@dev",), variables=("MY_KEY",), gpu=True)
    assert evaluation_refusals(part, NONE, present) == (
        "MY_KEY is not set: set it",
        "it is scored on a GPU and this machine has none: run it on a machine with GPUs",
    )
    (tmp_path / "here").touch()
    found = analysis_refusals([tmp_path / "here", tmp_path / "there"], "coevolve papers T2 --run")
    assert found == (f"{tmp_path / 'there'} is missing: run coevolve papers T2 --run first",)


def test_sets_are_counted_without_being_scored() -> None:
    assert set_size("bfcl", "templated-dev") == 102
    assert set_size("bfcl", "base@dev") == 17
    assert set_size("bfcl", "base@test") == 118
    with pytest.raises(InputError, match="no such category"):
        set_size("bfcl", "bass@dev")


def test_this_machine_is_asked() -> None:
    found = this_machine({"A": "x", "B": ""})
    assert found.variables == {"A"}
    assert (found.gpus > 0) == (found.gpu_gib > 0)


def test_torch_is_asked_for_gpus_where_a_driver_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its import takes seconds, which a list of tables does not have."""
    monkeypatch.setattr(machine, "_memory_of_gpus", lambda: (2**30, 2**30))
    driver = str(tmp_path / "driver")
    assert this_machine({}, [driver]).gpus == 0
    Path(driver).touch()
    found = this_machine({}, ["/dev/none", driver])
    assert (found.gpus, found.gpu_gib) == (2, 2.0)


def test_a_recipe_is_read_again_once_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("seed: 1")
    assert recipe_at(path) == {"seed": 1}
    path.write_text("seed: 12")
    assert recipe_at(path) == {"seed": 12}
    path.unlink()
    with pytest.raises(InputError, match="cannot read this recipe"):
        recipe_at(path)
