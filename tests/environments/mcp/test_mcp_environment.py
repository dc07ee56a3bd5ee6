"""The environment of a real MCP server: the contract, nested arguments, states, resets, folders and command line."""

import json
import re
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from support.commands import run_here
from support.contract import EnvironmentContract

from environments.base import Environment, InputError, TaskSpec, ToolCall
from environments.mcp.benchmark import BENCHMARK
from environments.mcp.options import FOLDER
from environments.registry import parse_options
from environments.trust import TRUST_VARIABLE
from environments.verification.replay import bare_task, replay
from environments.verification.verify import Refusal, verify
from graph.check_environment import findings

FACTORY = {
    "factory": "support.mcp_depot:depot",
    "tools": ["list_parcels", "insure_parcel", "load_parcels", "open_gate"],
}
SUPPORT = Path(__file__).parents[2] / "support"
PIPES = {"command": [sys.executable, "-m", "support.mcp_depot"], "env": ["PYTHONPATH"]}

HAND = str(SUPPORT / "mcp_hostile.py")
"""A server without the SDK, whose import takes two seconds of CPU: where each episode has a process of its own."""

NOTES = """
import random
def tool(name, *words):
    schema = {"type": "object", "properties": {word: {"type": "string"} for word in words}, "required": [*words]}
    return TOOL | {"name": name, "inputSchema": schema}
tools = [tool("write", "path", "text"), tool("remember", "word"), tool("roll")]
def write(path, text):
    open(path, "w").write(text)
    return f"wrote {path}"
def remember(word):
    open("words.txt", "w").write(f"{word} in {sys.argv[3]}")
    return "remembered"
def roll():
    return str(random.random())
"""
NOTED = "reply(text(globals()[request['params']['name']](**request['params']['arguments'])))"
NOTES_SERVER = [sys.executable, HAND, NOTES, NOTED, "{folder}"]


@pytest.fixture(autouse=True)
def _trusted(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT.parents[1]}:{SUPPORT.parent}")


def opened(**options):
    return BENCHMARK.open(parse_options(BENCHMARK, options))


def play(environment, *calls, start=0):
    with closing(environment.open(bare_task(environment.starts()[start]))) as episode:
        episode.start()
        return [episode.step(ToolCall(name=name, arguments=arguments)) for name, arguments in calls], episode.state()


ORDER = ("load_parcels", {"orders": [{"label": "lamp", "van": "north"}]})


@pytest.mark.slow
class TestServer(EnvironmentContract):
    starts_opened = 1

    def make(self) -> Environment:
        return opened(**FACTORY, reset="rebuild")  # half the time of a new server for each episode


def test_nested_arguments_are_documented_checked_and_carried_out():
    environment = opened(**FACTORY)
    (tool,) = environment.tools(["load_parcels"])
    (orders,) = tool.parameters
    assert [(one.name, one.type, one.choices) for one in orders.item.fields] == [
        ("label", "string", ()),
        ("van", "string", ("north", "south")),
    ]
    assert "$ref" in json.dumps(tool.json_schema)
    (done, wrong), state = play(environment, ORDER, ("load_parcels", {"orders": [{"label": "vase", "van": "up"}]}))
    assert (done.status, wrong.status) == ("ok", "error")
    assert "orders[0].van of load_parcels: 'up' is not one of ['north', 'south']" in wrong.text
    assert json.loads(state)["dump_state"]["vans"] == {"north": ["lamp"], "south": []}


def test_a_tool_can_be_withheld_until_a_later_turn():
    environment = opened(**FACTORY, reset="rebuild")
    start = environment.starts()[0]
    task = bare_task(start, 2).model_copy(
        update={
            "turns": ("Put the lamp into the north van.", "You can do that now, please."),
            "reference": ((), (ToolCall(name=ORDER[0], arguments=ORDER[1]),)),
            "withheld": {1: ORDER[:1]},
        }
    )
    assert verify(task, environment, (), ()).accepted
    with closing(environment.open(task)) as episode:
        assert ORDER[0] not in episode.start().tools
        assert episode.step(task.reference[1][0]).failed
        assert ORDER[0] in episode.end_turn().tools
    shown = task.model_copy(update={"withheld": {}})
    assert verify(shown, environment, (), ()).reason is Refusal.EMPTY_TURN


def by_hand():
    """A server of one tool of the depot, which keeps the orders."""
    (tool,) = opened(**FACTORY).tools([ORDER[0]])
    listed = {"name": tool.name, "description": tool.description, "inputSchema": tool.json_schema}
    act = "kept += request['params']['arguments'].get('orders', []); reply(text(json.dumps(kept)))"
    return {"command": [sys.executable, HAND, f"tools, kept = [{listed!r}, LOOK], []", act]}


@pytest.mark.process
@pytest.mark.parametrize("way", ["factory", "process", "reset"])
def test_each_way_to_begin_again_verifies_the_same_task(way):
    environment = opened(**{"factory": FACTORY, "process": by_hand(), "reset": PIPES | {"reset": "rebuild"}}[way])
    start = environment.starts()[0]
    task = TaskSpec(
        environment="mcp",
        split="train",
        classes=start.classes,
        turns=('put parcels from the depot into vans (the orders (label of the parcel "lamp", the van north))',),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((ToolCall(name=ORDER[0], arguments=ORDER[1]),),),
    )
    assert verify(task, environment, (), ()).accepted
    wrong = task.model_copy(update={"turns": ('put parcels into vans (the orders (label of the parcel "wine"))',)})
    assert verify(wrong, environment, (), ()).reason == Refusal.UNMET_REQUEST
    assert replay(environment, task, ((),)).outcome.failure == "state_mismatch"


def test_a_tool_that_destroys_and_one_that_resets_are_not_the_agents():
    environment = opened(factory="support.mcp_depot:depot", reset="rebuild")
    assert "burn_down" not in environment.starts()[0].tools
    assert {"burn_down", "rebuild"} == environment.fleet.listing.left_out.keys()
    (answer,), _ = play(environment, ("burn_down", {}))
    assert answer.status == "error"


def test_starts_differ_by_their_calls():
    environment = opened(**FACTORY, starts=[[], [{"name": "open_gate", "arguments": {}}]])
    (_, closed), (_, open_) = play(environment), play(environment, start=1)
    assert [json.loads(state)["dump_state"]["gate_open"] for state in (closed, open_)] == [False, True]


def test_more_episodes_than_servers_are_open_at_a_time():
    environment = opened(**FACTORY, servers=2)
    task = bare_task(environment.starts()[0])
    episodes = [environment.open(task) for _ in range(5)]
    for number, episode in enumerate(episodes):
        episode.start()
        for euros in range(100, 100 * (number % 5 + 1) + 1, 100):
            episode.step(ToolCall(name="insure_parcel", arguments={"label": "lamp", "euros": euros}))
    insured = [json.loads(one.state())["dump_state"]["parcels"]["lamp"]["euros"] for one in episodes]
    assert insured == [100, 200, 300, 400, 500]


def test_a_place_that_was_seen_is_answered_from_the_cache_where_that_is_asked_for():
    environment = opened(**FACTORY, servers=1)
    cached = environment.recorded()
    first = play(cached, ORDER)
    environment.fleet._taken = None  # any lease fails from here on
    assert play(cached, ORDER) == first


def test_a_server_at_an_address_gets_the_token_that_is_bound_to_it_and_no_record_has_it(monkeypatch):
    server, total = MCPServer("adder"), [0]

    @server.tool()
    def add(by: int, ctx: Context) -> str:
        "Add a number."
        total[0] += by
        return f"{total[0]}, asked with {ctx.request_context.request.headers['authorization']}"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def show() -> int:
        "Show the sum."
        return total[0]

    @server.tool(annotations=ToolAnnotations(destructive_hint=False))
    def peek() -> int:
        "Show the sum."
        return total[0]

    @server.tool()
    def clear() -> None:
        "Begin again."
        total[0] = 0

    listening = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
    monkeypatch.setenv("COEVOLVE_KEYS", f"{origin}=THE_TOKEN")
    monkeypatch.setenv("THE_TOKEN", "hush-hush-41")
    serving = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical"))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        add = {"name": "add", "arguments": {"by": 3}}
        for options in (
            {"reset": "clear"},
            {"probe": ["show", "clear"]},
            {"starts": [[], [add]]},
            {"starts": [{"calls": [add]}]},
            {"allow_destructive": True},
        ):
            with pytest.raises(InputError, match=re.escape(f"export {TRUST_VARIABLE}={origin}")):
                opened(url=f"{origin}/mcp", **options)
        plain = opened(url=f"{origin}/mcp", probe=["show", "peek"])
        task = bare_task(plain.starts()[0])
        with pytest.raises(InputError, match="a start: a recipe does not decide that add, which does not say"):
            plain.open(task.model_copy(update={"initial_state": {"server": {"calls": [add]}}}))
        monkeypatch.setenv(TRUST_VARIABLE, origin)
        environment = opened(url=f"{origin}/mcp", reset="clear", servers=1)
        for _ in range(2):
            (answer,), state = play(environment, ("add", {"by": 3}))
            assert (answer.text, state) == ("3, asked with Bearer $TOKEN", '{"show": 3}')
    finally:
        serving.should_exit = True


@pytest.mark.process
def test_a_folder_of_its_own_has_the_files_of_the_start_and_one_path(tmp_path, monkeypatch):
    starts = [{"files": {"a.txt": "tea"}, "calls": []}, {"files": {"plans/b.txt": "rain"}, "calls": []}]
    environment = opened(command=NOTES_SERVER, starts=starts, reset="files")
    call = ("write", {"path": f"{FOLDER}/c.txt", "text": "new"})
    for start, files in enumerate(({"a.txt": "tea"}, {"plans/": None, "plans/b.txt": "rain"})):
        for _ in range(2):
            (answer,), state = play(environment, call, start=start)
            assert answer.text == f"wrote {FOLDER}/c.txt"
            assert json.loads(state) == {"files": files | {"c.txt": "new"}}
    monkeypatch.chdir(tmp_path)
    (answer,), state = play(environment, ("write", {"path": "d.txt", "text": "relative"}))
    assert "d.txt" in json.loads(state)["files"]
    assert [*tmp_path.iterdir()] == []
    rows = {row.words: row.problem for row in findings(environment)}
    assert "roll did not" in rows["equal calls do equal things"]
    assert rows["it begins alike each time"] is None


@pytest.mark.process
def test_servers_with_folders_of_their_own_have_equal_states():
    first, second = (opened(command=NOTES_SERVER, call_seconds=seconds) for seconds in (20, 21))  # a fleet each
    states = [play(one, ("remember", {"word": "tea"}))[1] for one in (first, second)]
    assert states == [json.dumps({"files": {"words.txt": f"tea in {FOLDER}"}})] * 2


def test_what_the_users_own_calls_give_is_known_for_every_parameter_of_that_name():
    starts = [[{"name": "insure_parcel", "arguments": {"label": "vase", "euros": 300}}]]
    environment = opened(factory="support.mcp_depot:depot", starts=starts, probe=["dump_state"])
    known = {(one.tool, one.parameter, one.value, one.near) for one in BENCHMARK.known_values(environment)}
    assert known == {
        ("insure_parcel", "label", "vase", frozenset({300})),
        ("insure_parcel", "euros", 300, frozenset({"vase"})),
    }
    probed = opened(**FACTORY | {"tools": None}, probe=[{"name": "send_van", "arguments": {"van": "north"}}])
    assert [one.value for one in BENCHMARK.known_values(probed)] == ["north"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give one of command, factory and url"),
        ({"command": ["a"], "url": "http://127.0.0.1:9/mcp"}, "give one of command, factory and url"),
        pytest.param({"command": ["no-such-program"]}, "start: FileNotFoundError", marks=pytest.mark.process),
        ({"factory": "support.mcp_depot:nothing"}, "support.mcp_depot:nothing cannot be imported"),
        ({"url": "http://127.0.0.1:9/mcp"}, "does not start"),
        ({"url": "http://192.0.2.1/mcp"}, "environment.options.url is http://192.0.2.1/mcp, which you did not bind"),
        (FACTORY | {"probe": ["see_all"]}, "the MCP server has no tool 'see_all'"),
        (FACTORY | {"starts": [[{"name": "burn_down", "arguments": {}}]]}, "a start calls burn_down: it says that it"),
        (FACTORY | {"starts": [[{"name": "no_tool", "arguments": {}}]]}, "which the MCP server does not have"),
    ],
)
def test_a_mistake_in_the_options_is_one_sentence(options, says):
    with pytest.raises(InputError) as caught:
        opened(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_were_written_down_are_read_again():
    given = {"starts": [{"files": {"notes.txt": "buy milk"}, "calls": []}, [{"name": "open_gate", "arguments": {}}]]}
    read = parse_options(BENCHMARK, given)
    assert parse_options(BENCHMARK, read.model_dump(mode="json")) == read
    assert read.start_states[0].files[0].path == f"{FOLDER}/notes.txt"


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/etc/passwd", "a//b", "", ".", "a\0b", "a\\b"])
def test_no_file_of_a_start_leaves_the_folder(path):
    environment = opened(**FACTORY)
    task = bare_task(environment.starts()[0])
    state = {"server": {"calls": [], "files": [{"path": path, "text": "x"}]}}
    with pytest.raises(InputError, match="not the path of a file inside the folder"):
        environment.open(task.model_copy(update={"initial_state": state}))


@pytest.mark.process
def test_the_command_line_checks_a_recipe_without_starting_its_server(tmp_path):
    ran = tmp_path / "ran"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"environment: {{name: mcp, options: {{command: [touch, {ran}]}}}}\nevaluation: {{set: null}}\n")
    done = run_here("graph.check_recipe", str(recipe))
    assert not ran.exists()
    assert "was not opened" in done.stdout, done
