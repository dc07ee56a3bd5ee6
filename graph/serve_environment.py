"""`coevolve environment serve`: lets runs on other machines play an environment here, behind one thin HTTP server."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, OneSentenceGroup, exit_statuses
from environments.terminal import say
from graph.run.interruption import exit_on_signals

if TYPE_CHECKING:
    from environments.hosts.episodes import HostedEpisodes
    from environments.settings import EnvironmentSettings

PORT = 8765
CAPACITY = 64
IDLE = 600.0
_SHORTEST_TOKEN = 16  # characters
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, cls=OneSentenceGroup)


@app.callback()
def _group() -> None:
    """Serve an environment to runs on other machines."""


@app.command("serve", cls=OneSentence)
def main(
    recipe: Annotated[Path | None, typer.Option(help="the recipe of the runs: its environment and options")] = None,
    environment: Annotated[
        str | None, typer.Option(help="instead of --recipe: a benchmark, or module:attribute of your own")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of --environment, as in a recipe")
    ] = None,
    address: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0: any that is free")] = PORT,
    network: Annotated[
        bool, typer.Option("--network", help="allow an address of --host that other machines can reach")
    ] = False,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help=f"episodes open at a time; {CAPACITY}, or what the environment can have"),
    ] = None,
    idle: Annotated[
        float, typer.Option(min=0.1, help="seconds without a request after which an episode is released")
    ] = IDLE,
) -> None:
    """Serve an environment: a recipe's environment.hosts names this server.

    It executes what agents decide, by whoever reaches it. So it listens on this machine alone unless --network is
    given, and with COEVOLVE_ENVIRONMENT_TOKEN set it answers only clients that have the same token. The connection is
    not encrypted: use a network of your own, or a tunnel.

    Prints the server's URL once it listens, and ends on SIGINT or SIGTERM, when open episodes are released. Exit
    status: 130 on SIGINT and 143 on SIGTERM; 2 for a user's mistake.
    """
    from memory.processes import watch_parent

    exit_on_signals()  # uvicorn hands a signal on to this once it has stopped
    with exit_statuses():
        watch_parent()
        token = _token()
        _check_address(address, network, token)
        chosen = _chosen(recipe, environment, option or [])
        held = _episodes(chosen, episodes, idle)
        from environments.hosts.server import HostServer, listen

        server = HostServer(held, listen(address, port), token)
        print(f"{server.url} serves {held.identity.environment}, {held.capacity} episodes at a time", flush=True)
        server.run()


def _token() -> str | None:
    from environments.hosts.messages import TOKEN

    token = os.environ.get(TOKEN) or None
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise InputError(f"{TOKEN} is not a token: set it to {_SHORTEST_TOKEN} or more plain characters")
    return token


def _check_address(address: str, network: bool, token: str | None) -> None:
    """Refuse an address that other machines can reach unless that is meant, and say what it means."""
    try:
        loopback = address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        raise InputError(f"--host {address} is not an address: write one as 127.0.0.1 or 0.0.0.0") from None
    if loopback:
        if network:
            raise InputError(f"--network has no effect with --host {address}: leave it out, or name another address")
        return
    if not network:
        raise InputError(
            f"--host {address}: other machines could reach this server, which executes what agents decide: add "
            "--network if you mean it"
        )
    who = "whoever has the token" if token is not None else "whoever reaches it (no token is set)"
    say(f"warning: {address} can be reached from other machines: {who} plays episodes here")


def _chosen(recipe: Path | None, environment: str | None, options: list[str]) -> EnvironmentSettings:
    from pydantic import ValidationError

    from environments.registry import DEFAULT
    from environments.settings import EnvironmentSettings
    from memory.strict_yaml import options_given

    if recipe is not None:
        if environment is not None or options:
            raise InputError("--recipe names the environment and its options: leave --environment and --option out")
        from graph.recipe import load_recipe

        # The hosts that the recipe names are such servers: here its episodes are played.
        return load_recipe(recipe).environment.model_copy(update={"hosts": ()})
    try:
        return EnvironmentSettings(name=environment or DEFAULT, options=options_given(options))
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--environment" if first["loc"][0] == "name" else "--option"
        raise InputError(f"{flag}: {first['msg'].removeprefix('Value error, ')}") from None


def _episodes(chosen: EnvironmentSettings, capacity: int | None, idle: float) -> HostedEpisodes:
    from environments.base import at_once
    from environments.hosts.episodes import HostedEpisodes
    from environments.hosts.messages import identity_of
    from environments.registry import open_environment

    opened = open_environment(chosen)
    most = at_once(opened)
    if capacity is not None and most is not None and capacity > most:
        raise InputError(f"--episodes {capacity}: {chosen.name} can have {most} open at a time: give no more")
    return HostedEpisodes(opened, identity_of(opened, chosen), capacity=capacity or most or CAPACITY, idle=idle)


if __name__ == "__main__":
    app()
