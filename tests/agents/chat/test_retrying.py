"""How long a request waits before it is sent again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.chat.sending import LONGEST_BACKOFF, backoff, is_passing, pause, retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 0.5 ", 0.5),
        ("0", 0.0),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 13:00:30 +0100", 30.0),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30.0),
        ("Sun, 01 Mar 2026 11:59:00 GMT", 0.0),
        ("Sun, 99 Mar 2026 11:59:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6))
def test_a_date_counts_from_now(seconds: int) -> None:
    assert retry_after(format_datetime(NOW + timedelta(seconds=seconds), usegmt=True), NOW) == max(0, seconds)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_header_gives_seconds_or_nothing(value: str) -> None:
    seconds = retry_after(value, NOW)
    assert seconds is None or seconds >= 0


@settings(deadline=None)
@given(st.floats(0.0, 100.0), st.integers(1, 10_000), st.text(max_size=10))
def test_the_backoff_is_between_a_half_and_the_whole_of_its_step(first: float, attempt: int, subject: str) -> None:
    whole = min(first * 2.0 ** min(attempt - 1, 60), LONGEST_BACKOFF)
    assert whole / 2 <= backoff(first, attempt, subject) <= whole
    assert backoff(first, attempt, subject) == backoff(first, attempt, subject)


def test_questions_that_fail_together_do_not_come_back_together() -> None:
    pauses = {round(backoff(1.0, 1, f"context-{number}"), 2) for number in range(100)}
    assert len(pauses) > 25


@pytest.mark.parametrize(
    ("backed_off", "asked", "longest", "seconds"),
    [(0.5, None, 60.0, 0.5), (0.5, 3.0, 60.0, 3.0), (4.0, 3.0, 60.0, 4.0), (0.5, 3600.0, 60.0, 60.0)],
)
def test_the_pause(backed_off: float, asked: float | None, longest: float, seconds: float) -> None:
    assert pause(backed_off, asked, longest) == seconds


def test_which_statuses_pass() -> None:
    assert [status for status in range(400, 600) if is_passing(status)] == [408, 409, 429, *range(500, 600)]
