"""Resolve which model, endpoint and key a chat role uses.

Model and endpoint are the recipe's, otherwise the environment's. The key is never the recipe's choice: a recipe may
come from anyone, so that a key goes only to the address that the user bound it to, by scheme, host and port
(``COEVOLVE_KEYS``); ``OPENAI_API_KEY`` is for the endpoint that ``OPENAI_BASE_URL`` names, else for OpenAI's. An
endpoint on this machine needs no entry, and gets no key without one. Any other address is refused.

A model that ``evaluation.run`` scores (``--model openai:NAME``) has the role ``policy``; options of the command take
the place of the recipe, and are the user's own word.

The client that sends to it is in ``agents.chat.sending``: importing it takes half a second, which a run of scripted
roles does not need.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import SecretStr

from agents.settings import ChatSettings, RoleSettings
from environments.addresses import KEYS_VARIABLE, Origin, bound_keys, origin_of
from environments.base import InputError

OPENAI_URL = "https://api.openai.com/v1"
MODEL_VARIABLE = "COEVOLVE_CHAT_MODEL"
URL_VARIABLE = "OPENAI_BASE_URL"
KEY_VARIABLE = "OPENAI_API_KEY"
HIDDEN = "[key]"
SHORTEST_SECRET = 8
"""Keys with fewer characters are placeholders for endpoints without keys: not secret, and redacting them would mangle
replies that contain the same word."""


class KeyBinding(NamedTuple):
    """The address of a role's requests and the variable that the user bound to it.

    ``variable`` is None for an address that gets no key. ``refusal`` is one sentence for an address that the user did
    not bind, which nothing is sent to, else None.
    """

    base_url: str
    variable: str | None
    refusal: str | None = None

    def __str__(self) -> str:
        key = self.variable or "no key"
        return f"{self.base_url} ({'no key is bound to it: refused' if self.refusal else key})"


@dataclass(frozen=True)
class Endpoint:
    """Where a chat role's requests go. ``repr`` does not show the key, which is empty for an endpoint without keys.

    ``settings``: the role's temperature, limits and prices. ``commanded``: a command's options name the endpoint and
    not a recipe, which is what messages refer to.
    """

    role: str
    model: str
    base_url: str
    key_variable: str | None
    key: SecretStr
    settings: ChatSettings
    commanded: bool = False

    @property
    def owner(self) -> str:
        """The option or the role that the endpoint belongs to, for a message."""
        return "--model" if self.commanded else f"roles.{self.role}"

    @property
    def key_source(self) -> str:
        """The variable that has the key, or should name it, for a message."""
        return self.key_variable or f"{KEYS_VARIABLE}, which names no key for {self.base_url}"

    def setting(self, name: str) -> str:
        """Return where a user sets ``name``: an option of the command, or a key of the recipe."""
        return _setting(self.settings, self.role, name, self.commanded)

    def hide(self, text: str) -> str:
        """Redact the key in ``text``: an endpoint may echo it in its response."""
        key = self.key.get_secret_value()
        return text.replace(key, HIDDEN) if len(key) >= SHORTEST_SECRET else text


def resolve(settings: ChatSettings, role: str, *, commanded: bool = False) -> Endpoint:
    """Resolve the endpoint of a chat role; ``role`` is its key in the recipe.

    ``commanded``: see ``Endpoint``. Raises InputError when no model or no key is given, the address is not one that the
    user bound, or the key or the URL cannot be sent.
    """
    model = model_of(settings, role, commanded=commanded)
    to = destination(settings, role, commanded=commanded)
    if to.refusal is not None:
        raise InputError(to.refusal)
    key = "" if to.variable is None else _key(to.variable, to.base_url, role, commanded)
    return Endpoint(role, model, to.base_url, to.variable, SecretStr(key), settings, commanded)


def destination(settings: ChatSettings, role: str, *, commanded: bool = False) -> KeyBinding:
    """Return where the role's requests would go, and the key's variable, whether or not that is set.

    Arguments as in ``resolve``. Raises InputError for a URL or a ``COEVOLVE_KEYS`` that cannot be read.
    """
    of_environment = f"the environment variable {URL_VARIABLE}", os.environ.get(URL_VARIABLE) or OPENAI_URL
    named_by, url = of_environment
    if settings.base_url is not None:
        named_by, url = _setting(settings, role, "base_url", commanded), settings.base_url
    origin, bound = _checked(named_by, url), bound_keys()
    if origin in bound:
        return KeyBinding(url, bound[origin])
    # The user's own word is an option, or the variable that OPENAI_API_KEY is for.
    if commanded or settings.base_url is None or origin == _checked(*of_environment):
        unset = origin.is_loopback and not os.environ.get(KEY_VARIABLE, "").strip()
        return KeyBinding(url, None if unset else KEY_VARIABLE)
    if origin.is_loopback:
        return KeyBinding(url, None)
    return KeyBinding(
        url,
        None,
        f"{named_by} is {url}, and you bound no key to that address: if you trust it, set the environment variable "
        f"{KEYS_VARIABLE} to {origin}=VARIABLE, with the name of the variable that holds its key, or to {origin} alone "
        "for an endpoint without keys",
    )


def model_of(settings: ChatSettings, role: str, *, commanded: bool = False) -> str:
    """Return the name of the role's model. Raises InputError when none is given."""
    model = settings.model or os.environ.get(MODEL_VARIABLE)
    if not model:
        key = _setting(settings, role, "model", commanded)
        chosen = f"{key} names no model" if commanded else f"roles.{role}.kind is chat, but no model is given"
        where = "write it behind the colon" if commanded else f"set {key} in the recipe"
        raise InputError(f"{chosen}: {where}, or set the environment variable {MODEL_VARIABLE}")
    return model


def _setting(settings: ChatSettings, role: str, name: str, commanded: bool) -> str:
    if commanded:
        return f"--{name.replace('_', '-')}"
    own = isinstance(settings, RoleSettings) and name in settings.overrides
    return f"roles.{role if own else 'chat'}.{name}"


def _checked(name: str, url: str) -> Origin:
    try:
        return origin_of(url)
    except ValueError as error:
        raise InputError(f"{name} is not the URL of an endpoint: it {error}") from None


def _key(variable: str, base_url: str, role: str, commanded: bool) -> str:
    key = os.environ.get(variable, "").strip()
    if not key:
        why = "--model names an endpoint" if commanded else f"roles.{role}.kind is chat"
        instead = "" if commanded else ", or use kind: scripted"
        raise InputError(
            f"{why}, but the environment variable {variable} is not set: set it to the key of {base_url}, or set "
            f"{KEYS_VARIABLE} to {origin_of(base_url)} for an endpoint without keys, with =VARIABLE for another "
            f"variable{instead}"
        )
    if not all("!" <= character <= "~" for character in key):
        # The HTTP library would name the whole header in its error.
        raise InputError(f"the environment variable {variable} holds no key: it has spaces or characters beyond ASCII")
    return key
