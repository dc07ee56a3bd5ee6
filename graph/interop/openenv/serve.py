"""`coevolve environment serve`: offers tasks to OpenEnv's clients.

The command checks everything, then begins anew in the Python of OpenEnv's own virtual environment, and serves. OpenEnv
brings fifty packages that nothing else needs, and an older mcp; this project's follow behind them.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.addresses import Origin
from environments.base import InputError
from environments.checkout import ROOT, child_variables
from environments.command import exit_on_signals, exit_statuses, say

if TYPE_CHECKING:
    from environments.base import Environment
    from memory.records import Task

__all__ = ["command", "opened"]

OPENENV = ROOT / ".venvs" / "openenv"
TOKEN_VARIABLE = "COEVOLVE_SERVE_TOKEN"
SHORTEST_TOKEN = 16
BEHIND = "import runpy, sys; sys.path += {}; runpy.run_module('graph.check_environment', run_name='__main__')"
"""The packages of this Python come last: OpenEnv needs another major version of mcp."""


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="a benchmark, or module:callable of your own")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of it")] = None,
    run: Annotated[Path | None, typer.Option(help="a run, in place of NAME: its environment and tasks")] = None,
    tasks: Annotated[Path | None, typer.Option(help="a file of tasks; the benchmark's official ones if none")] = None,
    host: Annotated[str, typer.Option(help=f"address; beyond this machine {TOKEN_VARIABLE} is needed")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0: any that is free")] = 8770,
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="clients that play at a time")] = 64,
    idle: Annotated[float, typer.Option(min=1, help="seconds after which a silent client is cut off")] = 600,
    record: Annotated[bool, typer.Option("--record", help="record in --run what a trainer plays")] = False,
) -> None:
    """Serve tasks to OpenEnv's clients until the process is ended (make openenv installs the server).

    A client selects a task by reset(split=..., index=...), calls its tools, and ends a user turn by the tool
    finish_turn. The reward is 1 or 0 at the end. With --run, tasks that are admitted later follow. Where the
    environment variable COEVOLVE_SERVE_TOKEN is set, clients send it as Authorization: Bearer TOKEN.

    Exit status: 0 after a signal, 2 for a user's mistake.
    """
    exit_on_signals(status=0)
    with exit_statuses():
        _check_address(host, port)
        python = OPENENV / "bin" / "python"
        if not python.exists():
            raise InputError(f"there is no Python at {python}: run make openenv")
        environment, found = opened(name, option or [], run, tasks, record)
        if not Path(sys.prefix).samefile(OPENENV):
            folders = [*dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])]
            argv = [str(python), "-c", BEHIND.format(folders), *sys.argv[sys.argv.index("serve") :]]
            os.execve(python, argv, {**os.environ, **child_variables()})
        try:
            listening = socket.create_server((host, port), backlog=128)
        except OSError as error:
            raise InputError(f"--host {host}, --port {port}: {error.strerror}: choose others") from None
        from graph.interop.openenv.server import application, serve
        from graph.settings import RunSettings
        from memory.run import RunDirectory
        from memory.tasks import load_tasks
        from training.elsewhere.rollouts import RolloutWriter

        directory = None if run is None or tasks is not None else RunDirectory.open(run)
        recorder = None
        if directory is not None and record:
            recorder = RolloutWriter(directory.played_path, directory.settings(RunSettings).training)
        later = partial(tuple, found) if directory is None else partial(load_tasks, directory)
        app = application(environment, later, sessions, idle, recorder)
        address = f"http://{host}:{listening.getsockname()[1]}"
        say(f"serving {len(found)} tasks of {environment.name} at {address} for OpenEnv's clients")
        serve(app, listening, os.environ.get(TOKEN_VARIABLE), idle)


def opened(
    name: str | None, option: Sequence[str], run: Path | None, tasks: Path | None, record: bool
) -> tuple[Environment, tuple[Task, ...]]:
    """Open the environment and read the tasks. Raises InputError where an attempt at one of them cannot begin."""
    from environments.registry import find_benchmark, named_options, open_named
    from graph.interop.attempt import check_tasks
    from graph.settings import RunSettings
    from memory.jsonl import options_given, read_jsonl
    from memory.records import Task
    from memory.run import RunDirectory
    from memory.tasks import load_tasks

    if (name is None) == (run is None):
        raise InputError("give either NAME or --run, one of the two")
    if record and (run is None or tasks is not None):
        raise InputError("--record goes with --run alone: a round is made of the run's own tasks")
    options = options_given(option)
    found: tuple[Task, ...]
    if name is None:
        if options:
            raise InputError("--option goes with NAME: a run has the options of its settings")
        assert run is not None
        directory = RunDirectory.open(run)
        environment = directory.settings(RunSettings).environment.open()
        found, source = load_tasks(directory), str(directory.tasks_path)
    else:
        found, source = (), name
        environment = open_named(name, options)
    if tasks is not None:
        found, source = tuple(read_jsonl(tasks, Task)), str(tasks)
    elif name is not None:
        benchmark = find_benchmark(name)
        official = benchmark.official_tasks(named_options(benchmark, options))
        if official is None:
            raise InputError(f"{name} has no official tasks: name a file of tasks with --tasks")
        found = tuple(Task(id=one.id, origin="official", **dict(one.spec)) for one in official.tasks)
    check_tasks(environment, found, source)
    return environment, found


def _check_address(host: str, port: int) -> None:
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and not (len(token) >= SHORTEST_TOKEN and all("!" <= one <= "~" for one in token)):
        raise InputError(f"{TOKEN_VARIABLE}: give {SHORTEST_TOKEN} characters at least, of ASCII and without spaces")
    if token is None and not Origin("http", host, port).is_loopback:
        raise InputError(
            f"--host {host} can be reached from other machines: set the environment variable {TOKEN_VARIABLE} "
            "to a token that clients have to send"
        )
