"""The compact rendering: lines as documented, references that keep their values, and calls that read back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES, call
from support.made_policy import trained_policy

from environments.base import InputError, MalformedCall, Observation, ObservationStatus, ToolCall, ToolSpec, UserTurn
from environments.bfcl.official import tool_names, tool_specs
from training.embedded.compact import CompactDialogue, CompactRendering, CompactSettings, CompactText
from training.rendering.base import EndTurn

TOOLS = (*tool_specs(FILES), *tool_specs(CAR))


def turn(text: str, index: int = 0) -> UserTurn:
    return UserTurn(index=index, text=text, tools=tool_names([FILES, CAR]))


def seen(text: str) -> Observation:
    return Observation(text=text, status=ObservationStatus.OK)


def opened(text: str = "hello", caps: CompactSettings | None = None) -> CompactText:
    lines = CompactText(caps or CompactSettings())
    lines.know(TOOLS)
    lines.user(turn(text))
    return lines


def dialogue(text: str) -> CompactDialogue:
    rendering = trained_policy().rendering
    assert isinstance(rendering, CompactRendering)
    made = rendering.begin()
    made.first(turn(text), TOOLS)
    return made


@pytest.mark.parametrize(
    ("text", "line", "values"),
    [
        ('create "a b", then fill 3 gallons', "U create $1, then fill $2 gallons\n", ["a b", 3]),
        ('move "x" to "y" and "x" to 2.0', "U move $1 to $2 and $1 to $3\n", ["x", "y", 2.0]),
        ("set 2 and 2.0 apart", "U set $1 and $2 apart\n", [2, 2.0]),
        (r'write "say \"hi\" \n now"', "U write $1\n", ['say "hi" \n now']),
        ("weather.com at -4.5 degrees, 80%.", "U weather.com at $1 degrees, $2%.\n", [-4.5, 80]),
        ("two\nlines of v2 text", "U two lines of v2 text\n", []),
        ("1 2 3 4 5 6 7 8 9 10 1", "U $1 $2 $3 $4 $5 $6 $7 $8 $9 10 $1\n", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("too large: 1e999", "U too large: 1e999\n", []),
    ],
)
def test_user_line_shows_values_as_references(text: str, line: str, values: list[object]) -> None:
    lines = CompactText(CompactSettings())
    assert lines.user(turn(text)) == line
    assert [(type(v), v) for v in lines.references.values] == [(type(v), v) for v in values]


@pytest.mark.parametrize(
    ("text", "line", "new"),
    [
        ('{"zipcode": "83214"}', "O zipcode:$2\n", ["83214"]),
        (
            '{"doorStatus": {"driver": "locked", "passenger": "open"}}',
            "O doorStatus:{driver:locked,passenger:open}\n",
            [],
        ),
        ('{"lockStatus": "locked", "remainingUnlockedDoors": 0}', "O lockStatus:locked,remainingUnlockedDoors:0\n", []),
        ('{"current_directory_content": ["temp", "b.txt"]}', "O current_directory_content:[$1,$2]\n", ["b.txt"]),
        ('{"healthy": true, "info": {}, "x": null}', "O healthy:true,info:{},x:null\n", []),
        ('{"error": "mv: \'temp\' and temporary"}', "O error:mv: '$1' and temporary\n", []),
        ("{\"result\": \"'temp' moved to 'x/temp'\"}", "O result:'$1' moved to 'x/$1'\n", []),
        ("None", "O None\n", []),
        ("Error during execution: no\nfile temp", "O Error during execution: no file $1\n", []),
        ('{"a": [11, 12, 11, 14, 15]}', "O a:[$2,$3,$2,$4,..]\n", [11, 12, 14]),
        (
            '{"a": 11, "b": 12, "c": 13, "d": 14, "e": 15, "f": 11}',
            "O a:$2,b:$3,c:$4,d:$5,e:15,f:$2\n",
            [11, 12, 13, 14],
        ),
        ("[NaN]", "O [NaN]\n", []),
    ],
)
def test_observation_line(text: str, line: str, new: list[object]) -> None:
    lines = opened('into "temp"')
    assert lines.observation(seen(text)) == line
    assert lines.references.values[1:] == new


def test_observation_is_cut_at_its_cap_and_never_inside_a_reference() -> None:
    caps = CompactSettings(observation_chars=10, references_per_observation=9)
    assert opened(caps=caps).observation(seen('{"error": "' + "x" * 50 + '"}')) == "O error:xxxx\n"
    assert opened(caps=caps).observation(seen('{"12345678": 77, "b": 78}')) == "O 12345678:$1\n"


def test_the_errors_that_name_a_precondition_stay_readable() -> None:
    doors = "All doors must be locked before starting the engine. Here are the unlocked doors: driver, passenger"
    line = opened().observation(seen(json.dumps({"error": doors})))
    assert line == f"O error:{doors}\n"


def test_values_keep_their_reference_over_turns() -> None:
    lines = opened('look up "Rivermist"')
    lines.observation(seen('{"zipcode": "83214"}'))
    assert lines.user(turn('from "83214" to "74532"', 1)) == "U from $2 to $3\n"
    assert lines.action(call("estimate_distance", cityB="74532", cityA="83214")) == (
        "A @estimate_distance @cityA=$2 @cityB=$3\n"
    )


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (
            call("lockDoors", unlock=False, door=["driver", "rear_left"]),
            "A @lockDoors @unlock=false @door=[driver,rear_left]\n",
        ),
        (call("pressBrakePedal", pedalPosition=1.0), "A @pressBrakePedal @pedalPosition=1.0\n"),
        (call("wc", mode="w", file_name="f.txt"), "A @wc @file_name=$1 @mode=w\n"),
        (call("tail", file_name="f.txt", lines=10), "A @tail @file_name=$1 @lines=10\n"),
        (call("find", path=".", name=None), 'A @find @path="." @name=null\n'),
        (call("display_log", messages=["f.txt", "unseen"]), 'A @display_log @messages=[$1,"unseen"]\n'),
        (call("fillFuelTank", fuelAmount=5.0), "A @fillFuelTank @fuelAmount=$2\n"),
    ],
)
def test_action_line_and_back(made: ToolCall, line: str) -> None:
    lines = opened('of "f.txt" add 5')
    lines.observation(seen('{"count": 10}'))
    assert lines.action(made) == line
    assert lines.read(line) == made


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A @pwd", "cut off"),
        ("pwd\n", "neither a call"),
        ("A end now\n", "neither a call"),
        ("A @nothing\n", "unknown function 'nothing'"),
        ("A @\n", "unknown function"),
        ("A @pwd()\n", "expected ' @parameter='"),
        ("A @mkdir @dir_name=$2\n", "refers to nothing"),
        ("A @mkdir @dir_name=$0\n", "refers to nothing"),
        ("A @mkdir @dir_name=$\n", "refers to nothing"),
        ("A @mkdir @dir_name=\n", "no value"),
        ("A @mkdir @dir_name=temp\n", "neither a documented constant nor in quotes"),
        ("A @mkdir @dir_name=$1 @dir_name=$1\n", "given twice"),
        ("A @mkdir @dir_name=$1$1\n", "expected ' @parameter='"),
        ('A @mkdir @dir_name="temp\n', "Unterminated"),
        ("A @lockDoors @unlock=true @door=[driver\n", "expected ',' or ']'"),
        ("A @lockDoors @unlock=true @door=[driver,\n", "no value"),
        ("A @fillFuelTank @fuelAmount=1e999\n", "too large"),
        ("A @fillFuelTank @fuelAmount=-Infinity\n", "not a JSON value"),
        ("A @mkdir @dir_name=" + "[" * 3000 + "\n", "nested too deeply"),
        ("A @mkdir @dir_name=" + '{"a":' * 3000 + "\n", "nested too deeply"),
    ],
)
def test_malformed_lines_say_why(line: str, reason: str) -> None:
    read = opened('into "temp"').read(line)
    assert isinstance(read, MalformedCall)
    assert reason in read.reason


@given(st.text(max_size=60))
def test_reading_never_raises(text: str) -> None:
    assert isinstance(opened('"a" 1').read("A @" + text), ToolCall | MalformedCall)
    assert isinstance(opened('"a" 1').read(text + "\n"), ToolCall | MalformedCall | EndTurn)


def values_of(tool: ToolSpec, name: str) -> st.SearchStrategy[object]:
    parameter = tool.parameter(name)
    assert parameter is not None
    if parameter.type == "array":
        item = st.sampled_from(parameter.choices) if parameter.choices else st.text(max_size=20)
        return st.lists(item, max_size=3)
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    numbers = st.integers(-(10**6), 10**6)
    kinds = {
        "string": st.text(max_size=30),
        "boolean": st.booleans(),
        "integer": numbers,
        "float": st.one_of(numbers, st.floats(allow_nan=False, allow_infinity=False)),
    }
    return kinds[parameter.type]


@st.composite
def valid_calls(draw: st.DrawFn) -> ToolCall:
    tool = draw(st.sampled_from(TOOLS))
    given_names = [p.name for p in tool.parameters if p.required or draw(st.booleans())]
    return call(tool.name, **{name: draw(values_of(tool, name)) for name in given_names})


def said(value: object) -> str:
    items = value if isinstance(value, list) else [value]
    return " ".join(json.dumps(item, ensure_ascii=False) for item in items if not isinstance(item, bool))


@settings(deadline=None)
@given(valid_calls())
@pytest.mark.slow
def test_any_valid_call_whose_values_are_said_reads_back(made: ToolCall) -> None:
    spoken = dialogue("do " + " and ".join(said(value) for value in made.arguments.values()))
    ids = spoken.demonstrate(made)
    (read,) = spoken.parse(ids)
    assert isinstance(read, ToolCall)
    assert read == made
    assert json.dumps(read.arguments, sort_keys=True) == json.dumps(made.arguments, sort_keys=True)


@pytest.mark.slow
@settings(deadline=None)
@given(valid_calls())
def test_a_call_whose_values_nobody_said_is_written_literally_and_reads_back(made: ToolCall) -> None:
    spoken = dialogue("do something")
    assert spoken.parse(spoken.demonstrate(made)) == (made,)


def test_structure_is_one_token_each() -> None:
    spoken = dialogue('into "temp"')
    assert len(spoken.demonstrate(call("mkdir", dir_name="temp"))) == 4
    assert len(spoken.demonstrate(call("setHeadlights", mode="auto"))) == 4
    assert len(spoken.demonstrate(EndTurn())) == 2
    assert spoken.parse(spoken.demonstrate(EndTurn())) == EndTurn()


def test_constants_are_tokens_only_as_whole_words() -> None:
    vocabulary = trained_policy().tokenizer.get_vocab()
    ids = trained_policy().tokenizer.encode("U turn on the front\n", add_special_tokens=False)
    assert ids.count(vocabulary["on"]) == 1


def test_a_line_that_was_cut_off_is_malformed_and_ended_before_what_follows() -> None:
    spoken = dialogue('into "temp"')
    cut = spoken.demonstrate(call("mkdir", dir_name="temp"))[:-1]
    (read,) = spoken.parse(cut)
    assert isinstance(read, MalformedCall)
    (stop,) = spoken.stop_ids
    assert spoken.observe([seen("None")])[0] == stop
    assert spoken.observe([seen("None")])[0] != stop


def test_a_line_feed_from_byte_tokens_does_not_end_a_line() -> None:
    spoken = dialogue("now")
    feed = trained_policy().tokenizer.convert_tokens_to_ids("Ċ")
    (read,) = spoken.parse([*spoken.demonstrate(call("pwd"))[:-1], feed])
    assert isinstance(read, MalformedCall)


def test_tools_outside_the_vocabulary_are_refused_by_name() -> None:
    stocks = ENVIRONMENT.tools(["get_stock_info"])
    with pytest.raises(InputError, match="no token for get_stock_info"):
        trained_policy().rendering.begin().first(turn("buy"), stocks)


@given(
    st.dictionaries(
        st.sampled_from(("title", "status", "priority")), st.one_of(st.text(max_size=8), st.integers(0, 99))
    ),
    st.text(alphabet='{}[]:,$"a1', max_size=20),
)
def test_objects_hold_references_and_read_back(updates: dict, noise: str) -> None:
    tools = tool_specs("TicketAPI")
    made = ToolCall(name="edit_ticket", arguments={"ticket_id": 7, "updates": updates})
    for text in ("", " ".join(["7", *map(json.dumps, updates.values())])):
        lines = CompactText(CompactSettings())
        lines.know(tools)
        lines.user(turn(text))
        line = lines.action(made)
        assert lines.read(line) == made
        if text and updates:
            assert line.startswith("A @edit_ticket @ticket_id=$1 @updates={")
            assert all(f"{name}:$" in line for name in updates)
        assert isinstance(lines.read(f"A @edit_ticket @updates={{a:{noise}\n"), ToolCall | MalformedCall)


def test_deep_and_repeated_keys_of_an_object_are_malformed() -> None:
    lines = opened()
    for text in ("{a:" * 3000, "{a:1,a:2}", "{a:1", "{a 1}", "{a:1,}"):
        assert isinstance(lines.read(f"A @mkdir @dir_name={text}\n"), MalformedCall)
