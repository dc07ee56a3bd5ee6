"""The task set: its file, who belongs to D_t, and a user's own file."""

import json
import os
from pathlib import Path

import pytest
from support.sample_records import task

from environments.base import InputError
from memory.files import LONGEST
from memory.records import Task
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.tasks import TaskSettings, admit, load_tasks, read_given, tasks_at

KEYS = [
    "id", "environment", "split", "origin", "classes", "turns", "initial_state", "setup", "tools", "reference",
    "parents", "admitted_at",
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", TaskSettings())


def seeds(count):
    return [task(f"seed-{number:02d}") for number in range(count)]


def evolved(count, iteration=0):
    return [
        task(f"evolved-{iteration}-{number:02d}", origin="evolved", admitted_at=iteration) for number in range(count)
    ]


def test_every_line_has_exactly_the_keys_of_the_interface(run):
    admit(run, [task(), *evolved(1)])
    for line in run.tasks_path.read_text().splitlines():
        assert json.loads(line).keys() == set(KEYS)
    assert json.loads(run.tasks_path.read_text().splitlines()[1])["reference"] == [
        [{"name": "mkdir", "arguments": {"dir_name": "notes"}}]
    ]


def test_a_run_without_tasks_has_none_and_admitting_none_makes_the_file(run):
    assert load_tasks(run) == ()
    assert admit(run, []) == ()
    assert run.tasks_path.read_bytes() == b""
    assert load_tasks(run) == ()


def test_admission_appends_sorted_by_id_and_can_be_repeated(run):
    admit(run, reversed(seeds(3)))
    before = run.tasks_path.read_bytes()
    everything = admit(run, [*evolved(2), *seeds(2)])
    after = run.tasks_path.read_bytes()
    assert after.startswith(before)
    assert [t.id for t in everything] == ["seed-00", "seed-01", "seed-02", "evolved-0-00", "evolved-0-01"]
    assert everything == load_tasks(run)
    assert admit(run, [*evolved(2), *evolved(2)]) == everything
    assert run.tasks_path.read_bytes() == after


def test_a_set_that_did_not_change_is_not_parsed_again(run, tmp_path):
    admit(run, seeds(2))
    first = load_tasks(run)
    assert load_tasks(run) is first
    assert admit(run, evolved(1))[:2] == first
    kept = load_tasks(run)
    assert kept == tuple(read_jsonl(run.tasks_path, Task))
    other = RunDirectory.create(tmp_path / "other", TaskSettings())
    admit(other, seeds(1))
    assert len(load_tasks(other)) == 1
    assert load_tasks(run) == kept
    write_jsonl(run.tasks_path, [task("seed-77"), task("seed-78"), *evolved(1)])
    assert [one.id for one in load_tasks(run)] == ["seed-77", "seed-78", "evolved-0-00"]


def test_another_content_under_a_known_id_is_refused_and_nothing_written(run):
    admit(run, seeds(1))
    before = run.tasks_path.read_bytes()
    with pytest.raises(InputError, match="task seed-00 is there with another content"):
        admit(run, [task("a-new-one"), task("seed-00", turns=("Other text.",))])
    assert run.tasks_path.read_bytes() == before


def test_corrupt_and_double_lines_are_told(run):
    write_jsonl(run.tasks_path, [*seeds(2), *seeds(1)])
    with pytest.raises(InputError, match=r"tasks\.jsonl, line 3: task seed-00 is in line 1 already"):
        load_tasks(run)
    run.tasks_path.write_text('{"id": "x"}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl, line 1: environment: Field required"):
        load_tasks(run)


def test_the_set_of_an_iteration_holds_what_earlier_ones_admitted():
    tasks = [*seeds(1), *evolved(1, 0), *evolved(1, 1)]
    assert [len(tasks_at(tasks, iteration)) for iteration in (0, 1, 2, 3)] == [1, 2, 3, 3]
    assert tasks_at(tasks, 1) == (tasks[0], tasks[1])


def test_given_tasks_need_no_lineage(tmp_path):
    path = tmp_path / "own.jsonl"
    whole = json.loads(task("mine", origin="evolved", admitted_at=4, parents=("draft-1",)).model_dump_json())
    bare = {key: whole[key] for key in KEYS if key not in {"id", "origin", "parents", "admitted_at"}}
    again = dict(reversed(list(bare.items())))
    wrong = {**bare, "turns": []}
    lines = [
        json.dumps(whole), "", json.dumps(bare), json.dumps(again), json.dumps(wrong), '{"split"',
        json.dumps([]), json.dumps({**bare, "difficulty": 3}), json.dumps({**bare, "id": 7}), "\xff",
    ]  # fmt: skip
    path.write_bytes("\n".join(lines).encode("latin-1"))
    read = read_given(path)
    assert [number for number, _ in read] == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    first, second, *problems = (answer for _, answer in read)
    assert isinstance(first, Task)
    assert (first.id, first.origin, first.admitted_at, first.parents) == ("mine", "given", None, ("draft-1",))
    assert isinstance(second, Task)
    assert second.origin == "given"
    assert problems[0] == f"task {second.id} is in line 3 already"
    assert "0 turns but 1 reference turns" in problems[1]
    assert problems[2].startswith("no JSON")
    assert problems[3].startswith("not a JSON object")
    assert problems[4].startswith("difficulty: Extra inputs")
    assert problems[5].startswith("id: Input should be a valid string")
    assert problems[6].startswith("no JSON")


def test_a_given_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(InputError, match=r"tasks\.initial: .*none\.jsonl does not exist"):
        read_given(tmp_path / "none.jsonl")


def test_hostile_lines_of_a_given_file_are_each_told(tmp_path):
    path = tmp_path / "own.jsonl"
    whole = json.loads(task("mine").model_dump_json())
    half = json.dumps({**whole, "turns": ["\ud800"]})
    lines = [
        "[" * 2000 + "]" * 2000,
        json.dumps(whole).replace('"classes"', '"initial_state": ' + '{"a":' * 2000 + "1" + "}" * 2000 + ', "classes"'),
        half,
        json.dumps({**whole, "initial_state": {"Box": float("nan")}}),
        json.dumps({**whole, "initial_state": {"Box": 7}}).replace(": 7", ": 1e999"),
        json.dumps({**whole, "initial_state": {"Box": 7}}).replace(": 7", ": " + "7" * 6000),
    ]
    path.write_text("\n".join(lines))
    told = [answer for _, answer in read_given(path)]
    for answer, expected in zip(
        told,
        ["recursion limit", "recursion limit", "hex escape", "expected value", "Out of range", "out of range"],
        strict=True,
    ):
        assert isinstance(answer, str)
        assert answer.startswith("no JSON: ")
        assert expected in answer


@pytest.mark.slow
@pytest.mark.parametrize("read", [read_given, lambda path: read_jsonl(path, Task), lambda path: read_json(path, Task)])
def test_a_file_without_end_is_not_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=f"{path} is a folder, a pipe or a device"):
            read(path)
    with (tmp_path / "long.jsonl").open("wb") as file:
        file.truncate(LONGEST + 2)
    with pytest.raises(InputError, match=rf"long\.jsonl.* has more than {LONGEST} bytes"):
        read(tmp_path / "long.jsonl")
