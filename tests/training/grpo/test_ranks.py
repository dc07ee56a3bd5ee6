"""Two processes over gloo against one: records, weights, lines, a death, resuming with two and with one, sharding."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support import ROOT
from support.checked_rank import FOUND, TROUBLE
from support.preloaded import HERE
from support.small_policy import small_settings, small_tasks

from environments.base import InputError
from memory.processes import ORPHANED
from memory.run import RunDirectory
from memory.tasks import admit
from training.grpo import launch, ranks
from training.grpo.record import RoundFailure, RoundProgress
from training.grpo.round import run_round
from training.settings import LaunchSettings

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

# Updates are drawn from a step's groups, advantages have SEAL's weights, and there are more rows than fit one forward.
# The expert step's batches have one reference and two: one process has none of its own, or each has one.
EXPERT = {"passes": 3, "learning_rate": 1e-3}
TRAINING = {"tasks_per_step": 4, "updates_per_step": 2, "seal": {"interface": None}, "expert": EXPERT}
TWO = {"processes": 2, "deadline": 120.0}
STEPS = 3


def made(root: Path, starter: Path, launched: object) -> RunDirectory:
    run = RunDirectory.create(root, small_settings(starter, **TRAINING, launch=launched))
    admit(run, small_tasks())
    return run


def search_path(*folders: Path) -> str:
    """These folders behind the one that hands commands over to the preloaded process."""
    return os.pathsep.join(map(str, (HERE, *folders)))


def command(run: RunDirectory, module: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``python -m training.run_round`` whose processes run ``module``."""
    code = f"from training.grpo import launch\nlaunch.RANK = {module!r}\nfrom training.run_round import app\napp()"
    return subprocess.run(
        [sys.executable, "-c", code, "--run", str(run.root), "--iteration", "0", *flags],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": search_path(ROOT, ROOT / "tests"), **variables},
    )


@pytest.fixture(scope="module")
def runs(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A round in one process, and in two: its second one is killed in step 3, then it goes on with two and with one."""
    folder = tmp_path_factory.mktemp("ranks")
    alone, two = made(folder / "alone", starter, None), made(folder / "two", starter, TWO)
    lines: list[RoundProgress] = []
    run_round(alone.root, 0, False, lines.append)
    killed = command(two, "support.checked_rank", **{TROUBLE: "1 3"})
    other = RunDirectory(folder / "other")
    shutil.copytree(two.root, other.root)
    resumed = command(two, "support.checked_rank", "--resume", **{FOUND: str(folder / "found.json")})
    other.save_settings(small_settings(starter, **TRAINING))
    alone_lines: list[RoundProgress] = []
    run_round(other.root, 0, True, alone_lines.append)
    return SimpleNamespace(
        starter=starter,
        alone=alone,
        two=two,
        other=other,
        lines=lines,
        killed=killed,
        resumed=resumed,
        resumed_alone=alone_lines,
        found=folder / "found.json",
    )


def printed(done: subprocess.CompletedProcess[str]) -> list[RoundProgress]:
    return [RoundProgress.model_validate_json(line) for line in done.stdout.splitlines()]


def test_the_death_of_one_ends_both_and_is_told(runs: SimpleNamespace) -> None:
    assert runs.killed.returncode == 1
    last = runs.killed.stderr.rstrip().splitlines()[-1]
    assert last == "error: rank 1 was ended by SIGKILL, and the others with it: go on with --resume"
    assert not [p for p in psutil.process_iter(["cmdline"]) if "support.checked_rank" in (p.info["cmdline"] or ())]


def test_each_step_is_printed_once_with_the_figures_of_all(runs: SimpleNamespace) -> None:
    assert runs.resumed.returncode == 0, runs.resumed.stderr
    assert printed(runs.killed) + printed(runs.resumed) == runs.lines
    assert [line.step for line in printed(runs.resumed)] == [STEPS]
    assert runs.resumed_alone == runs.lines[STEPS - 1 :]


def unmeasured(value):
    if isinstance(value, dict):
        return {key: unmeasured(item) for key, item in value.items() if key != "measured"}
    return [unmeasured(item) for item in value] if isinstance(value, list) else value


def close(one, other) -> bool:
    """Equal, numbers up to float order."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == (pytest.approx(other, rel=1e-3, abs=1e-6) if isinstance(other, float) else other)


@pytest.mark.parametrize("name", ["two", "other"])
def test_the_records_are_those_of_one_process(runs: SimpleNamespace, name: str) -> None:
    def rows(run: RunDirectory, file: Path):
        return [unmeasured(json.loads(line)) for line in (run.root / file).read_text().splitlines()]

    run = getattr(runs, name)
    of = runs.alone.iteration(0)
    trajectories, seal = (path.relative_to(runs.alone.root) for path in (of.trajectories, of.seal))
    # Ids are hashes of task, step, sample and seed, and turns hold all that was sampled, to the last argument.
    assert rows(run, trajectories) == rows(runs.alone, trajectories)
    assert len(rows(run, trajectories)) == STEPS * 4 * 9
    assert close(rows(run, seal), rows(runs.alone, seal))
    records = [json.loads(one.iteration(0).round.read_text()) for one in (run, runs.alone)]
    assert close(*map(unmeasured, records))
    learnt = records[0]["expert"]
    assert (learnt["references"], learnt["updates"]) == (len(small_tasks()), 3)
    assert learnt["last_loss"] < learnt["first_loss"]


@pytest.mark.parametrize("name", ["two", "other"])
def test_the_weights_are_those_of_one_process_up_to_float_order(runs: SimpleNamespace, name: str) -> None:
    """Adam divides a gradient by its size: rounding of 1e-7 in sums of gradients near 0 shows as up to 1e-4 here."""
    from safetensors.torch import load_file

    def weights(folder: Path):
        return load_file(folder / "model.safetensors")

    last = f"checkpoint-{STEPS}"
    mine, one = (weights(run.policy_path / last) for run in (getattr(runs, name), runs.alone))
    start = weights(runs.starter)
    assert mine.keys() == one.keys()
    assert max(float((one[key] - start[key]).abs().max()) for key in one) > 2e-3, "the policy must have moved"
    assert max(float((mine[key] - one[key]).abs().max()) for key in one) < 1e-4


def test_what_is_kept_of_each_process(runs: SimpleNamespace) -> None:
    names = {path.name for path in (runs.two.policy_path / f"checkpoint-{STEPS}").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "optimizer.pt", "model.safetensors"} <= names


def test_sharded_weights_are_gathered_and_scored_alike(runs: SimpleNamespace) -> None:
    """torch's fully_shard over gloo: the same processes, after their round."""
    first, second = json.loads(runs.found.read_text())
    assert first["share"] + second["share"] == pytest.approx(1.0)
    assert 0.4 < first["share"] < 0.6
    assert first["state_equal"]
    assert first["written_equal"], "servers are loaded with whole weights"
    assert first["expected_off"] < 1e-5
    assert (first["yielded"] > 10, second["yielded"]) == (True, 0)
    assert first["forwards"] == second["forwards"] == 3, "rank 0 has one distinct row, rank 1 has eighteen"
    assert max(first["logps_off"], second["logps_off"]) < 1e-5
    assert max(first["gradients_off"], second["gradients_off"]) < 1e-5


@pytest.mark.parametrize(
    ("fails", "kind", "sentence"),
    [
        ("no answer", RoundFailure, "rank 0 lost the other processes: one ended, or did not answer within 1 s"),
        ("mistake", InputError, "no file"),
    ],
)
def test_what_ranks_exchange_and_one_that_fails(tmp_path: Path, monkeypatch, fails: str, kind, sentence: str) -> None:
    monkeypatch.setenv(FOUND, str(tmp_path / "told"))
    monkeypatch.setenv(TROUBLE, fails)
    monkeypatch.setenv("PYTHONPATH", search_path(ROOT / "tests"))
    monkeypatch.setattr(launch, "RANK", "support.small_rank")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    began = time.monotonic()
    try:
        with pytest.raises(kind, match=sentence):
            launch.launch_round(tmp_path, 0, False, small_settings(tmp_path, tasks_per_step=2, launch={"processes": 2}))
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    assert time.monotonic() - began < 120
    first, second = (json.loads((tmp_path / f"told.{rank}").read_text()) for rank in (0, 1))
    assert (first["place"], second["place"]) == ([0, 2, True], [1, 2, False])
    assert first["gathered"] == second["gathered"] == ["of 0", "of 1"]
    assert first["by_first"] == second["by_first"] == "by 0"


def test_processes_that_would_train_alone_are_refused(monkeypatch) -> None:
    from accelerate.state import AcceleratorState

    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        with pytest.raises(RoundFailure, match="processes is 2 and this machine has 0 GPUs"):
            ranks.join(LaunchSettings(), on_cpu=False)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_a_process_ends_with_its_launcher(tmp_path: Path) -> None:
    """The launcher is killed; its child is in a session of its own and has a child, too. Neither is a fork."""
    child = (
        "import subprocess, sys, time\n"
        "from training.grpo.launch import end_with_the_launcher\n"
        "end_with_the_launcher()\n"
        "own = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{own.pid}}')\n"
        "time.sleep(600)\n"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", parent],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    pid = int(started.stdout.readline())
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        time.sleep(0.1)
    own = int((tmp_path / "pids").read_text())
    started.kill()
    started.wait()
    started.stdout.close()
    end = time.monotonic() + 60
    while any(alive(one) for one in (pid, own)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(pid)
    assert not alive(own)
    assert ORPHANED == 3


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
