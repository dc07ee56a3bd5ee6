"""The evaluation command on the real panels and categories: what it prints, writes and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation.outcomes import TaskOutcome, score, score_strata
from evaluation.panels import open_category, open_panel
from memory.run import read_jsonl

ROOT = Path(__file__).resolve().parents[2]
STARTER = "recipes/starter"


def command(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "evaluation.run", "--environment", "bfcl", *options]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def outcome(task_id: str, **fields: object) -> TaskOutcome:
    given = {"group": "g", "cluster": task_id, "split": "dev", "success": False} | fields
    return TaskOutcome(task_id=task_id, **given)


def test_a_panel_is_scored_and_its_outcomes_are_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "outcomes.jsonl"
    done = command("--panel", "templated-dev", "--model", STARTER, "--limit", "12", "--output", str(path), "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    outcomes = read_jsonl(path, TaskOutcome)
    (found,) = report["scores"]
    assert found["n"] == len(outcomes) == 12
    assert found["successes"] == sum(one.success for one in outcomes)
    assert found["interval"][0] <= found["success"] <= found["interval"][1]
    assert any("argument references" in note for note in report["notes"])
    assert any("first 12" in note for note in report["notes"])
    assert {one.task_id for one in outcomes} == {item.task.id for item in open_panel("templated-dev", 12)}
    assert all(one.failure for one in outcomes if not one.success)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "either --panel NAME or --category NAME"),
        (("--panel", "templated-dev", "--category", "base"), "either --panel NAME or --category NAME"),
        (("--panel", "nowhere"), "templated-dev"),
        (("--panel", "templated-dev", "--split", "dev"), "--split goes with --category"),
        (("--category", "nothing"), "miss_func"),
        (("--panel", "templated-dev", "--model", "no/such/folder"), "no/such/folder"),
        (("--panel", "templated-dev", "--environment", "elsewhere"), "choose bfcl"),
    ],
)
def test_a_mistake_is_one_sentence(options: tuple[str, ...], says: str) -> None:
    done = command(*options)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


def test_the_embedded_policy_does_not_know_every_tool() -> None:
    done = command("--category", "base", "--limit", "200")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")


def test_categories_hold_no_reserved_index() -> None:
    items = open_category("all")
    assert len(items) == 4 * 180
    assert {item.group for item in items} == {"base", "miss_func", "miss_param", "long_context"}
    indices = {int(item.cluster) for item in items}
    assert not indices & {*range(40, 50), *range(90, 100)}
    assert {item.strata["split"] for item in open_category("base", "test")} == {"test"}


def test_an_infrastructure_error_counts_in_no_rate() -> None:
    outcomes = [outcome("a", success=True), outcome("b"), outcome("c", infrastructure_error="the worker died")]
    found = score("g", outcomes)
    assert (found.n, found.successes, found.success, found.infrastructure_errors) == (2, 1, 0.5, 1)


def test_strata_are_scored_by_value() -> None:
    outcomes = [outcome("a", success=True, strata={"length": "1"}), outcome("b", strata={"length": "2"})]
    assert [(s.group, s.n, s.success) for s in score_strata(outcomes)] == [("length=1", 1, 1.0), ("length=2", 1, 0.0)]
