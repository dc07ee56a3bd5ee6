"""Starts processes that serve environments as `coevolve environment serve` does, several hosts in each if asked for.

`python -m benchmarks.host_processes HOSTS CAPACITY SETTINGS` serves until its standard input ends, as it does with its
parent. SETTINGS are the section `environment` of a recipe in JSON. It prints the hosts' URLs as a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from environments.settings import EnvironmentSettings

__all__ = ["HostProcesses", "serving"]


class HostProcesses(NamedTuple):
    """Hosts that answer: their URLs, and the processes that they run in."""

    urls: Sequence[str]
    pids: Sequence[int]

    def cpu(self) -> float:
        """Return the CPU seconds that the processes have used."""
        times = [psutil.Process(pid).cpu_times() for pid in self.pids]
        return float(sum(one.user + one.system for one in times))

    def memory(self) -> float:
        """Return the megabytes that the processes hold."""
        return float(sum(psutil.Process(pid).memory_info().rss for pid in self.pids) / 2**20)


@contextmanager
def serving(chosen: EnvironmentSettings, processes: int, hosts: int = 1, capacity: int = 64) -> Iterator[HostProcesses]:
    """Start ``processes`` with ``hosts`` hosts each, and end them afterwards. Raises RuntimeError where one fails."""
    section = chosen.model_copy(update={"hosts": ()}).model_dump_json()
    argv = [sys.executable, "-m", "benchmarks.host_processes", str(hosts), str(capacity), section]
    started = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    try:
        urls: list[str] = []
        for process in started:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"a process of hosts ended with status {process.wait()}")
            urls += json.loads(line)
        yield HostProcesses(urls, [process.pid for process in started])
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def main(hosts: str, capacity: str, section: str) -> None:
    """Serve until the standard input ends."""
    from environments.hosts.episodes import HostedEpisodes
    from environments.hosts.messages import identity_of
    from environments.hosts.server import HostServer, listen
    from environments.registry import open_environment

    chosen = EnvironmentSettings.model_validate_json(section)
    opened = open_environment(chosen)
    identity = identity_of(opened, chosen)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                HostServer(HostedEpisodes(opened, identity, capacity=int(capacity), idle=600.0), listen("127.0.0.1", 0))
            )
            for _ in range(int(hosts))
        ]
        print(json.dumps([server.url for server in servers]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
