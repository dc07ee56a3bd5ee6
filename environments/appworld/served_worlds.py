"""Plays AppWorld on ``appworld serve environment`` servers that a user already runs, over HTTP.

Each server holds one world, so a pool of them plays as many episodes at once as it has servers. They must serve the
world that this project's installation has: its files tell the APIs, the tasks and their solutions.

A server alone tells what code prints and how a task is judged. The API calls of a step, the state, an instruction of
ours and the verdict on a task of ours come from ``engine/stand_in.py``, which is sent to the server at the start of an
episode, runs there through its own ``/execute``, and is gone with the next ``/initialize``. Code is filtered and its
namespace restricted as in the project's worker.

What the project's worker has and a server has not, which is why ``environment.trust_agent_code`` must say so:

- agents' code runs in the process that judges, beside the tasks' solutions and checks: code that gets past filter and
  namespace can read the answers, and can change what the server reports;
- it can read and write whatever the server's user can, and has no limit of memory or processor time;
- code that swallows its time-out occupies the server for good: it must be killed with SIGKILL, since SIGTERM does not
  end a server whose world is open. The episode is an infrastructure error, and others use the servers that are left.

``appworld serve environment`` listens on every interface of its machine and asks for no password: whoever reaches the
port can run code as its user. Keep it behind a firewall, in a container, or on a network of its own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from environments.appworld.api_documentation import read_api_documentation
from environments.appworld.backend import after_code
from environments.appworld.installation import Installation, find_installation
from environments.appworld.records import Difference, Evaluation, Executed, Limits, Opening
from environments.appworld.server_client import QUOTED, NoAnswer
from environments.appworld.server_pool import Loan, ServerPool
from environments.base import EnvironmentFault, InputError, ToolSpec

_ENGINE = "environments.appworld.engine"
_SENT = (  # each after those that it imports
    *("allowed_modules", "code_filter", "protocol", "namespace", "api_calls", "differences", "memory_limit"),
    *("world", "verdicts", "stand_in"),
)
_INSTALL = """
import sys, types
for name in ("environments", "environments.appworld", "environments.appworld.engine"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in texts.items():
    sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), vars(sys.modules[name]))
sys.modules[name].stand_in(episode)
"""
_DONE = "Execution successful."  # the package's words for code that ended and printed nothing


class AppWorldServers:
    """Implements ``backend.Backend``. Use one for many episodes, from several threads if you like.

    Args:
        urls: base URLs of the servers, such as http://localhost:8000.
        installation: where the same world is on this machine; by default what ``find_installation`` names.
        limits: of time and API calls; those of memory and of a worker's episodes do not apply.

    Raises InputError when a server cannot be reached or is none, and when AppWorld is not installed.
    """

    def __init__(
        self, urls: Sequence[str], installation: Installation | None = None, limits: Limits | None = None
    ) -> None:
        self.installation = installation or find_installation()
        self.limits = limits or Limits()
        self._pool = ServerPool(urls)

    @property
    def at_once(self) -> int:
        """One episode a server."""
        return len(self._pool)

    @cached_property
    def api_docs(self) -> dict[str, ToolSpec]:
        """Every API's documentation by ``app.api``, as the installation's files state it."""
        return read_api_documentation(self.installation)

    def open(self, task_id: str, instruction: str | None = None) -> ServedWorld:
        """A fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, for servers of another world, and when this thread holds all servers;
        EnvironmentFault when no world could be opened in time.
        """
        self.installation.require_task(task_id)
        own = json.loads((self.installation.blind / "data" / "tasks" / task_id / "specs.json").read_text())
        loan = self._pool.lend(self.limits.open, self.limits.queue)
        try:
            return ServedWorld(loan, task_id, own["instruction"], instruction, self.limits)
        except BaseException:
            loan.give_back()
            raise


class ServedWorld:
    """One episode's world on a server; made by ``AppWorldServers.open``.

    Every method raises EnvironmentFault when the server ended or was taken over by another client that opened a world
    there. When it does not answer in time or answers with an error, that is EnvironmentFault until the world was given
    code, and WorldLost from then on. The world is gone then.
    """

    def __init__(self, loan: Loan, task_id: str, own: str, instruction: str | None, limits: Limits) -> None:
        self.task_id = task_id
        self._loan = loan
        self._limits = limits
        self._episode = secrets.token_hex(16)
        self._open = True
        self._given_code = False
        told = self._post(
            "/initialize",
            limits.warm_up,  # a server's first world takes long
            experiment_name=f"coevolve-{self._episode[:12]}",
            max_interactions=10**9,
            max_api_calls_per_interaction=limits.api_calls,
            timeout_seconds=limits.execute,
        )
        if told.get("instruction") != own:
            raise InputError(
                f"environment.servers: {loan.server.url} serves another task {task_id} than the installation has: "
                "start it with the root of the same world"
            )
        prepared = self._post("/execute", limits.open, code=_install_code(self._episode))
        if prepared != _DONE:
            self._fail(f"the episode could not be prepared: {str(prepared)[-QUOTED:]}")
        self.opening = Opening.model_validate(self._ask("open", limits.open, instruction=instruction))

    @property
    def alive(self) -> bool:
        """Whether the world was not closed and none of its answers has failed."""
        return self._open

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does, after the code filter."""
        self._given_code = True
        reply = self._ask("execute", self._limits.execute + self._limits.grace, code=code)
        with after_code(given=True):
            return Executed.model_validate(reply)

    def judged_diff(self) -> Difference:
        """How the world differs from its task's start, as the server says: it has no other judge."""
        reply = self._ask("difference", self._limits.answer)
        with after_code(self._given_code):
            return Difference.model_validate(reply)

    def state(self) -> str:
        """Canonical text of ``judged_diff``: equal texts mean equal states of one task but for ids, times and codes."""
        return json.dumps(self.judged_diff().model_dump(mode="json"), sort_keys=True, ensure_ascii=False)

    def evaluate(self) -> Evaluation:
        """The official verdict on the world as it is."""
        reply = self._ask("evaluate", self._limits.evaluate)
        with after_code(self._given_code):
            return Evaluation.model_validate(reply)

    def close(self) -> None:
        """End the world and free the server. Idempotent."""
        if self._open:
            with suppress(EnvironmentFault):  # who opens the next world there is told
                self._ask("close", self._limits.answer)
        self._open = False
        self._loan.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, operation: str, seconds: float, **arguments: Any) -> Any:  # noqa: ANN401 - JSON, for a record to read
        """Have the stand-in do ``operation``."""
        if not self._open:
            raise self._loan.server.fault(f"{operation} was asked of an episode that is over")
        message = json.dumps({"episode": self._episode, "op": operation, **arguments})
        reply = self._post("/execute", seconds, code=message)
        if not isinstance(reply, dict) or "foreign" in reply:
            self._fail(f"another client opened a world there, so {operation} was not done")
        if "value" not in reply:
            with after_code(self._given_code):
                self._fail(f"{operation} failed: {str(reply.get('error'))[:QUOTED]}")
        return reply["value"]

    def _post(self, path: str, seconds: float, **arguments: Any) -> Any:  # noqa: ANN401
        try:
            return self._loan.server.ask(path, {"task_id": self.task_id, **arguments}, seconds)
        except NoAnswer as late:
            self._give_up()
            with after_code(self._given_code):
                raise late
        except EnvironmentFault:
            self._give_up()
            raise

    def _fail(self, what: str) -> NoReturn:
        self._give_up()
        raise self._loan.server.fault(what)

    def _give_up(self) -> None:
        """The world is gone: nothing more is asked of it, also not to close."""
        self._open = False
        self._loan.give_back()


def _install_code(episode: str) -> str:
    """Code that puts the stand-in in the place of the server's world, and leaves no name behind."""
    folder = Path(__file__).parent / "engine"
    texts = {f"{_ENGINE}.{name}": (folder / f"{name}.py").read_text() for name in _SENT}
    return f"__import__('builtins').exec({_INSTALL!r}, { ({'texts': texts, 'episode': episode})!r})"
