"""`coevolve papers`: the list, one table's parts, refusals before anything is spent, and an analysis that runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import ROOT
from support.commands import run_here

from evaluation.papers import machine
from evaluation.papers.catalogue import INDEX, load_catalogue

MODULE = "evaluation.papers.__main__"
RESULTS = ROOT / "results" / "history" / "learning" / "raw"


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without GPU, key and vLLM, whatever the tests run on."""
    bare = machine.Machine(gpus=0, gpu_gib=0, vllm=False, variables=frozenset())
    monkeypatch.setattr(machine, "this_machine", lambda: bare)


def test_every_entry_is_checked_and_estimated(tmp_path: Path) -> None:
    """The dry preflight of the whole list; nothing is written."""
    done = run_here(MODULE, "--json", "--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"))
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert [one["id"] for one in reports] == [item.id for item in load_catalogue().items]
    for report in reports:
        assert bool(report["parts"]) == (report["kind"] in ("study", "analysis", "evaluation"))
        for part in report["parts"]:
            assert part["command"].startswith("coevolve ")
            assert "{" not in part["command"], part
            assert part["refusals"], "a bare machine can run none of them"
            assert all("\n" not in sentence for sentence in part["refusals"])
    assert list(tmp_path.iterdir()) == []
    (part,) = [part for part in reports[2]["parts"] if part["name"] == "bfcl"]
    assert part["estimate"]["rollouts"] == 3 * 120 * 256


def test_the_list_and_one_table_are_readable() -> None:
    listed = run_here(MODULE)
    assert listed.returncode == 0
    assert "SEAL-T2" in listed.stdout
    one = run_here(MODULE, "t3", "--part", "bfcl", "--price-gpu-hour", "2", "--price-prompt", "1")
    assert (
        "cannot run here: no key is bound to https://dashscope-intl.aliyuncs.com, which roles.reflector (q"
        in one.stdout
    )
    assert one.stdout.count("no key is bound to") == 1
    assert "coevolve study recipes/papers/t3-bfcl.yaml --split dev" in one.stdout
    assert "gpu_seconds_per_rollout bfcl 11.8" in one.stdout
    assert "money: unknown" in one.stdout
    own = run_here(MODULE, "T3", "--part", "bfcl", "--gpu-seconds", "23.6", "--json")
    recorded = run_here(MODULE, "T3", "--part", "bfcl", "--json")
    hours = [json.loads(run.stdout)[0]["parts"][0]["estimate"]["gpu_hours"] for run in (own, recorded)]
    assert hours[0] == pytest.approx(2 * hours[1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["T3", "--part", "bfcl", "--run"], "error: T3, bfcl: Qwen/Qwen3-4B"),
        (["T8", "--run"], "t2-bfcl/raw/grpo-100.jsonl.gz is missing: run coevolve papers T2 --part bfcl --run"),
        (["SEAL-T2", "--run"], "error: SEAL-T2 is not run: Neither BFCL v4"),
        (["T99"], "error: no table or figure is called 'T99'"),
        (["T3", "--part", "x"], "error: --part x: T3 has no such part: its parts are bfcl, appworld"),
        (["--run"], "error: --run goes with the name of a table"),
        (["T3", "--billions", "7"], "error: --billions says which model --gpu-seconds was measured with"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_spent(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = run_here(MODULE, *arguments, "--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"))
    assert done.returncode == 2
    assert says in done.stderr
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_analysis_runs_on_the_results_of_its_study(tmp_path: Path) -> None:
    raw = tmp_path / "r" / "t2-bfcl" / "raw"
    raw.mkdir(parents=True)
    for arm in ("grpo", "full"):
        shutil.copy(RESULTS / f"{arm}-0.jsonl.gz", raw)
    options = ("--split", "test", "--results", str(tmp_path / "r"), "--work", str(tmp_path / "w"))
    for table, says in (("T7", "+22.50%"), ("T8", "McNemar"), ("F3", "rare 80.7%")):
        done = run_here(MODULE, table, "--part", "bfcl", "--run", *options)
        assert done.returncode == 0, done.stderr
        assert says in " ".join(done.stdout.split()), done.stdout
        assert f"{raw}/full-0.jsonl.gz" in done.stderr


def test_a_study_is_started_after_its_first_tasks_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a machine that has everything, by the commands that --run shows."""
    import evaluation.papers.__main__ as papers
    from memory import processes

    started: list[list[str]] = []

    async def child(argv: list[str], *, log_path: Path, deadline: float, accept: tuple[int, ...]) -> int:
        started.append(argv[2:])
        return 0

    def call(arguments: list[str]) -> int:
        started.append(arguments)
        return 3

    key = "DASHSCOPE_API_KEY"
    everything = machine.Machine(
        gpus=8,
        gpu_gib=720,
        vllm=True,
        variables=frozenset({key}),
        keys={"https://dashscope-intl.aliyuncs.com": key},
    )
    monkeypatch.setattr(machine, "this_machine", lambda: everything)
    monkeypatch.setattr(processes, "run_child", child)
    monkeypatch.setattr(papers, "_call", call)
    done = run_here(MODULE, "T4", "--part", "bfcl", "--run", "--jobs", "2", "--work", str(tmp_path))
    assert done.returncode == 3, done.stderr
    seeds, (study,) = started[:-1], started[-1:]
    assert [argv[:5] for argv in seeds] == [
        ["graph.seed_tasks", "--recipe", "recipes/paper-bfcl.yaml", "--count", count] for count in ("100", "50", "200")
    ]
    assert study[:2] == ["study", "recipes/papers/t4-bfcl.yaml"]
    assert study[study.index("--jobs") + 1] == "2"
    assert "--keep-runs" in study


def test_the_index_is_found_from_any_folder(tmp_path: Path) -> None:
    assert INDEX.is_file()
    assert run_here(MODULE, "T9", cwd=tmp_path).returncode == 0
