"""A draft on the car's first start, for the chat roles that carry drafts out."""

from __future__ import annotations

from environments.base import StartState, ToolCall
from memory.records import Draft

DOORS = ["driver", "passenger", "rear_left", "rear_right"]
LOCK = {"unlock": False, "door": DOORS}
FUEL = {"fuelAmount": 5.0}


def two_turns(start: StartState, setup: tuple[ToolCall, ...] = ()) -> Draft:
    """Two turns: 5 gallons, then the doors."""
    return Draft(
        id="draft-made",
        context_id="context-made",
        environment="bfcl",
        split="train",
        classes=start.classes,
        turns=("Add 5 gallons.", "Lock all the doors."),
        initial_state=start.initial_state,
        setup=setup,
        tools=start.tools,
        reference=((ToolCall(name="fillFuelTank", arguments=FUEL),), (ToolCall(name="lockDoors", arguments=LOCK),)),
    )
