"""Define the wordings of the calls of TravelAPI.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import Case, Suffix, absent, case, given, suffix

CASES: dict[str, tuple[Case, ...]] = {
    "authenticate_travel": (
        case(
            "sign me in | get me signed in | open my session",
            "for travel as {user_first_name} {user_last_name}, client {client_id}, secret {client_secret}, "
            "refresh {refresh_token}, to {grant_type} | "
            "at the travel desk for {grant_type} with client {client_id}, secret {client_secret}, refresh "
            "{refresh_token} of {user_first_name} {user_last_name} | "
            "to travel, named {user_first_name} {user_last_name}, with {client_id}, {client_secret}, "
            "{refresh_token} for {grant_type}",
        ),
    ),
    "book_flight": (
        case(
            "reserve | get me | buy",
            "one {travel_class} seat from {travel_from} to {travel_to} on {travel_date} with card {card_id}, "
            "token {access_token} | "
            "the trip {travel_from} to {travel_to} in {travel_class} for {travel_date}, token {access_token}, "
            "card {card_id} | "
            "on {travel_date} one {travel_class} ticket {travel_from} to {travel_to}, card {card_id}, "
            "token {access_token}",
        ),
    ),
    "cancel_booking": (
        case(
            "call off | revoke | undo",
            "the trip {booking_id} with token {access_token} | the reservation {booking_id}, token {access_token} | "
            "by token {access_token} the reservation {booking_id}",
        ),
    ),
    "compute_exchange_rate": (
        case(
            "convert | exchange | work out",
            "{value} from {base_currency} into {target_currency} | "
            "{value} of {base_currency} to {target_currency} | "
            "how much {value} in {base_currency} is in {target_currency}",
        ),
    ),
    "contact_customer_support": (
        case(
            "complain | write | turn",
            "to the travel desk about {booking_id}, saying {message} | "
            "about the trip {booking_id} to the help desk with {message} | "
            "to the help desk with {message} for the trip {booking_id}",
        ),
    ),
    "get_all_credit_cards": (
        case(
            "show | give me | name",
            "the cards i can pay with | my payment cards | every card on file",
        ),
    ),
    "get_booking_history": (
        case(
            "show | go through | give me",
            "my trips so far, token {access_token} | all reservations with token {access_token} | "
            "by token {access_token} the past trips",
        ),
    ),
    "get_budget_fiscal_year": (
        case(
            "look up | tell me | report",
            "the year of the travel budget | which year the budget counts in | the budget year",
        ),
    ),
    "get_credit_card_balance": (
        case(
            "look up | tell me | report",
            "what is left on card {card_id}, token {access_token} | "
            "how much card {card_id} holds with token {access_token} | "
            "by token {access_token} the money on card {card_id}",
        ),
    ),
    "get_flight_cost": (
        case(
            "look up | tell me | report",
            "what {travel_class} costs from {travel_from} to {travel_to} on {travel_date} | "
            "the fare {travel_from} to {travel_to} in {travel_class} for {travel_date} | "
            "on {travel_date} the price of {travel_class} out of {travel_from} into {travel_to}",
        ),
    ),
    "get_nearest_airport_by_city": (
        case(
            "look up | tell me | find",
            "the airport close to {location} | where one flies from near {location} | which airport serves {location}",
        ),
    ),
    "list_all_airports": (
        case(
            "name | show | give me",
            "every airport | the airports that there are | where one can fly to",
        ),
    ),
    "purchase_insurance": (
        case(
            "take out | buy | get",
            "{insurance_type} cover at {insurance_cost} for {booking_id}, card {card_id}, token {access_token} | "
            "cover of type {insurance_type} for the trip {booking_id} at {insurance_cost}, token {access_token}, "
            "card {card_id} | "
            "for trip {booking_id} the cover {insurance_type} costing {insurance_cost} with card {card_id}, "
            "token {access_token}",
        ),
    ),
    "register_credit_card": (
        case(
            "enter | put on file | save",
            "the card {card_number} of {cardholder_name}, valid to {expiration_date}, code "
            "{card_verification_number}, token {access_token} | "
            "with token {access_token} the card {card_number}, {expiration_date}, {cardholder_name}, code "
            "{card_verification_number} | "
            "card {card_number} with code {card_verification_number} until {expiration_date} for "
            "{cardholder_name}, token {access_token}",
        ),
    ),
    "retrieve_invoice": (
        case(
            "fetch | show | get me",
            "the bill of trip {booking_id} plus cover {insurance_id}, token {access_token} | "
            "with token {access_token} the bill for {booking_id} plus {insurance_id} | "
            "what {booking_id} with {insurance_id} was billed, token {access_token}",
            given("booking_id"),
            given("insurance_id"),
        ),
        case(
            "fetch | show | get me",
            "the bill of trip {booking_id}, token {access_token} | "
            "with token {access_token} the bill for {booking_id} | what {booking_id} was billed, token {access_token}",
            given("booking_id"),
            absent("insurance_id"),
        ),
        case(
            "fetch | show | get me",
            "the bill of cover {insurance_id}, token {access_token} | "
            "with token {access_token} the bill for cover {insurance_id} | "
            "what cover {insurance_id} was billed, token {access_token}",
            absent("booking_id"),
            given("insurance_id"),
        ),
        case(
            "fetch | show | get me",
            "the bills with token {access_token} | by token {access_token} what was billed | "
            "my travel bills, token {access_token}",
            absent("booking_id"),
            absent("insurance_id"),
        ),
    ),
    "set_budget_limit": (
        case(
            "cap | hold | restrict",
            "my travel spending at {budget_limit}, token {access_token} | "
            "with token {access_token} the trips to {budget_limit} | "
            "what i spend on travel to {budget_limit}, token {access_token}",
        ),
    ),
    "travel_get_login_status": (
        case(
            "find out | see | tell me",
            "whether i am signed in for travel | if my travel session is open | whether the travel desk knows me",
        ),
    ),
    "verify_traveler_information": (
        case(
            "check | confirm | examine",
            "the papers of {first_name} {last_name}, born {date_of_birth}, passport {passport_number} | "
            "passport {passport_number} of {first_name} {last_name}, born on {date_of_birth} | "
            "that {first_name} {last_name}, born {date_of_birth}, has passport {passport_number}",
        ),
    ),
}

SUFFIXES: dict[str, tuple[Suffix, ...]] = {
    "get_budget_fiscal_year": (
        suffix(
            given("lastModifiedAfter"),
            "changed after {lastModifiedAfter} | touched since {lastModifiedAfter} | newer than {lastModifiedAfter}",
        ),
        suffix(
            given("includeRemoved"),
            "with removed ones {includeRemoved} | removed ones taken in {includeRemoved} | "
            "plus removed ones, {includeRemoved}",
        ),
    ),
}

_CURRENCIES = ("USD", "RMB", "EUR", "JPY", "GBP", "CAD", "AUD", "INR", "RUB", "BRL", "MXN")
_CITIES = (
    "Rivermist",
    "Stonebrook",
    "Maplecrest",
    "Silverpine",
    "Shadowridge",
    "London",
    "Paris",
    "Sunset Valley",
    "Oakendale",
    "Willowbend",
    "Crescent Hollow",
    "Autumnville",
    "Pinehaven",
    "Greenfield",
    "San Francisco",
    "Los Angeles",
    "New York",
    "Chicago",
    "Boston",
    "Beijing",
    "Hong Kong",
    "Rome",
    "Tokyo",
)

CONSTANTS: dict[tuple[str, str], dict[str, str]] = {
    ("authenticate_travel", "grant_type"): {kind: kind for kind in ("read_write", "read", "write")},
    ("compute_exchange_rate", "base_currency"): {code: code for code in _CURRENCIES},
    ("compute_exchange_rate", "target_currency"): {code: code for code in _CURRENCIES},
    ("get_flight_cost", "travel_class"): {kind: kind for kind in ("economy", "business", "first")},
    # Constants of one word are read as words; one of two would be taken apart, so it is quoted.
    ("get_nearest_airport_by_city", "location"): {city: f'"{city}"' if " " in city else city for city in _CITIES},
}
"""Words for the documented constants that fill a slot."""
