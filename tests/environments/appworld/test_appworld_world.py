"""A world on the real engine: executing, recording, saving and restoring, differences, and the official result."""

from collections.abc import Iterator

import pytest
from support.solutions import answer, note, solve

from environments.appworld.client import AppWorldEngine, World
from environments.appworld.records import ExecutionStatus
from environments.base import InputError

ASKED = ("Paint colours", "sage green for the hall")  # by made01_1
COMPLETE = "apis.supervisor.complete_task()"


def test_a_world_opens_with_what_the_benchmark_tells(world: World) -> None:
    assert world.opening.supervisor.email.endswith("@example.com")
    assert world.opening.now.startswith("2023-05-18T12:00")


def test_output_calls_and_status_come_back(world: World) -> None:
    executed = world.execute("n = 2\nprint(apis.supervisor.show_profile()['email'], n)\nprint([1, {'a': None}])")
    assert executed.output == f'{world.opening.supervisor.email} 2\n[1, {{"a": null}}]\n'
    assert executed.status is ExecutionStatus.OK
    assert [(call.name, call.arguments, call.status) for call in executed.calls] == [
        ("supervisor.show_profile", {}, 200)
    ]
    assert world.execute("print(n + 1)").output == "3\n"
    assert world.execute("x = 1").output == "Execution successful."


def test_a_failing_call_is_told_and_recorded_with_its_status(world: World) -> None:
    executed = world.execute("apis.spotify.show_song(song_id=1)\napis.spotify.show_song(song_id=99999)\nprint('no')")
    assert executed.status is ExecutionStatus.FAILED
    assert "Response status code is 409" in executed.output
    assert [call.status for call in executed.calls] == [200, 409]
    assert executed.calls[1].arguments == {"song_id": 99999}
    missing = world.execute("apis.spotify.sing()")
    assert "No API named 'sing' found in the spotify app." in missing.output
    assert "No app named 'radio' found." in world.execute("apis.radio.play()").output


def test_code_that_is_no_python_fails_with_the_line(world: World) -> None:
    executed = world.execute("print('a'\nx = (")
    assert executed.status is ExecutionStatus.FAILED
    assert "Syntax error in line" in executed.output


def test_the_shell_runs_the_text_and_nothing_of_its_own(world: World) -> None:
    for code in ("ls", "env", "pwd", "who", "reset - f"):
        executed = world.execute(code)
        assert executed.status is ExecutionStatus.FAILED
        assert "NameError" in executed.output


def test_allowed_modules_work_and_time_stands_still(world: World) -> None:
    code = """
import collections.abc, random
from datetime import datetime
from pendulum import DateTime
import time
print(datetime.now().isoformat(), DateTime.now().format("YYYY"), time.time() == time.time())
print(isinstance([], collections.abc.Sequence), random.randint(3, 3), re.sub("a", "b", "aa"), json.loads("[1]"))
class Song:
    def __init__(self, title):
        self.title = title
print(sorted([Song("b"), Song("a")], key=lambda song: song.title)[0].title, Counter("aab").most_common(1))
"""
    assert world.execute(code).output.splitlines() == [
        f"{world.opening.now} 2023 True",
        "True 3 bb [1]",
        "a [('a', 2)]",
    ]


def test_every_reference_passes_and_its_saved_changes_are_what_changed(engine: AppWorldEngine) -> None:
    for task_id in engine.installation.task_ids("train") + engine.installation.task_ids("dev"):
        if not task_id.endswith("_2"):
            continue
        with engine.open(task_id) as world:
            assert not world.evaluate().success
            assert solve(engine, world).completed
            result = world.evaluate()
            assert result.success, (task_id, result.failures)
            assert {check.label for check in result.passes} <= {"no_op_fail", "no_op_pass"}
            assert world.diff() == world.evaluated_diff()
            assert world.diff().answer == answer(engine, task_id)
            assert bool(world.diff().changes) == (world.diff().answer is None)


@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("print('nothing')", "assert answers match."),
        (COMPLETE, "assert only notes changed."),
        (note("Paint colors", ASKED[1]) + COMPLETE, "assert the note is the user's and as asked."),
        (note(*ASKED) + "apis.supervisor.complete_task(answer=4)", "assert answers match."),
        (note(*ASKED) + note("And more", "x") + COMPLETE, "assert one note was added and none touched."),
        (
            note(*ASKED)
            + "spotify = apis.spotify.login(username=profile['email'], password=passwords['spotify'])\n"
            + "apis.spotify.create_playlist(title='Extra', access_token=spotify['access_token'])\n"
            + COMPLETE,
            "assert only notes changed.",
        ),
    ],
    ids=["no-op", "only completed", "wrong", "answer not asked for", "one too many", "collateral"],
)
def test_no_op_wrong_and_collateral_are_refused(world: World, code: str, failed: str) -> None:
    executed = world.execute(code)
    assert executed.status is ExecutionStatus.OK, executed.output
    result = world.evaluate()
    assert not result.success
    assert failed in {check.requirement for check in result.failures}


def test_the_order_of_independent_calls_does_not_change_the_state(engine: AppWorldEngine) -> None:
    notes = [note("One", "1"), note("Two", "2")]
    states = []
    for order in (notes, notes[::-1]):
        with engine.open("made01_1") as world:
            world.execute("".join(order))
            states.append(world.state())
    assert states[0] == states[1]


@pytest.fixture(scope="module")
def tried(engine: AppWorldEngine) -> Iterator[World]:
    """One world for all that code can raise, print and answer."""
    with engine.open("made01_1") as world:
        yield world


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise KeyboardInterrupt('x')", "KeyboardInterrupt: x"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Own(BaseException): pass\nraise Own('y')", "Own: y"),
        ("raise SystemExit", "Execution failed"),
        ("print(chr(0xd800), 'printed')", "\\ud800 printed"),
        ("raise ValueError(chr(0xd800) + 'raised')", "raised"),
        ("class E(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise E", "Execution failed"),
        ("apis.supervisor.complete_task(answer=float('nan'))", "answer must be a JSON value"),
        ("apis.supervisor.complete_task(answer=float('inf'))", "answer must be a JSON value"),
        ("apis.supervisor.complete_task(answer=chr(0xd800))", "answer must be a JSON value"),
        ("apis.supervisor.complete_task(answer={1, 2})", "answer must be a JSON value"),
        ("x = 1\nfor _ in range(300): x = [x]\napis.supervisor.complete_task(answer=x)", "nested more than 64 deep"),
        ("x = []\nx.append(x)\napis.supervisor.complete_task(answer=x)", "answer must be a JSON value"),
        (
            "class R:\n    def __repr__(self): raise KeyboardInterrupt\napis.supervisor.complete_task(answer=R())",
            "answer must be a JSON value",
        ),
    ],
)
def test_whatever_code_raises_prints_or_answers_is_told_as_its_failure(tried: World, code: str, says: str) -> None:
    executed = tried.execute(code)
    assert says in executed.output
    assert executed.status is (ExecutionStatus.OK if "printed" in code else ExecutionStatus.FAILED)
    assert not executed.completed
    executed.model_dump_json().encode()
    assert tried.execute("print(1)").output == "1\n"
    assert tried.diff() == tried.evaluated_diff()


def test_an_instruction_of_ones_own_replaces_the_tasks(engine: AppWorldEngine) -> None:
    with engine.open("made01_1", instruction="Make a note called Ideas.") as world:
        shown = world.execute("print(apis.supervisor.show_active_task()['instruction'])")
        assert shown.output == "Make a note called Ideas.\n"
        assert world.diff().changes == {}


def test_too_many_calls_and_too_much_output_are_cut(world: World) -> None:
    endless = world.execute("while True:\n    apis.supervisor.show_active_task()")
    assert endless.status is ExecutionStatus.FAILED
    assert len(endless.calls) <= 1001
    long = world.execute("print('x' * 500_000)")
    assert len(long.output) < 201_000
    assert long.output.endswith("[300001 characters left out]")


def test_worlds_side_by_side_do_not_touch_each_other(engine: AppWorldEngine) -> None:
    with engine.open("made01_1") as first, engine.open("made01_2") as second:
        first.execute(note("One", "1"))
        second.execute(note("Two", "2"))
        (one,) = first.diff().changes["simple_note.Note"].added
        (two,) = second.diff().changes["simple_note.Note"].added
        assert (one["title"], two["title"]) == ("One", "Two")
        assert one["user_id"] != two["user_id"]


def test_documentation_is_read_from_the_world(engine: AppWorldEngine) -> None:
    tools = engine.api_docs
    assert len(tools) == 457
    assert all(tool.description and tool.name == name for name, tool in tools.items())
    login = tools["spotify.login"]
    assert login.group == "spotify"
    assert [(p.name, p.type, p.required) for p in login.parameters] == [
        ("username", "string", True),
        ("password", "string", True),
    ]
    limit = tools["spotify.show_song_library"].parameter("page_limit")
    assert limit is not None
    assert (limit.type, limit.required, limit.default) == ("integer", False, 5)


def test_an_unknown_task_is_the_callers_mistake(engine: AppWorldEngine) -> None:
    for task_id in ("made99_1", "made01", "../made01_1"):
        with pytest.raises(InputError, match="has no task"):
            engine.open(task_id)
