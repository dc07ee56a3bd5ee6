"""The synthetic world: what the worker's root lacks, that a build is reproducible, and that the package reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from support.solutions import solve

from environments.appworld.client import AppWorldEngine
from environments.appworld.installation import REPOSITORY, Installation, find_installation
from environments.appworld.synthetic_world.build import write_blind_root
from environments.base import InputError

BUILD_LIMIT = 900  # seconds; it takes 45 on two free cores


@pytest.fixture(scope="module")
def made(installation: Installation) -> Installation:
    if not installation.task_ids("train")[0].startswith("made"):
        pytest.skip("the world is no made one: unset COEVOLVE_APPWORLD")
    return installation


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_thirty_tasks_in_two_splits_by_scenario(made: Installation) -> None:
    scenarios: dict[str, set[str]] = defaultdict(set)
    for split in ("train", "dev"):
        for task_id in made.task_ids(split):
            assert re.fullmatch(r"[a-z0-9]+_[123]", task_id)
            scenarios[task_id.split("_")[0]].add(split)
    assert [len(made.task_ids(split)) for split in ("train", "dev")] == [18, 12]
    assert not made.data_set("test_normal").read_text().split()
    assert all(len(splits) == 1 for splits in scenarios.values())


def test_the_workers_root_holds_nothing_that_tells_an_answer(made: Installation) -> None:
    files = contents(made.blind)
    kinds = {re.sub(r"tasks/[^/]+", "tasks/*", str(Path(name).parent)) for name in files}
    assert kinds == {"data/base_dbs", "data/tasks/*", "data/tasks/*/dbs", "data/api_docs/standard"} | {
        "data/api_docs/function_calling"
    }
    assert {Path(name).name for name in files if re.fullmatch(r"data/tasks/[^/]+/[^/]+", name)} == {"specs.json"}
    full = contents(made.full)
    assert all(full[name] == content for name, content in files.items())
    assert not any(b"def solution" in content or b"def evaluate" in content for content in files.values())


def test_a_blind_root_takes_named_files_only(tmp_path: Path) -> None:
    for name in ("api_docs/standard/a.json", "base_dbs/a.db", "tasks/x_1/specs.json", "tasks/x_1/dbs/a.jsonl"):
        for path in (tmp_path / "full" / "data" / name,):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("kept")
    for name in ("tasks/x_1/ground_truth/answer.json", "tasks/x_1/hints.json", "datasets/train.txt", "answers.json"):
        path = tmp_path / "full" / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    assert write_blind_root(tmp_path / "full", tmp_path / "blind") == 1
    copied = contents(tmp_path / "blind")
    assert len(copied) == 4
    assert set(copied.values()) == {b"kept"}


def test_every_check_is_labelled_and_doing_nothing_fails_one(made: Installation) -> None:
    for folder in sorted((made.full / "data" / "tasks").iterdir()):
        tests = json.loads((folder / "ground_truth" / "test_data.json").read_text())
        assert "no_op_fail" in {test["label"] for test in tests} <= {"no_op_fail", "no_op_pass"}, folder.name
        assert json.loads((folder / "ground_truth" / "metadata.json").read_text())["num_api_calls"] >= 4


def test_the_packages_own_command_agrees_with_the_evaluator(
    engine: AppWorldEngine, made: Installation, tmp_path: Path
) -> None:
    """``appworld evaluate`` on what worlds saved: two scenarios, one solved wholly, one in two of three variants."""
    (tmp_path / "data" / "datasets").mkdir(parents=True)
    (tmp_path / "data" / "datasets" / "few.txt").write_text("\n".join(_IDS))
    for name in ("api_docs", "base_dbs", "tasks"):
        (tmp_path / "data" / name).symlink_to(made.full / "data" / name)
    outputs = tmp_path / "experiments" / "outputs" / "played"
    success = {}
    for task_id in _IDS:
        with engine.open(task_id) as world:
            if task_id != "made03_2":
                solve(engine, world)
            success[task_id] = world.evaluate().success
            databases = outputs / "tasks" / task_id / "dbs"
            databases.mkdir(parents=True)
            for name, text in world._connection.ask("saved", 60.0).items():
                (databases / name).write_text(text)
    command = [str(made.python.with_name("appworld")), "evaluate", "played", "few", "--root", str(tmp_path)]
    # The package imports each task's `evaluation`: a PYTHONPATH of this repository would give it ours.
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        command, cwd=tmp_path, env=plain, check=False, capture_output=True, text=True, timeout=BUILD_LIMIT
    )
    assert run.returncode == 0, run.stderr
    report = json.loads((outputs / "evaluations" / "few.json").read_text())
    assert {task: entry["success"] for task, entry in report["individual"].items()} == success
    assert report["aggregate"] == {"task_goal_completion": 83.3, "scenario_goal_completion": 50.0}


_IDS = [f"made{scenario}_{variant}" for scenario in ("01", "03") for variant in (1, 2, 3)]


@pytest.mark.skipif(not os.environ.get("COEVOLVE_SLOW_TESTS"), reason="a minute: set COEVOLVE_SLOW_TESTS=1")
def test_another_build_gives_every_file_again(made: Installation, tmp_path: Path) -> None:
    world = tmp_path / "again"
    subprocess.run(
        [made.python, "-W", "ignore", "-m", "environments.appworld.synthetic_world.build", "--world", str(world)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=BUILD_LIMIT,
    )
    built, again = contents(made.world), contents(world)
    assert {name for name in again if "experiments" not in name} == set(again)
    assert {name: content for name, content in built.items() if name in again} == again


def test_a_missing_world_says_what_to_do(tmp_path: Path, made: Installation) -> None:
    with pytest.raises(InputError, match="make appworld"):
        find_installation(tmp_path)


def test_a_world_whose_path_the_package_would_misread_is_refused(tmp_path: Path, made: Installation) -> None:
    for root in ("full", "blind"):
        (tmp_path / "in-memory" / root / "data" / "tasks").mkdir(parents=True)
    with pytest.raises(InputError, match="contains 'memory'"):
        find_installation(tmp_path / "in-memory")


def test_an_unknown_data_set_is_the_callers_mistake(made: Installation) -> None:
    with pytest.raises(InputError, match="use train or dev"):
        made.task_ids("holdout")
