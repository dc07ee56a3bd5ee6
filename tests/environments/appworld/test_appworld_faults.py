"""What a world, the worker or the evaluator dies of costs one episode, and the next one opens.

Tests of what becomes of processes start a light worker (``support.light_worker``); a real one is replaced once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from support.engine_pids import worker_of, world_pid, zygote_pid
from support.solutions import note, solve

from environments.appworld import client, sandbox
from environments.appworld.client import AppWorldEngine, World, WorldLost
from environments.appworld.installation import REPOSITORY, Installation
from environments.appworld.records import EngineLimits, ExecutionStatus
from environments.base import EnvironmentFault

BUSY = "while True: pass"
SWALLOWING = "while True:\n    try:\n        for _ in itertools.count(): pass\n    except BaseException: pass"
WAIT = 20.0  # seconds within which what must happen has happened
LIGHT = "tests.support.light_worker"
QUICK = EngineLimits(execute=2, grace=2.0)
EPISODES = ("none", "none", "none", "none", "world", "world", "evaluator", "worker")
"""What is killed at random in episodes in a row; the worker last, as what replaces it takes long to start."""


@pytest.fixture(scope="module")
def quick(installation: Installation) -> Iterator[AppWorldEngine]:
    """An engine of its own, which tests may hurt; code has two seconds, its world two more."""
    with AppWorldEngine(installation, QUICK) as engine:
        yield engine


@pytest.fixture
def light(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppWorldEngine]:
    """An engine whose worker starts at once."""
    monkeypatch.setattr(client, "_WORKER", LIGHT)
    monkeypatch.setattr(sandbox, "PROGRAMS", (*sandbox.PROGRAMS, "tests"))
    with AppWorldEngine(installation, QUICK) as engine:
        yield engine


def eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def killed_while_busy(world: World, pid: int) -> WorldLost:
    """Kill a process while the world executes; what the caller gets."""
    timer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    with pytest.raises(WorldLost) as caught:
        world.execute(BUSY)
    timer.join()
    assert time.monotonic() - began < QUICK.execute + QUICK.grace, (
        "the death was not noticed before the world's time was over"
    )
    return caught.value


def works(engine: AppWorldEngine) -> bool:
    with engine.open("made01_2") as world:
        solve(engine, world)
        return world.evaluate().success


@pytest.mark.parametrize("which", [world_pid, lambda world: psutil.Process(world_pid(world)).ppid()])
def test_a_killed_world_is_lost_and_the_others_go_on(quick: AppWorldEngine, which: Callable[[World], int]) -> None:
    with quick.open("made01_1") as other, quick.open("made01_1") as world:
        other.execute(note("Kept", "x"))
        enclosed = world_pid(world)
        lost = killed_while_busy(world, which(world))
        assert "the episode's process ended during execute" in str(lost)
        with pytest.raises(WorldLost, match="an episode that is over"):
            world.execute("1")
        assert eventually(lambda: gone(enclosed))
        assert len(other.diff().changes["simple_note.Note"].added) == 1
    assert works(quick)


def test_a_killed_worker_takes_its_worlds_and_is_replaced(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world, quick.open("made01_1") as other:
        pids = [world_pid(world), world_pid(other)]
        killed_while_busy(world, zygote_pid(worker_of(world)))
        assert eventually(lambda: all(map(gone, pids)))  # until it is gone, the other world still answers
        with pytest.raises(WorldLost):
            other.execute("1")
    assert works(quick)


def test_a_world_that_dies_before_it_was_given_code_is_a_fault(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        os.kill(world_pid(world), signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match="the end of its log:"):
            world.evaluate()


def test_a_killed_bubblewrap_is_replaced_and_leaves_nothing(light: AppWorldEngine) -> None:
    world = light.open("made01_1")
    pids = [zygote_pid(worker_of(world)), world_pid(world)]
    bubblewrap = worker_of(world)._process.pid
    os.kill(bubblewrap, signal.SIGKILL)
    assert eventually(lambda: gone(bubblewrap))  # until it is, what it enclosed still answers and is used
    light.open("made01_1").close()
    assert eventually(lambda: all(map(gone, pids)))


def test_a_killed_evaluator_is_replaced(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        assert not world.evaluate().success
        evaluator = quick._evaluator
        assert evaluator is not None
        pid = zygote_pid(evaluator)
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: gone(pid))
        assert not world.evaluate().success


def test_endless_code_is_told_so_and_the_world_goes_on(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        executed = world.execute(BUSY)
        assert executed.status is ExecutionStatus.FAILED
        assert "timed out after 2 seconds" in executed.output
        assert world.execute("print(1)").output == "1\n"


def test_code_that_ignores_its_time_is_killed_at_the_deadline(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        pid = world_pid(world)
        with pytest.raises(WorldLost, match="execute did not end within 4 s, the episode was killed"):
            world.execute(SWALLOWING)
        assert eventually(lambda: gone(pid))
    assert works(quick)


@pytest.mark.parametrize(
    "bomb",
    ["x = [0] * 10**10", "x = 'a' * 2_000_000_000", "x = []\nwhile True: x.append('y' * 1_000_000)"],
    ids=["list", "text", "growing"],
)
def test_a_memory_bomb_is_an_error_of_the_code(engine: AppWorldEngine, bomb: str) -> None:
    with engine.open("made01_1") as world:
        before = psutil.Process(world_pid(world)).memory_info().rss
        executed = world.execute(bomb)
        assert executed.status is ExecutionStatus.FAILED
        assert "MemoryError" in executed.output
        grown = psutil.Process(world_pid(world)).memory_info().rss - before
        assert grown < (256 + 512) * 2**20  # its share and the reserve
        world.execute("x = None")
        assert world.execute("print(1)").output == "1\n"
    assert works(engine)


def test_a_time_bomb_in_native_code_is_killed_at_the_deadline(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        pid = world_pid(world)
        with pytest.raises(WorldLost, match="was killed"):
            world.execute("sum(itertools.repeat(1))")
        assert eventually(lambda: gone(pid))
    assert works(quick)


def test_nesting_that_breaks_the_interpreter_costs_that_episode_at_most(quick: AppWorldEngine) -> None:
    with quick.open("made01_1") as world:
        try:
            assert world.execute("f = lambda: f()\nf()").status is ExecutionStatus.FAILED
            world.execute("class A:\n    def __repr__(self): return repr([self])\nprint(A())")
        except WorldLost:
            pass
    assert works(quick)


def test_the_engine_starts_with_none_of_this_processs_variables(
    light: AppWorldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-user")
    with light.open("made01_1") as world:
        for pid in (world_pid(world), zygote_pid(worker_of(world))):
            assert b"secret-of-the-user" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the death of a zygote's children is Linux's")
def test_the_engine_ends_with_the_process_that_started_it(installation: Installation) -> None:
    code = (
        "import sys\n"
        "sys.path.append('tests')\n"
        "from environments.appworld import client, sandbox\n"
        "from support.engine_pids import worker_of, world_pid, zygote_pid\n"
        f"client._WORKER = {LIGHT!r}\n"
        "sandbox.PROGRAMS += ('tests',)\n"
        "engine = client.AppWorldEngine()\n"
        "world = engine.open('made01_1')\n"
        "print(world_pid(world), zygote_pid(worker_of(world)), flush=True)\n"
        f"world.execute({BUSY!r})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    world, worker = parent.stdout.readline().split()
    parent.kill()
    parent.wait(WAIT)
    parent.stdout.close()
    assert eventually(lambda: gone(int(world)) and gone(int(worker)))


def test_a_worker_that_cannot_start_is_a_fault_with_its_log(installation: Installation) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as world:  # the sandbox hides what lies below /tmp
        os.chmod(world, 0o755)  # the engine's processes are another user's
        for root in ("full", "blind"):
            task = Path(world, root, "data", "tasks", "made01_1")
            task.mkdir(parents=True)
            (task / "specs.json").write_text("{}")
        broken = Installation(python=installation.python, world=Path(world))
        with AppWorldEngine(broken) as engine, pytest.raises(EnvironmentFault, match="the end of its log") as caught:
            engine.open("made01_1")
    assert "Traceback" in str(caught.value)


def test_many_threads_share_an_engine(quick: AppWorldEngine) -> None:
    outputs: dict[int, str] = {}

    def play(number: int) -> None:
        with quick.open("made01_1") as world:
            outputs[number] = world.execute(f"print({number})").output

    threads = [threading.Thread(target=play, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outputs == {number: f"{number}\n" for number in range(6)}


def test_an_engine_that_is_closed_leaves_no_process(light: AppWorldEngine) -> None:
    world = light.open("made01_1")
    pids = [zygote_pid(worker_of(world)), world_pid(world), worker_of(world)._process.pid]
    light.close()
    light.close()
    assert eventually(lambda: all(map(gone, pids)))
    with pytest.raises(RuntimeError, match="was closed"):
        light.open("made01_1")


def test_every_one_of_many_episodes_is_accounted_for(quick: AppWorldEngine, installation: Installation) -> None:
    """Processes are killed at random. The last test of this engine, so that its worker need not be replaced."""
    draw = random.Random(3)
    outcomes: Counter[tuple[str, str]] = Counter()
    ids = installation.task_ids("train")
    for number, kind in enumerate(EPISODES):
        outcomes[kind, played(quick, ids[number % len(ids)], kind, draw.uniform(0.0, 0.4))] += 1
    assert sum(outcomes.values()) == len(EPISODES)
    assert {outcome for kind, outcome in outcomes if kind == "none"} == {"solved"}
    assert {outcome for _, outcome in outcomes} <= {"solved", "fault"}
    assert any(outcome == "fault" for _, outcome in outcomes)


def played(engine: AppWorldEngine, task_id: str, kind: str, after: float) -> str:
    """One episode during which a process of ``kind`` is killed ``after`` seconds: how it ended."""
    timer = None
    try:
        with engine.open(task_id) as world:
            process = {"world": lambda: world_pid(world), "worker": lambda: zygote_pid(worker_of(world))}
            process["evaluator"] = lambda: zygote_pid(engine._evaluator) if engine._evaluator else world_pid(world)
            if kind != "none":
                timer = threading.Timer(after, _kill, (process[kind](),))
                timer.start()
            try:
                solve(engine, world)
                return "solved" if world.evaluate().success else "failed"
            finally:  # while the world is open, so that its number is still its own
                if timer is not None:
                    timer.cancel()
                    timer.join()
    except (EnvironmentFault, WorldLost):
        return "fault"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
