"""Eight AppWorld worlds at once: the project's worker against a pool of `appworld serve environment` processes.

Both play the same official task by its solution: open, execute, evaluate. The pool is driven as its own documentation
says, a request each for initialize, execute, evaluate and close. Memory is the proportional share of every process of a
side, so that pages which forked worlds share are counted once; what a world adds is its private memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from benchmarks.appworld_servers import Serving, serving
from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.appworld.client import AppWorldEngine, World
from environments.appworld.installation import Installation, find_installation
from environments.appworld.official_tasks import official_task, split_ids
from environments.appworld.servers import Server

__all__ = ["measure"]

WORLDS = 8
EPISODES = 40  # of which the rate is taken
OPENED = 5  # worlds of which processor time and private memory are taken, one after the other
CPU = 0.5  # seconds of processor time that a new episode may take of ours
PRIVATE = 100.0  # MB that a world may add of ours
_FIRST_USE = (
    "a fresh process for each world and each evaluation pays for the first use of every API and check again; a "
    "server's process keeps what it has used, and runs agents' code beside the solutions"
)
_PATIENCE = 300.0  # seconds for one answer of a server
_MB = 1e6


class _Work(NamedTuple):
    """A task of the benchmark, and code that solves it."""

    installation: Installation
    task_id: str
    code: str


class _Side(NamedTuple):
    """``ready``: seconds until all worlds were open. ``memory``: MB of all processes. ``rate``: episodes per second.

    ``cpu`` seconds and ``private`` MB are those of one world, after warm-up.
    """

    ready: float
    memory: float
    rate: float
    cpu: float
    private: float


def measure(repeats: int, worlds: int = WORLDS, episodes: int = EPISODES) -> Sequence[Measurement]:
    """Return five rows. Raises InputError where AppWorld is not installed, RuntimeError when a side fails the task."""
    installation = find_installation()
    task_id = split_ids(installation, "train")[0]
    code = official_task(installation, task_id, "train").reference[0][0].arguments["code"]
    work = _Work(installation, task_id, str(code))
    sides = [(_ours(work, worlds, episodes), _servers(work, worlds, episodes)) for _ in range(repeats)]
    against = f"{worlds} worlds of our worker and its evaluator / {worlds} processes of `appworld serve environment`"

    def row(
        name: str, what: str, figure: Callable[[_Side], float], unit: str, most: float | None = None, note: str = ""
    ) -> Measurement:
        pairs = [Pair(figure(ours), figure(servers)) for ours, servers in sides]
        made = of_pairs(f"appworld: {name}", f"{what}: {against}", pairs, unit, note=note)
        if most is None:
            return made
        return made.model_copy(update={"expected": f"ours at most {most:g} {unit}", "met": made.ours <= most})

    return [
        row("start", f"time until {worlds} worlds are open, from nothing", lambda side: side.ready, "s"),
        row("memory", "memory of all processes, shared pages once", lambda side: side.memory, "MB"),
        row(
            "episodes",
            f"open, execute the solution and evaluate, {worlds} at once",
            lambda side: side.rate,
            "episodes/s",
            note=_FIRST_USE,
        ),
        row("a new episode", "processor time to open one, after warm-up", lambda side: side.cpu, "s", CPU),
        row("a world", "private memory of one that solved its task", lambda side: side.private, "MB", PRIVATE),
    ]


def _ours(work: _Work, worlds: int, episodes: int) -> _Side:
    began = time.perf_counter()
    with AppWorldEngine(work.installation) as engine, ThreadPoolExecutor(worlds) as threads:
        opened = [*threads.map(lambda _: engine.open(work.task_id), range(worlds))]
        ready = time.perf_counter() - began
        for world in opened:
            _solve(world, work)
        memory = _memory()
        for world in opened:
            world.close()

        def play(_: int) -> None:
            with engine.open(work.task_id) as world:
                _solve(world, work)

        rate = _rate(play, threads, episodes)
        taken = [_opened_by_us(engine, work) for _ in range(OPENED)]
    return _Side(ready, memory, rate, median(cpu for cpu, _ in taken), median(private for _, private in taken))


def _opened_by_us(engine: AppWorldEngine, work: _Work) -> tuple[float, float]:
    """Return CPU seconds of the new process and of the one that forks it, and the private memory at the end."""
    assert engine._worker is not None
    parent = psutil.Process(engine._worker.pid)
    before = _cpu(parent)
    with engine.open(work.task_id) as world:
        process = psutil.Process(world.pid)
        cpu = _cpu(process) + _cpu(parent) - before
        if engine.walled:  # the process that waits for it made its namespaces
            cpu += _cpu(process.parent())
        _solve(world, work)
        return cpu, process.memory_full_info().uss / _MB


def _solve(world: World, work: _Work) -> None:
    world.execute(work.code)
    if not world.evaluate().success:
        raise RuntimeError(f"our worker does not solve {work.task_id} by its solution")


def _servers(work: _Work, worlds: int, episodes: int) -> _Side:
    began = time.perf_counter()
    with serving(work.installation, worlds) as pool, ThreadPoolExecutor(worlds) as threads:
        [*threads.map(lambda one: _initialize(one, work), pool)]
        ready = time.perf_counter() - began
        for one in pool:
            _solve_there(one, work)
        memory = _memory()
        idle = [*pool]

        def play(_: int) -> None:
            one = idle.pop()  # there are as many threads as servers
            _initialize(one, work)
            _solve_there(one, work)
            _ask(one, work, "/close")
            idle.append(one)

        rate = _rate(play, threads, episodes)
        taken = [_opened_there(pool[0], work) for _ in range(OPENED)]
    return _Side(ready, memory, rate, median(cpu for cpu, _ in taken), median(private for _, private in taken))


def _opened_there(one: Serving, work: _Work) -> tuple[float, float]:
    process = psutil.Process(one.pid)
    before = _cpu(process)
    _initialize(one, work)
    cpu = _cpu(process) - before
    _solve_there(one, work)
    _ask(one, work, "/close")
    return cpu, process.memory_full_info().uss / _MB


def _initialize(one: Serving, work: _Work) -> None:
    _ask(one, work, "/initialize", experiment_name=f"pool-{one.pid}")


def _solve_there(one: Serving, work: _Work) -> None:
    _ask(one, work, "/execute", code=work.code)
    if not _ask(one, work, "/evaluate", suppress_errors=True)["success"]:
        raise RuntimeError(f"the server {one.url} does not solve {work.task_id} by its solution")


def _ask(one: Serving, work: _Work, path: str, **arguments: object) -> dict[str, object]:
    answer: dict[str, object] = Server(one.url).ask(path, {"task_id": work.task_id, **arguments}, _PATIENCE)
    return answer


def _rate(play: Callable[[int], None], threads: ThreadPoolExecutor, episodes: int) -> float:
    began = time.perf_counter()
    [*threads.map(play, range(episodes))]
    return episodes / (time.perf_counter() - began)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _memory() -> float:
    """Return the MB of all child processes and theirs, shared pages counted once (Linux)."""
    shares = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # the evaluator's children come and go
            shares.append(process.memory_full_info().pss)
    return float(sum(shares)) / _MB
