"""Text from documentation: every value can be read back, no tool is named, and what errors ask for is left unsaid."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bfcl_tasks import ENVIRONMENT, FILES
from support.written_tasks import draft

from environments.base import Parameter, TaskSpec, ToolCall, ToolSpec, UserTurn
from environments.example import depot
from environments.task_text import Seen, clause, render_documented, with_own_descriptions
from graph.check_environment import explored_tasks
from training.embedded.compact import CompactSettings, CompactText

SHOP = depot(4)


class Always:
    """Draws the first of everything."""

    def choice(self, options: Sequence):
        return options[0]


def parameter(name: str, kind: str, description: str, **more) -> Parameter:
    return Parameter(name=name, type=kind, description=description, **({"required": True} | more))


TOOL = ToolSpec(
    name="book_table",
    group="Restaurant",
    description="Book a table at Chez Nous, e.g. for guests; it may be full. Fails when closed.",
    parameters=(
        parameter("guest", "string", "Name of the guest (first name)."),
        parameter("seats", "integer", "Number of seats, between 1 and 8"),
        parameter("place", "string", "the place", choices=("window", "garden", "bar stool"), required=False),
        parameter("dishes", "array", "USB of dishes: a list", items="string", required=False),
        parameter("quiet", "boolean", "in a quiet corner", required=False, default=False),
    ),
)
BOOK = "book a table at Chez Nous, e.g. for guests"
PLAIN = {"guest": "Ann", "seats": 2}


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (PLAIN, 'name of the guest "Ann", number of seats 2'),
        (PLAIN | {"guest": 'A "B"'}, 'name of the guest "A \\"B\\"", number of seats 2'),
        (PLAIN | {"place": "garden"}, 'name of the guest "Ann", number of seats 2, the place garden'),
        (PLAIN | {"place": "bar stool"}, 'name of the guest "Ann", number of seats 2, the place "bar stool"'),
        (
            PLAIN | {"dishes": ["soup", "rice"]},
            'name of the guest "Ann", number of seats 2, USB of dishes "soup" and "rice"',
        ),
        (PLAIN | {"dishes": []}, 'name of the guest "Ann", number of seats 2, USB of dishes nothing'),
        (PLAIN | {"quiet": True}, 'name of the guest "Ann", number of seats 2, in a quiet corner true'),
        (PLAIN | {"quiet": False, "place": None}, 'name of the guest "Ann", number of seats 2'),
    ],
)
def test_a_clause_is_the_first_sentence_with_the_values(arguments, values):
    call = ToolCall(name="book_table", arguments=arguments)
    assert clause(call, {TOOL.name: TOOL}, Always()) == f"{BOOK} ({values})"


@pytest.mark.parametrize(
    ("descriptions", "own"),
    [
        (("It is a file system. Tool description: Copy it.", "It is a file system. Tool description: Make it."),
         ("Copy it.", "Make it.")),
        (("Return the sum.", "Return the mean."), ("Return the sum.", "Return the mean.")),
        (("Copy it.", "Copy it. Fails if it is not there."), ("Copy it.", "Copy it. Fails if it is not there.")),
        (("It is alone. Copy a file.",), ("It is alone. Copy a file.",)),
        (("The same.", "The same."), ("The same.", "The same.")),
        (("", "Copy."), ("", "Copy.")),
    ],
)  # fmt: skip
def test_sentences_that_a_whole_group_begins_with_are_left_out(descriptions, own):
    tools = [TOOL.model_copy(update={"name": f"t{k}", "description": text}) for k, text in enumerate(descriptions)]
    other = TOOL.model_copy(update={"name": "other", "group": "Bar"})
    assert [tool.description for tool in with_own_descriptions((*tools, other))] == [*own, TOOL.description]


def test_the_text_of_an_official_function_describes_the_function():
    call = ToolCall(name="cp", arguments={"source": "a.txt", "destination": "b.txt"})
    spec = draft(FILES, ("", [("cp", call.arguments)]), setup=(("touch", {"file_name": "a.txt"}),))
    (text,) = render_documented(ENVIRONMENT, spec, random.Random(0)).turns
    assert "copy a file or directory" in text
    assert "belongs to" not in text


def test_a_call_without_values_is_the_sentence_alone():
    tools = {tool.name: tool for tool in SHOP.tools(("open_gate",))}
    texts = {clause(ToolCall(name="open_gate"), tools, random.Random(seed)) for seed in range(20)}
    assert texts == {f"{opening}open the depot's gate" for opening in ("", "please ", "i want you to ")}


values = st.text(min_size=1, max_size=12).filter(lambda text: text.strip() and text.isprintable())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(values, st.integers(-(10**9), 10**9), st.lists(values, min_size=1, max_size=3))
def test_every_value_can_be_read_back(guest, seats, dishes):
    call = ToolCall(name="book_table", arguments={"guest": guest, "seats": seats, "dishes": dishes})
    seen = Seen([clause(call, {TOOL.name: TOOL}, Always())])
    assert all(seen.has(value) for value in (guest, seats, *dishes))


def task(*calls: ToolCall, **changes) -> TaskSpec:
    start = SHOP.starts()[0]
    state = {"Depot": {"parcels": {"lamp": {"kilograms": 3}}, "gate_open": False}}
    given = start.model_dump(include={"environment", "split", "classes", "tools"}) | {"initial_state": state}
    return TaskSpec(**given | {"turns": ("",), "reference": (calls,)} | changes)


def test_what_an_error_asks_for_is_not_said():
    load = ToolCall(name="load_parcel", arguments={"label": "lamp", "van": "north"})
    gate, send = ToolCall(name="open_gate"), ToolCall(name="send_van", arguments={"van": "north"})
    (text,) = render_documented(SHOP, task(gate, send, setup=(load,)), Always()).turns
    assert text == "let a loaded van drive off (the van north)"
    (text,) = render_documented(SHOP, task(load, gate, send), Always()).turns
    assert text == 'put one parcel from the depot into a van (label of the parcel "lamp", the van north), then ' + (
        "let a loaded van drive off (the van north)"
    )
    (text,) = render_documented(SHOP, task(gate), Always()).turns
    assert text == "open the depot's gate"


def test_the_embedded_policy_reads_values_as_references_and_choices_as_words():
    load = ToolCall(name="load_parcel", arguments={"label": "lamp", "van": "north"})
    (said,) = render_documented(SHOP, task(load), Always()).turns
    tools = SHOP.tools(SHOP.starts()[0].tools)
    text = CompactText(CompactSettings())
    text.know(tools)
    assert text.user(UserTurn(index=0, text=said, tools=())) == (
        "U put one parcel from the depot into a van (label of the parcel $1, the van north)\n"
    )
    assert text.action(load) == "A @load_parcel @label=$1 @van=north\n"


def test_no_tool_is_named_in_explored_tasks():
    for found in explored_tasks(SHOP):
        assert not any(tool in text for tool in found.tools for text in found.turns)
