"""Define the wordings of the calls of TravelAPI.

No wording holds the name of its own function, digits or quotes, which mark values.
"""

from __future__ import annotations

from environments.bfcl.templated.shapes import case, suffix

CASES = (
    case(
        "authenticate_travel",
        "sign me in | get me signed in | open my session",
        "for travel as {user_first_name} {user_last_name}, client {client_id}, secret {client_secret}, "
        "refresh {refresh_token}, to {grant_type} | "
        "at the travel desk for {grant_type} with client {client_id}, secret {client_secret}, refresh "
        "{refresh_token} of {user_first_name} {user_last_name} | "
        "to travel, named {user_first_name} {user_last_name}, with {client_id}, {client_secret}, "
        "{refresh_token} for {grant_type}",
    ),
    case(
        "book_flight",
        "reserve | get me | buy",
        "one {travel_class} seat from {travel_from} to {travel_to} on {travel_date} with card {card_id}, "
        "token {access_token} | "
        "the trip {travel_from} to {travel_to} in {travel_class} for {travel_date}, token {access_token}, "
        "card {card_id} | "
        "on {travel_date} one {travel_class} ticket {travel_from} to {travel_to}, card {card_id}, "
        "token {access_token}",
    ),
    case(
        "cancel_booking",
        "call off | revoke | undo",
        "the trip {booking_id} with token {access_token} | the reservation {booking_id}, token {access_token} | "
        "by token {access_token} the reservation {booking_id}",
    ),
    case(
        "compute_exchange_rate",
        "convert | exchange | work out",
        "{value} from {base_currency} into {target_currency} | "
        "{value} of {base_currency} to {target_currency} | "
        "how much {value} in {base_currency} is in {target_currency}",
    ),
    case(
        "contact_customer_support",
        "complain | write | turn",
        "to the travel desk about {booking_id}, saying {message} | "
        "about the trip {booking_id} to the help desk with {message} | "
        "to the help desk with {message} for the trip {booking_id}",
    ),
    case(
        "get_all_credit_cards",
        "show | give me | name",
        "the cards i can pay with | my payment cards | every card on file",
    ),
    case(
        "get_booking_history",
        "show | go through | give me",
        "my trips so far, token {access_token} | all reservations with token {access_token} | "
        "by token {access_token} the past trips",
    ),
    case(
        "get_budget_fiscal_year",
        "look up | tell me | report",
        "the year of the travel budget | which year the budget counts in | the budget year",
    ),
    case(
        "get_credit_card_balance",
        "look up | tell me | report",
        "what is left on card {card_id}, token {access_token} | "
        "how much card {card_id} holds with token {access_token} | "
        "by token {access_token} the money on card {card_id}",
    ),
    case(
        "get_flight_cost",
        "look up | tell me | report",
        "what {travel_class} costs from {travel_from} to {travel_to} on {travel_date} | "
        "the fare {travel_from} to {travel_to} in {travel_class} for {travel_date} | "
        "on {travel_date} the price of {travel_class} out of {travel_from} into {travel_to}",
    ),
    case(
        "get_nearest_airport_by_city",
        "look up | tell me | find",
        "the airport close to {location} | where one flies from near {location} | which airport serves {location}",
    ),
    case(
        "list_all_airports",
        "name | show | give me",
        "every airport | the airports that there are | where one can fly to",
    ),
    case(
        "purchase_insurance",
        "take out | buy | get",
        "{insurance_type} cover at {insurance_cost} for {booking_id}, card {card_id}, token {access_token} | "
        "cover of type {insurance_type} for the trip {booking_id} at {insurance_cost}, token {access_token}, "
        "card {card_id} | "
        "for trip {booking_id} the cover {insurance_type} costing {insurance_cost} with card {card_id}, "
        "token {access_token}",
    ),
    case(
        "register_credit_card",
        "enter | put on file | save",
        "the card {card_number} of {cardholder_name}, valid to {expiration_date}, code "
        "{card_verification_number}, token {access_token} | "
        "with token {access_token} the card {card_number}, {expiration_date}, {cardholder_name}, code "
        "{card_verification_number} | "
        "card {card_number} with code {card_verification_number} until {expiration_date} for "
        "{cardholder_name}, token {access_token}",
    ),
    case(
        "retrieve_invoice",
        "fetch | show | get me",
        "the bill of trip {booking_id} plus cover {insurance_id}, token {access_token} | "
        "with token {access_token} the bill for {booking_id} plus {insurance_id} | "
        "what {booking_id} with {insurance_id} was billed, token {access_token}",
    ),
    case(
        "retrieve_invoice",
        "fetch | show | get me",
        "the bill of trip {booking_id}, token {access_token} | "
        "with token {access_token} the bill for {booking_id} | what {booking_id} was billed, token {access_token}",
    ),
    case(
        "retrieve_invoice",
        "fetch | show | get me",
        "the bill of cover {insurance_id}, token {access_token} | "
        "with token {access_token} the bill for cover {insurance_id} | "
        "what cover {insurance_id} was billed, token {access_token}",
    ),
    case(
        "retrieve_invoice",
        "fetch | show | get me",
        "the bills with token {access_token} | by token {access_token} what was billed | "
        "my travel bills, token {access_token}",
    ),
    case(
        "set_budget_limit",
        "cap | hold | restrict",
        "my travel spending at {budget_limit}, token {access_token} | "
        "with token {access_token} the trips to {budget_limit} | "
        "what i spend on travel to {budget_limit}, token {access_token}",
    ),
    case(
        "travel_get_login_status",
        "find out | see | tell me",
        "whether i am signed in for travel | if my travel session is open | whether the travel desk knows me",
    ),
    case(
        "verify_traveler_information",
        "check | confirm | examine",
        "the papers of {first_name} {last_name}, born {date_of_birth}, passport {passport_number} | "
        "passport {passport_number} of {first_name} {last_name}, born on {date_of_birth} | "
        "that {first_name} {last_name}, born {date_of_birth}, has passport {passport_number}",
    ),
)

SUFFIXES = (
    suffix(
        "get_budget_fiscal_year",
        "changed after {lastModifiedAfter} | touched since {lastModifiedAfter} | newer than {lastModifiedAfter}",
    ),
    suffix(
        "get_budget_fiscal_year",
        "with removed ones {includeRemoved} | removed ones taken in {includeRemoved} | "
        "plus removed ones, {includeRemoved}",
    ),
)
