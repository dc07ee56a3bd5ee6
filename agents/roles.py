"""The roles: their protocols, which of them the settings name, and exploration without a weakness.

Methods are coroutines because chat roles wait on a network; scripted roles run their environment calls in a thread.
A role never writes to disk and never decides what is admitted: verification does, by its settings. What a role needs is
imported when it is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Protocol

from agents.settings import ExplorationSettings, RolesSettings
from environments.base import Environment, StartState
from environments.benchmark import AnyBenchmark
from memory.jsonl import record_id
from memory.records import AgentValidation, Draft, Evidence, FailureContext, Interaction, Unsignalled

if TYPE_CHECKING:
    from agents.absence import Wording
    from agents.chat.models import StructuredModel
    from agents.local.model import LocalModel
    from agents.spending import Ledger


class Reflector(Protocol):
    """Reads the evidence of a signal and reports where, how and why it failed, and what to explore."""

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        """Return the failure context. Raises RoleRefused when the evidence gives none."""
        ...


class Explorer(Protocol):
    """Acts in the environment around a failure context and records the interactions."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Return the interactions; equal arguments give equal ones (scripted roles)."""
        ...


class Abstractor(Protocol):
    """Turns the interactions of one context into drafts: reduced reference paths with user turns."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Return at most as many drafts as the settings allow; verification decides about each."""
        ...


class Validator(Protocol):
    """Carries out a draft whose text and reference it reads, in the task's environment (CoEvolve, section 3.3)."""

    async def validate(self, draft: Draft, environment: Environment, iteration: int | None) -> AgentValidation:
        """Return the result of one run. Raises RoleRefused when the run cannot be judged."""
        ...


@dataclass(frozen=True)
class Roles:
    """The roles of a run. ``validator`` is None if no model carries the drafts out."""

    reflector: Reflector
    explorer: Explorer
    abstractor: Abstractor
    validator: Validator | None = None


def build_roles(settings: RolesSettings, ledger: Ledger, local: LocalModel | None = None) -> Roles:
    """Build the configured roles; ``ledger`` records what chat roles spend, ``local`` plays those of kind local.

    Raises InputError when a chat role lacks its key.
    """
    from agents.scripted.explorer import GuidedExplorer
    from agents.scripted.reflector import RuleReflector

    reflector: Reflector = RuleReflector()
    explorer: Explorer = GuidedExplorer(settings.exploration)
    if settings.explorer.kind == "local":
        explorer = _local_explorer(settings, local)
    validator: Validator | None = None
    if (model := _opened(settings, "reflector", ledger)) is not None:
        from agents.chat.reflector import ChatReflector

        reflector = ChatReflector(model)
    if (model := _opened(settings, "explorer", ledger)) is not None:
        from agents.chat.acting import ChatExplorer

        explorer = ChatExplorer(model, settings.exploration)
    abstractor = _abstractor(settings, ledger, local)
    if (model := _opened(settings, "validator", ledger)) is not None:
        from agents.chat.acting import ChatValidator

        validator = ChatValidator(model, settings.validator_actions)
    return Roles(reflector, explorer, abstractor, validator)


def _local_explorer(settings: RolesSettings, local: LocalModel | None) -> Explorer:
    from agents.local.explorer import LocalExplorer

    assert local is not None, "a run with local roles opens their model"
    return LocalExplorer(settings.exploration, settings.local, local)


def _abstractor(settings: RolesSettings, ledger: Ledger, local: LocalModel | None) -> Abstractor:
    model = _opened(settings, "abstractor", ledger)
    if model is not None and settings.exploration.references == "cut":
        from agents.chat.wording import WordingAbstractor

        return WordingAbstractor(model, settings.exploration)
    if model is not None:
        from agents.chat.abstractor import ChatAbstractor

        return ChatAbstractor(model, settings.exploration)
    from agents.absence import AbsenceAbstractor

    wording = _wording(settings, local)
    share = settings.exploration.absent
    return AbsenceAbstractor(wording, share) if share else wording


def _wording(settings: RolesSettings, local: LocalModel | None) -> Wording:
    if settings.abstractor.kind == "local":
        from agents.local.abstractor import LocalAbstractor

        assert local is not None, "a run with local roles opens their model"
        return LocalAbstractor(settings.exploration, settings.local, local)
    from agents.scripted.abstractor import TemplateAbstractor

    return TemplateAbstractor(settings.exploration)


def _opened(settings: RolesSettings, role: str, ledger: Ledger) -> StructuredModel | None:
    chat = settings.by_chat().get(role)
    if chat is None:
        return None
    from agents.chat.models import open_model

    return open_model(chat, role, ledger, settings.concurrency, settings.cache)


UNGUIDED_EXPLORATION = ExplorationSettings(rounds=1, steps=14, drafts_per_context=14)
"""The scripted budget of D_0 and of the initial policy's training data: one episode of 14 calls, cut up completely."""


def unguided_exploration(roles: RolesSettings, benchmark: AnyBenchmark) -> ExplorationSettings:
    """Return the settings of unguided exploration, for D_0 and the unguided baseline, in a run with ``roles``.

    An explorer that is a model has those of the recipe, as for guided exploration (CoEvolve has one process for
    both). A scripted one has a budget of its own (``UNGUIDED_EXPLORATION``), or the recipe's but for one round
    where the benchmark asks for it (``ExplorationHints``). The lengths and the order of drafts are the recipe's in
    every case, and so is their number where each is questions to a model (``references: cut``).
    """
    guided = roles.exploration
    if roles.explorer.kind != "scripted":
        return guided
    budget = guided if benchmark.exploration.unguided_as_guided else UNGUIDED_EXPLORATION
    drafts = guided if guided.references == "cut" else budget
    own = {"rounds": 1, "steps": budget.steps, "drafts_per_context": drafts.drafts_per_context}
    return guided.model_copy(update=own)


def unguided_roles(
    roles: Roles, settings: RolesSettings, ledger: Ledger, benchmark: AnyBenchmark, local: LocalModel | None = None
) -> Roles:
    """Return ``roles`` for D_0 and the unguided baseline, within the limits of ``unguided_exploration``.

    An explorer that is a model explores these, too. A scripted one gives way to the unguided explorer, which draws
    its calls as ``exploration.unguided`` says, and the abstractor gets its limits; the other roles are the same
    objects. Raises InputError when a chat role lacks its key.
    """
    if settings.explorer.kind != "scripted":
        return roles
    from agents.scripted.explorer import UnguidedExplorer

    exploration = unguided_exploration(settings, benchmark)
    abstractor = _abstractor(settings.model_copy(update={"exploration": exploration}), ledger, local)
    return dataclasses.replace(roles, explorer=UnguidedExplorer(exploration), abstractor=abstractor)


def baseline_contexts(
    starts: Sequence[StartState], calls: int, iteration: int, exploration: ExplorationSettings
) -> tuple[FailureContext, ...]:
    """Return contexts of unguided exploration for an iteration, as many as ``calls`` environment calls allow.

    Episodes are like D_0's, whose limits ``exploration`` are, start states in turn. The last context is explored in
    full, so that the baseline makes up to one context more than ``calls``. Empty without ``starts``.
    """
    if not starts:
        return ()
    count = ceil(calls / (exploration.rounds * exploration.steps))
    found = []
    for position in range(iteration * count, (iteration + 1) * count):
        context = unguided_context(starts[position % len(starts)], position)
        key = record_id("context", Unsignalled.UNGUIDED, iteration, context.id)
        found.append(context.model_copy(update={"id": key, "kind": Unsignalled.UNGUIDED, "iteration": iteration}))
    return tuple(found)


def unguided_context(start: StartState, position: int) -> FailureContext:
    """Return a context without a weakness: the ``position``-th episode of unguided exploration from ``start``."""
    return FailureContext(
        id=record_id("context", "unguided", start.environment, start.id, position),
        environment=start.environment,
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )
