"""Provenance: the first text that an agent has read with the value is its source."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Observation, ObservationStatus, Parameter, TaskSpec, ToolCall, ToolSpec
from environments.task_text import Seen
from environments.verification.provenance import HIDDEN, Source, SourcedValue, sources

SEND = ToolSpec(
    name="send",
    group="post",
    description='Sends a note; "today" is a day.',
    parameters=(
        Parameter(name="to", type="string", description="who", required=True, choices=("all",)),
        Parameter(name="note", type="string", description="what", required=False, default="hello"),
        Parameter(name="pages", type="integer", description="up to 9", required=False),
    ),
)
RUN = ToolSpec(
    name="run",
    group="run",
    description="Runs code.",
    parameters=(Parameter(name="code", type="code", description="", required=True),),
)


class Post:
    """An environment that has documentation and nothing else."""

    name = "post"

    def tools(self, names):
        return tuple({"send": SEND, "run": RUN, "post.send": SEND}[name] for name in names)


class Turn(NamedTuple):
    calls: tuple[ToolCall, ...]
    observations: tuple[Observation, ...]


def send(**arguments) -> ToolCall:
    return ToolCall(name="send", arguments=arguments)


def read(*turns: tuple[str, list[tuple[ToolCall, str]]], hidden: str | None = None) -> list[SourcedValue]:
    """The sources in turns, each of its words and of calls with their answers."""
    played = [
        Turn(
            tuple(call for call, _ in steps),
            tuple(Observation(text=answer, status=ObservationStatus.OK) for _, answer in steps),
        )
        for _, steps in turns
    ]
    task = TaskSpec(
        environment="post",
        split="train",
        classes=("post",),
        turns=tuple(text for text, _ in turns),
        initial_state={},
        tools=("send", "run"),
        reference=tuple(one.calls for one in played),
    )
    return list(sources(Post(), task, played, None if hidden is None else Seen([hidden])))


@pytest.mark.parametrize(
    ("value", "source", "producer"),
    [
        ("Ana", Source.WORDS, None),
        ("ben", Source.EARLIER_TURN, None),
        ("cleo", Source.OBSERVATION, (0, 0)),
        ("dora", Source.OBSERVATION, (0, 1)),
        ("all", Source.DOCUMENTATION, None),
        ("today", Source.DOCUMENTATION, None),
        (True, Source.DOCUMENTATION, None),
        (None, Source.DOCUMENTATION, None),
        ("eve", Source.STATE, None),
        ("fay", Source.NONE, None),
    ],
)
def test_a_value_has_the_first_source_that_has_it(value, source, producer) -> None:
    """Each text also has what the ones before it have."""
    first = [(send(to="ben"), "ana, ben, cleo"), (send(to="ben"), "ana, ben, cleo, dora, all")]
    if source is Source.DOCUMENTATION:
        first[1] = (send(to="ben"), "ana, ben, cleo, dora")
    found = read(
        ("Write to Ben and ana.", first),
        ("Now to ANA.", [(send(to=value), "fay")]),
        hidden="ana, ben, cleo, dora, all, eve",
    )
    assert (found[-1].source, found[-1].producer) == (source, producer)


def test_a_choice_that_an_answer_has_is_an_observation() -> None:
    found = read(("Write.", [(send(to="all"), "all"), (send(to="all"), ""), (send(to="ana"), "")]))
    assert [one.source for one in found] == [Source.DOCUMENTATION, Source.OBSERVATION, Source.NONE]
    assert [one.documented for one in found] == [True, True, False]


def test_numbers_are_found_by_value_and_items_one_by_one() -> None:
    found = read(("Take 1,500.", [(send(to=["all", {"a": 1500.0}], pages=9), "")]))
    assert [(one.parameter, one.value, one.source) for one in found] == [
        ("to", "all", Source.DOCUMENTATION),
        ("to", 1500.0, Source.WORDS),
        ("pages", 9, Source.DOCUMENTATION),
    ]


def test_a_parameter_without_documentation_has_none() -> None:
    assert read(("Write.", [(send(copy=True), "")]))[0].source is Source.NONE


def test_without_a_start_state_its_values_come_from_nowhere() -> None:
    assert read(("Write.", [(send(to="eve"), "")]))[0].source is Source.NONE


def test_the_literals_of_a_program_are_looked_up() -> None:
    code = "apis.post.send(to='all', note='kim-77', pages=12)"
    found = read(("Send 12 pages.", [(ToolCall(name="run", arguments={"code": code}), "")]))
    assert [(one.value, one.source, one.literal) for one in found] == [
        ("all", Source.DOCUMENTATION, True),
        ("kim-77", Source.NONE, True),
        (12, Source.WORDS, True),
    ]
    assert str(found[1]) == "turn 1, call 1: 'kim-77' in the code of run"


def test_a_value_is_named_by_its_place() -> None:
    found = read(("Write.", [(send(to="all"), ""), (send(note="x" * 99), "")]))
    assert str(found[1]) == f"turn 1, call 2: note={'x' * 99!r:.80} of send"


NAMES = st.sampled_from(["ana", "ben", "cleo", "dora"])
STEPS = st.lists(st.tuples(NAMES.map(lambda name: send(to=name)), NAMES), min_size=1, max_size=3)
TURNS = st.lists(st.tuples(NAMES, STEPS), min_size=1, max_size=3)


@given(TURNS, TURNS)
def test_what_follows_does_not_change_a_source(turns, more) -> None:
    found = read(*turns)
    assert read(*turns, *more)[: len(found)] == found


@given(TURNS)
def test_a_source_has_the_value_and_none_before_it_has(turns) -> None:
    for one in read(*turns):
        (t, c), words = one.place, [text for text, _ in turns]
        answers = {(a, b): answer for a, (_, steps) in enumerate(turns) for b, (_, answer) in enumerate(steps)}
        before = [place for place in answers if place < (t, c) and answers[place] == one.value]
        expected = Source.WORDS if words[t] == one.value else Source.EARLIER_TURN if one.value in words[:t] else None
        assert one.producer == (None if expected else next(iter(before), None))
        assert one.source is (expected or (Source.OBSERVATION if before else Source.NONE))
        assert (one.source in HIDDEN) == (one.source is Source.NONE)
