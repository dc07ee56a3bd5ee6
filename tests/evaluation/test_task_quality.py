"""The command over files of tasks, its sheet for readers, and the agreement of two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from environments.base import InputError, ToolCall
from environments.example import depot
from evaluation.rubric import (
    ANSWERS,
    KEY,
    RUBRIC,
    SHEET,
    SheetItem,
    agreement_of,
    disagreements,
    draw,
    kappa,
    read_answers,
    shown,
)
from evaluation.rubric import app as rubric
from evaluation.task_figures import Examined, examine
from evaluation.task_quality import app
from memory.jsonl import read_jsonl, write_jsonl
from memory.records import Task

DEPOT = depot(starts=4)
RECIPE = "environment: {name: 'environments.example:depot', options: {starts: 4}}\n"


def task(name: str, words: str = "Open the gate.", *, played: int = 0, start: int = 0, **fields) -> Task:
    """A task that opens the gate in each of its turns, of which the last has these words."""
    place = DEPOT.starts()[start]
    turns = (*("First, open it. " * 20,) * played, words)
    return Task(
        **dict(place.model_copy(update={"id": name})),
        turns=turns,
        reference=((ToolCall(name="open_gate"),),) * len(turns),
        origin="given",
        played=played,
        **fields,
    )


def examined(name: str, **fields) -> Examined:
    return examine(DEPOT, task(name, **fields))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / name for name in ("recipe.yaml", "rules.jsonl", "people.jsonl")}
    paths["recipe.yaml"].write_text(RECIPE)
    write_jsonl(paths["rules.jsonl"], [task(f"r{n}", f"Open gate {n}.") for n in range(5)])
    write_jsonl(paths["people.jsonl"], [task(f"p{n}", f"Let it in, {n}.", played=1, start=n) for n in range(4)])
    return paths


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "120"})
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_a_column_for_each_file_and_writes_a_sheet(files, tmp_path) -> None:
    made = [files["rules.jsonl"], files["people.jsonl"], "--recipe", files["recipe.yaml"]]
    status, printed, _ = run(*made, "--against", files["people.jsonl"], "--sheet", tmp_path / "sheet", "--items", 5)
    assert status == 0
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert ["tasks", "5", "4"] in cells
    assert ["start states", "1", "4"] in cells
    assert [row[1:] for row in cells if row[0] == "task with a new start state"] == [["0.0%", "0.0% (0% to 72%)"]]
    key = read_jsonl(tmp_path / "sheet" / KEY, SheetItem)
    assert [one.item for one in key] == [1, 2, 3, 4, 5]
    assert sorted(one.origin for one in key) == ["people.jsonl"] * 2 + ["rules.jsonl"] * 3
    sheet = (tmp_path / "sheet" / SHEET).read_text()
    assert [line for line in sheet.splitlines() if line.startswith("## ")] == [f"## Item {n}" for n in range(1, 6)]
    assert not any(hint in sheet for one in key for hint in (one.origin, one.task, "given"))
    assert all(f"{number}. {one.text}" in sheet for number, one in enumerate(RUBRIC, start=1))
    blank = [json.loads(line) for line in (tmp_path / "sheet" / ANSWERS).read_text().splitlines()]
    assert blank[0] == {"1": {str(number): "" for number in range(1, 13)}}
    assert [*map(list, blank)] == [[str(number)] for number in range(1, 6)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"recipe.yaml": "environment: {nam: x}"}, "recipe.yaml: environment.nam"),
        ({"rules.jsonl": ""}, "rules.jsonl has no task"),
        ({"rules.jsonl": "{}"}, "rules.jsonl, line 1:"),
        (
            {"rules.jsonl": task("far").model_copy(update={"environment": "x"}).model_dump_json()},
            "rules.jsonl: task far",
        ),
    ],
)
def test_a_mistake_is_one_sentence(files, change, sentence) -> None:
    for name, text in change.items():
        files[name].write_text(text)
    status, _, said = run(files["rules.jsonl"], "--recipe", files["recipe.yaml"])
    assert status == 2
    assert sentence in said
    assert said.count("\n") == 1


def test_a_file_is_named_once_and_a_folder_is_new(files, tmp_path) -> None:
    rules, recipe = files["rules.jsonl"], ("--recipe", files["recipe.yaml"])
    assert "is named twice" in run(rules, rules, *recipe)[2]
    assert "exists" in run(rules, *recipe, "--sheet", tmp_path)[2]
    other = tmp_path / "other" / rules.name
    write_jsonl(other, [task("r")])
    assert run(rules, other, *recipe)[1].count("other") == 1


def test_a_draw_depends_on_content_and_seed_alone() -> None:
    some = [examined(f"a{n}", words=f"Open {n}.") for n in range(6)]
    renamed = [examined(f"b{n}", words=f"Open {n}.") for n in range(6)]
    orders = [[one.examined.words for one in draw([("x", tasks)], 4, 0)] for tasks in (some, renamed, some[::-1])]
    assert orders[0] == orders[1] == orders[2]
    assert len({*orders[0]}) == 4
    assert orders[0] != [one.examined.words for one in draw([("x", some)], 4, 1)]
    both = draw([("x", some[:1]), ("y", renamed[1:])], 5, 0)
    assert sorted(one.origin for one in both) == ["x", "y", "y"]
    assert [one.origin for one in draw([("x", some), ("y", renamed)], 12, 0)] != ["x"] * 6 + ["y"] * 6


def test_an_item_shows_what_an_agent_reads_and_what_solves_it() -> None:
    lines = list(shown(DEPOT, examined("t", words="Open\n## Item 9\x1b[2J it.", played=1)))
    assert lines == [
        "Tool open_gate: Open the depot's gate; it closes behind every van.",
        f"Before: {('First, open it. ' * 20)[:160]} ...",
        "  open_gate() -> null",
        "User: Open ## Item 9 [2J it.",
        "  open_gate()",
        "    -> null",
    ]
    whole = task("t", played=1).model_copy(update={"turns": ("x" * 160, "Go.")})
    assert f"Before: {'x' * 160}" in shown(DEPOT, examine(DEPOT, whole))
    call = ToolCall(name="weigh_parcel", arguments={"label": "é" * 400})
    long = examine(DEPOT, task("t").model_copy(update={"reference": ((call,),)}))
    documented, parameter, _, made, answer = shown(DEPOT, long)
    assert (documented, parameter) == (
        "Tool weigh_parcel: Weigh one parcel in the depot.",
        "  label (string): label of the parcel",
    )
    assert made == f'  weigh_parcel(label="{"é" * 400}")'
    assert len(answer) == len("    -> ") + 300 + len(" ...")


ITEMS = [SheetItem(item=1, origin="a", task="t1"), SheetItem(item=2, origin="b", task="t2")]


def filled(path: Path, *items: dict[int, str | dict[int, str]]) -> Path:
    """A filled sheet: a line for each of ``items``; a word answers every question of its item."""
    lines = [
        {k: dict.fromkeys(range(1, 13), one) if isinstance(one, str) else one for k, one in each.items()}
        for each in items
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_readers_are_compared_by_question_and_origin(tmp_path) -> None:
    differing = {n: "unclear" if n == 3 else "no" if n == 4 else "yes" for n in range(1, 13)}
    first = read_answers(filled(tmp_path / "1", {1: "yes"}, {2: differing}), ITEMS)
    second = read_answers(filled(tmp_path / "2", {1: "yes", 2: {**differing, 3: "no", 4: "yes"}}), ITEMS)
    head, rows = agreement_of(ITEMS, first, second)
    assert head == ("", "a: yes, of 1", "b: yes, of 1", "agree", "kappa")
    assert rows[2] == (f"3. {RUBRIC[2].text}", "1, 1", "0, 0", "100%", "1.00")
    assert rows[3] == (f"4. {RUBRIC[3].text}", "1, 1", "0, 1", "50%", "0.00")
    assert rows[4] == (f"5. {RUBRIC[4].text}", "1, 1", "1, 1", "100%", "")
    assert rows[12] == ("all questions", "", "", "96%", f"{(23 / 24 - 507 / 576) / (1 - 507 / 576):.2f}")
    assert disagreements(ITEMS, first, second)[1] == [("2", "b", "t2", f"4. {RUBRIC[3].text}", "no", "yes")]


def test_kappa() -> None:
    """The example of Cohen's statistic in textbooks: 20 and 15 agree of 50."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa(pairs) == pytest.approx(0.4)
    assert kappa([(True, True)]) is None
    assert kappa([(True, False)]) == 0


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([{1: "yes"}], "item 2 is missing"),
        ([{1: "yes"}, {2: "yes"}, {3: "no"}], "item 3 is not of this sheet"),
        ([{1: "yes"}, {1: "yes", 2: "no"}], "item 1 is there twice"),
        ([{1: "yes", 2: {1: "yes"}}], "item 2 has no question 2"),
        ([{1: "yes", 2: dict.fromkeys(range(14), "yes")}], "item 2 has an unknown question 0"),
        ([{1: "yes", 2: ""}], "line 1: 2.1: Input should be 'yes', 'no' or 'unclear'"),
    ],
)
def test_a_sheet_that_is_not_filled_is_refused(tmp_path, lines, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        read_answers(filled(tmp_path / "a", *lines), ITEMS)


def test_the_rubric_command(tmp_path) -> None:
    key, one = tmp_path / "key.jsonl", filled(tmp_path / "1", {1: "yes", 2: "no"})
    write_jsonl(key, ITEMS)
    done = CliRunner().invoke(rubric, [str(key), str(one), str(filled(tmp_path / "2", {1: "yes", 2: "yes"}))])
    assert done.exit_code == 0
    assert "50%" in done.stdout
    assert done.stdout.count("t2") == 12
    write_jsonl(key, [])
    done = CliRunner().invoke(rubric, [str(key), str(one), str(one)])
    assert (done.exit_code, "has no item" in done.stderr) == (2, True)
