"""Builds the roles that the settings name; what a role needs is imported when it is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from agents.roles import Abstractor, Explorer, Reflector, Validator
from agents.settings import ExplorationSettings, RolesSettings
from agents.spending import Ledger
from environments.base import StartState
from environments.benchmark import AnyBenchmark
from memory.jsonl import record_id
from memory.records import FailureContext, Unsignalled

if TYPE_CHECKING:
    from agents.chat.structured import StructuredModel

UNGUIDED_EXPLORATION = ExplorationSettings(rounds=1, steps=14, drafts_per_context=14)
"""The scripted budget of D_0 and of the initial policy's training data: one episode of 14 calls, cut up completely."""


def unguided_exploration(roles: RolesSettings, benchmark: AnyBenchmark) -> ExplorationSettings:
    """Return the settings of unguided exploration, for D_0 and the unguided baseline, in a run with ``roles``.

    A chat explorer has those of the recipe, as for guided exploration (CoEvolve has one process for both). A scripted
    one has a budget of its own (``UNGUIDED_EXPLORATION``), or the recipe's but for one round where the benchmark asks
    for it (``ExplorationHints``). The lengths and the order of drafts are the recipe's in every case.
    """
    guided = roles.exploration
    if roles.explorer.kind == "chat":
        return guided
    budget = guided if benchmark.exploration.unguided_as_guided else UNGUIDED_EXPLORATION
    return guided.model_copy(
        update={
            "rounds": UNGUIDED_EXPLORATION.rounds,
            "steps": budget.steps,
            "drafts_per_context": budget.drafts_per_context,
        }
    )


@dataclass(frozen=True)
class Roles:
    """The roles of a run. ``validator`` is None if no model carries the drafts out."""

    reflector: Reflector
    explorer: Explorer
    abstractor: Abstractor
    validator: Validator | None = None


def build_roles(settings: RolesSettings, ledger: Ledger) -> Roles:
    """Build the configured roles; ``ledger`` records what chat roles spend.

    Raises InputError when a chat role lacks its key.
    """
    return Roles(
        _reflector(settings, ledger),
        _explorer(settings, ledger),
        _abstractor(settings, ledger),
        _validator(settings, ledger),
    )


def unguided_roles(roles: Roles, settings: RolesSettings, ledger: Ledger, benchmark: AnyBenchmark) -> Roles:
    """Return ``roles`` for D_0 and the unguided baseline, within the limits of ``unguided_exploration``.

    A chat explorer explores these, too. A scripted one gives way to the unguided explorer, which draws its calls as
    ``exploration.unguided`` says, and the abstractor gets its limits; the other roles are the same objects. Raises
    InputError when a chat role lacks its key.
    """
    if settings.explorer.kind == "chat":
        return roles
    from agents.scripted.explorer import UnguidedExplorer

    exploration = unguided_exploration(settings, benchmark)
    abstractor = _abstractor(settings.model_copy(update={"exploration": exploration}), ledger)
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
    positions = range(iteration * count, (iteration + 1) * count)
    contexts = (unguided_context(starts[position % len(starts)], position) for position in positions)
    return tuple(
        context.model_copy(
            update={
                "id": record_id("context", Unsignalled.UNGUIDED, iteration, context.id),
                "kind": Unsignalled.UNGUIDED,
                "iteration": iteration,
            }
        )
        for context in contexts
    )


def unguided_context(start: StartState, position: int) -> FailureContext:
    """Return a context without a weakness: the ``position``-th episode of unguided exploration from ``start``."""
    return FailureContext(
        id=record_id("context", "unguided", start.environment, start.id, position),
        environment=start.environment,
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )


def _opened(settings: RolesSettings, role: str, ledger: Ledger) -> StructuredModel | None:
    """Open the model of ``role``; None where no model plays it."""
    chat = settings.by_chat().get(role)
    if chat is None:
        return None
    from agents.chat.structured import open_model

    return open_model(chat, role, ledger, settings.concurrency, settings.cache)


def _reflector(settings: RolesSettings, ledger: Ledger) -> Reflector:
    model = _opened(settings, "reflector", ledger)
    if model is not None:
        from agents.chat.reflector import ChatReflector

        return ChatReflector(model)
    from agents.scripted.reflector import RuleReflector

    return RuleReflector()


def _explorer(settings: RolesSettings, ledger: Ledger) -> Explorer:
    model = _opened(settings, "explorer", ledger)
    if model is not None:
        from agents.chat.explorer import ChatExplorer

        return ChatExplorer(model, settings.exploration)
    from agents.scripted.explorer import GuidedExplorer

    return GuidedExplorer(settings.exploration)


def _abstractor(settings: RolesSettings, ledger: Ledger) -> Abstractor:
    model = _opened(settings, "abstractor", ledger)
    if model is not None:
        from agents.chat.abstractor import ChatAbstractor

        return ChatAbstractor(model, settings.exploration)
    from agents.scripted.abstractor import TemplateAbstractor

    return TemplateAbstractor(settings.exploration)


def _validator(settings: RolesSettings, ledger: Ledger) -> Validator | None:
    model = _opened(settings, "validator", ledger)
    if model is None:
        return None
    from agents.chat.validator import ChatValidator

    return ChatValidator(model, settings.validator_actions)
