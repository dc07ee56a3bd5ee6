"""A world that remembers: equal calls are answered from the record, and a world opens for what is new."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.records import Difference, Supervisor, WorldOpening
from environments.appworld.worlds import RecordedWorld, WorldRecord
from environments.base import (
    Observation,
    ObservationStatus,
    StartState,
    TaskSpec,
    ToolCall,
    recorded,
)
from environments.verification.replay import replay

READS = frozenset({"look", "supervisor.show_active_task"})


class CountingWorld:
    """A world whose state is the list of its calls, and which counts what it executes."""

    def __init__(self, executed: list[str]) -> None:
        self.executed = executed
        self.calls: list[str] = []
        self.closed = False
        self.lost: str | None = None

    @property
    def opening(self) -> WorldOpening:
        who = Supervisor(first_name="A", last_name="B", email="a@example.com", phone_number="1")
        return WorldOpening(now="2023-05-18T12:00:00", supervisor=who)

    def run(self, call: ToolCall) -> Observation:
        self.executed.append(call.name)
        if call.name not in READS:
            self.calls.append(call.name)
        return Observation(text=" ".join(self.calls), status=ObservationStatus.OK)

    def state(self) -> str:
        return repr(self.calls)

    def difference(self) -> Difference:
        return Difference(changes={}, status=None, answer=len(self.calls))

    def close(self) -> None:
        self.closed = True


def call(name: str) -> ToolCall:
    return ToolCall(name=name)


class Opened:
    """Opens recorded worlds over counting ones."""

    def __init__(self) -> None:
        self.record = WorldRecord()
        self.executed: list[str] = []
        self.worlds: list[CountingWorld] = []

    def world(self, start: str = "one_1", *, recalls: bool = True) -> RecordedWorld:
        def open_world() -> CountingWorld:
            self.worlds.append(CountingWorld(self.executed))
            return self.worlds[-1]

        return RecordedWorld(self.record, start, open_world, READS, recalls=recalls)  # type: ignore[arg-type]


def test_equal_calls_open_no_second_world() -> None:
    opened = Opened()
    tells = []
    for _ in range(2):
        world = opened.world()
        answers = [world.run(call(name)).text for name in ("a", "b")]
        tells.append((answers, world.state(), world.difference()))
        world.close()
    assert tells[0] == tells[1]
    assert opened.executed == ["a", "b"]
    assert len(opened.worlds) == 1


@given(st.lists(st.lists(st.sampled_from(["a", "b", "look"]), max_size=4), max_size=6))
def test_answers_are_those_of_a_world_of_ones_own(episodes: list[list[str]]) -> None:
    opened = Opened()
    for names in episodes:
        own = CountingWorld([])
        with closing(opened.world()) as world:
            assert [world.run(call(name)) for name in names] == [own.run(call(name)) for name in names]
            assert (world.state(), world.difference()) == (own.state(), own.difference())


def test_what_is_new_is_executed_after_what_came_before() -> None:
    opened = Opened()
    first, second = opened.world(), opened.world()
    for name in ("a", "b"):
        first.run(call(name))
    assert [second.run(call(name)).text for name in ("a", "c")] == ["a", "a c"]
    assert opened.worlds[1].calls == ["a", "c"]
    assert second.state() == "['a', 'c']"
    assert [first.run(call("c")).text, opened.world().run(call("a")).text] == ["a b c", "a"]


def test_a_known_call_in_an_open_world_is_caught_up_with() -> None:
    opened = Opened()
    first, second = opened.world(), opened.world()
    for name in ("a", "b", "c"):
        first.run(call(name))
    second.run(call("x"))
    third = opened.world()
    for name in ("a", "b", "c", "d"):
        third.run(call(name))
    assert opened.worlds[2].calls == ["a", "b", "c", "d"]


def test_every_call_that_can_be_made_can_be_kept() -> None:
    opened = Opened()
    arguments = ({"text": "\ud800"}, {"text": "x"}, {"number": float("nan")}, {"number": None})
    with closing(opened.world()) as world:
        for given_arguments in arguments:
            world.run(ToolCall(name="look", arguments=given_arguments))
    assert opened.executed == ["look"] * len(arguments)


def test_another_start_is_another_record() -> None:
    opened = Opened()
    opened.world("one_1").run(call("a"))
    opened.world("two_1").run(call("a"))
    assert opened.executed == ["a", "a"]


def test_reads_change_nothing_so_that_only_changes_are_made_again() -> None:
    opened = Opened()
    first = opened.world()
    assert [first.run(call(name)).text for name in ("look", "a", "look")] == ["", "a", "a"]
    second = opened.world()
    assert [second.run(call(name)).text for name in ("a", "look", "look", "b", "look")] == ["a", "a", "a", "a b", "a b"]
    assert opened.executed == ["look", "a", "look", "a", "b", "look"]


def test_without_recall_everything_is_executed_and_kept() -> None:
    opened = Opened()
    for _ in range(2):
        fresh = opened.world(recalls=False)
        fresh.run(call("a"))
        fresh.state()
    assert opened.executed == ["a", "a"]
    recalling = opened.world()
    assert (recalling.run(call("a")).text, recalling.state()) == ("a", "['a']")
    assert opened.executed == ["a", "a"]


def test_code_is_never_remembered_nor_what_comes_after_it() -> None:
    opened = Opened()
    for _ in range(2):
        world = opened.world()
        for name in ("a", "python", "b"):
            world.run(call(name))
        assert world.state() == repr(["a", "python", "b"])
    assert opened.executed == ["a", "python", "b"] * 2


def test_the_task_itself_is_looked_at_each_time() -> None:
    opened = Opened()
    for _ in range(2):
        world = opened.world()
        for name in ("supervisor.show_active_task", "a"):
            world.run(call(name))
    assert opened.executed == ["supervisor.show_active_task", "a", "supervisor.show_active_task"]


@pytest.fixture(scope="module")
def environment(installation: object) -> AppWorldEnvironment:
    return AppWorldEnvironment()


def test_a_replay_from_memory_is_the_replay_in_a_world(environment: AppWorldEnvironment) -> None:
    task = completing_task(environment)
    fresh = replay(environment, task)
    with_memory = recorded(environment)
    assert replay(with_memory, task) == fresh
    assert replay(with_memory, task) == fresh


def completing_task(environment: AppWorldEnvironment) -> TaskSpec:
    start: StartState = environment.starts()[0]
    return TaskSpec(
        environment=environment.name,
        split="train",
        classes=start.classes,
        turns=("say who i am",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((ToolCall(name="supervisor.show_profile"), ToolCall(name="supervisor.complete_task")),),
    )
