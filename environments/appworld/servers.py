"""Play AppWorld on ``appworld serve environment`` servers that a user already runs, over HTTP.

Each server holds one world, so a pool of servers plays one episode per server at a time (``ServerPool`` assigns them to
all threads and processes of this user on this machine). They must serve the world of this project's installation, whose
files define the APIs, the tasks and their solutions.

A server alone reports only the output of code and the evaluation of a task. The API calls of a step, the state, an
instruction of ours and the outcome of a task of ours come from ``engine/stand_in.py``, which is sent to the server at
the start of an episode, runs there through its own ``/execute``, and is removed by the next ``/initialize``. Code is
filtered and its namespace restricted as in the project's worker.

A server has less isolation than the project's worker, so ``environment.options.trust_agent_code`` is required:

- agents' code runs in the process that evaluates, beside the tasks' solutions and checks: code that bypasses filter
  and namespace can read the answers, and can change the server's reports;
- it has the file permissions of the server's user, and no limit of memory or processor time;
- code that catches its timeout occupies the server: it must be killed with SIGKILL, since SIGTERM does not end a
  server whose world is open. The episode is an infrastructure error, and other episodes use the remaining servers.

``appworld serve environment`` listens on every interface of its machine without a password: every client that reaches
the port can run code as its user. Keep it behind a firewall, in a container, or on a network of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import httpx
from filelock import FileLock, Timeout

from environments.appworld.backend import after_code
from environments.appworld.engine.protocol import parsed
from environments.appworld.installation import Installation, find_installation, read_api_documentation
from environments.appworld.records import Difference, EngineLimits, Evaluation, Executed, WorldOpening
from environments.base import EnvironmentFault, InputError, ToolSpec

QUOTED = 2000  # characters of a server's answer that a fault quotes
MAX_BYTES = 64 * 1024 * 1024  # of an answer
_ENVIRONMENT = "/initialize"  # among the paths of a server of environments, and of no other of the package's


class NoAnswer(EnvironmentFault):
    """The server did not answer in time: it is busy, or hangs."""


class Server:
    """A server by its base URL, for requests of JSON over HTTP, each with a timeout.

    It is reached directly, without a proxy that this process's variables name.

    May be used from several threads. Raises EnvironmentFault, with the server's words where it gave any.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        # A connection for each request: a world stops the server's clock, and so the time-outs of idle connections.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(trust_env=False, limits=limits, headers={"Connection": "close"})

    def check(self, seconds: float) -> None:
        """Raise EnvironmentFault unless this is a server of AppWorld environments."""
        described = self._exchange("GET", "/openapi.json", None, seconds)
        if not isinstance(described, dict) or _ENVIRONMENT not in described.get("paths", ()):
            raise self.fault("it is not a server of AppWorld environments")

    def greet(self, seconds: float) -> None:
        """Raise NoAnswer while it is busy, EnvironmentFault when it cannot be reached."""
        self._exchange("GET", "/", None, seconds)

    def ask(self, path: str, message: dict[str, Any], seconds: float) -> Any:  # noqa: ANN401 - JSON, for a record to read
        """Send ``message`` and return the ``output`` of the answer."""
        answer = self._exchange("POST", path, message, seconds)
        if not isinstance(answer, dict) or "output" not in answer:
            raise self.fault(f"its answer to {path} has no output: {str(answer)[:QUOTED]}")
        return answer["output"]

    def fault(self, what: str) -> EnvironmentFault:
        """Return the fault that reports ``what`` happened."""
        return EnvironmentFault(f"AppWorld's server {self.url}: {what}")

    def _exchange(self, method: str, path: str, message: dict[str, Any] | None, seconds: float) -> Any:  # noqa: ANN401
        try:
            status, body = self._answer(method, path, message, seconds)
        except httpx.TimeoutException as error:
            raise self._late(path, seconds) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.fault(f"{path} failed: {str(error) or type(error).__name__}") from error
        if status != HTTPStatus.OK:
            said = body[:QUOTED].decode(errors="replace").strip()
            raise self.fault(f"it answered {path} with HTTP status {status}: {said} (its own log may say why)")
        try:
            return parsed(body)
        except ValueError as error:
            raise self.fault(f"its answer to {path} is no JSON ({error})") from error

    def _answer(self, method: str, path: str, message: dict[str, Any] | None, seconds: float) -> tuple[int, bytes]:
        deadline = time.monotonic() + seconds
        parts, size = [], 0
        with self._client.stream(method, self.url + path, json=message, timeout=seconds) as response:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MAX_BYTES:
                    raise self.fault(f"its answer to {path} is longer than {MAX_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise self._late(path, seconds)
        return response.status_code, b"".join(parts)

    def _late(self, path: str, seconds: float) -> NoAnswer:
        return NoAnswer(f"AppWorld's server {self.url}: it did not answer {path} within {seconds:g} s")


_GREETING = 5.0  # seconds for the shortest of answers
_AVOIDED = 10.0  # seconds for which a server that failed is left out
_POLL = 0.05  # seconds
_PLAYED_ON = "plays another episode"

_held: dict[tuple[int, str], int] = {}  # (process, server) to the thread that holds it


class ServerPool:
    """Servers by their base URLs. Raises InputError for one that is not an AppWorld server, or cannot be reached.

    A server keeps one world, so a client that opens another replaces it. Locks in the system's folder for temporary
    files exclude this user's other processes on this machine; other clients are detected (``ServedWorld``).
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = tuple(Server(url) for url in urls)
        self._avoided: dict[str, tuple[float, str]] = {}  # until when, and why
        self._next = itertools.count()
        for server in self._servers:
            try:
                server.check(_GREETING)
            except NoAnswer:  # busy for another client: it may be free by the time that it is needed
                continue
            except EnvironmentFault as fault:
                raise InputError(
                    f"environment.options.servers: {fault}: start it with `appworld serve environment`, or leave it out"
                ) from fault

    def __len__(self) -> int:
        return len(self._servers)

    def acquire(self, seconds: float, queue: float) -> Lease:
        """Return a server that is free and answers.

        Raises EnvironmentFault when no server answers within about ``seconds``, or those in use are not given back
        within about ``queue`` seconds; InputError at once when this thread holds all of them, which would be a
        deadlock.
        """
        self._refuse_endless_wait()
        began = time.monotonic()
        first = next(self._next)
        said: dict[str, str] = {}
        while True:
            for position in range(len(self)):
                server = self._servers[(first + position) % len(self)]
                until, said[server.url] = self._avoided.get(server.url, (0.0, ""))
                if until > time.monotonic():
                    continue
                lease, said[server.url] = self._try(server, min(_GREETING, seconds))
                if lease is not None:
                    return lease
            others = any(words.endswith(_PLAYED_ON) and not _is_mine(url) for url, words in said.items())
            limit = queue if others else seconds
            if time.monotonic() - began > limit:
                reasons = "; ".join(said.values())
                raise EnvironmentFault(f"no server of AppWorld was free within {limit:g} s: {reasons}")
            time.sleep(_POLL)

    def _try(self, server: Server, seconds: float) -> tuple[Lease | None, str]:
        """Return the server if it answers within ``seconds``, or why it is not available now."""
        lock = FileLock(_lock_path(server.url), thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None, f"{server.url} {_PLAYED_ON}"
        try:
            server.greet(seconds)
        except EnvironmentFault as fault:
            lock.release()
            self._avoided[server.url] = (time.monotonic() + _AVOIDED, str(fault))
            return None, str(fault)
        except BaseException:
            lock.release()
            raise
        return Lease(server, lock), ""

    def _refuse_endless_wait(self) -> None:
        if all(_is_mine(server.url) for server in self._servers):
            raise InputError(
                f"environment.options.servers names {len(self)}, and more AppWorld episodes than that are to be open "
                "at once: name more servers, or leave them out to use the project's own worker"
            )


class Lease:
    """A server that is reserved for one episode until ``release``."""

    def __init__(self, server: Server, lock: FileLock) -> None:
        self.server = server
        self._lock = lock
        self._key = (os.getpid(), server.url)
        self._out = True
        _held[self._key] = threading.get_ident()

    def release(self) -> None:
        """Release the server. Idempotent."""
        if self._out:
            self._out = False
            _held.pop(self._key, None)
            self._lock.release()


def _is_mine(url: str) -> bool:
    """Return whether this thread holds the server, so that no other thread will give it back."""
    return _held.get((os.getpid(), url)) == threading.get_ident()


def _lock_path(url: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"coevolve-appworld-servers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"


_ENGINE = "environments.appworld.engine"
_SENT = (  # each after those that it imports
    *("code_filter", "protocol", "namespace", "api_calls", "differences", "memory_limit"),
    *("world", "evaluation_results", "stand_in"),
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
    """Implements ``backend.Backend``. Use one for many episodes, also from several threads.

    Args:
        urls: base URLs of the servers, such as http://localhost:8000.
        installation: the same world on this machine; by default that of ``find_installation``.
        limits: of time and API calls; those of memory and of a worker's episodes do not apply.

    Raises InputError when a server cannot be reached or is not an AppWorld server, and when AppWorld is not installed.
    """

    def __init__(
        self, urls: Sequence[str], installation: Installation | None = None, limits: EngineLimits | None = None
    ) -> None:
        self.installation = installation or find_installation()
        self.limits = limits or EngineLimits()
        self._pool = ServerPool(urls)

    @property
    def at_once(self) -> int:
        """One episode per server."""
        return len(self._pool)

    @cached_property
    def api_docs(self) -> dict[str, ToolSpec]:
        """Every API's documentation by ``app.api``, as the installation's files document it."""
        return read_api_documentation(self.installation)

    def open(self, task_id: str, instruction: str | None = None) -> ServedWorld:
        """Open a fresh world of ``task_id``; ``instruction`` replaces the task's own, also where the apps show it.

        Raises InputError for an unknown task, for servers of another world, and when this thread holds all servers;
        EnvironmentFault when no world could be opened in time.
        """
        self.installation.require_task(task_id)
        own = json.loads((self.installation.blind / "data" / "tasks" / task_id / "specs.json").read_text())
        lease = self._pool.acquire(self.limits.open, self.limits.queue)
        try:
            return ServedWorld(lease, task_id, own["instruction"], instruction, self.limits)
        except BaseException:
            lease.release()
            raise


class ServedWorld:
    """One episode's world on a server; made by ``AppWorldServers.open``.

    Every method raises EnvironmentFault when the server ended or was taken over by another client that opened a world
    there. When it does not answer in time or answers with an error, that is EnvironmentFault until the world was given
    code, and WorldLost from then on. The world is gone then.
    """

    def __init__(self, lease: Lease, task_id: str, own: str, instruction: str | None, limits: EngineLimits) -> None:
        self.task_id = task_id
        self._lease = lease
        self._limits = limits
        self._episode = secrets.token_hex(16)
        self._open = True
        self._given_code = False
        answer = self._post(
            "/initialize",
            limits.warm_up,  # a server's first world takes long
            experiment_name=f"coevolve-{self._episode[:12]}",
            max_interactions=10**9,
            max_api_calls_per_interaction=limits.api_calls,
            timeout_seconds=limits.execute,
        )
        if answer.get("instruction") != own:
            raise InputError(
                f"environment.options.servers: {lease.server.url} serves another task {task_id} than the installation "
                "has: start it with the root of the same world"
            )
        prepared = self._post("/execute", limits.open, code=_install_code(self._episode))
        if prepared != _DONE:
            self._fail(f"the episode could not be prepared: {str(prepared)[-QUOTED:]}")
        self.opening = WorldOpening.model_validate(self._ask("open", limits.open, instruction=instruction))

    @property
    def alive(self) -> bool:
        """Return whether the world was not closed and none of its answers has failed."""
        return self._open

    def execute(self, code: str) -> Executed:
        """Run ``code`` as the benchmark does, after the code filter."""
        self._given_code = True
        reply = self._ask("execute", self._limits.execute + self._limits.grace, code=code)
        with after_code(given=True):
            return Executed.model_validate(reply)

    def evaluated_diff(self) -> Difference:
        """Return how the world differs from its task's start, by the server's own report: it has no evaluator."""
        reply = self._ask("difference", self._limits.answer)
        with after_code(self._given_code):
            return Difference.model_validate(reply)

    def state(self) -> str:
        """Return the canonical text of ``evaluated_diff``.

        Equal texts mean equal states of one task, except for ids, times and codes.
        """
        return json.dumps(self.evaluated_diff().model_dump(mode="json"), sort_keys=True, ensure_ascii=False)

    def evaluate(self) -> Evaluation:
        """Return the official evaluation of the current world."""
        reply = self._ask("evaluate", self._limits.evaluate)
        with after_code(self._given_code):
            return Evaluation.model_validate(reply)

    def close(self) -> None:
        """End the world and free the server. Idempotent."""
        if self._open:
            with suppress(EnvironmentFault):  # the next client of this server gets the error
                self._ask("close", self._limits.answer)
        self._open = False
        self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, operation: str, seconds: float, **arguments: Any) -> Any:  # noqa: ANN401 - JSON, for a record to read
        """Request ``operation`` of the stand-in."""
        if not self._open:
            raise self._lease.server.fault(f"{operation} was asked of an episode that is over")
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
            return self._lease.server.ask(path, {"task_id": self.task_id, **arguments}, seconds)
        except NoAnswer as late:
            self._give_up()
            with after_code(self._given_code):
                raise late
        except EnvironmentFault:
            self._give_up()
            raise

    def _fail(self, what: str) -> NoReturn:
        self._give_up()
        raise self._lease.server.fault(what)

    def _give_up(self) -> None:
        """Mark the world as gone: no further request is sent to it, also not to close."""
        self._open = False
        self._lease.release()


def _install_code(episode: str) -> str:
    """Return code that replaces the server's world by the stand-in and defines no other names."""
    folder = Path(__file__).parent / "engine"
    texts = {f"{_ENGINE}.{name}": (folder / f"{name}.py").read_text() for name in _SENT}
    return f"__import__('builtins').exec({_INSTALL!r}, { ({'texts': texts, 'episode': episode})!r})"
