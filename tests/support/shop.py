"""A made-up app in AppWorld's manner, with records of calls to it: what the rules are tried on without the engine."""

from __future__ import annotations

import json

from pydantic import JsonValue

from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from memory.records import Interaction

_TOKEN = Parameter(
    name="access_token", type="string", description="Access token obtained from shop app login.", required=True
)


def parameter(name: str, kind: str = "string", description: str = "", required: bool = True) -> Parameter:
    return Parameter(name=name, type=kind, description=description, required=required)


def tool(name: str, *parameters: Parameter, description: str = "Do it.", token: bool = True) -> ToolSpec:
    given = (*parameters, _TOKEN) if token else parameters
    return ToolSpec(name=name, group=name.partition(".")[0], description=description, parameters=given)


TOOLS = {
    spec.name: spec
    for spec in (
        tool("supervisor.show_profile", token=False),
        tool("supervisor.show_account_passwords", token=False),
        tool("supervisor.complete_task", parameter("answer", required=False), token=False),
        tool(
            "shop.login",
            parameter("username", description="Your account email."),
            parameter("password"),
            token=False,
        ),
        tool("shop.show_baskets", description="List your baskets."),
        tool("shop.show_basket", parameter("basket_id", "integer"), description="Show one of your baskets."),
        tool("shop.delete_basket", parameter("basket_id", "integer"), description="Delete a basket."),
        tool("shop.create_basket", parameter("title"), description="Create a new basket."),
    )
}


def made(
    position: int, name: str, answer: JsonValue, arguments: dict[str, JsonValue] | None = None, changed: bool = False
) -> Interaction:
    return Interaction(
        id=f"i{position}",
        context_id="c",
        run=0,
        position=position,
        action=ToolCall(name=name, arguments=arguments or {}),
        observation=Observation(text=json.dumps(answer), status=ObservationStatus.OK),
        changed=changed,
    )


SIGNED_IN = (
    made(0, "supervisor.show_profile", {"first_name": "Ada", "email": "ada@example.com"}),
    made(
        1,
        "supervisor.show_account_passwords",
        [{"account_name": "bank", "password": "b-1"}, {"account_name": "shop", "password": "s-1"}],
    ),
    made(2, "shop.login", {"access_token": "t-1"}, {"username": "ada@example.com", "password": "s-1"}),
)
BASKETS = made(
    3,
    "shop.show_baskets",
    [{"basket_id": 7, "title": "Party", "colour": "red"}, {"basket_id": 8, "title": "Weekly", "colour": "green"}],
    {"access_token": "t-1"},
)
