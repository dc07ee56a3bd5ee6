"""The study of the language model, at toy size: random models with a chat template run the arms that differ in kind.

The recipe is loaded as it ships; only sizes, the policy and the sets are overridden. A random model succeeds at
nothing: every part does its work, and the gates say that nothing can be learnt here.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support import ROOT
from support.chat_models import new_tokenizer, random_model, save, template
from support.commands import run_here

from environments.base import InputError
from environments.bfcl.benchmark import BENCHMARK
from environments.bfcl.official import CLASSES, tool_names
from environments.registry import parse_options
from evaluation.study.recipe import load_study
from evaluation.study.records import Place, read_result
from evaluation.study.schedule import check_settings, make_plan
from memory.records import FailureContext, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from training.grpo.record import RoundRecord
from training.rendering.tool_calls import tool_schema

pytestmark = [pytest.mark.slow, pytest.mark.process]

RECIPE = ROOT / "recipes" / "study-lm.yaml"
TOKENS = 30_000
SMALL = {
    "environment.options.classes": ["GorillaFileSystem", "TwitterAPI"],
    "policy.dtype": "float32",
    "training.expert": {"tokens": TOKENS, "initial": False, "replay": 0.5, "learning_rate": 1e-4},
    "training.steps": 3,
    "training.tasks_per_step": 2,
    "training.rollouts_per_task": 2,
    "training.micro_batch": None,
    "training.max_new_tokens": 400,
    "training.max_tokens": 8000,
    "training.max_episode_steps": 1,
    "signals.contexts_per_iteration": 4,
    "signals.rare_min_patterns": 1,
    "roles.exploration.rounds": 1,
}
QWEN3_1_7B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}
ARMS = ("starter", "static", "signals", "control", "grpo", "seal")


def toy(folder: Path) -> Path:
    """The study's recipe in ``folder`` with small sizes, and the policy that seed 100 starts from."""
    tools = BENCHMARK.open(parse_options(BENCHMARK, {})).tools(tool_names(CLASSES))
    chat = new_tokenizer(template("qwen3"), [json.dumps(tool_schema(tool)) for tool in tools], size=3000)
    save(folder / "start-100", random_model("qwen3", chat), chat)
    tree = yaml.safe_load(RECIPE.read_text())
    tree["settings"] |= {**SMALL, "policy.path": str(folder / "start-{seed}")}
    for arm in tree["arms"]:
        if "signals.functions" in arm.get("overrides", {}):
            arm["overrides"]["signals.functions"] = [["ls"], ["cd", "tail"]]
    tree["sets"] = {"dev": ["human-base-dev"], "test": ["human-base-test"]}
    tree["scoring"] = {"max_new_tokens": 8, "max_actions": 2, "limit": 1}
    (folder / "study.yaml").write_text(yaml.safe_dump(tree))
    return folder / "study.yaml"


@pytest.fixture(scope="module")
def study(preloaded: None, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The study's command on one arm of each kind, with seed 100 and one development turn."""
    folder = tmp_path_factory.mktemp("lm-study")
    place = ["--output", str(folder / "out"), "--work", str(folder / "work")]
    recipe = toy(folder)
    given = [str(recipe), *place, "--seeds", "100", "--arms", ",".join(ARMS), "--jobs", "2", "--keep-runs"]
    done = run_here("evaluation.study.__main__", *given)
    assert done.returncode == 0, done.stderr
    results = {arm: read_result(folder / "out" / "raw" / f"{arm}-100.jsonl.gz") for arm in ARMS}
    runs = {arm: RunDirectory.open(folder / "work" / f"{arm}-100" / "run") for arm in ARMS[1:]}
    return SimpleNamespace(recipe=recipe, results=results, runs=runs, report=done.stdout)


@pytest.mark.long
@pytest.mark.usefixtures("preloaded")
def test_arms_of_a_seed_start_alike_and_learn_from_as_many_tokens(study: SimpleNamespace) -> None:
    headers = {arm: result.header for arm, result in study.results.items()}
    assert len({one.initial_policy for one in headers.values()}) == 1
    assert all(one.initial_policy for one in headers.values())
    processed = {arm: [one.processed_tokens for one in headers[arm].iterations] for arm in ARMS[1:]}
    assert processed["grpo"] == processed["seal"] == [0, 0]
    for arm in ("static", "signals", "control"):
        first, second = processed[arm]
        assert first == 0
        assert TOKENS <= second < TOKENS + 8000
    first = {
        arm: [(one.task_id, one.turns) for one in read_jsonl(run.iteration(0).trajectories, Trajectory)]
        for arm, run in study.runs.items()
        if arm != "seal"
    }
    assert first["static"] == first["signals"] == first["control"] == first["grpo"]
    assert {len(rows) for rows in first.values()} == {12}
    assert {len({task for task, _ in rows}) for rows in first.values()} == {2}


@pytest.mark.long
@pytest.mark.usefixtures("preloaded")
def test_static_learns_from_people_alone_and_the_control_from_its_functions(study: SimpleNamespace) -> None:
    records = {arm: read_json(run.iteration(1).round, RoundRecord).expert for arm, run in study.runs.items()}
    assert (records["grpo"], records["seal"]) == (None, None)
    assert records["static"].references > 1
    contexts = read_jsonl(study.runs["control"].iteration(0).contexts, FailureContext)
    assert {one.focus_pattern for one in contexts} == {("ls",), ("cd", "tail")}


@pytest.mark.long
@pytest.mark.usefixtures("preloaded")
def test_the_report_says_first_that_a_random_model_makes_a_trial_void(study: SimpleNamespace) -> None:
    first = next(line for line in study.report.splitlines() if line and not line.startswith("<!--"))
    assert first.startswith("**The trial is void**: 7 of 7 gates failed (success of starter: 10 to 60 %, found 0.0;")
    assert "| success of control minus static: at least 5 points | 0.0 | 1 | failed |" in study.report
    assert "| through the model |" in study.report


@pytest.mark.long
@pytest.mark.usefixtures("preloaded")
def test_a_plan_reads_the_policy_of_the_first_seed(study: SimpleNamespace) -> None:
    done = run_here("graph.plan", str(study.recipe), "--arms", "signals", "--memory", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signals"]["policy"].endswith("start-100")


def test_the_shipped_recipe_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no policy was made
    shipped = load_study(RECIPE)
    place = Place(output=tmp_path / "out", work=tmp_path / "work")
    with pytest.raises(InputError, match=r"start-100 is not there: make one for each seed"):
        check_settings(make_plan(shipped, "dev", place, ("signals",), (100,)))
    assert [arm.seeds for arm in shipped.recipe.arms] == [8] * 6 + [4] * (len(shipped.recipe.arms) - 6)
    evolving = [
        arm
        for arm in shipped.recipe.arms
        if not arm.untrained and shipped.settings_of(arm, 100, ())["tasks"]["evolved_share"]
    ]
    assert {arm.match_admissions for arm in evolving} == {None, "signals"}
    assert [arm.name for arm in evolving if arm.match_admissions is None] == ["signals"]
    for arm in evolving:
        training = shipped.settings_of(arm, 100, ())["training"]
        assert training["steps"] % shipped.shared["tasks"]["repeats"] == 0
        assert training["expert"] in (None, shipped.shared["training"]["expert"]), arm.name
    assert {one.measure for one in shipped.recipe.gates} == {
        *("success", "mixed_groups", "forgetting", "boundary", "rare"),
    }
    assert [arm.name for arm in shipped.recipe.arms[:6]] == [
        *("starter", "static", "signals", "unguided", "random", "ours"),
    ], "the order in which a study that is short of time runs them"


def test_the_trial_for_a_gpu_fits_beside_its_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = Path("recipes/papers/fair-trial-gpu.yaml")
    study = load_study(path)
    own = study.shared["training"]
    assert isinstance(own, dict)
    assert (own["steps"] * 4, own["tasks_per_step"], own["rollouts_per_task"]) == (40, 16, 8)
    assert study.shared["memory"] == {"deduplicate": False}
    assert study.recipe.base == Path("recipes/papers/literal-bfcl.yaml")
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_1_7B))
    given = (str(path), "--config", str(tmp_path / "config.json"), "--device", "cuda", "--memory", "80", "--json")
    done = run_here("graph.plan", *given)
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)
    assert set(plans) == {"starter", "signals", "unguided", "grpo"}
    for name in ("signals", "unguided", "grpo"):
        trainer = plans[name]["memory"]["devices"][0]
        highest = sum(trainer["held"].values()) + sum(trainer["update"].values())
        assert highest < 0.45 * 80 * 2**30, "the policy's server has 0.3 of the GPU, that of the roles 0.25"
        assert plans[name]["forecast"]["rollouts"] == 40 * 16 * 8
