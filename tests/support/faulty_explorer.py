"""An explorer that misbehaves in chosen branches: it raises, waits without end, or takes the whole process with it.

``python -m support.faulty_explorer RUN FAULTS LOG`` runs the graph of the first iteration with it. FAULTS is a JSON
object: the position of a context among the iteration's new ones, and what to do there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

from agents.assembly import Roles, build_roles
from agents.roles import Explorer, RoleRefused
from agents.settings import RolesSettings
from agents.spending import Ledger, RepeatedFailure
from environments.base import Environment, EnvironmentDefect, InputError
from memory.records import FailureContext, Interaction
from memory.run import IterationDirectory


class FaultyExplorer:
    """``faults`` by position in the sorted ids of the iteration's branches; every call is logged to ``log``."""

    def __init__(self, explorer: Explorer, folder: IterationDirectory, faults: dict[int, str], log: Path) -> None:
        self._explorer = explorer
        self._folder = folder
        self._faults = faults
        self._log = log

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        with self._log.open("a") as log:
            log.write(f"{context.id}\n")
        others = sorted(path.name for path in self._folder.branches.iterdir())
        fault = self._faults.get(others.index(context.id))
        if fault == "refuse":
            raise RoleRefused(f"nothing to explore in {context.id}")
        if fault == "raise":
            raise ZeroDivisionError("a bug of the explorer")
        if fault == "defect":
            raise EnvironmentDefect("Depot.weigh failed (KeyError: 'x') at depot.py:7: mend it")
        if fault == "hopeless":
            raise RepeatedFailure("the endpoint gave no answer to 5 questions")
        if fault == "mistake":
            raise InputError("the endpoint refused the key")
        if fault is not None and fault.startswith("late"):
            await asyncio.sleep(float(fault.removeprefix("late ")))
        if fault == "wait":
            await asyncio.sleep(3600)
        if fault in ("SIGKILL", "SIGTERM"):
            await asyncio.to_thread(self._wait_for_others, context.id, others)
            os.kill(os.getpid(), signal.Signals[fault])
            await asyncio.sleep(0.2 if fault == "SIGTERM" else 3600)
        return await self._explorer.explore(context, environment, seed)

    def _wait_for_others(self, own: str, others: list[str]) -> None:
        """Until every other branch has its results, and a little longer, so that it is checkpointed."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if all(self._folder.branch(one).verdicts.exists() for one in others if one != own):
                break
            time.sleep(0.05)
        time.sleep(0.5)


def install(folder: IterationDirectory, faults: dict[int, str], log: Path) -> None:
    """From now on runs that are opened in this process explore with faults."""
    import graph.assembly

    def faulty_roles(settings: RolesSettings, ledger: Ledger, *, judges: bool) -> Roles:
        roles = build_roles(settings, ledger, judges=judges)
        return dataclasses.replace(roles, explorer=FaultyExplorer(roles.explorer, folder, faults, log))

    graph.assembly.build_roles = faulty_roles


if __name__ == "__main__":
    from graph.run.interruption import Interrupted
    from memory.run import RunDirectory
    from support.made_run import run_graph

    run = RunDirectory.open(Path(sys.argv[1]))
    chosen = {int(position): fault for position, fault in json.loads(sys.argv[2]).items()}
    install(run.iteration(0), chosen, Path(sys.argv[3]))
    try:
        run_graph(run)
    except Interrupted as stop:
        sys.exit(stop.status)
