"""What servers of packages bring: a parameter that names a state, wrapped answers, a log of calls, a large state."""

import json
import sys
from contextlib import closing

import pytest
from support import ROOT

from environments.base import SAMPLE, InputError, TaskSpec, ToolCall
from environments.mcp import folder as folder_module
from environments.mcp.benchmark import BENCHMARK
from environments.mcp.options import FOLDER
from environments.registry import parse_options
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import record_of
from environments.verification.replay import bare_task
from environments.verification.verify import Refusal, verify

DESK = {
    "factory": "support.mcp_desk:desk",
    "fixed": {"key": "ours"},
    "answer": "/said",
    "ignored": ["/log"],
    "reset": "clear",
}


def opened(**options):
    return BENCHMARK.open(parse_options(BENCHMARK, {**DESK, **options}))


def play(environment, *calls):
    with closing(environment.open(bare_task(environment.starts()[0]))) as episode:
        episode.start()
        return [episode.step(ToolCall(name=name, arguments=arguments)) for name, arguments in calls], episode.state()


FIND = ("find_guest", {"guest": "guest_1"})
GIVE = ("give_room", {"room": "room_1", "guest": "guest_1"})


def test_a_fixed_parameter_is_given_to_each_tool_and_no_agent_sees_it():
    environment = opened()
    start = environment.starts()[0]
    assert start.tools == ("find_guest", "give_room", "show")
    for tool in environment.tools(start.tools):
        assert tool.parameter("key") is None
        assert "key" not in json.dumps(tool.json_schema)
    (given, own), state = play(environment, GIVE, ("find_guest", {"guest": "guest_1", "key": "other"}))
    assert json.loads(state)["show"]["data"]["rooms"]["room_1"]["guest"] == "guest_1"
    assert given.status == "ok"
    assert (own.status, json.loads(own.text)) == ("error", {"error": "find_guest has no parameter 'key'"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fixed": {"key": "ours", "kind": 1}}, "fixed: no tool of the MCP server documents 'kind'"),
        (
            {"starts": [[{"name": "clear", "arguments": {"key": "a"}}]]},
            "a start: clear gives 'key', which option fixed",
        ),
        ({"reset": {"name": "clear", "arguments": {"key": "a"}}}, "environment.options.reset: clear gives 'key'"),
        ({"probe": [{"name": "show", "arguments": {"key": "a"}}]}, "environment.options.probe: show gives 'key'"),
        ({"samples": 3, "probe": []}, "environment.options.samples: files and probe show no records"),
        ({"samples": 3, "starts": [[{"name": "give_room", "arguments": {}}]]}, "mcp-0 cannot be looked at: give_room"),
    ],
)
def test_a_mistake_in_these_options_is_one_sentence(options, says):
    with pytest.raises(InputError) as caught:
        opened(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_a_wrapped_answer_agents_read_the_part_that_is_the_answer():
    (found, again, none, all_), _ = play(opened(), FIND, FIND, ("find_guest", {"guest": "x"}), ("show", {}))
    assert found.text == again.text == '{"name": "Tom", "room": "room_1"}', "the second is not number 2"
    assert (none.status, none.text) == ("error", '{"error": "Error: there is no x"}')
    assert json.loads(all_.text)["data"]["rooms"].keys() == {"room_0", "room_1", "room_2"}
    (whole, _), _ = play(opened(answer="/nothing/here"), FIND, FIND)
    assert json.loads(whole.text).keys() == {"ok", "number", "said"}


def test_what_is_ignored_is_no_change_so_that_reads_are_reads():
    task = TaskSpec(
        environment="mcp",
        split="train",
        classes=("server",),
        turns=('Give a room to a guest (room "room_1", guest "guest_1").',),
        initial_state=opened().starts()[0].initial_state,
        tools=("find_guest", "give_room"),
        reference=((ToolCall(name=GIVE[0], arguments=GIVE[1]),),),
    )
    assert verify(task, opened(), (), ()).accepted
    read_twice = task.model_copy(
        update={
            "turns": ('Find a guest of the hotel (guest "guest_1"), then find a guest (guest "guest_1").',),
            "reference": ((ToolCall(name=FIND[0], arguments=FIND[1]),) * 2,),
        }
    )
    assert verify(read_twice, opened(), (), ()).reason == Refusal.SUPERFLUOUS_CALL
    assert play(opened(), FIND)[1] == play(opened())[1]
    logged = opened(ignored=[])
    assert play(logged, FIND)[1] != play(logged)[1]


def test_samples_are_views_of_one_start_and_tasks_are_equal_without_them():
    environment = opened(samples=2, seed=1)
    first, second = environment.starts()
    assert (first.id, second.id) == ("mcp-0-0", "mcp-0-1")
    assert first.initial_state["server"] == second.initial_state["server"]
    assert first.initial_state[SAMPLE] != second.initial_state[SAMPLE]
    records = first.initial_state[SAMPLE]["show"]["data"]
    assert records["guests"].items() <= json.loads(play(environment)[1])["show"]["data"]["guests"].items()
    one, other = (bare_task(start) for start in (first, second))
    assert fingerprint(one) == fingerprint(other) == fingerprint(bare_task(opened().starts()[0]))
    assert BENCHMARK.join(one, other) == one
    assert BENCHMARK.join(one, other.model_copy(update={"initial_state": {"server": {"calls": [1]}}})) is None
    with closing(environment.open(one)) as episode:
        episode.start()
        assert episode.state() == play(opened())[1]
    assert any(note == "starts     2, with samples of records" for note in BENCHMARK.notes(environment))
    opened_at = []
    environment.open = lambda task, inner=environment.open: opened_at.append(task) or inner(task)
    record_of(environment, [])
    assert len(opened_at) == 1, "one start is looked at once"


@pytest.mark.process
def test_a_state_in_a_large_file_is_seen_compared_and_sampled(monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_FILE", 100)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    command = [sys.executable, "-m", "support.mcp_desk", "{folder}"]
    options = {"factory": None, "command": command, "env": ["PYTHONPATH"], "probe": ["files"], "samples": 3}
    environment = opened(**options)
    assert [*environment.starts()[0].initial_state[SAMPLE]] == ["ours.json"]
    (_, begun), (_, read), (_, given) = play(environment), play(environment, FIND), play(environment, GIVE)
    assert begun == read != given
    assert json.loads(given)["files"]["ours.json"].keys() == {"sha256"}
    assert FOLDER not in given
