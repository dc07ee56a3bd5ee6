"""An MCP server of a hotel's desk, of the kind that packages ship: it numbers and wraps its answers and logs all calls.

Its state is one of several that a parameter names. Over pipes it also writes it to a file of a folder.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

READS = ToolAnnotations(read_only_hint=True)
GUESTS = {f"guest_{n}": {"name": name, "room": f"room_{n}"} for n, name in enumerate(("Mira", "Tom", "Ann"))}
ROOMS = {f"room_{n}": {"beds": n + 1, "guest": None} for n in range(3)}
Key = Annotated[str, Field(description="which of the desk's states")]


def desk(folder: Path | None = None) -> MCPServer:
    """Return a new server with three guests and three rooms."""
    server, states = MCPServer("desk"), dict[str, Any]()

    def answered(key: str, called: str, said: object) -> str:
        log = states[key]["log"]
        log.append(called)
        if folder is not None:
            (folder / f"{key}.json").write_text(json.dumps(states[key]))
        return json.dumps({"ok": True, "number": len(log), "said": said})

    def state(key: str) -> Any:
        return states.setdefault(key, {"data": {"guests": GUESTS, "rooms": {**ROOMS}}, "log": []})

    @server.tool()
    def find_guest(guest: str, key: Key = "other") -> str:
        """Find a guest of the hotel."""
        found = state(key)["data"]["guests"].get(guest)
        return answered(key, guest, found or f"Error: there is no {guest}")

    @server.tool()
    def give_room(room: str, guest: str, key: Key = "other") -> str:
        """Give a room to a guest."""
        state(key)["data"]["rooms"][room] = {**ROOMS[room], "guest": guest}
        return answered(key, room, f"{room} is for {guest}")

    @server.tool()
    def clear(key: Key = "other") -> str:
        """Begin again."""
        states.pop(key, None)
        state(key)
        return answered(key, "clear", "cleared")

    @server.tool(annotations=READS)
    def show(key: Key = "other") -> str:
        """Show everything."""
        return json.dumps({"ok": True, "said": state(key)})

    return server


if __name__ == "__main__":
    desk(Path(sys.argv[1])).run("stdio")
