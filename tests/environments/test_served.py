"""The fleet: any number of episodes on a few servers, each call at the place of its episode."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from environments.base import EnvironmentFault, Record, ToolCall
from environments.served import Fleet, NoRoom, ServerAnswer, ServerPlace


class Begin(Record):
    count: int


class Adder:
    """Adds up what it is called with; ``made`` keeps all that were started."""

    def __init__(self, made: list[Adder], most: int = 99, fails: int | None = None) -> None:
        if sum(not one.closed for one in made) >= most:
            raise NoRoom("no room")
        self.fails, self.closed, self.count = fails, False, -1
        made.append(self)

    def begin(self, start: Begin) -> None:
        self.count = start.count

    def call(self, call: ToolCall) -> ServerAnswer:
        if self.closed or call.arguments == {"by": self.fails}:
            raise EnvironmentFault("it ended")
        self.count += int(str(call.arguments["by"]))
        return ServerAnswer(str(self.count), False)

    def look(self) -> tuple[str, None]:
        return str(self.count), None

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True


def add(by: int) -> ToolCall:
    return ToolCall(name="add", arguments={"by": by})


def place(start: int, *calls: int) -> ServerPlace:
    return ServerPlace(Begin(count=start), tuple(map(add, calls)))


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("most", [1, 3])
def test_threads_see_their_own_places_whatever_the_order(most: int, again: bool) -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made), most, 30.0, again=again)

    def play(seed: int) -> None:
        rng, calls, holder = random.Random(seed), list[int](), object()
        for _ in range(8):
            calls.append(rng.randint(1, 3))
            seen = fleet.see(place(seed % 3, *calls), cached=False, holder=holder)
            assert seen.state == str(seed % 3 + sum(calls))
        fleet.leave(holder)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(play, range(12)))
    assert sum(not one.closed for one in made) <= most


def test_a_server_that_failed_is_ended_and_replaced() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made, fails=7), 1, 1.0, again=True)
    assert fleet.see(place(0, 1), cached=False).state == "1"
    with pytest.raises(EnvironmentFault, match="it ended"):
        fleet.see(place(0, 1, 7), cached=False)
    assert [one.closed for one in made] == [True]
    assert fleet.see(place(0, 1, 2), cached=False).state == "3"
    assert [one.closed for one in made] == [True, False]


def test_what_was_seen_is_cached_and_what_is_played_again_is_compared() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made), 1, 1.0, again=True)
    first = fleet.see(place(0, 1), cached=False)
    fleet.see(place(5), cached=False)
    made[0].count = 99
    assert fleet.see(place(0, 1), cached=True) == first
    with pytest.raises(EnvironmentFault, match="differently the second time"):
        fleet.see(place(0, 1, 1), cached=False, heard=[ServerAnswer("2", False)])


def test_a_server_that_is_left_serves_others_before_a_new_one_starts() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made), 3, 1.0, again=True)
    fleet.see(place(0, 1), cached=False, holder="one")
    fleet.see(place(1, 1), cached=False, holder="two")
    assert len(made) == 2, "the first is needed"
    fleet.leave("one")
    fleet.see(place(2, 1), cached=False, holder="three")
    assert len(made) == 2


def test_a_host_with_less_room_is_shared_and_given_up_when_idle() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made, most=2), 64, 5.0, again=True, idle=0.1)
    for number in range(5):
        assert fleet.see(place(number, 1), cached=False, holder=number).state == str(number + 1)
    assert len(made) == 2
    for number in range(5):
        fleet.leave(number)
    due = time.monotonic() + 5
    while not all(one.closed for one in made) and time.monotonic() < due:
        time.sleep(0.05)
    assert all(one.closed for one in made)
    assert fleet.see(place(0, 1), cached=False).state == "1"


def test_a_call_waits_for_a_server_and_not_for_ever() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made), 1, 0.2, again=True)
    free = threading.Event()

    def hold() -> None:
        with fleet.at(place(0)):
            free.wait(5)

    holding = threading.Thread(target=hold)
    holding.start()
    time.sleep(0.05)
    with pytest.raises(EnvironmentFault, match="all 1 servers are busy"):
        fleet.see(place(1), cached=False)
    free.set()
    holding.join()
    assert fleet.see(place(1), cached=False).state == "1"


def test_servers_of_a_fleet_that_is_gone_are_ended() -> None:
    made: list[Adder] = []
    fleet = Fleet(partial(Adder, made), 2, 1.0, again=True)
    fleet.see(place(0), cached=False)
    del fleet
    assert [one.closed for one in made] == [True]
