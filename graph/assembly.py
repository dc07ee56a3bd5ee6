"""Builds what the nodes of a run work with, from its settings."""

from __future__ import annotations

import threading
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agents.local.model import LocalModel
from agents.roles import Roles, build_roles, unguided_roles
from agents.settings import LocalSettings
from agents.spending import Breaker, Ledger
from environments.base import Environment
from environments.registry import benchmark_of
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import HeldOut, record_of
from graph.settings import RunSettings, load_recipe
from memory.records import FailureContext, Task, Unsignalled
from memory.run import RunDirectory, read_jsonl

CACHED = 4
"""Calls whose services a server of LangGraph Studio keeps."""


@dataclass(frozen=True)
class RunServices:
    """The services of the nodes, in ``runtime.context``.

    Args:
        run: the run directory that the nodes read and write.
        settings: the run's settings.
        environment: where explorers act and drafts are verified.
        roles: reflector, explorer, abstractor and validator of contexts with a weakness.
        unguided: the same for D_0 and the unguided baseline, with the limits of unguided exploration.
        held_out: decontamination: every held-out task of the environment and of the file that the settings name.
        ledger: what chat roles have spent.
        breaker: counts branches that fail in a row.
        copy: name of the run's copy in which a fork works; empty for the run itself.
    """

    run: RunDirectory
    settings: RunSettings
    environment: Environment
    roles: Roles
    unguided: Roles
    held_out: Container[str]
    ledger: Ledger
    breaker: Breaker
    copy: str = ""

    def roles_for(self, context: FailureContext) -> Roles:
        """Return the roles that explore and abstract ``context``."""
        return self.unguided if context.kind in (None, Unsignalled.UNGUIDED) else self.roles


def assemble(run: RunDirectory, settings: RunSettings) -> RunServices:
    """Open the environment and build the roles of ``run``.

    Raises InputError when a chat role lacks its key, or the file of held-out tasks or the ledger cannot be read.
    """
    environment = settings.environment.open()
    ledger = Ledger(run.spending_path, settings.roles.budget)
    local = local_model(settings.roles.local) if settings.roles.plays_locally() else None
    roles = build_roles(settings.roles, ledger, local)
    return RunServices(
        run=run,
        settings=settings,
        environment=environment,
        roles=roles,
        unguided=unguided_roles(roles, settings.roles, ledger, benchmark_of(environment), local),
        held_out=held_out_of(environment, settings.evaluation.tasks),
        ledger=ledger,
        breaker=Breaker(),
    )


@lru_cache(maxsize=1)  # a process has one, of half a gigabyte
def local_model(settings: LocalSettings) -> LocalModel:
    """Return the language model of the local roles. Raises InputError where it or its adapters cannot be loaded."""
    from training.local_model import AdaptedModel

    return AdaptedModel(settings.adapters)


_caching = threading.Lock()  # branches ask at the same time


def services_at(root: Path, call: str | None = None) -> RunServices:
    """Return the services of the run at ``root``, an absolute path, for LangGraph Studio.

    Cached, because every node of a graph asks for them. ``call`` is the id of a graph's call: each begins with new
    roles, so that one that failures in a row stopped can be tried again. Raises InputError when there is no such run or
    its settings are not valid.
    """
    with _caching:
        return _services(root, call)


@lru_cache(maxsize=CACHED)
def _services(root: Path, _call: str | None) -> RunServices:
    run = RunDirectory.open(root)
    settings = load_recipe(run.settings_path)
    run.check_settings()
    return assemble(run, settings)


def held_out_of(environment: Environment, path: str | None) -> HeldOut:
    """Return what the environment holds out, joined with a file of tasks.

    Raises InputError when a file cannot be read or a line is not a task.
    """
    sets = benchmark_of(environment).held_out()
    if path is None:
        return sets
    tasks = read_jsonl(Path(path), Task)
    return sets.joined(map(fingerprint, tasks), record_of(environment, [(task.id, task) for task in tasks]))
