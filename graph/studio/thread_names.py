"""Names of threads, and the names that a running server gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graph.checkpoints import thread_id
from memory.run import RunDirectory

if TYPE_CHECKING:
    from langgraph_sdk.client import LangGraphClient


def this_server() -> LangGraphClient:
    """Return a client of the server that this process is, as its nodes and its start use it."""
    from langgraph_sdk import get_client

    return get_client(api_key=None)


async def list_iteration(run: RunDirectory, iteration: int) -> None:
    """Add the thread of an iteration that the loop's graph ran in this server to its list."""
    client = this_server()
    (assistant,) = await client.assistants.search(graph_id="iteration")
    thread = thread_id(iteration)
    metadata = listed_as(run, thread, "iteration", assistant["assistant_id"], {"iteration": iteration})
    await client.threads.create(thread_id=thread, metadata=metadata, if_exists="do_nothing")


async def name_thread(run: RunDirectory, thread: str | None, graph_id: str, values: Mapping[str, Any]) -> None:
    """Name the thread of a call in this server; a call without a thread has none."""
    if thread is not None:
        metadata = {"name": name_of(run, thread, graph_id, values), "run": run.root.name}
        await this_server().threads.update(thread, metadata=metadata)


def listed_as(
    run: RunDirectory, thread: str, graph_id: str, assistant_id: str, values: Mapping[str, Any]
) -> dict[str, str]:
    """Return what a server's list says of a thread whose graph has left ``values``."""
    name = name_of(run, thread, graph_id, values)
    return {"name": name, "run": run.root.name, "graph_id": graph_id, "assistant_id": assistant_id}


def name_of(run: RunDirectory, thread: str, graph_id: str, values: Mapping[str, Any]) -> str:
    """Return the name of a thread in the list: ``quickstart, iteration 4``."""
    number = values.get("iteration")
    if graph_id == "seed":
        return f"{run.root.name}, unguided exploration"
    if graph_id == "loop":
        return f"{run.root.name}, loop"
    if not isinstance(number, int) or number < 0:
        return f"{run.root.name}, not begun"
    own = thread == thread_id(number)
    return f"{run.root.name}, iteration {number}{'' if own else ', made in Studio'}"
