"""What a served model writes in tests: the messages of a table, user turn by user turn, as chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from environments.base import TaskSpec, ToolCall
from support.faulty_server import Answer, ChatRequest, FaultyServer, Raw, completion

Written = ToolCall | str | tuple[str, str]
"""One call; a text; or a name and arguments as the model wrote them, readable or not."""
Script = Sequence[Sequence[Sequence[Written]]]
"""By user turn and message: what is written. A turn's last message is followed by one that ends the turn."""


def script_of(task: TaskSpec) -> list[list[list[Written]]]:
    """The reference, each turn's calls in one message."""
    return [[list(calls)] if calls else [] for calls in task.reference]


def message(written: Sequence[Written]) -> dict[str, Any]:
    """An assistant's message with these calls, or with the text."""
    calls = [one if isinstance(one, tuple) else (one.name, json.dumps(one.arguments)) for one in written
             if not isinstance(one, str)]  # fmt: skip
    text = "".join(one for one in written if isinstance(one, str))
    made = [{"id": "same", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    return {"content": text or None, **({"tool_calls": made} if made else {})}


def player(scripts: Mapping[str, Script]) -> Callable[[ChatRequest], Answer]:
    """Plays each task by the text of its first user message. Counts its own messages since the user's last one.

    An answer that stands in a user's message (to a malformed text, to a block) is told from a turn by its text.
    """

    def answer(request: ChatRequest) -> Answer:
        messages = [one for one in request.messages if one["role"] != "system"]
        first = messages[0]["content"]
        script = scripts[first if isinstance(first, str) else "".join(part["text"] for part in first)]
        turn = place = 0
        for one in messages:
            if one["role"] != "assistant":
                continue
            if place < len(script[turn]):
                place += 1
            else:
                turn, place = turn + 1, 0
        written = script[turn][place] if place < len(script[turn]) else ["All is done."]
        said = message(written)
        # A client may leave out that a message has no text.
        told = replace(
            request, body=request.body | {"messages": [{"content": None, **one} for one in request.messages]}
        )
        done = completion(told, said, "tool_calls" if "tool_calls" in said else "stop")
        return _streamed(done) if request.body.get("stream") else Raw(200, done)

    return answer


def _streamed(done: dict[str, Any]) -> Raw:
    """The completion in two chunks, as events of a server."""
    (choice,) = done["choices"]
    calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls", ()))]
    said = choice["message"] | ({"tool_calls": calls} if calls else {})
    ends = [{"delta": said, "finish_reason": None}, {"delta": {}, "finish_reason": choice["finish_reason"]}]
    whole = done | {"object": "chat.completion.chunk"}
    chunks = [json.dumps(whole | {"choices": [{"index": 0, **one}]}) for one in ends]
    text = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    return Raw(200, text, {"content-type": "text/event-stream"})


def reference_endpoint(tasks: Sequence[TaskSpec], idle: bool = False) -> FaultyServer:
    """A chat endpoint that plays the references of tasks, or nothing: what a perfect and an idle model would answer."""
    return FaultyServer(player({one.turns[0]: [()] * len(one.turns) if idle else script_of(one) for one in tasks}))
