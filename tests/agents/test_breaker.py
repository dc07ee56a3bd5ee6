"""When work that only fails is stopped."""

from __future__ import annotations

import pytest

from agents.spending import AFTER_SUCCESS, Breaker


@pytest.mark.parametrize(
    ("course", "stops_at"),
    [
        ("fff", 3),
        ("ffsff", None),
        ("f" * 2 + "s" + "f" * (3 * AFTER_SUCCESS - 1), None),
        ("s" + "f" * 3 * AFTER_SUCCESS, 1 + 3 * AFTER_SUCCESS),
        ("fgfgfgfgfg", None),
        ("fgggf", 4),
        ("", None),
    ],
)
def test_failures_of_one_kind_in_a_row_stop_work_and_a_success_makes_it_more_patient(
    monkeypatch: pytest.MonkeyPatch, course: str, stops_at: int | None
) -> None:
    monkeypatch.setattr("agents.spending.FAILURES_IN_A_ROW", 3)
    breaker = Breaker()
    for place, letter in enumerate(course, start=1):
        if letter == "s":
            breaker.succeeded()
        elif (row := breaker.failed(letter)) is not None:
            assert place == stops_at
            assert row >= 3
            return
    assert stops_at is None
