"""What fits a parameter: the words of a value's key, its kind, and what may be the identity of a thing."""

from __future__ import annotations

import random

import pytest

from agents.evidence import is_success
from agents.scripted.arguments import UniformArguments
from agents.scripted.fitting import fitting
from agents.scripted.values import Sightings
from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from environments.bfcl.official import all_tools

STATE = {
    "Shop": {
        "stocks": {"AAPL": {"price": 220.5, "percent_change": 0.3}},
        "ticket_queue": [{"id": 41, "title": "Tire", "created_by": "Ann"}],
        "message_count": 3,
        "current_user": "USR001",
        "budget_limit": 900.0,
        "travel_date": "2024-05-06",
        "parcels": {"red crate": {"kilograms": 4}},
        "tweets": {"7": {"content": "What a long and winding road it was"}},
    }
}


def ok(text: str) -> Observation:
    return Observation(text=text, status=ObservationStatus.OK)


def fits(name: str, parameter: str) -> set[object]:
    tool = all_tools()[name]
    given = tool.parameter(parameter)
    assert given is not None
    return fitting_values(tool, given)


def fitting_values(tool: ToolSpec, parameter: Parameter) -> set[object]:
    sightings = Sightings()
    sightings.see_state(STATE)
    sightings.see_observation(ToolCall(name="get_nearest_airport_by_city"), ok('{"nearest_airport": "RMS"}'))
    sightings.see_observation(ToolCall(name="get_zipcode_based_on_city"), ok('{"zipcode": "83214"}'))
    sightings.see_observation(ToolCall(name="send"), ok('{"message": "sent"}'))
    found = (fitting(one, tool, parameter) for one in sightings if not one.piece)
    return {one for one in found if one is not None}


@pytest.mark.parametrize(
    ("tool", "parameter", "values"),
    [
        ("add_to_watchlist", "stock", {"AAPL"}),
        ("get_stock_info", "symbol", {"AAPL"}),
        ("get_available_stocks", "sector", set()),
        ("place_order", "price", {220.5}),
        ("notify_price_change", "threshold", set()),
        ("get_ticket", "ticket_id", {41}),
        ("get_tweet", "tweet_id", {7}),
        ("send_message", "receiver_id", set()),
        ("add_contact", "user_name", set()),
        ("set_budget_limit", "budget_limit", {900.0}),
        ("get_flight_cost", "travel_from", {"RMS"}),
        ("get_flight_cost", "travel_date", {"2024-05-06"}),
        ("estimate_distance", "cityA", {"83214"}),
        ("post_tweet", "content", {"What a long and winding road it was"}),
        ("mean", "numbers", set()),
    ],
)
def test_a_value_fits_where_its_name_and_kind_do(tool: str, parameter: str, values: set[object]) -> None:
    assert fits(tool, parameter) == values


def test_records_are_named_after_what_holds_them() -> None:
    label = Parameter(name="label", type="string", description="label of the parcel", required=True)
    other = label.model_copy(update={"description": "label of the van"})
    tool = ToolSpec(name="weigh", group="g", description="Weigh.", parameters=(label,))
    assert fitting_values(tool, label) == {"red crate"}
    assert fitting_values(tool, other) == set()


def test_a_tool_that_takes_what_was_answered_is_a_consumer() -> None:
    tools = tuple(all_tools()[name] for name in ("get_zipcode_based_on_city", "estimate_distance", "set_navigation"))
    sightings = Sightings()
    arguments = UniformArguments(sightings, random.Random(0), tools)
    call = ToolCall(name="get_zipcode_based_on_city", arguments={"city": "Rivermist"})
    sightings.see_observation(call, ok('{"zipcode": "83214"}'))
    found = {(one.tool.name, str(one.given)) for one in arguments.consumers(call, 0)}
    assert found == {("estimate_distance", f"{{'{name}': '83214'}}") for name in ("cityA", "cityB")}
    assert arguments.consumers(call, 1) == []


def test_an_answer_that_is_an_error_is_no_success_whatever_its_status() -> None:
    assert is_success(ok('{"rows": 3}'))
    assert not is_success(ok('{"error": "no such table"}'))
    assert not is_success(ok("Error: no such table"))
    assert not is_success(Observation(text="[]", status=ObservationStatus.EMPTY))
    sightings = Sightings()
    sightings.see_observation(ToolCall(name="f"), ok('{"error": "x", "city": "Rivermist"}'))
    assert not list(sightings)
