"""Trajectories in the formats that other programs read: OpenAI messages, ATIF, and logs of Inspect.

- ``openai``: JSON lines of messages and tools, for fine-tuning services and TRL (a data set of conversations).
- ``atif``: the Agent Trajectory Interchange Format, version 1.7 (Harbor's, and its viewer's): one file per rollout.
- ``inspect``: one log per iteration in the JSON format of Inspect's ``inspect view``, version 2.

The formats are written by their schemas, without their packages; ``docs/exchange.md`` says what each was read with.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from environments.base import ToolCall
from graph.export.content import RunContent, checked_json
from graph.export.messages import Arguments, ChatMessage, chat_messages, offered_tools, tool_schemas
from memory.records import Task, Trajectory
from training.rendering.tool_calls import call_id

__all__ = ["ATIF_VERSION", "WRITERS", "atif", "inspect_sample", "openai_row"]

ATIF_VERSION = "ATIF-v1.7"

_INSPECT_VERSION = 2
_AGENT = "coevolve"


def openai_row(one: Trajectory, tools: list[dict[str, Any]], arguments: Arguments) -> dict[str, Any]:
    """Return a rollout as a conversation with tools, and its ids and result as metadata."""
    return {"messages": chat_messages(one, arguments), "tools": tools, "metadata": _metadata(one)}


def atif(one: Trajectory, tools: list[dict[str, Any]], run: str, policy: str) -> dict[str, Any]:
    """Return a rollout as an ATIF document."""
    steps: list[dict[str, Any]] = []
    calls = 0

    def add(source: str, message: str, **more: object) -> None:
        steps.append({"step_id": len(steps) + 1, "source": source, "message": message, **more})

    for turn in one.turns:
        add("user", turn.full_text)
        for step in turn.steps:
            answer: dict[str, Any] = {"content": step.observation.full_text}
            if isinstance(step.action, ToolCall):
                identifier = call_id(calls)
                calls += 1
                call = {
                    "tool_call_id": identifier,
                    "function_name": step.action.name,
                    "arguments": step.action.arguments,
                }
                results = [{"source_call_id": identifier, **answer}]
                add("agent", "", tool_calls=[call], observation={"results": results})
            else:
                add("agent", step.action.text, observation={"results": [answer]})
        if turn.ended:
            add("agent", "")
    return {
        "schema_version": ATIF_VERSION,
        "session_id": run,
        "trajectory_id": one.id,
        "agent": {"name": _AGENT, "version": version(_AGENT), "model_name": policy, "tool_definitions": tools},
        "steps": steps,
        "notes": "Each action is a step of its own; the words with which the agent ended a turn are not recorded.",
        "final_metrics": {"total_completion_tokens": one.sampled_tokens, "total_steps": len(steps)},
        "extra": _metadata(one),
    }


def inspect_sample(one: Trajectory, task: Task, policy: str) -> dict[str, Any]:
    """Return a rollout as a sample of an Inspect log."""
    messages = [_inspect_message(message) for message in chat_messages(one, "objects")]
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    said = last or {"role": "assistant", "content": ""}
    target = "\n".join(
        f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        for turn in task.reference
        for call in turn
    )
    scores = {}
    if one.outcome is not None:
        scores["success"] = {
            "value": "C" if one.success else "I",
            "explanation": one.outcome.failure or "",
            "metadata": {"reward": one.reward},
        }
    sample: dict[str, Any] = {
        "id": one.id,
        "epoch": 1,
        "input": task.turns[0] if task.turns else "",
        "target": target,
        "messages": messages,
        "output": {
            "model": policy,
            "choices": [{"message": said, "stop_reason": "stop"}],
            "completion": said["content"],
        },
        "scores": scores,
        "metadata": _metadata(one),
    }
    if one.infrastructure_error is not None:
        sample["error"] = {"message": one.infrastructure_error, "traceback": "", "traceback_ansi": ""}
    return sample


def _inspect_message(message: ChatMessage) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        return plain | {"tool_call_id": message["tool_call_id"], "function": message["name"]}
    if "tool_calls" in message:
        plain["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in message["tool_calls"]
        ]
    return plain


def _metadata(one: Trajectory) -> dict[str, Any]:
    return {
        "id": one.id,
        "task_id": one.task_id,
        "iteration": one.iteration,
        "step": one.step,
        "sample": one.sample,
        "success": None if one.outcome is None else one.success,
        "reward": one.reward,
        "failure": None if one.outcome is None else one.outcome.failure,
        "infrastructure_error": one.infrastructure_error,
    }


def write_openai(content: RunContent, folder: Path, rollouts: Iterator[Trajectory], arguments: Arguments) -> int:
    """Write ``conversations.jsonl``, a conversation per line; return their number."""
    tools = _Tools(content)
    number = 0
    with (folder / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for one in rollouts:
            number += 1
            row = openai_row(one, tools.of(one), arguments)
            file.write(checked_json(row, content.run, one.id) + "\n")
    return number


def write_atif(content: RunContent, folder: Path, rollouts: Iterator[Trajectory], arguments: Arguments) -> int:
    """Write ``ROLLOUT.json`` for each rollout; return their number."""
    tools, names = _Tools(content), _policies(content)
    number = 0
    for one in rollouts:
        number += 1
        document = atif(one, tools.of(one), content.run.root.resolve().name, names[one.iteration])
        (folder / f"{_safe(one.id)}.json").write_text(checked_json(document, content.run, one.id), encoding="utf-8")
    return number


def write_inspect(content: RunContent, folder: Path, rollouts: Iterator[Trajectory], arguments: Arguments) -> int:
    """Write a log for each iteration; return the number of rollouts. One sample is in memory at a time."""
    names = _policies(content)
    return sum(
        _write_log(content, folder, iteration, names[iteration], members)
        for iteration, members in groupby(rollouts, key=attrgetter("iteration"))
    )


def _write_log(content: RunContent, folder: Path, iteration: int, policy: str, rollouts: Iterable[Trajectory]) -> int:
    """Write the log of one iteration. Inspect reads its head before its samples, and it holds their counts."""
    made = datetime.fromtimestamp(content.run.iteration(iteration).round.stat().st_mtime, tz=UTC)
    created = made.isoformat(timespec="seconds")
    # The viewer lists files by such a name: time, task, id.
    path = folder / f"{created.replace(':', '-')}_iteration-{iteration:03d}_{_AGENT}.json"
    written = evaluated = solved = 0
    with TemporaryFile("w+", encoding="utf-8", dir=folder) as samples:
        for one in rollouts:
            sample = inspect_sample(one, content.task(one.task_id), policy)
            samples.write((",\n" if written else "") + checked_json(sample, content.run, one.id))
            written += 1
            evaluated += one.outcome is not None
            solved += one.success
        samples.seek(0)
        head = _inspect_head(content, iteration, policy, created, (written, evaluated, solved))
        with path.open("w", encoding="utf-8") as file:
            file.write(checked_json(head, content.run, "the log").removesuffix("}") + ', "samples": [\n')
            shutil.copyfileobj(samples, file)
            file.write("\n]}\n")
    return written


def _inspect_head(
    content: RunContent, iteration: int, policy: str, created: str, counts: tuple[int, int, int]
) -> dict[str, Any]:
    """Return a log without its samples; ``counts`` are samples, evaluated ones, and successes."""
    written, evaluated, solved = counts
    name, environment = content.run.root.resolve().name, content.settings.environment.name
    accuracy = {"name": "accuracy", "value": solved / evaluated if evaluated else 0.0}
    return {
        "version": _INSPECT_VERSION,
        "status": "success",
        "eval": {
            "eval_id": f"{name}-{iteration:03d}",
            "run_id": name,
            "created": created,
            "task": f"{environment}, rollouts of iteration {iteration}",
            "task_id": f"iteration-{iteration:03d}",
            "dataset": {"name": environment, "samples": written},
            "model": policy,
            "config": {},
            "packages": {_AGENT: version(_AGENT)},
        },
        "plan": {},
        "results": {
            "total_samples": written,
            "completed_samples": evaluated,
            "scores": [{"name": "success", "scorer": "success", "metrics": {"accuracy": accuracy}}],
        },
        "stats": {"started_at": created, "completed_at": created},
    }


class _Tools:
    """The function schemas of each task's tools, made once for each set of them."""

    def __init__(self, content: RunContent) -> None:
        self._content = content
        self._known: dict[tuple[str, ...], list[dict[str, Any]]] = {}

    def of(self, one: Trajectory) -> list[dict[str, Any]]:
        """Return the schemas of the tools that the rollout was offered."""
        names = offered_tools(self._content.task(one.task_id))
        if names not in self._known:
            self._known[names] = tool_schemas(self._content.environment, names)
        return self._known[names]


def _policies(content: RunContent) -> Mapping[int, str]:
    """Return a name of the policy that each round trained, by iteration."""
    name = content.run.root.resolve().name
    return {record.iteration: f"{_AGENT}/{name}-round-{record.iteration}" for record in content.records()}


def _safe(name: str) -> str:
    """Return an id as a file name; ids of our own records are."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:100]


WRITERS: Mapping[str, Callable[[RunContent, Path, Iterator[Trajectory], Arguments], int]] = {
    "openai": write_openai,
    "atif": write_atif,
    "inspect": write_inspect,
}
"""Writers of a folder of trajectories by the name of the format; each returns how many it wrote."""
