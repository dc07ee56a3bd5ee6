"""Builds the roles that the settings name; what a role needs is imported when it is built."""

from __future__ import annotations

from dataclasses import dataclass

from agents.roles import Abstractor, Explorer, Reflector
from agents.settings import ExplorationSettings, RolesSettings
from environments.base import StartState
from memory.ids import record_id
from memory.records import FailureContext

UNGUIDED_EXPLORATION = ExplorationSettings(rounds=1, steps=14, drafts_per_context=14)
"""What D_0 and the starter's data were measured with: one episode of 14 calls, cut up completely."""


@dataclass(frozen=True)
class Roles:
    """The three roles of a run."""

    reflector: Reflector
    explorer: Explorer
    abstractor: Abstractor


def build_roles(settings: RolesSettings) -> Roles:
    """The roles as configured. Raises InputError when a chat role lacks its key."""
    return Roles(_reflector(settings), _explorer(settings), _abstractor(settings))


def unguided_roles(settings: RolesSettings) -> Roles:
    """The roles as configured with the unguided explorer in place of theirs: the baseline at an equal budget.

    Raises InputError when a chat role lacks its key.
    """
    from agents.scripted.unguided import UnguidedExplorer

    return Roles(_reflector(settings), UnguidedExplorer(settings.exploration), _abstractor(settings))


def unguided_context(start: StartState, position: int) -> FailureContext:
    """A context without a weakness: the ``position``-th episode of unguided exploration from ``start``."""
    return FailureContext(
        id=record_id("context", "unguided", start.environment, start.id, position),
        environment=start.environment,
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )


def _reflector(settings: RolesSettings) -> Reflector:
    if settings.reflector.kind == "chat":
        from agents.chat.model import open_model
        from agents.chat.reflector import ChatReflector

        return ChatReflector(open_model(settings.reflector, "reflector"))
    from agents.scripted.reflector import RuleReflector

    return RuleReflector()


def _explorer(settings: RolesSettings) -> Explorer:
    if settings.explorer.kind == "chat":
        from agents.chat.explorer import ChatExplorer
        from agents.chat.model import open_model

        return ChatExplorer(open_model(settings.explorer, "explorer"), settings.exploration)
    from agents.scripted.explorer import GuidedExplorer

    return GuidedExplorer(settings.exploration)


def _abstractor(settings: RolesSettings) -> Abstractor:
    if settings.abstractor.kind == "chat":
        from agents.chat.abstractor import ChatAbstractor
        from agents.chat.model import open_model

        return ChatAbstractor(open_model(settings.abstractor, "abstractor"), settings.exploration)
    from agents.scripted.abstractor import TemplateAbstractor

    return TemplateAbstractor(settings.exploration)
