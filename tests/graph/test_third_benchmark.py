"""A third benchmark, ``tests/support/tiny_benchmark``: one package and one recipe, and every command serves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import SMALL_STARTER, run_here
from support.tiny_benchmark import BENCHMARK

from environments.base import InputError
from environments.registry import benchmark_of, open_named
from environments.verification.canonical import fingerprint
from evaluation.test_access import Access
from memory.records import Task
from memory.run import read_jsonl

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAME = "support.tiny_benchmark:BENCHMARK"
RECIPE = f"""
seed: 4
iterations: 1
environment: {{name: "{NAME}", options: {{depots: 12}}}}
policy: {{path: starter, device: cpu}}
tasks: {{initial_count: 8}}
training: {{steps: 2, tasks_per_step: 4, rollouts_per_task: 4, max_new_tokens: 24, max_tokens: 256}}
signals: {{contexts_per_iteration: 3, rare_percent: 100}}
roles: {{exploration: {{rounds: 1, steps: 6, drafts_per_context: 2}}}}
evaluation: {{set: dev}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, verified tasks and a policy that learnt from them.

    What an iteration makes of an environment is in ``graph/test_new_environment.py``.
    """
    folder = tmp_path_factory.mktemp("depots")
    (folder / "recipe.yaml").write_text(RECIPE)
    for module, *options in (
        ("graph.seed_tasks", "--recipe", "recipe.yaml", "--count", "40", "--seed", "9", "--output", "lessons.jsonl"),
        ("training.warm_start", "--environment", NAME, *SMALL_STARTER),
        ("graph.check_recipe", "recipe.yaml"),
    ):
        done = run_here(module, *options, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_its_evaluation_set_is_scored_with_its_own_metrics(folder: Path) -> None:
    scored = ("--environment", NAME, "--evaluation-set", "dev", "--model", "starter", "--json")
    done = run_here("evaluation.run", *scored, cwd=folder)
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["scores"]
    assert (score["group"], score["n"], score["clusters"]) == ("dev", 6, 3)
    assert 0.0 <= score["metrics"]["whole_depots"] <= score["metrics"]["success"] <= 1.0


def test_no_held_out_task_is_trained_on(folder: Path) -> None:
    held_out = BENCHMARK.held_out()
    tasks = read_jsonl(folder / "lessons.jsonl", Task)
    assert {task.environment for task in tasks} == {"depots"}
    assert held_out.fingerprints.isdisjoint(map(fingerprint, tasks))
    item = BENCHMARK.open_evaluation_set("dev", 1)[0]
    leaked = Task(id="leaked", origin="given", **dict(item.spec.model_copy(update={"split": "train"})))
    (folder / "leaked.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in (tasks[0], leaked)))
    learnt = ("--model", "embedded", "--environment", NAME, "--tasks", "leaked.jsonl", "--out", "other")
    done = run_here("training.warm_start", *learnt, cwd=folder)
    assert done.returncode == 2
    assert "task leaked is held out" in done.stderr


def test_the_held_out_set_opens_for_a_ledger(folder: Path) -> None:
    scored = ("--environment", NAME, "--evaluation-set", "test", "--model", "starter", "--json")
    refused = run_here("evaluation.run", *scored, cwd=folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--evaluation-set test: it is held out: add --access-log FILE" in refused.stderr
    done = run_here("evaluation.run", *scored, "--access-log", "openings.jsonl", "--option", "depots=3", cwd=folder)
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["scores"]
    assert (score["group"], score["n"]) == ("test", 6)
    assert set(score["metrics"]) >= {"whole_depots"}
    (opening,) = read_jsonl(folder / "openings.jsonl", Access)
    assert (opening.panels, opening.tasks) == ({"test": BENCHMARK.evaluation_set("test").sha256}, 6)


def test_its_options_are_strict_and_its_environment_leads_back_to_it() -> None:
    opened = open_named(NAME, {"depots": 3})
    assert len(opened.starts()) == 3
    assert benchmark_of(opened) is BENCHMARK
    with pytest.raises(InputError, match=r"--option: 'rooms' is not an option, depots would ignore it"):
        open_named(NAME, {"rooms": 3})
    with pytest.raises(InputError, match=r"--option.depots: .*less than or equal to 50"):
        open_named(NAME, {"depots": 51})
