"""The command that measures: its table and what it refuses."""

import os
import subprocess
import sys

import pytest
from support import ROOT
from typer.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.measurement import Measurement, of_pairs, table

ROW = of_pairs("n|1", "a / b", [(2, 1), (9, 3), (8, 2)], float, "ms", most=2, note="loaded")


@pytest.mark.process
def test_help_answers_without_the_libraries_that_are_measured():
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "benchmarks", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "--only" in shown.stdout
    assert not any(line.endswith((" torch", " chromadb", " trl")) for line in shown.stderr.splitlines())


def test_an_unknown_benchmark_is_refused_with_those_there_are(tmp_path):
    refused = CliRunner().invoke(command.app, ["--only", "speed", "--output", str(tmp_path / "table.md")])
    assert refused.exit_code == 2
    assert "'grpo'" in refused.stderr
    assert "'language_model'" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_was_measured_before_a_failure_is_kept(tmp_path, monkeypatch):
    """The first benchmark gives its row, the second breaks off: one sentence, status 1."""

    def fail(repeats, model):
        raise RuntimeError("the side trl ended early with status 1")

    modules = {
        "benchmarks.grpo": type("First", (), {"measure": staticmethod(lambda repeats, model: [ROW])}),
        "benchmarks.language_model": type("Second", (), {"measure": staticmethod(fail)}),
    }
    monkeypatch.setattr(command, "import_module", modules.get)
    monkeypatch.setattr(command, "SINGLE_THREADED", {})
    output = tmp_path / "results" / "table.md"
    ran = CliRunner().invoke(command.app, ["--output", str(output)])
    assert ran.exit_code == 1
    assert ran.stderr.splitlines()[-1] == "error: the side trl ended early with status 1"
    assert [
        Measurement.model_validate_json(line) for line in output.with_suffix(".jsonl").read_text().splitlines()
    ] == [ROW]
    assert output.read_text() == table([ROW])


def test_a_row_follows_from_its_pairs():
    assert (ROW.ours, ROW.other, ROW.ratio, ROW.spread, ROW.repeats, ROW.met) == (8, 2, 3, (2, 4), 3, False)
    assert of_pairs("n", "a / b", [(2, 1)], float, "s").met is None


def test_the_table_escapes_and_marks_what_is_not_met():
    text = table([ROW.model_copy(update={"ours": 1234.5})])
    lines = text.splitlines()
    assert "| n\\|1 | a / b | 1,234 ms | 2 ms | 3 | 2 to 4 | at most 2 | **no** | 3 |" in lines
    assert lines[-1] == "- n|1: loaded"
    assert "CPU cores" in text
    assert str(ROOT) not in text


@pytest.mark.process
@pytest.mark.parametrize(
    ("status", "says"), [(9, "there is no GPU here"), (0, "vLLM's CUDA build is not in .venvs/vllm")]
)
def test_the_script_for_a_gpu_refuses_a_machine_without_one(tmp_path, status, says):
    """Or one without what it measures; nothing is installed, downloaded or measured before."""
    if status == 0 and (ROOT / ".venvs" / "vllm" / ".installed-gpu").exists():
        pytest.skip("the CUDA build is here")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "benchmarks/gpu.sh"], cwd=ROOT, env=path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
