"""An MCP server over pipes that does what its arguments say, in Python. Written by hand: the SDK cannot be hostile.

The first is run at the start, and may set ``tools``, ``version`` and ``more``; the second at each call of a tool.
"""

import json
import os
import sys
import time  # noqa: F401 - for the arguments

OUT = sys.stdout.buffer
TOOL = {"name": "act", "description": "Act now.", "inputSchema": {"type": "object", "properties": {}}}
LOOK = TOOL | {"name": "look", "description": "Look.", "annotations": {"readOnlyHint": True}}
KEY = os.environ.get("MCP_TEST_KEY")
tools, version, more, calls = [TOOL], None, {}, 0


def send(value) -> None:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    OUT.write(text + b"\n")
    OUT.flush()


def reply(result) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def reply_raw(result: bytes) -> None:
    send(b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (request["id"], result))


def text(said: str, **fields) -> dict:
    return {"content": [{"type": "text", "text": said}], **fields}


exec(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    match request.get("method") if "id" in request else None:
        case None:
            pass
        case "initialize":
            known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
            reply({"protocolVersion": version or request["params"]["protocolVersion"], **known})
        case "tools/list":
            reply({"tools": tools, **more})
        case "tools/call":
            calls += 1
            exec(sys.argv[2])
        case _:
            send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "unknown"}})
