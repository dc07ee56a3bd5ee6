"""Compares answers to a task by what they say: the benchmark's rule, so that 5, "5" and "5.0" are one answer."""

from __future__ import annotations

import math

from pydantic import JsonValue

_QUOTES = ("'", '"')


def same_answer(one: JsonValue, other: JsonValue) -> bool:
    """Whether the two say the same.

    Case, outer white space, a pair of quotes around a text and the order of a list's items do not matter, and neither
    does how a number is written; numbers are compared to two decimals.
    """
    return _said(one) == _said(other)


def _said(answer: JsonValue) -> str:
    if isinstance(answer, list):
        return " | ".join(sorted(_said(item) for item in answer))
    text = "null" if answer is None else str(answer).strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        text = text[1:-1]
    try:
        number = float(text)
    except ValueError:
        return text.strip().casefold()
    return str(round(number, 2)) if math.isfinite(number) else text.casefold()
