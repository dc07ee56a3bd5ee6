"""Lists a run's threads in LangGraph's server, with names; langgraph.json names ``app``, which does so at the start.

The server puts its own routes into ``app``, below the middleware that refuses requests of web pages.

The checkpoints of a run hold the threads of its commands and of former servers. The server's own list is another file,
in the folder where it was started, which knows neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, takewhile

from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from starlette.applications import Starlette
from starlette.middleware import Middleware

from graph.checkpoints import open_checkpoints, opened_run, thread_id
from graph.studio.access import LocalRequests, named_origins
from memory.run import RunDirectory, read_json
from memory.run_files import Fork

LISTED = 1000  # threads that the server returns at a time


async def list_threads(client: LangGraphClient) -> None:
    """Make the server's list that of the run: its threads by name, and no thread of another run."""
    run = await asyncio.to_thread(opened_run)
    (assistant,) = await client.assistants.search(graph_id="iteration", limit=LISTED)
    there = set()
    async with open_checkpoints() as saver:
        for thread in await asyncio.to_thread(_threads, run):
            saved = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
            if saved is None:
                continue
            name = name_of(run, thread, saved.checkpoint["channel_values"].get("iteration"))
            metadata = {"name": name, "run": run.root.name, "graph_id": "iteration"}
            metadata["assistant_id"] = assistant["assistant_id"]
            await client.threads.create(thread_id=thread, metadata=metadata, if_exists="do_nothing")
            await client.threads.update(thread, metadata=metadata)
            there.add(thread)
    for listed in await client.threads.search(metadata={"graph_id": "iteration"}, limit=LISTED):
        if listed["thread_id"] not in there:
            await client.threads.delete(listed["thread_id"])


def _threads(run: RunDirectory) -> list[str]:
    """Return the threads that a run may have: one for each iteration, and those that copies of it were made for."""
    numbers = takewhile(lambda number: run.iteration(number).root.is_dir(), count())
    beside = (RunDirectory(path).fork_path for path in sorted(run.root.parent.iterdir()))
    forks = (read_json(path, Fork) for path in beside if path.exists())
    return [*dict.fromkeys([*map(thread_id, numbers), *(fork.thread for fork in forks if fork.of == run.root.name)])]


async def name_thread(run: RunDirectory, thread: str, iteration: int) -> None:
    """Name the thread of a call in the server that this process is."""
    metadata = {"name": name_of(run, thread, iteration), "run": run.root.name}
    await get_client(api_key=None).threads.update(thread, metadata=metadata)


def name_of(run: RunDirectory, thread: str, iteration: object) -> str:
    """Return the name of a thread in the list: ``quickstart, iteration 4``."""
    if not isinstance(iteration, int) or iteration < 0:
        return f"{run.root.name}, not begun"
    own = thread == thread_id(iteration)
    return f"{run.root.name}, iteration {iteration}{'' if own else ', made in Studio'}"


@asynccontextmanager
async def _listing(_: Starlette) -> AsyncIterator[None]:
    await list_threads(get_client(api_key=None))
    yield


app = Starlette(lifespan=_listing, middleware=[Middleware(LocalRequests, origins=named_origins())])
