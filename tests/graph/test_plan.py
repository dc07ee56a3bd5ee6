"""`coevolve plan`: what it prints, what it refuses and advises, and rates from a run that was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import run_here
from support.served_model import QWEN3_4B

from evaluation.study.recipe import read_study
from graph.fit import RecipePlan, forecast
from graph.plan import _arms
from graph.settings import load_recipe
from training.plan import GIB


def planned(*arguments: str) -> RecipePlan:
    done = run_here("graph.plan", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return RecipePlan.model_validate_json(done.stdout)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_4B))
    return str(path)


def test_the_quickstart_fits_and_its_counts_are_those_of_the_recipe() -> None:
    made = planned("--device", "cpu", "--memory", "16")
    assert (made.fits, made.memory and made.memory.parameters) == (True, 574_528)
    assert made.forecast is not None
    assert made.forecast.rollouts == 5 * 6 * 16 * 8
    assert made.forecast.sampled_tokens == made.forecast.rollouts * 512
    assert (made.forecast.hours, made.forecast.requests) == (None, 0)


def test_the_table_names_every_part_and_a_missing_rate() -> None:
    said = run_here("graph.plan", "recipes/grpo-base.yaml", "--device", "cpu").stdout
    for part in ("weights", "optimizer", "reference", "update: activations", "sampling: KV cache", "available"):
        assert part in said
    assert "not known: set plan.gpu_seconds" in said


def test_a_policy_of_the_hub_needs_its_configuration_and_downloads_nothing(config: str) -> None:
    recipe = ("recipes/paper-bfcl.yaml",)
    done = run_here("graph.plan", *recipe, "--set", "policy.path=nobody/has-this-model")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is downloaded here: give its config.json with --config FILE" in done.stderr
    served = ("--set", "sampling={engine: vllm_server, servers: ['http://a:1']}")
    made = planned(*recipe, "--config", config, "--device", "cuda", *served, "--memory", "500")
    assert made.memory is not None
    assert (made.memory.parameters, len(made.memory.devices)) == (4_022_468_096, 2)
    assert made.forecast is not None
    assert made.forecast.requests > 0
    assert planned(*recipe, "--device", "cuda", *served, "--memory", "500").memory == made.memory, "what ships of it"


def test_what_does_not_fit_is_refused_with_changes_that_do(config: str) -> None:
    given = ("recipes/paper-bfcl.yaml", "--config", config, "--device", "cuda", "--memory", "78")
    done = run_here("graph.plan", *given, "--json")
    made = RecipePlan.model_validate_json(done.stdout)
    assert (done.returncode, made.fits) == (2, False)
    *_, sentence = done.stderr.splitlines()
    assert "does not fit: the trainer needs" in sentence
    assert made.advice
    assert made.advice in sentence
    assert planned(*given, *_settings(made.advice)).fits


def test_changes_that_fit_on_cpu_leave_the_update_what_it_was() -> None:
    done = run_here("graph.plan", "--device", "cpu", "--memory", "2", "--json")
    made = RecipePlan.model_validate_json(done.stdout)
    assert done.returncode == 2
    assert made.advice is not None
    assert made.advice.startswith("training.micro_batch=")
    assert planned("--device", "cpu", "--memory", "2", "--set", made.advice).fits


def test_no_change_that_fits_is_said() -> None:
    done = run_here("graph.plan", "--device", "cpu", "--memory", "0.5")
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("choose a smaller policy or a larger device, or more of them")


def test_signals_of_the_last_step_alone_are_reflected_on() -> None:
    settings = load_recipe(Path("recipes/paper-bfcl.yaml"))
    assert settings.signals.last_steps == 1
    contexts = 12 * (32 * 8 * 3)  # iterations, and the rollouts of one step by kind of signal
    assert forecast(settings).requests == contexts * (1 + 3 * 10 + 1) + 100 * (3 * 10 + 1)
    drafts = settings.roles.exploration.drafts_per_context
    cut = load_recipe(Path("recipes/paper-bfcl.yaml"), ["roles.exploration.references=cut"])
    worded = drafts * 2 * 2 * 2  # cuts, wordings, and each is read
    assert forecast(cut).requests == contexts * (1 + 3 * 10 + worded) + 100 * (3 * 10 + worded)


def test_memory_is_said_in_gibibytes() -> None:
    assert planned("--device", "cpu", "--memory", "16").available == 16 * GIB


def test_a_study_has_a_row_for_each_arm_that_is_chosen() -> None:
    machine = ("--set", "@recipes/machines/node-8x80gb.yaml")
    given = ("recipes/papers/coevolve-bfcl.yaml", "--arms", "grpo,starter", "--set", "iterations=2", *machine)
    done = run_here("graph.plan", *given, "--json")
    assert done.returncode == 0, done.stderr
    arms = {name: RecipePlan.model_validate(one) for name, one in json.loads(done.stdout).items()}
    assert list(arms) == ["grpo", "starter"]
    grpo, starter = arms.values()
    assert grpo.forecast is not None
    assert grpo.forecast.rollouts == 2 * 10 * 32 * 8
    assert grpo.memory is not None
    assert starter.forecast is None, "it is scored alone"
    hours = 5120 * 11.8 / 3600  # table 7 of the paper, by recipes/papers/literal-bfcl.yaml
    assert (grpo.forecast.gpu_hours, grpo.forecast.hours) == pytest.approx((hours, hours / 8))
    said = run_here("graph.plan", *given, "--seeds", "3").stdout
    assert all(amount in said for amount in ("5,120", "15,360", f"{hours:.1f}", f"{3 * hours:.1f}"))
    done = run_here("graph.plan", "recipes/papers/coevolve-bfcl.yaml", "--arms", "none")
    assert (done.returncode, "choose from grpo, full, starter" in done.stderr) == (2, True)


def test_a_recipe_of_a_run_has_no_arms() -> None:
    done = run_here("graph.plan", "recipes/quickstart.yaml", "--seeds", "2")
    assert (done.returncode, "is not a study: --arms and --seeds choose of one" in done.stderr) == (2, True)


def test_a_study_says_what_differences_it_can_show() -> None:
    machine = ("--set", "@recipes/machines/node-8x80gb.yaml")
    given = ("recipes/papers/coevolve-bfcl.yaml", "--arms", "grpo,full", *machine)
    one, four = (run_here("graph.plan", *given, "--seeds", seeds).stdout for seeds in ("1", "4"))
    assert "base@test: 1 seed on 118 clusters of 118 tasks shows a difference of 10.6 points with 80 % power" in one
    assert "base@test: 4 seeds on 118 clusters of 118 tasks show a difference of 9.1 points" in four
    alone = run_here("graph.plan", "recipes/papers/coevolve-bfcl.yaml", "--arms", "full", *machine).stdout
    assert "points" not in alone, "one arm is compared with none"


def test_requests_of_roles_are_of_the_contexts_that_there_are() -> None:
    def requests(*changes: str) -> int:
        return forecast(load_recipe(Path("recipes/papers/literal-bfcl.yaml"), changes)).requests

    each = 1 + 3 * 10 + 1 + (30 + 1)  # one reflection, three runs of ten steps, one abstraction, one validation
    initial = 100 * (each - 1)
    assert requests() == 12 * 238 * each + initial, "the mean of figure 3b"
    assert requests("signals.contexts_per_iteration=1") == 12 * each + initial
    made = forecast(load_recipe(Path("recipes/papers/literal-bfcl.yaml")))
    assert made.roles_money == pytest.approx((made.prompt_tokens * 1.2 + made.completion_tokens * 6) / 1e6)


def test_an_arm_replaces_a_section_of_which_the_study_states_a_key(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "base: recipes/grpo-base.yaml\nsettings: {training.seal: {}, training.seal.weights: {dynamic: true}}\n"
        "sets: {dev: [templated-dev], test: [templated-test]}\n"
        "arms: [{name: grpo, description: none, overrides: {training.seal: null}}, {name: seal, description: some}]\n"
    )
    arms = _arms(study, read_study(study)[0], None, [])
    assert arms["grpo"][0].training.seal is None
    assert arms["seal"][0].training.seal is not None
    assert arms["seal"][0].training.seal.weights.dynamic


def test_a_policy_that_is_not_there_is_a_mistake_in_a_study_too(tmp_path: Path) -> None:
    given = ("recipes/papers/coevolve-bfcl.yaml", "--set", f"policy.path={tmp_path / 'none'}")
    done = run_here("graph.plan", *given)
    assert (done.returncode, "none does not exist" in done.stderr) == (2, True)


def _settings(advice: str) -> list[str]:
    """The options of one piece of advice, as the command takes them."""
    words = advice.replace("{rank: 16}", "{rank:16}").split()
    return [word for one in words for word in ("--set", one.replace("rank:16", "rank: 16"))]


def test_memory_is_not_counted_of_rounds_that_another_engine_trains() -> None:
    """Neither a fit nor a refusal can be said of machines that the recipe does not name."""
    given = ("recipes/quickstart.yaml", "--memory", "0.1", "--set", "training.elsewhere={engine: prime-rl, output: x}")
    more = ("--set", "training.expert=null")
    made = planned(*given, *more)
    assert (made.memory, made.fits, made.elsewhere) == (None, None, "prime-rl")
    said = run_here("graph.plan", *given, *more).stdout
    assert "memory is not counted: prime-rl trains the rounds, on machines of its own" in said
    assert "sampled tokens" in said
