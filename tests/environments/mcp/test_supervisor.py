"""No server outlives the command that started it, whatever ended that and whatever the server started itself."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT

from environments.mcp import supervisor

pytestmark = [pytest.mark.process, pytest.mark.wallclock]

SERVER = ROOT / "tests" / "support" / "mcp_hostile.py"
ASKS = """
import sys
from contextlib import closing
from environments.base import ToolCall
from environments.command import exit_on_signals
from environments.mcp.benchmark import BENCHMARK
from environments.registry import parse_options
from environments.verification.replay import bare_task
exit_on_signals()
environment = BENCHMARK.open(parse_options(BENCHMARK, {"command": sys.argv[1:], "call_seconds": 600, "servers": 1}))
with closing(environment.open(bare_task(environment.starts()[0]))) as episode:
    episode.start()
    episode.step(ToolCall(name="act"))
"""
NOTE = "open({!r}, 'a').write(f'{{os.getpid()}} ')"
DAEMON = """
import os, subprocess
code = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); " + {!r}
code += "; time.sleep(3600)"
subprocess.run([sys.executable, "-c", code], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
"""
DEAF = "import signal; [signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]"


def wait_until(condition, seconds):
    due = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < due:
        time.sleep(0.02)
    return held


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_servers_and_what_they_started_end_with_their_command(number, tmp_path):
    pids = tmp_path / "pids"
    note = NOTE.format(str(pids))
    start = f"{DEAF}\n{DAEMON.format('import os; ' + note)}"
    argv = [
        sys.executable,
        "-P",
        "-c",
        ASKS,
        sys.executable,
        str(SERVER),
        start,
        f"{note}; time.sleep(3600)",
        "{folder}",
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = subprocess.Popen(argv, env=variables, stderr=subprocess.DEVNULL)
    started = wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
    command.send_signal(number)
    command.wait(60)
    assert started, command.returncode
    assert wait_until(lambda: not any(map(psutil.pid_exists, map(int, pids.read_text().split()))), 30)
    assert wait_until(lambda: [*tmp_path.iterdir()] == [pids], 30), "the folder of the server's own"


def run(command, folder="", **options):
    argv = [sys.executable, "-I", "-S", supervisor.__file__, folder, *command]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_command_ends_by_itself_where_it_can_and_has_signals_as_usual():
    code = "import json, signal as s, sys; print(json.dumps([str(s.getsignal(n)) for n in (1, 2, 15, 17)])); "
    code += "sys.stdin.read(); print('left')"
    done = run([sys.executable, "-c", code]).communicate(timeout=60)[0].decode().splitlines()
    plain = subprocess.run([sys.executable, "-c", code], stdin=-3, capture_output=True, check=True).stdout.decode()
    assert done == plain.splitlines()
    assert json.loads(done[0])[2] == "0"


def test_a_program_that_cannot_run_says_so(tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    assert b"Exec format error" in run([str(broken)]).communicate(timeout=60)[1]


def test_a_folder_that_its_server_replaced_by_a_link_is_not_followed(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.txt").write_text("theirs")
    code = "import os; os.rename('own', 'old'); os.symlink('theirs', 'own'); open('old/x', 'w')"
    run([sys.executable, "-c", code], str(tmp_path / "own"), cwd=tmp_path).communicate(timeout=60)
    assert (tmp_path / "theirs" / "a.txt").read_text() == "theirs"
    assert [*Path(tmp_path / "old").iterdir()] == []
