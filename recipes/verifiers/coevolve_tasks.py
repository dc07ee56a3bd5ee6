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

    async def finish_turn(self) -> str | None:
        """End the user turn; return the next user message, None where the conversation is over."""
        result = (await self.call(FINISH_TURN, {}))["result"]
        return None if self.done else str(result["user"])


class CoEvolveTaskConfig(vf.TaskConfig):
    """Where tasks are played."""

    url: str = "http://127.0.0.1:8770"


class CoEvolveConfig(vf.TasksetConfig):
    """Which tasks are loaded: a ``split`` of the server."""

    split: str = "train"
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()
    task: CoEvolveTaskConfig = CoEvolveTaskConfig()


class CoEvolveData(vf.TaskData):
    """A task: its place on the server."""

    split: str
    index: int = Field(ge=0)


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
            await socket.send(
                json.dumps({"type": "reset", "data": {"split": self.data.split, "index": self.data.index}})
            )
            answer = json.loads(await socket.recv())
        if answer["type"] != "observation":
            raise RuntimeError(f"the environment failed: {answer['data'].get('message')}")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        """Close the session."""
        state = cast(SessionState, trace.state)
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
                following = await cast(SessionState, interaction.trace.state).finish_turn()
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
        url = self.config.task.url.rstrip("/")
        with httpx.Client(headers=_headers(), timeout=SECONDS) as client:
            (name,) = client.get(f"{url}/list_environments").raise_for_status().json()
            start = 0
            while True:
                wanted = {"split": self.config.split, "start": start, "stop": start + PAGE}
                listed = client.post(f"{url}/{name}/task_range", json=wanted).raise_for_status().json()["tasks"]
                for one in listed:
                    if not one["played"]:
                        data = CoEvolveData(
                            id=one["id"],
                            name=one["id"],
                            prompt=one["user"],
                            split=self.config.split,
                            index=one["index"],
                        )
                        yield CoEvolveTask(data, self.config.task)
                if len(listed) < PAGE:
                    return
                start += PAGE


def _headers() -> dict[str, str]:
    token = os.environ.get("COEVOLVE_SERVE_TOKEN")
    return {} if token is None else {"Authorization": f"Bearer {token}"}


if __name__ == "__main__":
    CoEvolveToolset.run()
