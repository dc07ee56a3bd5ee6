"""Addresses of servers that settings name: http and https URLs of one strict form, which hold no secret.

The form has no user, password, query or fragment, and only characters that every parser of URLs reads alike, so that
the address that is compared is the address that is asked.
"""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from typing import Annotated, NamedTuple

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from environments.base import InputError

KEYS_VARIABLE = "COEVOLVE_KEYS"
"""The environment variable that binds keys to servers: ``ADDRESS=VARIABLE, ...``."""

_LONGEST = 500
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9_]+(?:[.-]+[a-z0-9_]+)*|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[a-z0-9._~%+:,;=-]*)*)",
    re.ASCII | re.IGNORECASE,
)
_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host and port of an address: two addresses with equal origins are the same server."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether it is this machine: localhost, or an address of the loopback written in full."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def origin_of(url: str) -> Origin:
    """Return the origin of ``url``.

    Raises ValueError, as pydantic's error of the type ``address``, for what is not an address; it does not show it.
    """
    found = _FORM.fullmatch(url) if len(url) <= _LONGEST else None
    port = int(found["port"]) if found and found["port"] else None
    if found is None or port == 0 or (port or 0) > 65_535:
        # The text may hold a password: leave it out of the message.
        raise PydanticCustomError(
            "address", "must be an address such as http://host:8000/v1, with no user, password, query or fragment"
        )
    scheme, host = found["scheme"].lower(), found["host"].lower()
    return Origin(scheme, host, port or _PORTS[scheme])


def _checked(url: str) -> str:
    origin_of(url)
    return url


Address = Annotated[str, AfterValidator(_checked)]
"""The address of a server in settings; see the module."""


def bound_keys() -> dict[Origin, str | None]:
    """Return the names of the variables that ``COEVOLVE_KEYS`` binds, by server; None for an endpoint without keys.

    Raises InputError for an entry that cannot be read.
    """
    found: dict[Origin, str | None] = {}
    entries = [entry.strip() for entry in os.environ.get(KEYS_VARIABLE, "").split(",")]
    for number, entry in enumerate(entries, 1):
        if not entry:
            continue
        address, _, variable = (part.strip() for part in (entry if "=" in entry else f"{entry}=").rpartition("="))
        try:
            origin = origin_of(address)
        except ValueError:
            origin = None
        if origin is None or not (variable == "" or _VARIABLE.fullmatch(variable)):
            # Leave the entry out of the message: it may hold a key that was given in place of its variable's name.
            raise InputError(
                f"{KEYS_VARIABLE}: entry {number} is not ADDRESS=VARIABLE: write for example "
                "https://openrouter.ai=OPENROUTER_API_KEY, several separated by commas, and never a key itself"
            )
        if found.setdefault(origin, variable or None) != (variable or None):
            raise InputError(f"{KEYS_VARIABLE}: {origin} is bound twice: leave one variable")
    return found


def bound_token(url: str, setting: str) -> str | None:
    """Return the token that the user bound to the server at ``url``, which ``setting`` names; None for no token.

    A recipe may be a stranger's: raises InputError for a server of another machine that the user did not bind.
    """
    origin, bound = origin_of(url), bound_keys()
    if origin not in bound and not origin.is_loopback:
        raise InputError(
            f"{setting} is {url}, which you did not bind: if you trust it, set the environment variable "
            f"{KEYS_VARIABLE} to {origin}=VARIABLE, with the variable of its token, or to {origin} alone"
        )
    variable = bound.get(origin)
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token or not all("!" <= one <= "~" for one in token):
        raise InputError(f"the environment variable {variable} holds no token for {url}: set it")
    return token
