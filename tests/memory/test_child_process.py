"""Children end with their parent, failures quote the log, and a lock tells who holds it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT

from environments.base import InputError
from memory.processes import LOST_OUTPUT, ORPHANED, PARENT_PIPE, ChildFailure, exclusive, run_child

pytestmark = [pytest.mark.process, pytest.mark.wallclock]

WATCHING = "from memory.processes import watch_parent; watch_parent(); "
SLEEPER = WATCHING + "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
HOLDER = (
    "import sys, time; from pathlib import Path; from memory.processes import exclusive\n"
    "with exclusive(Path(sys.argv[1]), 'it'):\n    print('held', flush=True); time.sleep(60)"
)


def wait_until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def finished(argv: list[str], **options) -> int:
    return asyncio.run(run_child(argv, **options))


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_lines_and_log(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "logs" / "child.log"
    code = "import sys; print('one'); print('zwei: é'); sys.stderr.write('warned\\n'); sys.stdout.write('no end')"
    assert finished([sys.executable, "-c", code], log_path=log, deadline=20, on_line=lines.append) == 0
    assert lines == ["one", "zwei: é", "no end"]
    for written in ("one\n", "zwei: é\n", "warned\n", "no end"):
        assert written in log.read_text()
    assert finished([sys.executable, "-c", "print('again')"], log_path=log, deadline=20) == 0
    assert log.read_text().endswith("again\n")


def test_environment_reaches_the_child_and_the_pipe_not_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = WATCHING + f"import os; print(os.environ['X'], os.environ.get('{PARENT_PIPE}'))"
    finished([sys.executable, "-c", code], log_path=log, deadline=20, env={"X": "y", "PYTHONPATH": str(ROOT)})
    assert log.read_text() == "y None\n"


def test_nothing_of_the_working_directory_precedes_a_childs_modules(tmp_path: Path, monkeypatch) -> None:
    """Only an environment that is named there is found, and its module's own imports behind all others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)  # its empty folders are the working directory
    for module in ("training", "random", "secrets", "yaml", "sitecustomize", "usercustomize"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "of_the_user.py").write_text("import beside, random, training\nfrom environments.example import depot")
    code = "import random, yaml, training; from environments.registry import find_benchmark as find; "
    code += "find('of_the_user:depot'); print(training.__file__)"
    log = tmp_path / "log"
    assert finished([sys.executable, "-c", code], log_path=log, deadline=60, accept=(0, 1)) == 0, log.read_text()
    assert log.read_text() == f"{ROOT / 'training' / '__init__.py'}\n"


def test_failure_quotes_this_childs_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier child\n")
    code = "import sys; print('x' * 9000); print('the cause'); sys.exit(7)"
    with pytest.raises(ChildFailure, match="status 7") as failure:
        finished([sys.executable, "-c", code], log_path=log, deadline=20)
    assert failure.value.status == 7
    assert failure.value.log_tail.endswith("the cause")
    assert len(failure.value.log_tail) <= 4000
    assert "earlier" not in failure.value.log_tail
    assert finished([sys.executable, "-c", "exit(7)"], log_path=log, deadline=20, accept=(0, 7)) == 7


def test_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True); time.sleep(0.2)"
    )
    pids: list[int] = []
    finished([sys.executable, "-c", code], log_path=log, deadline=20, on_line=lambda line: pids.append(int(line)))
    assert wait_until(lambda: gone(pids[0])), "a grandchild outlived its group's leader"
    with pytest.raises(ChildFailure, match=r"did not finish within 0\.5 s") as failure:
        finished([sys.executable, "-c", "import time; time.sleep(60)"], log_path=log, deadline=0.5)
    assert failure.value.status is None


async def test_cancelling_ends_the_child(tmp_path: Path) -> None:
    pids: list[int] = []
    task = asyncio.create_task(
        run_child(
            [sys.executable, "-c", SLEEPER],
            log_path=tmp_path / "log",
            deadline=60,
            on_line=lambda line: pids.append(int(line)),
            env={"PYTHONPATH": str(ROOT)},
        )
    )
    while not pids:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(pids[0])


def test_killing_the_parent_ends_the_child(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import asyncio, sys; from pathlib import Path; from memory.processes import run_child\n"
        f"asyncio.run(run_child([sys.executable, '-c', {SLEEPER!r}], log_path=Path(sys.argv[1]), deadline=60))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(log)], cwd=ROOT)
    try:
        assert wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        child = psutil.Process(int(log.read_text()))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert wait_until(lambda: gone(child.pid))
    finally:
        parent.kill()
        parent.wait()


def test_orphan_status_and_bad_pipe() -> None:
    watched, kept = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        cwd=ROOT,
        pass_fds=(watched,),
        env={**os.environ, PARENT_PIPE: str(watched)},
        stdout=subprocess.PIPE,
    )
    os.close(watched)
    assert child.stdout is not None
    child.stdout.readline()
    os.close(kept)
    assert child.wait(timeout=10) == ORPHANED
    child.stdout.close()
    run = subprocess.run(
        [sys.executable, "-c", WATCHING],
        cwd=ROOT,
        env={**os.environ, PARENT_PIPE: "987"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "names no open file descriptor" in run.stderr


TO_END = """
import atexit, sys, threading, time
from memory.processes import run_to_end, watch_parent

class Slow:
    def __del__(self):
        time.sleep(30)

slow = Slow()
atexit.register(print, "registered")

def command():
    print("done")
    {end}

watch_parent()
run_to_end(command)
"""


def run_watching(code: str, **options) -> subprocess.CompletedProcess[str]:
    """Run ``code`` as a child that watches this process."""
    watched, kept = os.pipe()
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            pass_fds=(watched,),
            env={**os.environ, PARENT_PIPE: str(watched), "PYTHONUNBUFFERED": ""},
            text=True,
            check=False,
            timeout=20,
            **options,
        )
    finally:
        os.close(watched)
        os.close(kept)


@pytest.mark.parametrize(
    ("end", "status"), [("pass", 0), ("sys.exit()", 0), ("sys.exit(0)", 0), ("raise SystemExit(2)", 2)]
)
def test_a_command_that_is_done_ends_its_process_at_once(end: str, status: int) -> None:
    ended = run_watching(TO_END.format(end=end), capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "done\nregistered\n", "")


def test_output_that_cannot_be_written_is_no_success() -> None:
    nobody, written = os.pipe()
    os.close(nobody)
    try:
        ended = run_watching(TO_END.format(end="pass"), stdout=written)
    finally:
        os.close(written)
    assert ended.returncode == LOST_OUTPUT


def test_an_exception_and_a_process_of_its_own_take_the_usual_way_out() -> None:
    code = "from memory.processes import run_to_end, watch_parent; watch_parent(); run_to_end({})"
    ended = run_watching(code.format("lambda: 1 / 0"), capture_output=True)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    alone = "import sys; from memory.processes import run_to_end\ntry: run_to_end(lambda: sys.exit(4))\n"
    alone += "except SystemExit as end: print(end.code)"
    assert subprocess.check_output([sys.executable, "-c", alone], cwd=ROOT, text=True) == "4\n"


def test_what_an_orphan_started_ends_with_it() -> None:
    code = WATCHING + (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    watched, kept = os.pipe()
    environment = {**os.environ, PARENT_PIPE: str(watched)}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, pass_fds=(watched,), env=environment, stdout=subprocess.PIPE
    ) as orphan:
        assert orphan.stdout is not None
        grandchild = int(orphan.stdout.readline())
        os.close(watched)
        os.close(kept)
        assert orphan.wait(timeout=10) == ORPHANED
    assert wait_until(lambda: gone(grandchild))


BECOMES = (
    "import os, sys; from memory.processes import end_with_parent; end_with_parent()\n"
    "print(os.getpid(), flush=True); os.execv('/bin/sleep', ['sleep', '60'])"
)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
@pytest.mark.parametrize("watched", [True, False])
def test_a_child_that_became_another_program_ends_with_a_parent_that_is_killed(tmp_path: Path, watched: bool) -> None:
    """And without a parent pipe it goes on, as what a shell has started does."""
    log = tmp_path / "log"
    code = BECOMES if watched else f"import os; del os.environ['{PARENT_PIPE}']\n{BECOMES}"
    starts = (
        "import asyncio, sys; from pathlib import Path; from memory.processes import run_child\n"
        f"asyncio.run(run_child([sys.executable, '-c', {code!r}], log_path=Path(sys.argv[1]), deadline=60))"
    )
    with subprocess.Popen([sys.executable, "-c", starts, str(log)], cwd=ROOT) as parent:
        assert wait_until(lambda: log.exists() and log.read_text().endswith("\n"), 20)
        child = psutil.Process(int(log.read_text()))
        assert wait_until(lambda: child.name() == "sleep")
        parent.kill()
    try:
        assert wait_until(lambda: gone(child.pid), 10 if watched else 0.5) == watched
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def test_lock_names_a_live_holder_and_outlives_a_dead_one(tmp_path: Path) -> None:
    lock = tmp_path / "round.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for end_orphan in (False, True):
            with (
                pytest.raises(InputError, match=rf"another process \(pid {holder.pid}\) uses it"),
                exclusive(lock, "it", end_orphan=end_orphan, wait=0.2),
            ):
                pass
        assert holder.poll() is None, "a holder whose parent lives was ended"
        holder.kill()
        holder.wait()
        with exclusive(lock, "it"):
            assert (tmp_path / "round.lock.json").exists()
        assert not (tmp_path / "round.lock.json").exists()
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_resume_ends_an_orphaned_holder(tmp_path: Path) -> None:
    lock = tmp_path / "round.lock"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLDER!r}, sys.argv[1]], stdout=subprocess.PIPE,"
        " stderr=subprocess.DEVNULL)\n"
        "child.stdout.readline(); print(child.pid, flush=True)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(lock)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
    )
    orphan = int(run.stdout)
    assert not gone(orphan)
    with exclusive(lock, "it", end_orphan=True, wait=0.2):
        assert gone(orphan)
