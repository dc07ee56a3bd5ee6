"""Lists a run's threads in LangGraph's server, with names; langgraph.json names ``app``, which does so at the start.

The server puts its own routes into ``app``, below the middleware that refuses requests of web pages.

The checkpoints of a run hold the threads of its commands and of former servers. The server's own list is another file,
in the folder where it was started, which knows neither.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from langgraph_sdk.client import LangGraphClient
from starlette.applications import Starlette
from starlette.middleware import Middleware

from graph.checkpoints import open_checkpoints
from graph.studio.access import LocalRequests, named_origins
from graph.studio.forks import named_run
from graph.studio.thread_names import listed_as, this_server
from memory.run import RunDirectory

GRAPHS = ("iteration", "seed", "loop")
LISTED = 1000  # threads that the server returns at a time


async def list_threads(client: LangGraphClient) -> None:
    """Make the server's list that of the run: its threads by name, and no thread of another run."""
    run = await asyncio.to_thread(named_run, None)
    assistants = {one["graph_id"]: one["assistant_id"] for one in await client.assistants.search(limit=LISTED)}
    there = set()
    async with open_checkpoints() as saver:
        for thread in await asyncio.to_thread(_recorded, run):
            saved = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
            if saved is None:
                continue
            graph_id = str(saved.metadata.get("graph_id", "iteration"))
            if graph_id not in assistants:
                continue
            values = saved.checkpoint["channel_values"]
            metadata = listed_as(run, thread, graph_id, assistants[graph_id], values)
            await client.threads.create(thread_id=thread, metadata=metadata, if_exists="do_nothing")
            await client.threads.update(thread, metadata=metadata)
            there.add(thread)
    for graph_id in GRAPHS:
        for listed in await client.threads.search(metadata={"graph_id": graph_id}, limit=LISTED):
            if listed["thread_id"] not in there:
                await client.threads.delete(listed["thread_id"])


def _recorded(run: RunDirectory) -> list[str]:
    """Return the ids of the threads in a run's checkpoints, in order."""
    with closing(sqlite3.connect(f"file:{run.checkpoints_path}?mode=ro", uri=True)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
        if "checkpoints" not in tables:
            return []
        rows = database.execute(
            "select distinct thread_id from checkpoints where checkpoint_ns = '' order by thread_id"
        )
        return [str(thread) for (thread,) in rows]


@asynccontextmanager
async def _listing(_: Starlette) -> AsyncIterator[None]:
    await list_threads(this_server())
    yield


app = Starlette(lifespan=_listing, middleware=[Middleware(LocalRequests, origins=named_origins())])
