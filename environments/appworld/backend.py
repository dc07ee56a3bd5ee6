"""What the environment asks of whatever runs AppWorld worlds: the engine of this project, or servers of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from environments.appworld.installation import Installation
from environments.appworld.records import Difference, Evaluation, Executed, WorldOpening
from environments.base import EnvironmentFault, ToolSpec


class WorldLost(Exception):
    """Agents' code ended or spoilt the world that it ran in: the agent's failure, and no fault of the environment.

    Whatever fails after a world was given code counts as such: nobody can tell a process that code ended from one that
    ended by itself, and code that could choose would choose to be a fault.
    """


@contextmanager
def after_code(given: bool) -> Iterator[None]:
    """Read a world's answer: what fails in the block is WorldLost where the world was ``given`` code, else a fault.

    A fault is EnvironmentFault. What cannot be read as the record that was asked for counts like no answer.
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
        """What is known at the start."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the world is there, as far as can be told without asking it."""
        ...

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does."""
        ...

    def state(self) -> str:
        """Canonical text of how the world differs from its task's start."""
        ...

    def judged_diff(self) -> Difference:
        """How the world differs from its task's start, as the backend's judge tells it."""
        ...

    def evaluate(self) -> Evaluation:
        """The official verdict on the world as it is."""
        ...

    def close(self) -> None:
        """End the world. Idempotent."""
        ...


class Backend(Protocol):
    """Opens worlds; may be used from several threads."""

    @property
    def installation(self) -> Installation:
        """Where the documentation, the tasks and the references are read."""
        ...

    @property
    def api_docs(self) -> Mapping[str, ToolSpec]:
        """Every API's documentation by ``app.api``."""
        ...

    @property
    def at_once(self) -> int | None:
        """How many worlds can be open at a time; None where only the machine's memory sets a limit."""
        ...

    def open(self, task_id: str, instruction: str | None = None) -> BackendWorld:
        """A fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, EnvironmentFault when no world could be opened in time.
        """
        ...
