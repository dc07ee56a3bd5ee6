"""An explorer that misbehaves in chosen branches: it raises, or waits without end."""

from __future__ import annotations

import asyncio
import dataclasses

from agents.roles import Explorer, Roles, build_roles
from agents.settings import RolesSettings
from agents.spending import Ledger, RepeatedFailure, RoleRefused
from environments.base import Environment, EnvironmentDefect, InputError
from memory.records import FailureContext, Interaction
from memory.run import IterationDirectory


class FaultyExplorer:
    """``faults`` by position in the sorted ids of the iteration's branches."""

    def __init__(self, explorer: Explorer, folder: IterationDirectory, faults: dict[int, str]) -> None:
        self._explorer = explorer
        self._folder = folder
        self._faults = faults

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
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
        return await self._explorer.explore(context, environment, seed)


def install(folder: IterationDirectory, faults: dict[int, str]) -> None:
    """From now on runs that are opened in this process explore with faults."""
    import graph.assembly

    def faulty_roles(settings: RolesSettings, ledger: Ledger) -> Roles:
        roles = build_roles(settings, ledger)
        return dataclasses.replace(roles, explorer=FaultyExplorer(roles.explorer, folder, faults))

    graph.assembly.build_roles = faulty_roles
