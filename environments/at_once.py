"""How many episodes an environment can have open at a time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from environments.base import Environment


@runtime_checkable
class Limited(Protocol):
    """An environment whose episodes hold something that there are few of, such as a server."""

    @property
    def at_once(self) -> int | None:
        """Episodes that can be open at a time; None where only the machine's memory sets a limit."""
        ...


def at_once(environment: Environment) -> int | None:
    """The episodes that can be open at a time; None where nothing but the machine's memory limits them."""
    return environment.at_once if isinstance(environment, Limited) else None
