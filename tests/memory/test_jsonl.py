"""Whole files or none: what is left after a failure in the middle, and how a corrupt line is told."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from support.sample_records import task

from environments.base import InputError, MalformedCall, Record, ToolCall
from memory.files import remove_leftovers, whole_folder, write_atomically
from memory.jsonl import append_jsonl, read_json, read_jsonl, write_json, write_jsonl
from memory.records import Evidence, Signal, Trajectory


class Note(Record):
    name: str
    count: int = 0


class Anything(Record):
    value: JsonValue


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(values=st.lists(JSON, max_size=5))
def test_any_json_value_comes_back_equal(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("lines") / "records.jsonl"
    records = [Anything(value=value) for value in values]
    write_jsonl(path, records)
    assert read_jsonl(path, Anything) == records


def test_characters_that_end_lines_elsewhere_stay_inside_their_line(tmp_path):
    path = tmp_path / "records.jsonl"
    records = [Note(name="a\u2028b\x85c\r\nd\x0be"), Note(name="é")]
    write_jsonl(path, records)
    assert read_jsonl(path, Note) == records
    assert path.read_bytes().count(b"\n") == 2


def test_actions_of_both_kinds_come_back_as_what_they_were(tmp_path):
    class Holder(Record):
        actions: tuple[ToolCall | MalformedCall, ...]

    record = Holder(actions=(ToolCall(name="ls"), MalformedCall(text="ls(", reason="no call")))
    write_json(tmp_path / "holder.json", record)
    assert read_json(tmp_path / "holder.json", Holder) == record


def test_nan_is_refused_and_not_turned_into_null(tmp_path):
    class Score(Record):
        value: float

    with pytest.raises(ValueError, match="JSON"):
        write_jsonl(tmp_path / "scores.jsonl", [Score(value=float("nan"))])
    assert list(tmp_path.iterdir()) == []


def test_tasks_leave_out_what_is_default_alone_and_inside_other_records(tmp_path):
    plain, special = task(), task("task-b", withheld={0: ("mkdir",)}, long_context=True)
    write_jsonl(tmp_path / "tasks.jsonl", [plain, special])
    first, second = (json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines())
    assert set(second) - set(first) == {"withheld", "long_context"}
    assert read_jsonl(tmp_path / "tasks.jsonl", type(plain)) == [plain, special]
    signal = Signal(id="s", kind="rare", iteration=0, task_id="task-a", trajectory_id="t")
    trajectory = Trajectory(id="t", task_id="task-a", iteration=0, step=0, sample=0, turns=())
    write_json(tmp_path / "evidence.json", Evidence(signal=signal, task=special, trajectory=trajectory))
    assert read_json(tmp_path / "evidence.json", Evidence).task == special


@pytest.mark.parametrize(
    ("second_line", "told"),
    [
        (b'{"name": "b", "count": "many"}', "count: Input should be a valid integer"),
        (b'{"name": "b", "cuont": 1}', "cuont: Extra inputs are not permitted"),
        (b'{"count": 1}', "name: Field required"),
        (b'{"name": "b"', "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b'{"name": "\xff"}', "Invalid JSON"),
        (b"[]", "Input should be an object"),
    ],
)
def test_a_corrupt_line_is_told_with_file_line_and_key(tmp_path, second_line, told):
    path = tmp_path / "notes.jsonl"
    path.write_bytes(b'{"name": "a"}\n' + second_line + b'\n{"name": "c"}\n')
    with pytest.raises(InputError) as caught:
        read_jsonl(path, Note)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert told in str(caught.value)


def test_missing_and_corrupt_json_files_are_told(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl does not exist"):
        read_jsonl(tmp_path / "none.jsonl", Note)
    with pytest.raises(InputError, match=r"none\.json does not exist"):
        read_json(tmp_path / "none.json", Note)
    (tmp_path / "note.json").write_text('{"name": 3}')
    with pytest.raises(InputError, match=r"note\.json: name: Input should be a valid string \(got 3\)"):
        read_json(tmp_path / "note.json", Note)


def test_a_writer_that_fails_in_the_middle_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "notes.jsonl"
    write_jsonl(path, [Note(name="old")])

    def records():
        yield Note(name="new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, records())
    assert read_jsonl(path, Note) == [Note(name="old")]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_disk_that_fails_at_the_end_leaves_the_old_file_alone(tmp_path, monkeypatch, broken):
    path = tmp_path / "notes.jsonl"
    write_jsonl(path, [Note(name="old")])

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        write_jsonl(path, [Note(name="new")])
    with pytest.raises(OSError, match="No space left"):
        write_jsonl(tmp_path / "other.jsonl", [Note(name="new")])
    monkeypatch.undo()
    assert read_jsonl(path, Note) == [Note(name="old")]
    assert list(tmp_path.iterdir()) == [path]


LIMITED = """
import errno, resource, sys
from pathlib import Path
from environments.base import MalformedCall
from memory.jsonl import append_jsonl, write_jsonl

path, writer = Path(sys.argv[1]), {"write": write_jsonl, "append": append_jsonl}[sys.argv[2]]
writer(path, [MalformedCall(text="old", reason="")])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    writer(path, [MalformedCall(text="x" * 100, reason="") for _ in range(1000)])
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("writer", ["write", "append"])
@pytest.mark.process
def test_a_file_that_may_not_grow_stays_as_it_was(tmp_path, writer):
    path = tmp_path / "records.jsonl"
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), writer], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "EFBIG"
    assert read_jsonl(path, MalformedCall) == [MalformedCall(text="old", reason="")]
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from memory.files import write_atomically

def chunks():
    yield b"x" * 100_000
    os.kill(os.getpid(), signal.SIGKILL)

write_atomically(Path(sys.argv[1]), chunks())
"""


@pytest.mark.process
def test_a_killed_writer_leaves_the_old_file_and_a_leftover_that_is_cleared(tmp_path):
    path = tmp_path / "deep" / "notes.jsonl"
    write_jsonl(path, [Note(name="old")])
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert read_jsonl(path, Note) == [Note(name="old")]
    (leftover,) = (other for other in path.parent.iterdir() if other != path)
    living = path.with_name(f".notes.jsonl.{os.getpid()}-1.tmp")
    foreign = path.with_name(".hidden.tmp")
    living.touch()
    foreign.touch()
    assert remove_leftovers(tmp_path) == (leftover,)
    assert set(path.parent.iterdir()) == {path, living, foreign}


def test_append_adds_lines_and_returns_the_length_to_truncate_to(tmp_path):
    path = tmp_path / "deep" / "notes.jsonl"
    length = append_jsonl(path, [Note(name="a"), Note(name="b")])
    assert append_jsonl(path, []) == length == path.stat().st_size
    assert append_jsonl(path, [Note(name="c")]) == path.stat().st_size
    assert [note.name for note in read_jsonl(path, Note)] == ["a", "b", "c"]
    os.truncate(path, length)
    assert [note.name for note in read_jsonl(path, Note)] == ["a", "b"]


def test_append_refuses_a_file_that_ends_in_half_a_line(tmp_path):
    path = tmp_path / "notes.jsonl"
    append_jsonl(path, [Note(name="a"), Note(name="b")])
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InputError, match="ends in half a line"):
        append_jsonl(path, [Note(name="c")])
    with pytest.raises(InputError, match="line 2"):
        read_jsonl(path, Note)


def test_writing_makes_the_folder_and_keeps_the_usual_permissions(tmp_path):
    mask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "a" / "b" / "file", [b"x"])
    finally:
        os.umask(mask)
    assert Path(tmp_path / "a" / "b" / "file").stat().st_mode & 0o777 == 0o644


def test_a_folder_is_there_whole_or_not_at_all_also_below_folders_that_are_not_there_yet(tmp_path):
    def write(words: tuple[str, ...]) -> None:
        with whole_folder(tmp_path / "some" / "where") as partial:
            for word in words:
                (partial / "file").write_text(word)

    with pytest.raises(TypeError):
        write(("half", None))
    assert list((tmp_path / "some").iterdir()) == []
    write(("whole",))
    assert [path.read_text() for path in (tmp_path / "some").rglob("*") if path.is_file()] == ["whole"]
