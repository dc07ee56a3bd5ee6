"""The command that measures: its list, its table, what it refuses; and each benchmark of this room at a small size."""

import json
import shutil
import subprocess
import sys
import time

import pytest
from support import ROOT

from benchmarks import deduplication, environment, evolution_share, iterations, runs
from benchmarks.catalogue import BENCHMARKS
from benchmarks.measurement import Measurement, Pair, of_pairs
from benchmarks.table import table
from environments.base import InputError, ToolCall
from memory.run import RunDirectory
from memory.tasks import load_tasks

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long]


def command(*options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_list_names_every_benchmark_and_its_module_is_there():
    listed = command("--list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [one.name for one in BENCHMARKS]
    for benchmark in BENCHMARKS:
        assert (ROOT / benchmark.module.replace(".", "/")).with_suffix(".py").is_file(), benchmark.name


def test_help_answers_at_once():
    began = time.perf_counter()
    shown = command("--help")
    assert shown.returncode == 0
    assert "--only" in shown.stdout
    assert time.perf_counter() - began < 30  # a second on an idle machine


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--only", "speed"), "error: --only speed: unknown benchmark: choose from environment, "),
        (("--only", "environment", "--run", "."), "error: --run has no effect on what --only names: leave it out"),
        (("--only", "evolution-share", "--run", "tests"), "error: tests is not a run, it has no settings.yaml: "),
    ],
)
def test_a_mistake_is_told_in_one_sentence_and_nothing_is_written(options, sentence, tmp_path):
    refused = command(*options, "--output", str(tmp_path / "table.md"))
    assert refused.returncode == 2
    assert refused.stderr.startswith(sentence)
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def finished(tmp_path):
    """A run with the records of three iterations that evolution's share is read off."""
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    run.settings_path.write_text("{}")
    for number, graph in enumerate((4.0, 1.0, 2.0)):
        folder = run.iteration(number)
        folder.root.mkdir(parents=True)
        (folder / "evolution.json").write_text("{}")
        (folder / "seconds.json").write_text(json.dumps({"seconds": {"train": 30.0, "evolve": graph}}))
        measured = {"load": 5.0, "rollouts": 10.0, "optimisation": 6.0, "save": 0.1}
        record = {"iteration": number, "policy": "p", "first_step": 1, "last_step": 1, "tasks": 1, "steps": []}
        record |= {"success": 0, "reward": 0, "mixed_groups": 0, "kl": None, "sampled_tokens": 0}
        (folder / "round.json").write_text(json.dumps(record | {"infrastructure_errors": 0, "measured": measured}))
    return run


def test_the_cheapest_benchmark_writes_its_table_and_lines(tmp_path, finished):
    output = tmp_path / "results" / "table.md"
    ran = command("--only", "evolution-share", "--run", str(finished.root), "--output", str(output))
    assert ran.returncode == 0, ran.stderr
    text = output.read_text()
    assert ran.stdout == text
    (row,) = (Measurement.model_validate_json(line) for line in output.with_suffix(".jsonl").read_text().splitlines())
    assert [line.split(" | ")[0] for line in text.splitlines() if row.compared in line] == [f"| {row.name}"]
    assert row.ratio == pytest.approx(2 / 18)
    assert str(ROOT) not in text
    assert "CPU cores" in text


def test_a_benchmark_that_fails_is_named_and_ends_with_status_1(tmp_path, monkeypatch):
    """A home of bfcl_eval without its data: the child ends, the table says which benchmark is missing."""
    (tmp_path / "bfcl_eval").mkdir()
    (tmp_path / "bfcl_eval" / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output = tmp_path / "table.md"
    ran = command("--only", "environment", "--repeats", "1", "--output", str(output))
    assert ran.returncode == 1
    assert "broken on purpose" in ran.stderr
    assert "Not measured:" in output.read_text()
    assert "- environment: " in output.read_text()
    assert output.with_suffix(".jsonl").read_text() == ""


def test_a_row_follows_from_its_pairs():
    row = of_pairs("n", "a / b", [Pair(2, 1), Pair(9, 3), Pair(8, 2)], "s", "at most 3", lambda ratio: ratio <= 3)
    assert (row.ours, row.other, row.ratio, row.spread, row.repeats, row.met) == (8, 2, 3, (2, 4), 3, True)
    assert of_pairs("n", "a / b", [Pair(2, 1)], "s").met is None


def test_the_table_escapes_and_marks_what_is_not_met():
    row = Measurement(name="a|b", compared="x", ours=1234.5, unit="ms", repeats=2, expected="less", met=False)
    lines = table([row.model_copy(update={"note": "loaded"})], ["other: it broke"]).splitlines()
    assert "| a\\|b | x | 1,234 ms |  |  |  | less | **no** | 2 |" in lines
    assert "- a|b: loaded" in lines
    assert lines[-1] == "- other: it broke"


def test_environment_rates_are_of_both_sides():
    rows = environment.measure(1, limit=3)
    assert [row.repeats for row in rows] == [1, 1, 1, 1]
    assert {"replay and evaluate 3 tasks", "replay and evaluate 12 tasks"} == {
        row.compared.split(",")[0] for row in rows
    }
    kept, anew = rows[:2]
    assert kept.ours > anew.ours, "a reference that is replayed anew cannot be as fast as one that is kept"


def test_environment_refuses_figures_of_sides_that_disagree(monkeypatch):
    monkeypatch.setattr(environment, "parse_call", lambda text: ToolCall(name="no_such_function"))
    with pytest.raises(RuntimeError, match="the environment refused 2 references"):
        environment.measure(1, limit=2)


def test_deduplication_measures_on_a_memory_that_it_keeps(tmp_path):
    *rows, recall = deduplication.measure(1, sizes=(300,), cache=tmp_path)
    assert {row.name.removeprefix("deduplication: 300 contexts, "): row.unit for row in rows} == {
        "cold": "ms",
        "warm": "ms",
        "a batch": "ms",
        "open": "ms",
        "remember": "ms",
        "disk": "MiB",
    }
    assert all(row.ours > 0 for row in rows)
    assert all(row.other > 0 for row in rows[:3])
    assert recall.name == "deduplication: 300 contexts of 10 texts, recall"
    assert recall.ours == 1.0 >= recall.other > 0
    written = (tmp_path / "failures-300" / "complete").stat().st_mtime_ns
    again = deduplication._folder(300, tmp_path)
    assert (again / "complete").stat().st_mtime_ns == written
    (again / "complete").write_text("another history")
    assert (deduplication._folder(300, tmp_path) / "complete").read_text() != "another history"


def test_probes_are_of_different_signatures_and_both_kinds_of_result(tmp_path):
    folder = deduplication._folder(480, tmp_path)
    probes = deduplication._probes(480, 24, 1)
    assert len({probe.signature() for probe in probes}) == 24
    with deduplication.FailureMemory(folder, deduplication.MemorySettings()) as memory:
        compared = memory.compare(probes, deduplication._now(480))
    assert {one.status for one in compared} == {"new", "known"}


def test_iterations_of_two_sizes_are_compared(monkeypatch):
    """The first iteration is real; the second one's records are the first's, which halves the time of the test."""
    sizes, first = [], []

    def run_iterations(root, options):
        sizes.append(len(load_tasks(RunDirectory(root))))
        if not first:
            first.append(root)
            return runs.run_iterations(root, options)
        shutil.copytree(RunDirectory(first[0]).iteration(0), RunDirectory(root).iteration(0))
        return runs.Command(seconds=60.0, cpu=30.0)

    monkeypatch.setattr(iterations, "run_iterations", run_iterations)
    small = ["training.tasks_per_step=2", "training.rollouts_per_task=2", "tasks.initial_count=4"]
    (row,) = iterations.measure(1, sizes=(4, 40), steps=1, options=small)
    assert sorted(sizes) == [4, 40]
    assert row.name == "iterations: 40 tasks"
    assert row.ratio == pytest.approx(row.ours / row.other)
    assert row.met == (row.ratio <= iterations.GROWTH)
    assert "rollouts" in row.note


def test_iterations_that_did_not_do_the_same_are_refused(tmp_path):
    run = RunDirectory(tmp_path)
    run.iteration(0).root.mkdir(parents=True)
    done = {}
    for text, fails in (('{"id": 1, "measured": 2}', False), ('{"id": 1, "measured": 3}', False), ('{"id": 2}', True)):
        for file in iterations.COMPARED:
            (run.iteration(0) / file.name).write_text(text + "\n")
        if fails:
            with pytest.raises(RuntimeError, match=r"wrote another trajectories\.jsonl"):
                iterations._expect_equal(run, done)
        else:
            iterations._expect_equal(run, done)


def test_the_share_is_read_off_the_records_of_a_run(finished):
    (row,) = evolution_share.measure(1, run=finished.root)
    assert row.ratio == pytest.approx(2 / 18)
    assert row.spread == pytest.approx((1 / 17, 4 / 20))
    assert (row.repeats, row.met) == (3, None)
    shutil.rmtree(finished.iterations_path)
    with pytest.raises(InputError, match="has no finished iteration"):
        evolution_share.measure(1, run=finished.root)
