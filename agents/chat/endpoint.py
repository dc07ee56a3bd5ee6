"""Resolve which model, endpoint and key a chat role uses: the recipe's settings, otherwise the environment's.

============================  =======================================================================
``COEVOLVE_<ROLE>_MODEL``     model of one role, for example ``COEVOLVE_REFLECTOR_MODEL``
``COEVOLVE_CHAT_MODEL``       model of every chat role without one of its own
``COEVOLVE_<ROLE>_BASE_URL``  endpoint of one role
``OPENAI_BASE_URL``           endpoint of every chat role without one of its own; OpenAI's if it is unset
``OPENAI_API_KEY``            the key, where the role's ``key_variable`` names no other variable
============================  =======================================================================

A model that ``evaluation.run`` scores (``--model openai:NAME``) has the role ``policy``; options of the command take
the place of the recipe.

The client that sends to it is ``agents.chat.http``: importing it takes half a second, which a run of scripted roles
does not need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import SecretStr

from agents.settings import RoleSettings
from environments.base import InputError

OPENAI_URL = "https://api.openai.com/v1"
MODEL_VARIABLE = "COEVOLVE_CHAT_MODEL"
HIDDEN = "[key]"
SHORTEST_SECRET = 8
"""Keys with fewer characters are placeholders for endpoints without keys: not secret, and redacting them would mangle
replies that contain the same word."""


@dataclass(frozen=True)
class Endpoint:
    """Where a chat role's requests go. ``repr`` does not show the key.

    ``commanded``: a command's options name it and not a recipe, which is what messages refer to.
    """

    role: str
    model: str
    base_url: str
    key_variable: str
    key: SecretStr
    commanded: bool = False

    @property
    def owner(self) -> str:
        """The option or the role that the endpoint belongs to, for a message."""
        return "--model" if self.commanded else f"roles.{self.role}"

    def setting(self, name: str) -> str:
        """Return where a user sets ``name``: an option of the command, or a key of the recipe."""
        return _setting(self.role, name, self.commanded)

    def hide(self, text: str) -> str:
        """Redact the key in ``text``: an endpoint may echo it in its response."""
        key = self.key.get_secret_value()
        return text.replace(key, HIDDEN) if len(key) >= SHORTEST_SECRET else text


def resolve(settings: RoleSettings, role: str, *, commanded: bool = False) -> Endpoint:
    """Resolve the endpoint of a chat role; ``role`` is its key in the recipe.

    ``commanded``: see ``Endpoint``. Raises InputError when no model or no key is given, or the key or the URL cannot be
    sent.
    """
    return Endpoint(
        role=role,
        model=model_of(settings, role, commanded=commanded),
        base_url=_base_url(settings, role, commanded),
        key_variable=settings.key_variable,
        key=_key(settings.key_variable, role, commanded),
        commanded=commanded,
    )


def model_of(settings: RoleSettings, role: str, *, commanded: bool = False) -> str:
    """Return the name of the role's model. Raises InputError when none is given."""
    own = _variable(role, "MODEL")
    model = settings.model or os.environ.get(own) or os.environ.get(MODEL_VARIABLE)
    if not model:
        key = _setting(role, "model", commanded)
        chosen = f"{key} names no model" if commanded else f"roles.{role}.kind is chat, but no model is given"
        where = "write it behind the colon" if commanded else f"set {key} in the recipe"
        raise InputError(f"{chosen}: {where}, or set the environment variable {own} or {MODEL_VARIABLE}")
    return model


def _setting(role: str, name: str, commanded: bool) -> str:
    return f"--{name.replace('_', '-')}" if commanded else f"roles.{role}.{name}"


def _base_url(settings: RoleSettings, role: str, commanded: bool) -> str:
    own = _variable(role, "BASE_URL")
    sources = {
        _setting(role, "base_url", commanded): settings.base_url,
        f"the environment variable {own}": os.environ.get(own),
        "the environment variable OPENAI_BASE_URL": os.environ.get("OPENAI_BASE_URL"),
    }
    name, url = next(((name, url) for name, url in sources.items() if url), ("", OPENAI_URL))
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise InputError(
            f"{name} is not the URL of an endpoint: write http:// or https://, a host, and no user or password"
        )
    return url


def _key(variable: str, role: str, commanded: bool) -> SecretStr:
    key = os.environ.get(variable, "").strip()
    if not key:
        why = "--model names an endpoint" if commanded else f"roles.{role}.kind is chat"
        instead = "name another variable with --key-variable" if commanded else "use kind: scripted"
        raise InputError(
            f"{why}, but the environment variable {variable} is not set: set it to the "
            f"endpoint's key (any text for an endpoint without keys), or {instead}"
        )
    if not all("!" <= character <= "~" for character in key):
        # The HTTP library would name the whole header in its error.
        raise InputError(f"the environment variable {variable} holds no key: it has spaces or characters beyond ASCII")
    return SecretStr(key)


def _variable(role: str, what: str) -> str:
    return f"COEVOLVE_{role.upper()}_{what}"
