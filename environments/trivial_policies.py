"""Trivial policies: what an agent could do without reading its task; a draft that one of them solves is no task."""

from __future__ import annotations

from contextlib import closing

from environments.base import Environment, TaskSpec, ToolCall
from environments.replay import succeeds


def solving_policy(environment: Environment, task: TaskSpec) -> str | None:
    """A phrase that names the first trivial policy that solves ``task``, None if none does.

    The policies, each applied in every user turn: no call; each tool of the task alone, without arguments; each value
    that a tool's only required parameter documents as trivial; all reads without arguments together, in the order of
    ``task.tools``. A read is a tool that needs no argument, does not fail and leaves the state as it was. Tools that
    document a required argument all refuse to run without it, so the first of them stands for all.
    """
    turns = len(task.turns)
    if succeeds(environment, task, ((),) * turns):
        return "making no call"
    free: list[ToolCall] = []
    demanding: list[ToolCall] = []
    given: list[ToolCall] = []
    for tool in environment.tools(task.tools):
        required = [parameter for parameter in tool.parameters if parameter.required]
        (demanding if required else free).append(ToolCall(name=tool.name))
        if len(required) == 1:
            given += [ToolCall(name=tool.name, arguments={required[0].name: value}) for value in required[0].trivial]
    for call in (*free, *demanding[:1]):
        if succeeds(environment, task, ((call,),) * turns):
            return f"calling {call.name} without arguments"
    for call in given:
        if succeeds(environment, task, ((call,),) * turns):
            return f"calling {call.name} with {', '.join(f'{n}={v!r:.80}' for n, v in call.arguments.items())}"
    reads = tuple(call for call in free if _reads(environment, task, call))
    if len(reads) > 1 and succeeds(environment, task, (reads,) * turns):
        return "calling all reads without arguments"
    return None


def _reads(environment: Environment, task: TaskSpec, call: ToolCall) -> bool:
    with closing(environment.open(task)) as episode:
        episode.start()
        before = episode.state()
        return not episode.step(call).failed and episode.state() == before
