"""`coevolve environment serve`: offers tasks to OpenEnv's clients.

The command checks everything, then becomes the server: the same module, run by the Python of OpenEnv's own virtual
environment. OpenEnv brings fifty packages that nothing else needs, and an older mcp; this project's follow behind them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel, JsonValue

from environments.addresses import Origin
from environments.base import InputError
from environments.checkout import ROOT, child_variables
from environments.command import exit_statuses
from environments.terminal import say

if TYPE_CHECKING:
    from environments.base import Environment
    from memory.records import Task

__all__ = ["Serving", "command", "opened"]

OPENENV = ROOT / ".venvs" / "openenv"
TOKEN_VARIABLE = "COEVOLVE_SERVE_TOKEN"
SHORTEST_TOKEN = 16
BEHIND = "import runpy, sys; sys.path += {}; runpy.run_module('graph.interop.openenv.serve', run_name='__main__')"
"""The packages of this Python come last: OpenEnv needs another major version of mcp."""


class Serving(BaseModel):
    """What is served, and where: the options of the command."""

    name: str | None
    options: dict[str, JsonValue]
    run: Path | None
    tasks: Path | None
    host: str
    port: int
    sessions: int
    idle: float
    record: bool = False


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
    with exit_statuses():
        from memory.strict_yaml import options_given

        serving = Serving(
            name=name,
            options=options_given(option or []),
            run=run and run.absolute(),
            tasks=tasks and tasks.absolute(),
            host=host,
            port=port,
            sessions=sessions,
            idle=idle,
            record=record,
        )
        _check_address(serving)
        python = OPENENV / "bin" / "python"
        if not python.exists():
            raise InputError(f"there is no Python at {python}: run make openenv")
        opened(serving)
        folders = [*dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])]
        argv = [str(python), "-c", BEHIND.format(folders), serving.model_dump_json()]
        os.execve(python, argv, {**os.environ, **child_variables()})


def opened(serving: Serving) -> tuple[Environment, tuple[Task, ...]]:
    """Open the environment and read the tasks. Raises InputError where an attempt at one of them cannot begin."""
    from environments.registry import find_benchmark, named_options, open_named
    from graph.interop.attempt import check_tasks
    from graph.settings import RunSettings
    from memory.jsonl import read_jsonl
    from memory.records import Task
    from memory.run import RunDirectory
    from memory.tasks import load_tasks

    if (serving.name is None) == (serving.run is None):
        raise InputError("give either NAME or --run, one of the two")
    if serving.record and (serving.run is None or serving.tasks is not None):
        raise InputError("--record goes with --run alone: a round is made of the run's own tasks")
    if serving.name is None:
        if serving.options:
            raise InputError("--option goes with NAME: a run has the options of its settings")
        assert serving.run is not None
        directory = RunDirectory.open(serving.run)
        environment = directory.settings(RunSettings).environment.open()
        found, source = load_tasks(directory), str(directory.tasks_path)
    else:
        found, source = (), serving.name
        environment = open_named(serving.name, serving.options)
    if serving.tasks is not None:
        found, source = tuple(read_jsonl(serving.tasks, Task)), str(serving.tasks)
    elif serving.name is not None:
        benchmark = find_benchmark(serving.name)
        official = benchmark.official_tasks(named_options(benchmark, serving.options))
        if official is None:
            raise InputError(f"{serving.name} has no official tasks: name a file of tasks with --tasks")
        found = tuple(Task(id=one.id, origin="official", **dict(one.spec)) for one in official.tasks)
    check_tasks(environment, found, source)
    return environment, found


def _check_address(serving: Serving) -> None:
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and not (len(token) >= SHORTEST_TOKEN and all("!" <= one <= "~" for one in token)):
        raise InputError(f"{TOKEN_VARIABLE}: give {SHORTEST_TOKEN} characters at least, of ASCII and without spaces")
    if token is None and not Origin("http", serving.host, serving.port).is_loopback:
        raise InputError(
            f"--host {serving.host} can be reached from other machines: set the environment variable {TOKEN_VARIABLE} "
            "to a token that clients have to send"
        )


def _serve(serving: Serving) -> None:
    import socket

    from graph.interop.openenv.limits import serve
    from graph.interop.openenv.server import application
    from graph.settings import RunSettings
    from memory.run import RunDirectory
    from memory.tasks import load_tasks
    from training.elsewhere.rollouts import RolloutWriter

    environment, tasks = opened(serving)
    try:
        listening = socket.create_server((serving.host, serving.port), backlog=128)
    except OSError as error:
        raise InputError(f"--host {serving.host}, --port {serving.port}: {error.strerror}: choose others") from None
    address = f"http://{serving.host}:{listening.getsockname()[1]}"
    run = None if serving.run is None or serving.tasks is not None else RunDirectory.open(serving.run)
    recorder = RolloutWriter(run.played_path, run.settings(RunSettings).training) if run and serving.record else None

    def current() -> Sequence[Task]:
        return tasks if run is None else load_tasks(run)

    app = application(environment, current, serving.sessions, serving.idle, recorder)
    say(f"serving {len(tasks)} tasks of {environment.name} at {address} for OpenEnv's clients")
    serve(app, listening, os.environ.get(TOKEN_VARIABLE), serving.idle)


if __name__ == "__main__":
    with exit_statuses():
        _serve(Serving.model_validate_json(sys.argv[1]))
