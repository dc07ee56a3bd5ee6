"""Answers by their value: which are empty, errors or equal, alike from a class, an MCP server and an OpenEnv server."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import permutations
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.openenv_host import CounterHost, observation, tells

from agents.scripted.values import Sightings
from environments.answers import compared, decoded, is_empty, rounded, says_error
from environments.base import Environment, EnvironmentFault, Observation, ObservationStatus, TaskSpec, ToolCall
from environments.openenv import host as host_module
from environments.openenv.host import Stepped
from environments.python_class.environment import PythonEnvironment
from environments.registry import open_named
from environments.verification.replay import attempt, bare_task, is_informative
from environments.verification.verify import Refusal, verify

EMPTY = """
||None|NULL| {} |[ ]|""|"  "|{"result": []}|{"result": null}|{"result": ""}|{"result": {}}|{"result": " "}|"[]"|"null"
{"result": {"result": []}}|{"result": "[]"}|{"result": "null"}|[""]|[[]]|[null, null]|[{}]|{"result": ["", "\\n"]}
"""
INFORMATIVE = """
0|0.0|false|{"result": 0}|{"result": false}|{"items": []}|{"items": [], "total": 0}|{"result": [], "total": 0}|[0]|.
[[false]]|no|nothing found|{"result": "0"}|{"": ""}|{"north": [], "south": []}|{"docs": {}}|["none"]|null 0
"""
FINE = """
{"error": null, "data": [1]}|{"error": false, "message": "saved"}|{"error": "", "rows": 3}|{"errors": []}|{"ok": true}
{"success": true, "error": null}|{"status": "ok"}|{"error": 0}|{"errors": 3, "warnings": 1}
{"error": 0.03, "mean": 1.2}
{"error": "none"}|{"error": {}}|{"error": [null]}|{"error": {"code": 0, "message": ""}}
{"job": 3, "status": "failed"}|{"data": {"error": "x"}}|[{"error": "x"}]|["Error: x"]|{"text": "Error: x"}
{"valid": false}
{"success": true, "errors": ["row 3"]}|{"exit_code": 1, "stderr": "Error: x"}|{"result": {"error": null}}
{"Error": null}
Standard error: 0.03, mean 1.2|Standard error: 3|Build error: none of the 12 targets failed|No errors found|Errors: 0
Error rate: 2%|No error: all is well|the errors: 3|errors are listed|error: none|Error: null
Error::new(kind) makes one
MeanSquaredError: 0.03|Relative error: 2 %|Error in measurement: 0.03|{'error': None}|terror: a film|Failed: 0
5 errors
mean: error: 0.03|total: error: none|a: b error: x|step 2: error: x|a: errors: x|a:error: x
"Error: x" was said three times|ERROR LOG FOR MONDAY|No error occurred|Error budget: 40%|404|true|null|Unable
"""
ERRORS = """
{"error": "no such table"}|{"error": {"code": 1}}|{"error": true}|{"error": 404}|{"errors": ["x"]}
{"errors": {"a": ["x"]}}
{"ok": false}|{"ok": false, "error": "channel_not_found"}|{"success": false, "message": "no"}|{"isError": true}
{"Error": "x"}|{"isError": false, "error": "x"}|{"success": true, "error": "x"}|{"exception": "x", "data": 1}
{"is_error": true, "content": []}|{"ok": true, "isError": true}|{"status": "error", "message": "x"}|{"status": "fail"}
{"result": "Error: x"}|{"result": {"ok": false}}|"Error: x"|{"error": "x"} try again|{"success": "false"}
{"error": ["a"]}
Error: no such table|error: x|ERROR: x|ERROR disk full|**Error:** x|[ERROR] x|[Error] x: y|Error - x|error|Error!
fatal: x
1: Error - ENOENT: no such file|/workspace/a.txt: Error: gone|prog: error: no such option|a: ERROR - [x]
Error opening project: list index out of range|Error executing tool act: boom|Error 404|Error while reading a: b
Error at 3: x
Exception: x|ValueError: bad|java.lang.NullPointerException: x|Database error: no such table|HTTP error: 404
Fatal error: x
MCP error -32602: Invalid params|Syntax error: 3 is not callable|Value error: 0.5 is out of range
Failed to open a project
Unable to fetch forecast data for this location.|An unexpected error occurred|Error: none of the files matched
"""


def rows(table: str) -> list[str]:
    return [row for line in table.strip("\n").splitlines() for row in line.split("|")]


def test_what_is_empty_by_its_value() -> None:
    assert [row for row in rows(EMPTY) if not is_empty(row)] == []
    assert [row for row in rows(INFORMATIVE) if is_empty(row)] == []
    assert is_empty("[]\n[]"), "each item of a list of MCP's SDK is a text of its own"
    assert is_empty("\n \n")


def test_what_is_an_error_by_its_value() -> None:
    assert [row for row in rows(ERRORS) if not says_error(row)] == []
    assert [row for row in rows(FINE + EMPTY + INFORMATIVE) if says_error(row)] == []
    assert says_error("Error:\nno such file")
    assert says_error("Traceback (most recent call last):\n  File")
    files = (
        "a: Error - x\nb: tea",
        "Failed to start\nserver 1 ready",
        "# Error: codes\n1: x",
        "[ERROR] a\n[INFO] b",
        "error: null\nid: 3",
    )
    assert not any(map(says_error, (*files, f"ValueError: {'x' * 300}"))), "a file may begin so"


@pytest.mark.parametrize("text", ["1 " * 500_000, "[" * 100_000, '"' * 100_000, "A." * 150, "a " * 500_000])
def test_no_answer_takes_for_ever(text: str) -> None:
    assert not is_empty(text)
    assert not says_error(text)
    assert compared(text) == text


def same(one: Any, other: Any) -> bool:
    return json.dumps(rounded(one)) == json.dumps(rounded(other))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (3, 3.0, True),
        (-0.0, 0, True),
        (True, 1, False),
        (0.6, "0.6", False),
        (1.234567890123, 1.234567890124, True),
        (1.23456789012, 1.23456789013, False),
        (1e-20, 2e-20, False),
        (1e300, 1.0000000000001e300, True),
        (1234567890123, 1234567890124, False),
        (1234567890123, 1234567890123.0002, True),
        (2**53, float(2**53), True),
        (2**53 + 1, float(2**53), False),
        (1e16, 1e16 + 2, True),
        ([0.1 + 0.2, {"a": 1.0}], [0.3, {"a": 1}], True),
        ([0.1, 0.2], [0.2, 0.1], False),
        (float("inf"), float("nan"), False),
    ],
)
def test_floats_compare_to_twelve_digits(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal


@given(st.lists(st.integers(-(10**9), 10**9).map(lambda cents: cents / 100), min_size=2, max_size=4))
def test_sums_of_money_in_any_order_are_equal(amounts: list[float]) -> None:
    sums = {json.dumps(rounded(sum(order))) for order in permutations(amounts) if abs(sum(order)) > 1}
    assert len(sums) <= 1


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("0.6000000000000001", "0.6", True),
        ('{"result": 0.6000000000000001}', '{"result":0.6}', True),
        ("0.1\n0.6000000000000001", "0.1\n0.6", True),
        ("1.10", "1.1", False),
        ("the sum is 0.6000000000000001", "the sum is 0.6", False),
        ('{"a": "0.6000000000000001"}', '{"a": "0.6"}', False),
    ],
)
def test_answers_compare_as_values_where_they_are_json(one: str, other: str, equal: bool) -> None:
    assert (compared(one) == compared(other)) is equal


class Parrot:
    def __init__(self) -> None:
        self.total = 0.0

    def say(self, text: Annotated[str, "a text"]) -> Any:
        """Say a text."""
        try:
            return json.loads(text)
        except ValueError:
            return text

    def find(self, word: Annotated[str, "a word"]) -> list[str]:
        """Find words that there are."""
        return [one for one in ("tea", "teapot") if word in one]

    def add(self, amount: Annotated[float, "a number"]) -> float:
        """Add a number."""
        self.total += amount
        return self.total


def of_class() -> Environment:
    return PythonEnvironment("parrot", Parrot, [{}])


def by_mcp() -> Environment:
    return open_named("mcp", {"factory": "support.mcp_depot:parrot"})


def play(environment: Environment, *calls: ToolCall) -> list[Any]:
    with closing(environment.open(bare_task(environment.starts()[0]))) as episode:
        episode.start()
        return [episode.step(call) for call in calls]


def asking(environment: Environment, text: str, *calls: ToolCall) -> TaskSpec:
    return bare_task(environment.starts()[0]).model_copy(update={"turns": (text,), "reference": (calls,)})


STATUSES = {
    '{"result": []}': "empty",
    '{"result": 0}': "ok",
    '{"error": null, "data": [1]}': "ok",
    '{"ok": false, "error": "channel_not_found"}': "error",
    "Standard error: 0.03": "ok",
    "Error opening project: list index out of range": "error",
    " ": "empty",
}


@pytest.mark.parametrize("opened", [of_class, by_mcp])
def test_classes_and_mcp_go_by_one_rule(opened: Callable[[], Environment]) -> None:
    says = [ToolCall(name="say", arguments={"text": text}) for text in STATUSES]
    assert [one.status for one in play(opened(), *says)] == [*STATUSES.values()]


def test_openenv_goes_by_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ToolCall(name="read_count")
    with CounterHost() as host:
        environment = open_named("openenv", {"url": host.url, "starts": 1})
        for text, status in STATUSES.items():
            value = text if text[0] != "{" else json.loads(text)
            block = [{"type": "text", "text": text, "annotations": None}]
            by_sdk = {"data": None, "content": block, "is_error": False}
            for result in (value, by_sdk):
                host.evil = tells(observation({"tool_name": "read_count", "result": result, "error": None}))
                assert [one.status for one in play(environment, read)] == [status], text
        host.evil = tells(observation({"tool_name": "read_count", "result": None, "error": "it broke"}))
        assert [(one.status, "it broke" in one.text) for one in play(environment, read)] == [("error", True)]


@pytest.mark.parametrize(
    ("seen", "failed"),
    [({"at": 1, "success": False}, False), ({"at": 1, "error": None}, False), ({"at": 1, "error": "a wall"}, True)],
)
def test_what_an_action_shows_is_an_error_by_its_field_alone(seen: dict[str, Any], failed: bool) -> None:
    assert host_module._answer(Stepped(observation=seen)).failed is failed


def test_a_start_whose_call_answers_an_error_is_a_fault() -> None:
    say = {"name": "say", "arguments": {"text": '{"ok": false, "message": "no such note"}'}}
    environment = open_named("mcp", {"factory": "support.mcp_depot:parrot", "starts": [[say]]})
    with pytest.raises(EnvironmentFault, match=r"say, which belongs to the start, failed: .*no such note"):
        play(environment)


@pytest.mark.parametrize("opened", [of_class, by_mcp])
def test_a_task_whose_one_call_finds_nothing_is_refused(opened: Callable[[], Environment]) -> None:
    environment = opened()
    for word, reason in (("zebra", Refusal.NO_EFFECT), ("teapot", None)):
        find = ToolCall(name="find", arguments={"word": word})
        (found,) = play(environment, find)
        assert is_informative(found) is (reason is None)
        assert (found.status is ObservationStatus.EMPTY) is (reason is not None)
        assert (
            verify(asking(environment, f'Find words that there are ("{word}").', find), environment, (), ()).reason
            == reason
        )


@pytest.mark.parametrize("opened", [of_class, by_mcp])
def test_numbers_added_in_another_order_reach_the_state_and_the_answer(opened: Callable[[], Environment]) -> None:
    environment = opened()
    some, others = (
        tuple(ToolCall(name="add", arguments={"amount": amount}) for amount in amounts)
        for amounts in ((0.1, 0.2, 0.3), (0.1, 0.2, 0.31))
    )
    task = asking(environment, "Add.", *some[:1], ToolCall(name="add", arguments={"amount": 0.5}))
    assert 0.1 + 0.5 != 0.1 + 0.2 + 0.3
    assert attempt(environment, task, (some,)).success
    assert not attempt(environment, task, (others,)).success


@pytest.mark.parametrize("levels", [100, 101, 600, 990, 100_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"result": ', "}"), ('{"error": ', "}")])
def test_however_deep_an_answer_is_it_is_read_without_recursing_into_it(levels: int, opened: str, closed: str) -> None:
    text = f"{opened * levels}1{closed * levels}"
    assert not is_empty(text)
    says_error(text)
    compared(text)
    assert (decoded(text) == text) is (levels > 100), "what is too deep stays text"
    with suppress(RecursionError):  # what a server answers as a value
        value = json.loads(text)
        assert not is_empty(value)
        says_error(value)
        assert says_error({"error": value})
    sightings = Sightings()
    sightings.see_observation(ToolCall(name="f"), Observation(text=text, status=ObservationStatus.OK))
