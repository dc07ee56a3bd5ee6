"""Convert a simulator's returned value to the official text and to the status of an observation."""

from __future__ import annotations

import json

from environments.base import ObservationStatus

ERROR_PREFIX = "Error during execution: "
"""Beginning of the official executor's answer to a call that raised."""

_NOTHING_FOUND = {
    "get_symbol_by_name": "Stock not found",
    "get_nearest_airport_by_city": "Unknown",
    "get_zipcode_based_on_city": "00000",
    "retweet": "Already retweeted",
    "trading_login": "Already logged in",
    "trading_logout": "No user is currently logged in",
}
"""Answers in words that mean that nothing was found or nothing was done."""


def answer_text(result: object) -> str:
    """Return the official text of a returned value: strings as they are, dicts as JSON where possible, else ``str``.

    Raises ValueError, as the official executor's code does, where even ``str`` refuses (an integer of more than
    4,300 digits).
    """
    if type(result) is str:
        return result
    if type(result) is dict:
        try:
            return json.dumps(result)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return str(result)
    return str(result)


def answer_status(tool: str, result: object) -> ObservationStatus:
    """Return the status of a call that returned ``result``; the simulators report failure in several ways.

    Errors are an ``error`` key, an item with one, a string item that begins with "Error", and a status or success
    that is False (except where a login status was asked for). Empty is a dict whose every value is empty, an empty
    list, or one of the documented phrases. None and ``{}`` are the answers of commands that succeeded.
    """
    if isinstance(result, dict):
        return _dict_status(tool, result)
    if isinstance(result, list):
        if any(_is_error_item(item) for item in result):
            return ObservationStatus.ERROR
        return ObservationStatus.OK if result else ObservationStatus.EMPTY
    return ObservationStatus.OK


def _dict_status(tool: str, result: dict[str, object]) -> ObservationStatus:
    if "error" in result:
        return ObservationStatus.ERROR
    if not tool.endswith("get_login_status") and any(
        value is False and (key == "success" or key.endswith("status")) for key, value in result.items()
    ):
        return ObservationStatus.ERROR
    if tool in _NOTHING_FOUND and _NOTHING_FOUND[tool] in result.values():
        return ObservationStatus.EMPTY
    if result and all(
        value is None or (isinstance(value, str | list | dict) and not value) for value in result.values()
    ):
        return ObservationStatus.EMPTY
    return ObservationStatus.OK


def _is_error_item(item: object) -> bool:
    return (isinstance(item, dict) and "error" in item) or (isinstance(item, str) and item.startswith("Error:"))
