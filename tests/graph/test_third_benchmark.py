"""A third benchmark, ``tests/support/tiny_benchmark``: one package and one recipe, and every command serves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.commands import SMALL_STARTER, run_here
from support.preloaded import HERE
from support.tiny_benchmark.benchmark import BENCHMARK

from environments.base import InputError
from environments.registry import benchmark_of, open_named
from environments.verification.fingerprints import fingerprint
from evaluation.test_access import Access
from graph.recipe import load_recipe
from memory.records import Task
from memory.run import RunDirectory, read_jsonl

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("preloaded")]

NAME = "support.tiny_benchmark.benchmark:BENCHMARK"
RECIPE = f"""
seed: 4
iterations: 1
environment: {{name: "{NAME}", options: {{houses: 12}}}}
policy: {{path: starter, device: cpu}}
tasks: {{initial_count: 8}}
training: {{steps: 2, tasks_per_step: 4, rollouts_per_task: 4, max_new_tokens: 24, max_tokens: 256}}
signals: {{contexts_per_iteration: 3, rare_percent: 100}}
roles: {{exploration: {{rounds: 1, steps: 6, drafts_per_context: 2}}}}
evaluation: {{set: dev}}
"""


def command(folder: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it where it starts others; in this process, which has imported all, elsewhere."""
    if module != "graph.run_iteration":
        return run_here(module, *options, cwd=folder)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE))),
    }
    argv = [sys.executable, "-m", module, *options]
    return subprocess.run(argv, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe and a run of one iteration."""
    folder = tmp_path_factory.mktemp("lamps")
    (folder / "recipe.yaml").write_text(RECIPE)
    for module, *options in (
        ("graph.seed_tasks", "--recipe", "recipe.yaml", "--count", "40", "--seed", "9", "--output", "lessons.jsonl"),
        ("training.embedded.warm_start", "--environment", NAME, *SMALL_STARTER),
        ("graph.run_iteration", "--recipe", "recipe.yaml", "--run", "run", "--json"),
    ):
        done = command(folder, module, *options)
        assert done.returncode == 0, done.stderr
    return folder


def test_one_iteration_is_scored_on_its_evaluation_set(folder: Path) -> None:
    run = RunDirectory.open(folder / "run")
    log = (run.iteration(0) / "panel_after.log").read_text()
    report = next(json.loads(line) for line in log.splitlines() if line.startswith('{"environment"'))
    (score,) = report["scores"]
    assert (score["group"], score["n"], score["clusters"]) == ("dev", 6, 3)
    assert 0.0 <= score["metrics"]["whole_houses"] <= score["metrics"]["success"] <= 1.0
    assert load_recipe(run.settings_path).environment.options == {"houses": 12}


def test_no_held_out_task_is_trained_on(folder: Path) -> None:
    held_out = BENCHMARK.held_out()
    tasks = [*read_jsonl(folder / "lessons.jsonl", Task), *read_jsonl(folder / "run" / "tasks.jsonl", Task)]
    assert {task.environment for task in tasks} == {"lamps"}
    assert held_out.fingerprints.isdisjoint(map(fingerprint, tasks))
    item = BENCHMARK.open_evaluation_set("dev", 1)[0]
    leaked = Task(id="leaked", origin="given", **dict(item.spec.model_copy(update={"split": "train"})))
    (folder / "leaked.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in (tasks[0], leaked)))
    done = command(
        folder, "training.embedded.warm_start", "--environment", NAME, "--tasks", "leaked.jsonl", "--out", "other"
    )
    assert done.returncode == 2
    assert "task leaked is held out" in done.stderr


def test_the_held_out_set_opens_for_a_ledger(folder: Path) -> None:
    scored = ("--environment", NAME, "--evaluation-set", "test", "--model", "run/policy/checkpoint-2", "--json")
    refused = command(folder, "evaluation.run", *scored)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--evaluation-set test: it is held out: add --access-log FILE" in refused.stderr
    done = command(folder, "evaluation.run", *scored, "--access-log", "openings.jsonl", "--option", "houses=3")
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["scores"]
    assert (score["group"], score["n"]) == ("test", 6)
    assert set(score["metrics"]) >= {"whole_houses"}
    (opening,) = read_jsonl(folder / "openings.jsonl", Access)
    assert (opening.panels, opening.tasks) == ({"test": BENCHMARK.evaluation_set("test").sha256}, 6)


def test_its_options_are_strict_and_its_environment_leads_back_to_it() -> None:
    opened = open_named(NAME, {"houses": 3})
    assert len(opened.starts()) == 3
    assert benchmark_of(opened) is BENCHMARK
    with pytest.raises(InputError, match=r"--option: 'rooms' is not an option, lamps would ignore it"):
        open_named(NAME, {"rooms": 3})
    with pytest.raises(InputError, match=r"--option.houses: .*less than or equal to 50"):
        open_named(NAME, {"houses": 51})
