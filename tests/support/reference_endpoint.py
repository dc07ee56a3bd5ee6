"""A chat endpoint that plays the references of tasks, or nothing: what a perfect and an idle model would answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory.records import Task


class ReferenceEndpoint:
    """``/v1/chat/completions`` on a free port, streamed and not. Tasks are known by their first user message."""

    def __init__(self, tasks: Sequence[Task], idle: bool = False) -> None:
        self._tasks = {task.turns[0]: task for task in tasks}
        self._idle = idle
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                message = endpoint.answer(request["messages"])
                body = _streamed(message) if request.get("stream") else _whole(message)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if request.get("stream") else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def answer(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the next call of the reference in the last user turn, else a reply that ends it."""
        users = [place for place, message in enumerate(messages) if message["role"] == "user"]
        task = self._tasks[_text(messages[users[0]]["content"])]
        done = sum(message["role"] == "tool" for message in messages[users[-1] :])
        calls = () if self._idle else task.reference[len(users) - 1]
        if done >= len(calls):
            return {"role": "assistant", "content": "Done."}
        call = calls[done]
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call-{len(messages)}", "type": "function", "function": function}],
        }


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _completion(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "x", "object": kind, "created": 0, "model": "reference", "choices": [choice], "usage": usage}


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _whole(message: dict[str, Any]) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    return json.dumps(_completion("chat.completion", choice)).encode()


def _streamed(message: dict[str, Any]) -> bytes:
    calls = [{"index": place, **call} for place, call in enumerate(message.get("tool_calls", ()))]
    delta = {**message, "tool_calls": calls} if calls else message
    parts = [
        _completion("chat.completion.chunk", {"index": 0, "delta": delta, "finish_reason": None}),
        _completion("chat.completion.chunk", {"index": 0, "delta": {}, "finish_reason": _finish(message)}),
    ]
    return "".join(f"data: {part}\n\n" for part in [*map(json.dumps, parts), "[DONE]"]).encode()
