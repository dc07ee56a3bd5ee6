"""The arms of the study for a pretrained model, at toy size: a random Qwen3 with its chat template runs each of them.

The recipes are loaded as they ship; only sizes, the policy and the sampler are overridden. A random model succeeds at
nothing. Nothing is shown to be learnt: every part does its work.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import yaml
from support import ROOT
from support.chat_models import new_tokenizer, random_model, save, template
from support.commands import run_here

from environments.bfcl.benchmark import BENCHMARK
from environments.bfcl.docs import tool_names
from environments.bfcl.package import CLASSES
from environments.registry import parse_options
from evaluation.study.records import ArmResult, read_result
from memory.records import FailureContext, Unsignalled
from memory.run import RunDirectory, read_json, read_jsonl
from training.grpo.record import RoundRecord
from training.rendering.tool_calls import tool_schema

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long, pytest.mark.usefixtures("preloaded")]

RECIPE = ROOT / "recipes" / "study-world-gpu.yaml"
WORLD = ROOT / "recipes" / "study-world.yaml"
SMALL = {
    "iterations": 2,
    "environment.options.classes": ["MathAPI"],
    "policy.device": "cpu",
    "policy.dtype": "float32",
    "sampling.engine": "in_process",
    "tasks.initial_count": 4,
    "training.steps": 1,
    "training.tasks_per_step": 2,
    "training.rollouts_per_task": 2,
    "training.max_new_tokens": 120,
    "training.max_actions": 3,
    "signals.contexts_per_iteration": 2,
    "roles.exploration.rounds": 1,
    "roles.exploration.drafts_per_context": 2,
    "roles.exploration.compositions": 1,
}
MAIN = ("grpo", "ours", "random", "coverage")
FURTHER = ("signals", "unguided", "seal", "coevolve-seal")
"""Arms of the embedded policy's study, one of each kind that the recipe for a GPU does not have."""
ARMS = (*MAIN, *FURTHER)


@pytest.fixture(scope="module")
def study(preloaded: None, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The study's command on all arms, with seed 100 and one task of one development set."""
    folder = tmp_path_factory.mktemp("chat-study")
    tools = BENCHMARK.open(parse_options(BENCHMARK, {})).tools(tool_names(CLASSES))
    chat = new_tokenizer(template("qwen3"), [json.dumps(tool_schema(tool)) for tool in tools], size=3000)
    policy = save(folder / "policy", random_model("qwen3", chat), chat)
    tree = yaml.safe_load(RECIPE.read_text())
    tree["settings"] = {**tree.get("settings", {}), **SMALL, "policy.path": str(policy)}
    assert [arm["name"] for arm in tree["arms"]] == list(MAIN)
    further = (arm for arm in yaml.safe_load(WORLD.read_text())["arms"] if arm["name"] in FURTHER)
    tree["arms"] += [{**arm, "seeds": 1} for arm in further]
    tree["sets"] = {"dev": ["world-dev"], "test": ["world-test"]}
    tree["limit"] = 1
    tree["scoring"] = {"max_new_tokens": 8, "max_actions": 2}
    recipe = folder / "study.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    place = ["--output", str(folder / "out"), "--work", str(folder / "work")]
    done = run_here("evaluation.study.__main__", str(recipe), *place, "--seeds", "100", "--jobs", "2", "--keep-runs")
    assert done.returncode == 0, done.stderr
    results = {arm: read_result(folder / "out" / "raw" / f"{arm}-100.jsonl.gz") for arm in ARMS}
    runs = {arm: RunDirectory.open(folder / "work" / f"{arm}-100" / "run") for arm in ARMS}
    return SimpleNamespace(results=results, runs=runs, report=done.stdout)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_and_is_scored(study: SimpleNamespace, arm: str) -> None:
    result: ArmResult = study.results[arm]
    assert [one.steps for one in result.header.iterations] == [1, 2]
    assert len([one for one in result.outcomes if not one.baseline]) == 1
    assert all(one.infrastructure_error is None for one in result.outcomes)
    record = read_json(study.runs[arm].iteration(1).round, RoundRecord)
    assert (record.expert is None) == (arm in ("grpo", "seal", "coevolve-seal"))
    assert (record.seal is None) == (arm not in ("seal", "coevolve-seal"))


@pytest.mark.parametrize("arm", ["ours", "coverage", "unguided"])
def test_references_of_new_tasks_are_learnt_from(study: SimpleNamespace, arm: str) -> None:
    first, second = (read_json(study.runs[arm].iteration(number).round, RoundRecord) for number in (0, 1))
    admitted = study.results[arm].header.iterations[0].admitted
    assert first.expert.references + first.expert.left_out == 4
    assert admitted > 0
    assert second.expert.references + second.expert.left_out == admitted
    assert first.expert.references > 0
    assert first.expert.tokens > 0


def test_a_random_model_makes_no_call_that_a_context_could_be_drawn_from(study: SimpleNamespace) -> None:
    assert study.results["random"].header.admissions == (0, 0)


def test_contexts_by_need_take_one_tool_after_another(study: SimpleNamespace) -> None:
    run = study.runs["ours"]
    first, second = (read_jsonl(run.iteration(number).contexts, FailureContext) for number in (0, 1))
    assert [one.kind for one in (*first, *second)] == [Unsignalled.COVERAGE] * 4
    named = [set(one.focus_pattern) for one in (*first, *second)]
    assert all(named)
    assert len(set().union(*named)) == 4, "the second round is for other tools than the first"
