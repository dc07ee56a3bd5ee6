"""Measures episodes on eight hosts of this machine against episodes in this process.

An episode replays the reference of a task of the default benchmark: its opening, every call, every end of a turn, the
outcome, the release; each is a request to a host. Those episodes take a millisecond or two here, so that HTTP is most
of what is measured. Hosts are for environments that wait, or need a machine of their own: the second row's steps take
``WAIT`` seconds each. Hosts and their clients share this machine's cores.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import NamedTuple

from benchmarks.host_processes import HostProcesses, serving
from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.base import Action, Environment, Observation, TaskSpec, ToolCall
from environments.bfcl.official import load_category
from environments.example import Depot
from environments.hosts.environment import open_for_play
from environments.python_class.environment import PythonEnvironment
from environments.python_class.episode import PythonEpisode
from environments.registry import open_environment
from environments.settings import EnvironmentSettings

__all__ = ["WaitingDepot", "measure", "replay", "waiting_depot"]

HOSTS = 8
THREADS = 16  # episodes that the client plays at a time
PASSES = 2  # passes over the tasks in one half of a pair
LEAST = 10.0  # episodes per second on hosts that are expected, of which the nearest peer's server does 0.23
WAIT = 0.05  # seconds of a step of the environment that waits
WAITED = 4.0  # times the episodes that eight hosts play of it, at least
MAX_STEPS = 100  # a turn's reference has up to 34 calls


class WaitingDepot(PythonEnvironment):
    """The example's depot, each step of which takes ``WAIT`` seconds of waiting: a stand-in for a slow environment."""

    def open(self, task: TaskSpec) -> PythonEpisode:
        """Open an episode."""
        episode = super().open(task)
        step = episode.step

        def waited(action: Action) -> Observation:
            time.sleep(WAIT)
            return step(action)

        vars(episode)["step"] = waited
        return episode


def waiting_depot() -> WaitingDepot:
    """Return what ``environment.name: benchmarks.environment_hosts:waiting_depot`` opens."""
    parcels = {"books": {"kilograms": 3}}
    return WaitingDepot("waiting-depot", Depot, [{"parcels": parcels, "gate_open": False}])


class _Played(NamedTuple):
    """Episodes, requests, wall seconds, and CPU seconds of this process and of the hosts."""

    episodes: int
    requests: int
    wall: float
    cpu: float
    hosts: float

    @property
    def rate(self) -> float:
        return self.episodes / self.wall


def measure(repeats: int, limit: int | None = None, hosts: int = HOSTS) -> Sequence[Measurement]:
    """Measure episodes per second on ``hosts`` hosts and here; ``limit``: the first tasks of the category only.

    Raises RuntimeError where a reference fails.
    """
    official = EnvironmentSettings(options={"max_steps": MAX_STEPS})
    waiting = EnvironmentSettings(name="benchmarks.environment_hosts:waiting_depot")
    tasks = [one.spec for one in load_category("base")][:limit]
    fast = _compared(official, tasks * PASSES, repeats, hosts)
    slow = _compared(waiting, _waiting_tasks(8 * hosts if limit is None else limit), repeats, hosts)
    return [
        _row(
            f"environment-hosts: {hosts} hosts",
            f"references of {len(tasks)} official tasks, {hosts} hosts over HTTP / in this process",
            fast,
            f"at least {LEAST:g} episodes/s",
            lambda ours, ratio: ours >= LEAST,
        ),
        _row(
            f"environment-hosts: {hosts} hosts, steps of {WAIT * 1000:g} ms",
            f"episodes whose steps wait {WAIT * 1000:g} ms, {hosts} hosts over HTTP / in this process, one at a time",
            slow,
            f"ratio at least {WAITED:g}",
            lambda ours, ratio: ratio >= WAITED,
        ),
    ]


def _compared(
    chosen: EnvironmentSettings, tasks: Sequence[TaskSpec], repeats: int, hosts: int
) -> list[tuple[_Played, _Played]]:
    here = open_environment(chosen)
    pairs = []
    with serving(chosen, hosts) as servers:
        there = open_for_play(chosen.model_copy(update={"hosts": tuple(servers.urls)}))
        _play(there, tasks[: 2 * hosts], servers)  # references are kept from now on, on both sides
        _play(here, tasks, None)
        for _ in range(repeats):
            pairs.append((_play(there, tasks, servers), _play(here, tasks, None)))
    return pairs


def _play(environment: Environment, tasks: Sequence[TaskSpec], servers: HostProcesses | None) -> _Played:
    began, cpu, hosts = time.perf_counter(), _cpu(), servers.cpu() if servers else 0.0
    if servers is None:
        requests = sum(replay(environment, task) for task in tasks)
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            requests = sum(pool.map(lambda task: replay(environment, task), tasks))
    wall = time.perf_counter() - began
    return _Played(len(tasks), requests, wall, _cpu() - cpu, servers.cpu() - hosts if servers else 0.0)


def replay(environment: Environment, task: TaskSpec) -> int:
    """Replay the task's reference; return the number of calls of the episode's interface."""
    episode = environment.open(task)
    episode.start()
    calls = 4
    for turn in task.reference:
        for call in turn:
            episode.step(call)
        episode.end_turn()
        calls += len(turn) + 1
    success = episode.outcome().success
    episode.close()
    if not success:
        raise RuntimeError(f"the reference of {task.turns} fails")
    return calls


def _waiting_tasks(count: int) -> list[TaskSpec]:
    start = waiting_depot().starts()[0]
    calls = (ToolCall(name="open_gate"), ToolCall(name="list_parcels"))
    task = TaskSpec(
        environment=start.environment,
        split=start.split,
        classes=start.classes,
        turns=("Open the gate and look.",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=(calls,),
    )
    return [task] * count


def _row(
    name: str,
    compared: str,
    pairs: Sequence[tuple[_Played, _Played]],
    expected: str,
    met: Callable[[float, float], bool],
) -> Measurement:
    row = of_pairs(name, compared, [Pair(there.rate, here.rate) for there, here in pairs], "episodes/s", expected)
    there, here = [one for one, _ in pairs], [one for _, one in pairs]

    def each(played: Sequence[_Played], seconds: Callable[[_Played], float]) -> str:
        return f"{median(1000 * seconds(one) / one.episodes for one in played):.1f}"

    note = (
        f"CPU ms per episode: client {each(there, lambda one: one.cpu)}, hosts {each(there, lambda one: one.hosts)}, "
        f"in this process {each(here, lambda one: one.cpu)}; "
        f"{median(one.requests / one.episodes for one in there):.1f} requests per episode, "
        f"{median(one.requests / one.wall for one in there):.0f} requests/s"
    )
    assert row.ratio is not None
    return row.model_copy(update={"met": met(row.ours, row.ratio), "note": note})


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
