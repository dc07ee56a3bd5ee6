"""Builds the rooms of one run from its settings, once a process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agents.assembly import Roles, build_roles, unguided_exploration, unguided_roles
from agents.spending import Breaker, Ledger
from environments.base import Environment
from environments.registry import benchmark_of, open_environment
from environments.verification.decontamination import HeldOut
from environments.verification.fingerprints import fingerprint
from environments.verification.held_out_records import record_of
from graph.checkpoints import studio_run
from graph.recipe import load_recipe
from graph.settings import RunSettings
from graph.state import BranchState, RunContext
from memory.records import FailureContext, Task, Unsignalled
from memory.run import RunDirectory, read_jsonl


@dataclass(frozen=True)
class Rooms:
    """What the nodes call: the run directory, its settings, the environment, the roles and what they spent.

    ``unguided`` serve D_0 and the unguided baseline, with the budget that D_0 was measured with. ``sealed`` are the
    held-out sets: every panel and held-out official task, and the file of held-out tasks that the settings name.
    ``breaker`` counts the branches that fail in a row.
    """

    run: RunDirectory
    settings: RunSettings
    environment: Environment
    roles: Roles
    unguided: Roles
    sealed: Collection[str]
    ledger: Ledger
    breaker: Breaker

    @property
    def deduplicates(self) -> bool:
        """Whether contexts are told apart and remembered; those of unguided exploration are all alike."""
        return self.settings.memory.deduplicate and self.settings.signals.contexts != "unguided"

    def roles_for(self, context: FailureContext) -> Roles:
        """Who explores and abstracts ``context``."""
        return self.unguided if context.kind in (None, Unsignalled.UNGUIDED) else self.roles

    def branch_folder(self, state: BranchState) -> Path:
        """The folder that only this branch writes."""
        return self.run.root / state.stage / "branches" / state.context_id


def open_rooms(context: RunContext | None) -> Rooms:
    """The rooms of the run that ``context`` names (without one: Studio's run).

    Raises InputError when there is no such run or its settings are not valid.
    """
    path = Path(context.run) if context is not None and context.run else studio_run()
    return assemble(path.resolve())


@lru_cache(maxsize=4)
def assemble(root: Path) -> Rooms:
    """The rooms of the run at ``root``, an absolute path."""
    run = RunDirectory.open(root)
    settings = load_recipe(run.settings_path)
    run.check_settings()
    environment = open_environment(settings.environment)
    ledger = Ledger(run.spending_path, settings.roles.budget)
    unguided = unguided_exploration(settings.roles.exploration, benchmark_of(environment))
    return Rooms(
        run=run,
        settings=settings,
        environment=environment,
        roles=build_roles(settings.roles, ledger),
        unguided=unguided_roles(settings.roles.model_copy(update={"exploration": unguided}), ledger),
        sealed=_held_out(environment, settings.evaluation.tasks),
        ledger=ledger,
        breaker=Breaker(settings.roles.failures_in_a_row),
    )


def _held_out(environment: Environment, path: str | None) -> HeldOut:
    """What the environment holds out, with a file of tasks. Raises InputError when a file cannot be read or a line of
    it is no task."""
    sets = benchmark_of(environment).held_out()
    if path is None:
        return sets
    tasks = read_jsonl(Path(path), Task)
    return sets.joined(map(fingerprint, tasks), record_of(environment, [(task.id, task) for task in tasks]))
