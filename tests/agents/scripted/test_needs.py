"""What a refused or empty call lacks, read from errors and documentation of all eight classes."""

from __future__ import annotations

import datetime
import random

import pytest

from agents.roles import unguided_context
from agents.scripted.arguments import GuidedArguments
from agents.scripted.explorer import GuidedExplorer
from agents.scripted.fitting import constants, date_format
from agents.scripted.knowledge import listed_values, makers, sign_in_tools, sources_of_values
from agents.scripted.values import Experience, Sightings
from agents.settings import ExplorationSettings
from environments.base import Observation, ObservationStatus, Parameter, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import all_tools
from environments.registry import benchmark_of

TOOLS = tuple(all_tools().values())
ENVIRONMENT = BFCLEnvironment()


def names(tools) -> list[str]:
    return [tool.name for tool in tools]


@pytest.mark.parametrize(
    ("called", "error", "signs_in"),
    [
        ("post_tweet", "User not authenticated. Please authenticate before posting.", ["authenticate_twitter"]),
        ("place_order", "User not authenticated. Please log in to place an order.", ["trading_login"]),
        ("create_ticket", "User not authenticated. Please log in to create a ticket.", ["ticket_login"]),
        ("send_message", "No user is currently logged in.", ["message_login"]),
        ("send_message", "Receiver ID 7 not found.", []),
        ("startEngine", "All doors must be locked before starting the engine.", []),
        ("cat", "cat: x: No such file or directory", []),
    ],
)
def test_an_error_that_asks_to_sign_in_names_its_classs_tool(called: str, error: str, signs_in: list[str]) -> None:
    assert names(sign_in_tools(ToolCall(name=called), f'{{"error": "{error}"}}', TOOLS)) == signs_in


def test_documentation_names_the_origin_of_a_value() -> None:
    call = ToolCall(name="book_flight", arguments={"access_token": "x"})
    assert names(sources_of_values(call, '{"error": "Invalid access token"}', TOOLS)) == ["authenticate_travel"]
    assert sources_of_values(call, '{"error": "Card not registered"}', TOOLS) == ()


@pytest.mark.parametrize(
    ("called", "error", "first"),
    [
        ("get_ticket", "Ticket with ID 3 not found.", "create_ticket"),
        ("cancel_order", "Order with ID 0 not found.", "place_order"),
        ("cancel_booking", "Booking not found", "book_flight"),
        ("book_flight", "Card not registered", "register_credit_card"),
        ("get_ticket", None, "create_ticket"),
        ("view_messages_sent", None, "send_message"),
        ("get_tweet_comments", None, "comment"),
        ("cat", "cat: x: No such file or directory", ""),
        ("find", None, ""),
    ],
)
def test_what_was_not_found_is_made_first(called: str, error: str | None, first: str) -> None:
    found = makers(ToolCall(name=called), error and f'{{"error": "{error}"}}', TOOLS)
    assert next(iter(names(found)), "") == first


def test_listed_values_are_those_that_the_call_did_not_give() -> None:
    call = ToolCall(name="get_credit_card_balance", arguments={"card_id": "7"})
    assert listed_values(call, "Card not registered. Here are a list of card_id's: ['7', '12-34']") == ("12-34",)
    assert listed_values(call, "Card '9' is not known") == ()


@pytest.mark.parametrize(
    ("description", "form", "choices"),
    [
        ("The date of the travel in the format YYYY-MM-DD", "%Y-%m-%d", ()),
        ("Start date for the history (format: 'YYYY-MM-DD').", "%Y-%m-%d", ()),
        ("The expiration date of the credit card in the format MM/YYYY", "%m/%Y", ()),
        ("Type of the order (Buy/Sell).", None, ("Buy", "Sell")),
        ("Name of the file", None, ()),
    ],
)
def test_formats_of_dates_and_alternatives_are_read(description: str, form: str | None, choices: tuple) -> None:
    parameter = Parameter(name="x", type="string", description=description, required=True)
    assert date_format(parameter) == form
    assert constants(parameter) == choices


def arguments(*observed: tuple[str, str], seed: int = 0) -> GuidedArguments:
    sightings = Sightings()
    for one in benchmark_of(ENVIRONMENT).known_values(ENVIRONMENT):
        sightings.see_for(one.tool, one.parameter, one.value, one.near)
    sightings.see_call(ToolCall(name="f", arguments={"card_id": "144", "access_token": "abc123", "ticket_id": 41}), {})
    for tool, text in observed:
        sightings.see_observation(ToolCall(name=tool), Observation(text=text, status=ObservationStatus.OK))
    return GuidedArguments(sightings, Experience(), random.Random(seed), TOOLS)


def test_dates_choices_of_a_namesake_and_fields_are_drawn_from_the_documentation() -> None:
    for seed in range(20):
        flight = arguments(seed=seed).draw(all_tools()["book_flight"]).arguments
        datetime.datetime.strptime(flight["travel_date"], "%Y-%m-%d")
        assert flight["travel_class"] in ("economy", "business", "first")
        updates = arguments(seed=seed).draw(all_tools()["edit_ticket"]).arguments["updates"]
        assert updates
        assert set(updates) <= {"title", "description", "priority"}


def test_identifiers_are_taken_from_what_has_their_name() -> None:
    seen = (("create_ticket", '{"id": 41, "title": "Tire"}'), ("get_stock_info", '{"price": 7}'))
    for seed in range(20):
        assert arguments(*seen, seed=seed).draw(all_tools()["get_ticket"]).arguments == {"ticket_id": 41}


@pytest.mark.parametrize("name", ["retweet", "book_flight", "get_message_stats"])
def test_the_guided_explorer_reaches_what_needs_somebody_signed_in_or_a_thing_made(name: str) -> None:
    starts = [start for start in ENVIRONMENT.starts() if name in start.tools]
    reached = 0
    for number, start in enumerate(starts[:3]):
        context = unguided_context(start, number).model_copy(update={"tool": name, "explore": (name,)})
        done = GuidedExplorer(ExplorationSettings()).explore_now(context, ENVIRONMENT, number)
        reached += any(one.action.name == name and one.observation.status is ObservationStatus.OK for one in done)
    assert reached >= 2
