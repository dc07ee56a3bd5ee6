"""Observations of executions: statuses, accepted calls and the limit on the text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from environments.appworld.engine.protocol import MAX_DEPTH
from environments.appworld.records import ApiCall, Executed, ExecutionStatus
from environments.appworld.worlds import MAX_CALLS, MAX_CHARACTERS, observe, shortened
from environments.base import ObservationStatus, ToolCall

READS = frozenset({"spotify.show_songs"})


def api(name: str, status: int | None = 200) -> ApiCall:
    app, _, short = name.partition(".")
    return ApiCall(app=app, api=short, arguments={"n": 1}, status=status)


@pytest.mark.parametrize(
    ("output", "status", "calls", "told"),
    [
        ("42", "ok", (), "ok"),
        ("Execution successful.", "ok", (), "empty"),
        ("[]\n", "ok", (api("spotify.show_songs"),), "empty"),
        ("null", "ok", (api("spotify.like_song"),), "ok"),
        ("null", "ok", (api("spotify.like_song", 422),), "ok"),
        ("[1]", "ok", (api("spotify.show_songs"),), "ok"),
        ("[]", "failed", (), "error"),
        ("no", "refused", (), "error"),
    ],
)
def test_the_status_says_how_it_went(output, status, calls, told) -> None:  # type: ignore[no-untyped-def]
    executed = Executed(output=output, status=ExecutionStatus(status), calls=calls, completed=False)
    assert observe(executed, READS).status is ObservationStatus(told)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ('Traceback\nException: Response status code is 409:\n{"message": "No."}', "No."),
        ('Traceback\nException: {"message": ' + "[" * 5000, '{"message": [['),
        (
            'print(apis.a.b(query=\'Exception: {"message": ' + "[" * 5000 + "'))\nOverflowError: too large",
            '{"message": [[',
        ),
        ("", ""),
    ],
    ids=["message", "deep", "deep argument in the traceback", "nothing"],
)
def test_whatever_a_failed_call_said_is_told(output: str, said: str) -> None:
    executed = Executed(output=output, status=ExecutionStatus.FAILED, calls=(), completed=False)
    observation = observe(executed, READS, one_call=True)
    assert observation.status is ObservationStatus.ERROR
    assert json.loads(observation.text)["error"].startswith(said)


def test_calls_are_those_that_the_apps_accepted() -> None:
    calls = (api("a.b"), api("a.c", 401), api("a.d", None), api("a.e", 201), api("a.f", 302))
    executed = Executed(output="x", status=ExecutionStatus.FAILED, calls=calls, completed=False)
    assert observe(executed, READS).calls == tuple(ToolCall(name=name, arguments={"n": 1}) for name in ("a.b", "a.e"))


def test_calls_are_kept_up_to_a_size_that_records_can_hold() -> None:
    long = ApiCall(app="a", api="b", arguments={"text": "x" * (MAX_CALLS // 3)}, status=200)
    executed = Executed(output="x", status=ExecutionStatus.OK, calls=(long, long, long, long), completed=False)
    assert len(observe(executed, READS).calls) == 2
    ordinary = tuple(api("spotify.show_songs") for _ in range(1000))
    executed = Executed(output="x", status=ExecutionStatus.OK, calls=ordinary, completed=False)
    assert len(observe(executed, READS).calls) == 1000


def test_a_report_of_arguments_that_no_record_could_hold_is_refused() -> None:
    deep: JsonValue = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert ApiCall(app="a", api="b", arguments={"x": deep}, status=200).arguments == {"x": deep}
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        ApiCall(app="a", api="b", arguments={"x": [deep]}, status=200)


@given(st.text(max_size=60), st.integers(min_value=1, max_value=40))
def test_a_long_text_keeps_its_ends_and_says_what_is_left_out(text: str, limit: int) -> None:
    stripped, short = text.strip(), shortened(text, limit)
    if len(stripped) <= limit:
        assert short == stripped
        return
    said = f"\n[{len(stripped) - limit} characters left out]\n"
    head, tail = short[: limit - limit // 2], short[len(short) - limit // 2 :]
    assert short == head + said + tail
    assert stripped.startswith(head)
    assert stripped.endswith(tail)


def test_the_documented_limit_is_the_default() -> None:
    assert shortened("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    assert len(shortened("x" * 10**6)) < MAX_CHARACTERS + 50
