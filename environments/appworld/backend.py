"""Define the interface of what runs AppWorld worlds: the project's engine, and stand-ins of tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from environments.appworld.installation import Installation
from environments.appworld.records import Difference, Evaluation, Executed, WorldOpening
from environments.base import EnvironmentFault, ToolSpec


class WorldLost(Exception):
    """Agents' code ended or damaged the world that it ran in: the agent's failure, not a fault of the environment.

    Every failure after a world was given code counts as such: a process that code ended cannot be distinguished from
    one that ended by itself, and code could otherwise avoid a failure by causing a fault.
    """


@contextmanager
def after_code(given: bool) -> Iterator[None]:
    """Read a world's answer in the block: an error becomes WorldLost where the world was ``given`` code.

    Otherwise it is an EnvironmentFault. An answer that does not parse as the requested record counts as no answer.
    """
    try:
        yield
    except ValueError as error:  # pydantic's, or of JSON
        if given:
            raise WorldLost(f"its answer cannot be read ({str(error).splitlines()[0]})") from error
        raise EnvironmentFault(f"AppWorld's answer cannot be read: {error}") from error
    except EnvironmentFault as fault:
        if given:
            raise WorldLost(str(fault).splitlines()[0]) from fault
        raise


class BackendWorld(Protocol):
    """One episode's world, for one thread at a time.

    Every method but ``close`` raises EnvironmentFault when the world is gone or does not answer in time, and WorldLost
    instead once ``execute`` was called.
    """

    @property
    def opening(self) -> WorldOpening:
        """The supervisor, the time and the apps at the start."""
        ...

    @property
    def alive(self) -> bool:
        """Return whether the world still exists, as far as is known without a request to it."""
        ...

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does."""
        ...

    def state(self) -> str:
        """Return the canonical text of how the world differs from its task's start."""
        ...

    def evaluated_diff(self) -> Difference:
        """Return how the world differs from its task's start, computed by the backend's evaluator."""
        ...

    def evaluate(self) -> Evaluation:
        """Return the official evaluation of the current world."""
        ...

    def close(self) -> None:
        """End the world. Idempotent."""
        ...


class Backend(Protocol):
    """Opens worlds; may be used from several threads."""

    @property
    def installation(self) -> Installation:
        """The installation with the documentation, the tasks and the references."""
        ...

    @property
    def api_docs(self) -> Mapping[str, ToolSpec]:
        """Every API's documentation by ``app.api``."""
        ...

    @property
    def at_once(self) -> int | None:
        """Worlds that can be open at a time; None where only the machine's memory sets a limit."""
        ...

    def open(self, task_id: str, instruction: str | None = None) -> BackendWorld:
        """Open a fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, EnvironmentFault when no world could be opened in time.
        """
        ...
