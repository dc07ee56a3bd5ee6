"""Worlds and episodes of a plain class: statuses, canonical state, faults, and each way a turn is evaluated."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.base import (
    EnvironmentDefect,
    EnvironmentFault,
    InputError,
    MalformedCall,
    ObservationStatus,
    TaskSpec,
    ToolCall,
)
from environments.python_class.environment import PythonEnvironment, ToolRefused
from environments.verification.replay import attempt, replay

Number = Annotated[int, "a number"]


class Box:
    """Holds values; every tool shows one way to answer."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held
        self._hidden = 0

    def put(self, key: Annotated[str, "a key"], value: Annotated[float, "a value"] = 1.0) -> None:
        """Put a value in."""
        self.held[key] = value

    def keep(self, table: Annotated[dict, "a table"]) -> None:
        """Keep a table."""
        self.held["table"] = table

    def look(self) -> dict[str, Any]:
        """Look at everything."""
        return self.held

    def count(self) -> int:
        """Count the keys."""
        return len(self.held)

    def hide(self) -> None:
        """Change what is not compared."""
        self._hidden += 1

    def rest(self, hours: Number) -> str:
        """Say nothing."""
        return "" if isinstance(hours, int) else "no integer"

    def refuse(self) -> None:
        """Refuse after a change."""
        self.held["tried"] = True
        raise ToolRefused("not today")

    def crash(self) -> None:
        """Crash."""
        raise KeyError("oh")

    def leave(self) -> None:
        """Try to end the process."""
        raise SystemExit(0)

    def give_up(self) -> None:
        """Raise what is no Exception."""
        raise GeneratorExit

    def interrupt(self) -> None:
        """What the user does by Ctrl-C, as it happens within a tool."""
        raise KeyboardInterrupt

    def halve(self) -> str:
        """Answer half of a surrogate pair."""
        return "\ud800"

    def spoil(self) -> None:
        """Leave what is not JSON."""
        self.held["set"] = {1, 2}

    def tell(self) -> set[int]:
        """Answer what is not JSON."""
        return {1}


ENVIRONMENT = PythonEnvironment("box", Box, [{"held": {}}, {"held": {"a": 1}}])
TOOLS = ENVIRONMENT.starts()[0].tools


def task(*turns: tuple[ToolCall, ...], held: dict[str, Any] | None = None, **changes: Any) -> TaskSpec:
    given = TaskSpec(
        environment="box",
        split="train",
        classes=("Box",),
        turns=("do it",) * len(turns),
        initial_state={"Box": {"held": held or {}}},
        tools=TOOLS,
        reference=turns,
    )
    return given.model_copy(update=changes)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def after(*calls: ToolCall, held: dict[str, Any] | None = None):
    """The last observation and the state after some calls."""
    episode = ENVIRONMENT.open(task((), held=held))
    episode.start()
    observations = [episode.step(one) for one in calls]
    return observations[-1], json.loads(episode.state())


@pytest.mark.parametrize(
    ("made", "status", "text"),
    [
        (call("put", key="a"), "ok", "null"),
        (call("hide"), "empty", "null"),
        (call("look"), "empty", "{}"),
        (call("count"), "ok", '{"result": 0}'),
        (call("rest", hours=2.0), "empty", '{"result": ""}'),
        (call("refuse"), "error", '{"error": "not today"}'),
        (call("put", key=3), "error", '{"error": "key=3 of put is not of type string"}'),
        (call("put"), "error", '{"error": "put requires \'key\'"}'),
        (call("take"), "error", '{"error": "there is no tool \'take\'"}'),
        (
            call("keep", table={"t": "x" * 30_000}),
            "error",
            '{"error": "the arguments are longer than 20000 characters"}',
        ),
        (
            call("keep", table={"t": float("inf")}),
            "error",
            '{"error": "the arguments are no JSON of at most 20 levels"}',
        ),
        (call("keep", table={"t": "\ud800"}), "error", '{"error": "the arguments are no JSON of at most 20 levels"}'),
    ],
)
def test_answers_and_their_status(made, status, text):
    observation, _ = after(made)
    assert (observation.status, observation.text) == (status, text)
    assert observation.calls == ((made,) if "not today" in text or status != "error" else ())


def test_a_tool_that_refuses_may_have_changed_the_state():
    assert after(call("refuse"))[1] == {"held": {"tried": True}}


def test_nothing_hidden_is_compared_and_whole_numbers_are_one():
    assert after(call("hide"))[1] == {"held": {}}
    assert after(call("put", key="a", value=2))[1] == after(call("put", key="a", value=2.0))[1] == {"held": {"a": 2}}


@pytest.mark.parametrize("name", ["crash", "spoil", "tell", "leave", "give_up", "halve"])
def test_a_mistake_of_the_class_is_a_fault_and_no_observation(name):
    with pytest.raises(EnvironmentFault, match=f"Box.{name} failed .*ToolRefused"):
        after(call(name))


def test_an_interruption_stays_one():
    with pytest.raises(KeyboardInterrupt):
        after(call("interrupt"))


class Closed(Box):
    def __init__(self, reason: str) -> None:
        raise SystemExit(reason)


def test_a_class_that_ends_the_process_when_it_is_made_is_a_mistake():
    with pytest.raises(InputError, match=r"Closed cannot be made of this initial state \(SystemExit: sold out\)"):
        PythonEnvironment("closed", Closed, [{"reason": "sold out"}])


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8), st.data()
)
def test_no_value_of_an_argument_raises(value, data):
    name, key = data.draw(st.sampled_from([("put", "key"), ("put", "value"), ("keep", "table"), ("rest", "hours")]))
    episode = ENVIRONMENT.open(task(()))
    episode.start()
    plain = {"put": {"key": "k"}, "keep": {}, "rest": {}}[name]
    for made in (call(name, **plain | {key: value}), call(name, **plain | {key: {"deep": value}})):
        before = episode.state()
        observation = episode.step(made)
        assert observation.status is not ObservationStatus.ERROR or episode.state() == before
        json.loads(observation.text), json.loads(episode.state())


@pytest.mark.parametrize(("levels", "status"), [(19, "ok"), (20, "error"), (5000, "error")])
def test_depth_is_capped(levels, status):
    table: Any = 0
    for _ in range(levels):
        table = {"d": table}
    made = ToolCall.model_construct(name="keep", arguments={"table": table})
    episode = ENVIRONMENT.open(task(()))
    episode.start()
    assert episode.step(made).status == status


PUT, LOOK = call("put", key="a"), call("look")
WORK = task((PUT,), (LOOK,))


@pytest.mark.parametrize(
    ("played", "failure", "turn"),
    [
        (((PUT,), (LOOK,)), None, None),
        (((LOOK, PUT, LOOK), ()), None, None),
        (((PUT,), ()), "response_mismatch", 1),
        (((), (PUT, LOOK)), "state_mismatch", 0),
        (((PUT,), (LOOK, call("put", key="b"))), "state_mismatch", 1),
        (((PUT, call("crash_not"), call("hide")), (LOOK,)), None, None),
    ],
)
def test_each_turn_is_evaluated_by_state_and_answers(played, failure, turn):
    outcome = attempt(ENVIRONMENT, WORK, played)
    assert (outcome.success, outcome.failure, outcome.failed_turn) == (failure is None, failure, turn)


@pytest.mark.parametrize(
    ("given", "made", "partial"),
    [
        (0, ((), ()), 0.0),
        (0, ((PUT,), (LOOK,)), 1.0),
        (0, ((PUT,), ()), 2 / 3),
        (0, ((), (PUT, LOOK)), 2 / 3),
        (0, ((LOOK,), (LOOK,)), 0.0),
        (1, ((PUT,), ()), 0.0),
        (1, ((PUT,), (LOOK,)), 1.0),
    ],
)
def test_partial_counts_the_checks_that_doing_nothing_fails(given, made, partial):
    """Of two states and an answer; after a turn that the reference plays, of the answer alone."""
    assert attempt(ENVIRONMENT, WORK.model_copy(update={"played": given}), made).partial == pytest.approx(partial)


def test_a_turn_that_was_not_reached_fails():
    episode = ENVIRONMENT.open(task((PUT,), (call("hide"),)))
    episode.start()
    episode.step(PUT)
    outcome = episode.outcome()
    assert (outcome.success, outcome.failure, outcome.failed_turn) == (False, "turn_not_reached", 1)
    episode.step(MalformedCall(text="?", reason="no call"))
    assert [(t.calls, t.malformed) for t in episode.outcome().turns] == [(1, 1), (0, 0)]


def test_a_turn_without_reference_is_not_evaluated():
    outcome = replay(ENVIRONMENT, task((), (PUT,))).outcome
    assert outcome.success
    assert (outcome.turns[0].state, outcome.turns[0].response) == (None, None)


def test_a_reference_that_fails_is_marked():
    assert replay(ENVIRONMENT, task((call("refuse"),))).outcome.turns[0].reference_error


def test_withheld_tools_are_shown_from_their_turn_on():
    episode = ENVIRONMENT.open(task((PUT,), (LOOK,), tools=("put",), withheld={1: ("look",)}))
    assert episode.start().tools == ("put",)
    assert episode.step(call("count")).status == "error"
    assert episode.step(LOOK).status == "error"
    following = episode.end_turn()
    assert following is not None
    assert following.tools == ("put", "look")
    assert episode.step(LOOK).status == "empty"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": "bfcl"}, "'bfcl' was given to 'box'"),
        ({"classes": ("Box", "Crate")}, "has the class Box, not Box, Crate"),
        ({"tools": ("put", "take")}, "no tool 'take'"),
        ({"turns": (), "reference": ()}, "no user turn"),
        ({"withheld": {3: ("put",)}}, "withheld until turn 3"),
        ({"withheld": {0: ("take",)}}, "no tool 'take'"),
        ({"long_context": True}, "no long-context tasks"),
        ({"initial_state": {}}, "an initial state of Box is"),
        ({"initial_state": {"Box": 3}}, "an initial state of Box is"),
        ({"initial_state": {"Box": {"held": {}, "more": 1}}}, "cannot be made .*'more'"),
    ],
)
def test_tasks_that_cannot_be_opened(changes, says):
    with pytest.raises(InputError, match=says):
        ENVIRONMENT.open(task((PUT,), **changes))


def test_starts_are_checked_when_the_environment_is_made():
    with pytest.raises(InputError, match=r"cannot be made of this initial state .*'hold'"):
        PythonEnvironment("box", Box, [{"hold": {}}])
    with pytest.raises(InputError, match="start 0 of box is not made of JSON values"):
        PythonEnvironment("box", Box, [{"held": {"s": {1}}}])
    with pytest.raises(InputError, match="cannot name an environment"):
        PythonEnvironment("my box", Box, [])
    assert [start.id for start in ENVIRONMENT.starts()] == ["box-0", "box-1"]


def test_a_closed_episode_says_so():
    episode = ENVIRONMENT.open(task((PUT,)))
    episode.start()
    episode.close()
    with pytest.raises(RuntimeError, match="closed"):
        episode.step(PUT)


def faults(tool: str, seconds: float = 60.0) -> str:
    """What is said of a call of one of the broken tools."""
    environment = PythonEnvironment("shelf", Shelf, [{"books": []}], call_seconds=seconds)
    start = environment.starts()[0]
    reference = (call(tool),)
    opened = environment.open(task(reference).model_copy(update={**dict(start), "turns": ("?",)}))
    opened.start()
    with pytest.raises(EnvironmentDefect) as told:
        opened.step(call(tool))
    return str(told.value)


class Shelf:
    """Tools that are broken in the ways in which tools are broken."""

    def __init__(self, books: list[str]) -> None:
        self.books = books

    def move(self) -> str:
        """Look up what is not there, by way of a helper."""
        return self._find("1")

    def parse(self) -> dict[str, Any]:
        """Fail inside the standard library."""
        return json.loads("{")

    def answer(self) -> object:
        """Answer an object."""
        return object()

    def spin(self) -> None:
        """Never return, and swallow what it can."""
        while True:
            with suppress(Exception):
                self.books = []

    def _find(self, key: str) -> str:
        return {}[key]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.strip() == text)


@pytest.mark.parametrize(
    ("tool", "said", "line"),
    [
        ("move", "Shelf.move failed (KeyError: '1') at ", "return {}[key]"),
        ("parse", "Shelf.parse failed (JSONDecodeError: ", 'return json.loads("{")'),
        ("answer", "Shelf.answer failed (TypeError: result is <object", "def answer(self) -> object:"),
    ],
)
def test_a_bug_in_a_tool_is_told_with_exception_file_and_line(tool: str, said: str, line: str) -> None:
    told = faults(tool)
    assert said in told
    assert f" at test_python_episode.py:{line_of(line)}: a tool raises ToolRefused" in told


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_tool_that_never_returns_is_ended_and_named(in_a_thread: bool) -> None:
    if in_a_thread:
        with ThreadPoolExecutor(1) as pool:  # leaving the block waits for the thread: it did end
            told = pool.submit(faults, "spin", 0.01).result()
    else:
        told = faults("spin", 0.01)
    assert "Shelf.spin did not return within 0.01 s at test_python_episode.py:" in told
    assert sum(range(1000)) == 499500, "nothing is raised afterwards"


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e6, float("nan")])
def test_the_time_of_a_call_has_bounds(seconds: float) -> None:
    with pytest.raises(InputError, match="call_seconds of shelf is"):
        PythonEnvironment("shelf", Shelf, [], call_seconds=seconds)
