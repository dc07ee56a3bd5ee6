"""Serves a run as `coevolve studio` does, and asks the server as Studio's page would, through langgraph_sdk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.hosts.server import listen
from memory.processes import end_of_log, search_path
from memory.run import RunDirectory

if TYPE_CHECKING:
    from langgraph_sdk.client import SyncLangGraphClient
    from langgraph_sdk.schema import Checkpoint

__all__ = ["Studio", "serving", "start_without"]

BOOT = 120.0  # seconds until the server answers, on a busy machine
GRACE = 20.0  # seconds between SIGINT and SIGKILL
_COMMAND = (sys.executable, "-m", "graph.command", "studio")  # `coevolve studio`


class Studio(NamedTuple):
    """A run and the client of its server."""

    run: RunDirectory
    client: SyncLangGraphClient

    def thread(self, graph: str) -> str:
        """Make a thread for ``graph``."""
        return str(self.client.threads.create(graph_id=graph)["thread_id"])

    def name(self, thread: str) -> str:
        """Return the name of a thread in the list."""
        return str((self.client.threads.get(thread)["metadata"] or {}).get("name"))

    def values(self, thread: str) -> dict[str, Any]:
        """Return the newest state of a thread."""
        values = self.client.threads.get_state(thread)["values"]
        assert isinstance(values, dict)
        return values

    def forms(self, graph: str) -> list[dict[str, Any]]:
        """Return what the forms of ``graph`` ask for: its input's and its context's properties."""
        (assistant,) = self.client.assistants.search(graph_id=graph)
        schemas = self.client.assistants.get_schemas(assistant["assistant_id"])
        return [
            dict((form or {}).get("properties", {})) for form in (schemas["input_schema"], schemas["context_schema"])
        ]

    def drawing(self, graph: str) -> dict[str, list[dict[str, Any]]]:
        """Return nodes and edges of ``graph`` with the inside of its branches."""
        (assistant,) = self.client.assistants.search(graph_id=graph)
        return self.client.assistants.get_graph(assistant["assistant_id"], xray=True)

    def inside(self, thread: str) -> list[dict[str, Any]]:
        """Return the states of the branches that wait in a thread."""
        tasks = self.client.threads.get_state(thread, subgraphs=True)["tasks"]
        states = [task["state"]["values"] for task in tasks if task["state"]]
        return [values for values in states if isinstance(values, dict)]

    def go(self, thread: str, **options: Any) -> None:  # noqa: ANN401 - as the library takes them
        """Run the graph of an iteration to its end or next pause. Raises the library's error where it fails."""
        self.client.runs.wait(thread, "iteration", raise_error=True, **options)

    def streamed(self, thread: str, graph: str, given: Mapping[str, Any]) -> list[str]:
        """Run ``graph`` and return its readable progress. Raises RuntimeError where it fails."""
        told = []
        for event in self.client.runs.stream(thread, graph, input=given, stream_mode="custom", stream_subgraphs=True):
            if event.event == "error":
                raise RuntimeError(str(event.data))
            if event.event.startswith("custom"):
                told.append(event.data["text"])
        return told

    def before(self, thread: str, node: str) -> Checkpoint:
        """Return the newest checkpoint of a thread whose next node is ``node``."""
        history = self.client.threads.get_history(thread, limit=50)
        return next(one["checkpoint"] for one in history if node in one["next"])

    def changed(self, thread: str, values: Mapping[str, Any]) -> None:
        """Run the branches of a thread again, from a state with other ``values``."""
        at = self.before(thread, "dispatch")
        fork = self.client.threads.update_state(thread, dict(values), as_node="deduplicate", checkpoint=at)
        self.go(thread, checkpoint=fork["checkpoint"])

    def at(self, thread: str) -> RunDirectory:
        """Return where the newest call of a thread worked: its newest copy, or the run itself."""
        copies = self.run.root.parent.glob(f"{self.run.root.name}@{thread}*")
        return RunDirectory(max(copies, key=lambda path: (len(path.name), path.name), default=self.run.root))


@contextmanager
def serving(run: RunDirectory) -> Iterator[Studio]:
    """Serve ``run`` from an empty folder, and end the server. Raises RuntimeError with its log where it does not start.

    The server keeps its list of threads in that folder.
    """
    from langgraph_sdk import get_sync_client

    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log, url = Path(folder) / "server.log", f"http://127.0.0.1:{port}"
        argv = [*_COMMAND, "--run", str(run.root), "--no-browser", "--port", str(port)]
        environment = {**os.environ, **search_path()}
        with log.open("wb") as out:
            server = subprocess.Popen(argv, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            end = time.monotonic() + BOOT
            while not _answers(url):
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"no server: {end_of_log(log, 0)}")
                time.sleep(0.2)
            yield Studio(run, get_sync_client(url=url))
        finally:
            _end(server)


def start_without() -> subprocess.CompletedProcess[str]:
    """Start the command in an empty folder, without a run."""
    environment = {**os.environ, **search_path(), "COEVOLVE_RUN": ""}
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(_COMMAND, cwd=empty, env=environment, capture_output=True, text=True, check=False)


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/ok", timeout=2).read())
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server as Ctrl-C does, then whatever is left of its group."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(server.pid, signal.SIGINT)
        server.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
