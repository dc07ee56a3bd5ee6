"""Tasks of CoEvolve for verifiers 0.4: a taskset, its tools and its reward, over ``coevolve environment serve``.

The package imports nothing of CoEvolve: its requirements contradict those of verifiers. The server plays the tasks. A
rollout is a session there. The model's tool calls go to the session; a reply without a call ends its user turn, and the
server's next user message is the next turn. The reward is the server's, 1 or 0; a fault of the environment is an error
of the rollout, not a reward.

``COEVOLVE_SERVE_TOKEN`` holds the server's token, where it asks for one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast

import httpx
import verifiers.v1 as vf
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import Field
from websockets.asyncio.client import connect

__all__ = ["CoEvolveEnv", "CoEvolveTaskset"]

FINISH_TURN = "finish_turn"
SECONDS = 120.0
PAGE = 100


class SessionState(vf.State):
    """A rollout's session on the server, and what it came to."""

    url: str = ""
    session: str = ""
    done: bool = False
    reward: float | None = None
    fault: str | None = None

    async def ask(self, method: str, **params: object) -> dict[str, Any]:
        """Return the server's answer within the session. Raises RuntimeError for an error of the server."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "session_id": self.session}}
        async with httpx.AsyncClient(timeout=SECONDS) as client:
            answered = await client.post(f"{self.url}/mcp", json=request, headers=_headers())
        answer = answered.raise_for_status().json()
        if "error" in answer:
            raise RuntimeError(f"the environment failed: {answer['error'].get('message')}")
        return dict(answer["result"])

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the observation of a call; keep the reward, or the fault that it ended in."""
        try:
            seen = await self.ask("tools/call", name=name, arguments=arguments)
        except (RuntimeError, httpx.HTTPError) as error:
            self.fault = str(error)
            raise
        self.done, self.reward = bool(seen["done"]), seen["reward"]
        return seen

    async def finish_turn(self, sampled_tokens: int) -> str | None:
        """End the user turn; return the next user message, None where the conversation is over."""
        result = (await self.call(FINISH_TURN, {"sampled_tokens": sampled_tokens}))["result"]
        return None if self.done else str(result["user"])


class CoEvolveTaskConfig(vf.TaskConfig):
    """Where tasks are played."""

    url: str = "http://127.0.0.1:8770"


class CoEvolveConfig(vf.TasksetConfig):
    """Which tasks are loaded: a ``split`` of the server."""

    split: str = "train"
    seed: int = 0
    """Of the order in which ``coevolve_stream`` draws."""
    refresh: float = 30.0
    """Seconds after which ``coevolve_stream`` asks for later tasks."""
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    task: CoEvolveTaskConfig = CoEvolveTaskConfig()


class CoEvolveData(vf.TaskData):
    """A task: its place on the server."""

    split: str
    index: int = Field(ge=0)
    draw: int | None = None
    """The number of the draw that a server with ``--record`` records the rollout under."""


class CoEvolveTask(vf.Task[CoEvolveData, SessionState, CoEvolveTaskConfig]):
    """One task, in a session of its own."""

    @property
    def key(self) -> str:
        """The id that the task has in its run."""
        return str(self.data.id)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Open a session and reset it to the task."""
        state = cast(SessionState, trace.state)
        state.url = self.config.url.rstrip("/")
        state.session = (await state.ask("openenv/session/create"))["session_id"]
        address = f"ws{state.url.removeprefix('http')}/ws?session_id={state.session}"
        async with connect(address, additional_headers=_headers(), proxy=None) as socket:
            place = {"split": self.data.split, "index": self.data.index}
            drawn = {} if self.data.draw is None else {"episode_id": str(self.data.draw)}
            await socket.send(json.dumps({"type": "reset", "data": {**place, **drawn}}))
            answer = json.loads(await socket.recv())
        if answer["type"] != "observation":
            raise RuntimeError(f"the environment failed: {answer['data'].get('message')}")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """End an attempt that a limit stopped, and close the session."""
        state = cast(SessionState, trace.state)
        if state.fault is None and not state.done:
            await state.call(FINISH_TURN, {"give_up": True, "sampled_tokens": trace.num_output_tokens})
        await state.ask("openenv/session/close")

    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        """Return the server's reward; 0 where the model did not reach the end of the last turn."""
        state = cast(SessionState, trace.state)
        if state.fault is not None:
            raise RuntimeError(state.fault)
        return state.reward or 0.0


class CoEvolveToolset(vf.Toolset[vf.SharedToolsetConfig, SessionState]):
    """The tools of the calling rollout's session; ``finish_turn`` is left to the end of a reply."""

    TOOL_PREFIX = None

    def register(self, mcp: MCPServer) -> None:
        """Answer with the session's own tools: each task has others."""
        server = cast(Any, mcp)
        server.list_tools = self._with_state(self.list_tools)
        server.call_tool = self._with_state(self.call_tool)

    async def list_tools(self) -> list[Tool]:
        """Return the tools of the session's user turn."""
        listed = (await self.state.ask("tools/list"))["tools"]
        return [Tool(**tool) for tool in listed if tool["name"] != FINISH_TURN]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context | None = None) -> CallToolResult:
        """Execute one call in the session."""
        if name == FINISH_TURN:
            raise ValueError(f"there is no tool {name!r}")
        seen = await self.state.call(name, arguments)
        error = seen["error"]
        text = error["message"] if error else seen["result"]
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=bool(error))


class CoEvolveEnvConfig(vf.EnvConfig):
    """One agent plays each task."""

    agent: vf.AgentConfig = vf.AgentConfig()


class CoEvolveEnv(vf.Env[CoEvolveEnvConfig]):
    """The user's part: a reply without a call ends the turn, and the next message follows."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play one task to the end of its last user turn."""
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                trace = interaction.trace
                following = await cast(SessionState, trace.state).finish_turn(trace.num_output_tokens)
                if following is None:
                    break
                segment = await interaction.turn(following)


class CoEvolveTaskset(vf.Taskset[CoEvolveTask, CoEvolveConfig]):
    """The tasks of a server."""

    @classmethod
    def toolsets(cls, config: CoEvolveConfig) -> list[vf.Toolset]:
        """Return the tools of all sessions, as one server."""
        return [CoEvolveToolset(config.tools)]

    def load(self) -> Iterator[CoEvolveTask]:
        """Yield the tasks of the split. Tasks that begin after turns of the reference are left out."""
        for one in self.listed(0):
            if not one["played"]:
                yield self.task(one)

    def listed(self, start: int) -> Iterator[dict[str, Any]]:
        """Yield what the server says of the tasks of the split from the index ``start`` on."""
        url = self.config.task.url.rstrip("/")
        with httpx.Client(headers=_headers(), timeout=SECONDS) as client:
            (name,) = client.get(f"{url}/list_environments").raise_for_status().json()
            while True:
                wanted = {"split": self.config.split, "start": start, "stop": start + PAGE}
                found = client.post(f"{url}/{name}/task_range", json=wanted).raise_for_status().json()["tasks"]
                yield from found
                if len(found) < PAGE:
                    return
                start += PAGE

    def task(self, one: dict[str, Any], draw: int | None = None) -> CoEvolveTask:
        """Return a listed task."""
        place = {"split": self.config.split, "index": one["index"], "draw": draw}
        return CoEvolveTask(CoEvolveData(id=one["id"], name=one["id"], prompt=one["user"], **place), self.config.task)


def _headers() -> dict[str, str]:
    token = os.environ.get("COEVOLVE_SERVE_TOKEN")
    return {} if token is None else {"Authorization": f"Bearer {token}"}


if __name__ == "__main__":
    CoEvolveToolset.run()
