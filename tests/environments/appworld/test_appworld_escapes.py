"""Escape attempts against the real worker: no answer, no file, no signal, no connection, no harm.

First through every fence, as an agent would; then with Python lost, where the kernel's wall alone holds.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from support.engine_pids import world_pid
from support.escape_attempts import ATTEMPTS, ESCAPED, LISTING_OF_USR, lost_python_attempts
from support.solutions import answer, solve

from environments.appworld import client, sandbox
from environments.appworld.client import AppWorldEngine, World, WorldLost
from environments.appworld.installation import REPOSITORY, Installation
from environments.appworld.records import EngineLimits

SECRET = "made02_1"  # a question whose answer is a word that its owner's note holds, and nothing of another person's
UNHARMED = "print(apis.supervisor.show_profile()['email'])"
LOST = lost_python_attempts()


class Outside:
    """What stands outside the wall and must stay as it is."""

    def __init__(self, folder: Path, installation: Installation) -> None:
        self.installation = installation
        self.outside = folder / "outside"
        self.secret = folder / "secret"
        self.secret.write_text("the-secret-of-the-user")
        self._open = ExitStack()
        self.process = self._open.enter_context(subprocess.Popen(["sleep", "3600"], start_new_session=True))
        self._open.callback(self.process.kill)
        self.connections: list[object] = []
        self.tcp = self._listening(socket.AF_INET, ("127.0.0.1", 0))
        self.port = self.tcp.getsockname()[1]
        self.socket = folder / "s"
        self._listening(socket.AF_UNIX, str(self.socket))
        self.abstract = f"coevolve-{os.getpid()}"
        self._listening(socket.AF_UNIX, f"\0{self.abstract}")
        self._before = self._state()
        self._clock = time.time() - time.monotonic()

    def filled(self, code: str, other: int = 0) -> str:
        """The attempt's code with its places filled in."""
        full, blind = self.installation.full, self.installation.blind
        site = next((self.installation.python.parent.parent / "lib").glob("python*/site-packages"))
        truth = full / "data" / "tasks" / SECRET / "ground_truth" / "answer.json"
        assert truth.is_file()
        places = {"answer": truth, "full": full, "blind": blind, "outside": self.outside, "secret": self.secret}
        interpreter = self.installation.python.resolve().parent.parent
        places |= {"site": site, "interpreter": interpreter, "repository": REPOSITORY, "socket": self.socket}
        values = {"pid": self.process.pid, "port": self.port, "abstract": self.abstract, "other": other}
        for name, value in {**places, **values}.items():
            code = code.replace("{" + name + "}", str(value))
        return code

    def untouched(self) -> bool:
        """Whether everything is as it was."""
        assert self.process.poll() is None
        assert not self.connections
        assert not self.outside.exists()
        assert abs(time.time() - time.monotonic() - self._clock) < 60
        return self._state() == self._before

    def close(self) -> None:
        self._open.close()

    def _listening(self, family: int, address: object) -> socket.socket:
        server = socket.socket(family)
        server.bind(address)
        server.listen()
        self._open.enter_context(closing(server))

        def wait() -> None:
            with suppress(OSError):
                self.connections.append(server.accept())

        threading.Thread(target=wait, daemon=True).start()
        return server

    def _state(self) -> object:
        canary = psutil.Process(self.process.pid)
        files = [*self.installation.blind.rglob("*"), *(REPOSITORY / "environments" / "appworld").rglob("*.py")]
        told = [(str(file), file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_mode) for file in files]
        limits = canary.rlimit(psutil.RLIMIT_NOFILE) if sys.platform == "linux" else None
        return hashlib.sha256(repr(sorted(told)).encode()).hexdigest(), canary.nice(), canary.cpu_affinity(), limits


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, installation: Installation) -> Iterator[Outside]:
    with closing(Outside(tmp_path_factory.mktemp("out"), installation)) as place:
        yield place
        assert place.untouched()


@pytest.fixture(scope="module")
def besieged(engine: AppWorldEngine) -> Iterator[World]:
    """One world for all attempts of the first stage: none may harm it."""
    with engine.open("made01_1") as world:
        yield world


class Lost:
    """An engine whose worlds run any Python: one world after the other, as attempts may end their own."""

    def __init__(self, engine: AppWorldEngine) -> None:
        self.engine = engine
        self.bystander = engine.open("made01_2")
        self._world = engine.open("made01_1")

    def output(self, code: str) -> str:
        """What the code printed, or that it ended its world."""
        try:
            return self._world.execute(code).output
        except WorldLost as error:
            self._world.close()
            self._world = self.engine.open("made01_1")
            return f"lost: {error}"

    def close(self) -> None:
        self._world.close()
        self.bystander.close()


@pytest.fixture(scope="module")
def lost(installation: Installation) -> Iterator[Lost]:
    with AppWorldEngine(installation, EngineLimits(execute=30, grace=10.0, megabytes=256)) as engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_WORKER", "tests.support.lost_worker")
            patch.setattr(sandbox, "PROGRAMS", (*sandbox.PROGRAMS, "tests"))
            engine.open("made01_1").close()
        with closing(Lost(engine)) as one:
            yield one


def unharmed(world: World) -> bool:
    return world.execute(UNHARMED).output == f"{world.opening.supervisor.email}\n"


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_attempt_escapes(name: str, besieged: World, engine: AppWorldEngine, outside: Outside) -> None:
    world = besieged
    start = world.state()
    executed = world.execute(outside.filled(ATTEMPTS[name]))
    assert ESCAPED not in executed.output
    assert str(answer(engine, SECRET)) not in executed.output
    assert outside.secret.read_text() not in executed.output
    assert outside.process.poll() is None
    assert not outside.outside.exists()
    assert unharmed(world)
    assert world.state() == start


def test_lost_python_is_lost_indeed(lost: Lost, outside: Outside) -> None:
    """What attempts are told to fail at would be told if it worked."""
    seen = lost.output(
        "import os, appworld\nprint('ESC' + 'APED', os.getpid(), os.getuid(), os.listdir('/proc'), os.getcwd())"
    )
    assert seen == f"{ESCAPED} 1 65534 [] /tmp\n"
    assert lost.output("open('mine', 'w').write('x')\nprint(open('mine').read())") == "x\n"
    assert "Uid:" not in lost.output("print(open('/proc/self/status').read())")
    told = lost.output(outside.filled(LISTING_OF_USR))
    assert told.startswith(ESCAPED)
    assert "'bin'" in told


@pytest.mark.parametrize("name", LOST)
def test_with_python_lost_the_kernel_holds(name: str, lost: Lost, engine: AppWorldEngine, outside: Outside) -> None:
    output = lost.output(outside.filled(LOST[name], world_pid(lost.bystander)))
    assert ESCAPED not in output
    assert str(answer(engine, SECRET)) not in output
    assert not any(mistake in output for mistake in ("SyntaxError", "NameError", "ModuleNotFoundError"))
    assert outside.process.poll() is None
    assert not outside.outside.exists()
    assert lost.bystander.diff()


def test_after_all_attempts_everything_outside_is_as_it_was(lost: Lost, outside: Outside) -> None:
    assert outside.untouched()
    assert lost.bystander.execute("print(1)").output == "1\n"
    lost.engine.open("made01_1").close()


def test_worlds_cannot_see_each_other(lost: Lost) -> None:
    lost.output("open('/tmp/kept', 'w').write('x')")
    assert lost.output("import os\nprint(os.listdir('/tmp'))").count("kept") == 1
    assert "kept" not in lost.bystander.execute("import os\nprint(os.listdir('/tmp'))").output


def test_the_process_is_nobody_without_a_capability(lost: Lost) -> None:
    status = {}
    for pid in (psutil.Process(world_pid(lost.bystander)).ppid(), world_pid(lost.bystander)):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert set(status["Uid"].split()) == {str(os.geteuid() or 65534)}
        assert status["NoNewPrivs"] == "1"
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert status["Seccomp"] == "2"


_SOCKET = (
    "import os, stat, struct, json\n"
    "def other():\n    return next(f for f in range(3, 256) if stat.S_ISSOCK(mode(f)))\n"
    "def mode(f):\n    try:\n        return os.fstat(f).st_mode\n    except OSError:\n        return 0\n"
    "def say(body, length=None):\n    os.write(other(), struct.pack('>I', length or len(body)) + body)\n"
)


@pytest.mark.parametrize(
    "reply",
    [
        "say(b'{\"value\": ' + b'[' * 100_000 + b']' * 100_000 + b'}')",
        'say(b\'{"value": {"output": "\\\\ud800", "status": "ok", "calls": [], "completed": false}}\')',
        "say(b'{\"value\": NaN}')",
        "say(b'{\"value\": ' + b'9' * 6000 + b'}')",
        "say(b'x', 2**32 - 1)",
        "say(b'\\xff\\xfe')",
        "say(b'[]')",
        "say(b'{}')",
        'say(b\'{"error": {"a": [1]}}\')',
        'say(b\'{"value": {"output": 1}}\')',
        "os._exit(0)",
        "say(b'{', 1000)\nos._exit(0)",
    ],
)
def test_whatever_a_world_answers_is_its_agents_failure(lost: Lost, reply: str) -> None:
    with lost.engine.open("made01_1") as world, pytest.raises(WorldLost):
        world.execute(_SOCKET + reply)


@pytest.mark.parametrize(
    "state",
    [
        {"spotify.jsonl": """["ATTACH '/tmp/x' AS o", [], false]\n"""},
        {"spotify.jsonl": """["PRAGMA writable_schema = 1", [], false]\n"""},
        {"spotify.jsonl": """["VACUUM INTO '/tmp/x'", [], false]\n"""},
        {"spotify.jsonl": """["DROP TABLE songs", [], false]\n"""},
        {"spotify.jsonl": """["INSERT INTO nowhere VALUES (1)", [], false]\n"""},
        {"spotify.jsonl": """["DELETE FROM songs; ATTACH '/tmp/x' AS o", [], false]\n"""},
        {"spotify.jsonl": "[" * 5000},
        {"../../x.jsonl": "[]"},
        {"spotify.db": "x"},
        {"model_hashes.json": "[1]"},
        {"spotify.jsonl": 3},
        [1],
    ],
    ids=str,
)
def test_a_state_that_is_made_up_is_its_agents_failure_and_the_evaluator_goes_on(lost: Lost, state: object) -> None:
    with lost.engine.open("made01_1") as world:
        assert world.execute(f"world.told = {state!r}").output == ""
        with pytest.raises(WorldLost):
            world.evaluate()
    with lost.engine.open("made01_1") as world:
        assert not world.evaluate().success


def test_solutions_are_evaluated_as_before(engine: AppWorldEngine) -> None:
    with engine.open(SECRET) as world:
        solve(engine, world)
        assert world.evaluate().success
