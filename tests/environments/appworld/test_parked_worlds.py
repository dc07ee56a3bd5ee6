"""Worlds that are kept open: by the place they stand at, the furthest first, so many and no more."""

from __future__ import annotations

from environments.appworld.worlds import ParkedWorlds


class World:
    """What is kept."""

    def __init__(self) -> None:
        self.alive = True
        self.closed = False

    def close(self) -> None:
        self.closed = True


def parked(*places: object, most: int = 8) -> tuple[ParkedWorlds, list[World]]:
    worlds = [World() for _ in places]
    kept = ParkedWorlds(most)
    for place, world in zip(places, worlds, strict=True):
        kept.park(place, world)  # type: ignore[arg-type]
    return kept, worlds


START, MIDDLE, END, ASIDE = [], [], [], []  # type: ignore[var-annotated]  # equal, and four places all the same


def test_the_furthest_on_the_way_is_taken_once() -> None:
    kept, worlds = parked(START, MIDDLE, ASIDE)
    path = (START, MIDDLE, END)
    assert [kept.take(path) for _ in range(3)] == [(1, worlds[1]), (0, worlds[0]), None]
    assert kept.take((ASIDE,)) == (0, worlds[2])


def test_of_two_at_one_place_the_one_parked_last_is_taken() -> None:
    kept, worlds = parked(START, START)
    assert kept.take((START,)) == (0, worlds[1])


def test_the_one_kept_longest_is_ended_when_there_are_too_many() -> None:
    kept, worlds = parked(START, MIDDLE, END, most=2)
    assert [world.closed for world in worlds] == [True, False, False]
    assert kept.take((START,)) is None


def test_as_many_are_kept_as_may_be() -> None:
    _, worlds = parked(*([START] * 9), most=8)
    assert [world.closed for world in worlds] == [True, *[False] * 8]


def test_none_is_kept_where_none_may_be() -> None:
    kept, worlds = parked(START, most=0)
    assert worlds[0].closed
    assert kept.take((START,)) is None


def test_a_dead_one_is_ended_and_another_taken() -> None:
    kept, worlds = parked(START, MIDDLE)
    worlds[1].alive = False
    assert kept.take((START, MIDDLE)) == (0, worlds[0])
    assert worlds[1].closed
