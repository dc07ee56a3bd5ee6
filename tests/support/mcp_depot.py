"""MCP servers over pipes or in this process: the example depot, with a nested tool, a probe and a reset; a parrot."""

import json
from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from environments.example import Depot
from environments.python_class.environment import ToolRefused

READS = ToolAnnotations(read_only_hint=True)
DESTROYS = ToolAnnotations(destructive_hint=True)
PARCELS = {label: {"kilograms": weight} for label, weight in (("books", 12), ("lamp", 3), ("vase", 5), ("wine", 14))}


class Order(BaseModel):
    """One parcel for a van."""

    label: Annotated[str, Field(description="label of the parcel")]
    van: Annotated[Literal["north", "south"], Field(description="the van")]


def depot() -> MCPServer:
    """Return a new server with four parcels."""
    server, held = MCPServer("depot"), {"depot": Depot(PARCELS, gate_open=False)}

    def asked(method, *arguments):
        try:
            return json.dumps(getattr(held["depot"], method)(*arguments))
        except ToolRefused as refused:
            raise ToolError(str(refused)) from None

    @server.tool(annotations=READS)
    def list_parcels() -> str:
        """List what waits in the depot."""
        return asked("list_parcels")

    @server.tool()
    def insure_parcel(
        label: Annotated[str, Field(description="label of the parcel")],
        euros: Annotated[int, Field(description="value in euros", ge=100, le=500, multiple_of=100)],
    ) -> str:
        """Insure one parcel in the depot."""
        return asked("insure_parcel", label, euros)

    @server.tool()
    def load_parcels(orders: Annotated[list[Order], Field(description="the orders")]) -> str:
        """Put parcels from the depot into vans."""
        return json.dumps([asked("load_parcel", order.label, order.van) for order in orders])

    @server.tool()
    def open_gate() -> str:
        """Open the depot's gate."""
        return asked("open_gate")

    @server.tool()
    def send_van(van: Annotated[Literal["north", "south"], Field(description="the van")]) -> str:
        """Let a loaded van drive off."""
        return asked("send_van", van)

    @server.tool(annotations=READS)
    def dump_state() -> str:
        """Show everything in the depot."""
        return json.dumps(vars(held["depot"]))

    @server.tool(annotations=DESTROYS)
    def burn_down() -> str:
        """Burn the depot down."""
        held["depot"] = Depot({}, gate_open=True)
        return "ashes"

    @server.tool()
    def rebuild() -> str:
        """Bring everything back."""
        held["depot"] = Depot(PARCELS, gate_open=False)
        return "new"

    return server


def parrot() -> MCPServer:
    """Return a new server that answers what it is asked to, and adds numbers up."""
    server, held = MCPServer("parrot"), [0.0]

    @server.tool()
    def say(text: str) -> str:
        """Say a text."""
        return text

    @server.tool(annotations=READS)
    def find(word: str) -> list[str]:
        """Find words that there are."""
        return [one for one in ("tea", "teapot") if word in one]

    @server.tool()
    def add(amount: float) -> float:
        """Add a number."""
        held[0] += amount
        return held[0]

    @server.tool(annotations=READS)
    def total() -> float:
        """Show the sum."""
        return held[0]

    return server


if __name__ == "__main__":
    depot().run("stdio")
