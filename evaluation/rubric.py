"""`python -m evaluation.rubric`: agreement of two readers on tasks that each of them judged without their origin.

``write_sheet`` draws tasks of several files by hash and writes three files: ``SHEET`` to read, ``ANSWERS`` to copy and
fill, and ``KEY``, which a reader must not see, with the file and id of each item. The sheet shows what an agent reads,
the reference's calls and what they answer. Questions and sheet are ours.

``unclear`` counts as no. Cohen's kappa is the agreement beyond that of two readers who answer yes as often as these do,
by chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer
from pydantic import RootModel

from environments.base import Environment, InputError, Record, ToolCall, ToolSpec
from environments.command import OneSentence, exit_statuses, print_table, printable
from environments.task_text import tools_of
from environments.verification.canonical import fingerprint
from evaluation.similarity import Table
from evaluation.task_figures import Examined
from memory.files import write_atomically
from memory.jsonl import derive_seed, read_jsonl
from memory.processes import run_to_end
from memory.run import write_jsonl


class RubricQuestion(NamedTuple):
    """A question of the rubric, with a task of which it is true and one of which it is not."""

    text: str
    yes: str
    no: str


RUBRIC = (
    RubricQuestion("A purpose is visible.", '"Am I covered for rent on Friday?"', '"Get balance, list cards."'),
    RubricQuestion("Its parts belong together.", "find Ana's invoice, pay it", "pay an invoice, unlock the car"),
    RubricQuestion("The speaker would know each value.", '"my Oslo trip"', '"booking 8f3c-22"'),
    RubricQuestion("The values suit their meaning.", "refund 40 of 55", 'the stock symbol "Tuesday"'),
    RubricQuestion(
        "The words ask exactly what the calls do.", '"cancel lunch": cancels it', '"cancel lunch": reads it'
    ),
    RubricQuestion("Nothing that is needed is missing.", '"move it to Tuesday at ten"', '"move it" (three candidates)'),
    RubricQuestion("No steps are dictated.", '"reorder the cheapest filter"', '"search, sort, then call order"'),
    RubricQuestion("No tool names, schema or brackets.", '"leave a note for Raj"', '"send_message [receiver_id]"'),
    RubricQuestion("The writing is natural.", '"could you bump that ticket up?"', "\"Set priority '4' of '12'.\""),
    RubricQuestion("It is not trivial.", '"who booked the late slot?"', '"what is Ana\'s name?"'),
    RubricQuestion("Order and state make sense.", "reopen a closed ticket", "delete a file, then read it"),
    RubricQuestion("Two readers expect one outcome.", '"archive March\'s reports"', '"tidy up a bit"'),
)
"""The questions of the rubric, from 1."""

SHEET, ANSWERS, KEY = "sheet.md", "answers.jsonl", "key.jsonl"

EARLIER, ANSWER, DESCRIPTION = 160, 300, 200
"""Characters of an earlier turn, of a call's answer and of a description that a sheet shows."""

Reply = Literal["yes", "no", "unclear"]


class SheetItem(Record):
    """A line of the key: an item of the sheet, from 1, the file of its task, and the task's id."""

    item: int
    origin: str
    task: str


class _Filled(RootModel[dict[int, dict[int, Reply]]]):
    """A line of a filled sheet: the answers to the questions of one item or of several."""


class _Drawn(NamedTuple):
    origin: str
    examined: Examined


def write_sheet(
    folder: Path, environment: Environment, sets: Sequence[tuple[str, Sequence[Examined]]], items: int, seed: int
) -> int:
    """Write a sheet of ``items`` tasks, equally many of each set, into ``folder``, and return their number.

    A set with too few tasks gives all of them. Equal arguments give equal files. Raises InputError for a tool that the
    environment does not have.
    """
    chosen = draw(sets, items, seed)
    lines = [*_head(len(chosen))]
    for number, one in enumerate(chosen, start=1):
        lines += ["", f"## Item {number}", "", *(f"    {line}" for line in shown(environment, one.examined))]
    write_atomically(folder / SHEET, [f"{line}\n".encode(errors="replace") for line in lines])
    blank = dict.fromkeys(range(1, len(RUBRIC) + 1), "")
    write_atomically(
        folder / ANSWERS, [f"{json.dumps({number: blank})}\n".encode() for number in range(1, len(chosen) + 1)]
    )
    key = [
        SheetItem(item=number, origin=one.origin, task=one.examined.task.id)
        for number, one in enumerate(chosen, start=1)
    ]
    write_jsonl(folder / KEY, key)
    return len(chosen)


def draw(sets: Sequence[tuple[str, Sequence[Examined]]], items: int, seed: int) -> list[_Drawn]:
    """Return the tasks of a sheet in its order: equally many of each set, the first sets one more, all by hash."""
    chosen: list[_Drawn] = []
    for place, (origin, tasks) in enumerate(sets):
        size = items // len(sets) + (place < items % len(sets))
        ordered = sorted(tasks, key=lambda one: _hash(seed, "draw", one))
        chosen += [_Drawn(origin, one) for one in ordered[:size]]
    return sorted(chosen, key=lambda one: _hash(seed, "order", one.examined))


def _hash(seed: int, purpose: str, one: Examined) -> int:
    return derive_seed(seed, purpose, fingerprint(one.task), one.task.turns)


def _head(items: int) -> Iterator[str]:
    yield f"# {items} tasks"
    yield ""
    yield (
        "Each item has the documentation of the functions that are called, what was said before, what the user says, "
        "and the calls that solve the task with their answers. Long texts are cut. For each item answer every question "
        f"with yes, no or unclear, in a copy of {ANSWERS}."
    )
    yield ""
    for number, question in enumerate(RUBRIC, start=1):
        yield f"{number}. {question.text} Yes: {question.yes}. No: {question.no}."


def shown(environment: Environment, one: Examined) -> Iterator[str]:
    """Yield the lines of one task on a sheet, without its origin. Raises InputError for an unknown tool."""
    task, tools = one.task, tools_of(environment, one.task)
    for name in dict.fromkeys(call.name for turn in task.reference[task.played :] for call in turn):
        yield from _documentation(tools[name])
    for text, turn in zip(task.turns[: task.played], one.turns, strict=False):
        yield f"Before: {_cut(text, EARLIER)}"
        for call, observation in zip(turn.calls, turn.observations, strict=True):
            yield f"  {_cut(_call(call), EARLIER)} -> {_cut(observation.text, EARLIER)}"
    for text, turn in zip(one.words, one.turns[task.played :], strict=True):
        yield f"User: {_cut(text)}"
        for call, observation in zip(turn.calls, turn.observations, strict=True):
            yield f"  {_cut(_call(call))}"
            yield f"    -> {_cut(observation.text, ANSWER)}"


def _documentation(tool: ToolSpec) -> Iterator[str]:
    yield f"Tool {tool.name}: {_cut(tool.description, DESCRIPTION)}"
    for parameter in tool.parameters:
        optional = "" if parameter.required else ", optional"
        yield f"  {parameter.name} ({parameter.type}{optional}): {_cut(parameter.description, DESCRIPTION)}"


def _call(call: ToolCall) -> str:
    said = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({said})"


def _cut(text: str, characters: int | None = None) -> str:
    """Return ``text`` as one line, so that a text cannot imitate another part of the sheet, and its beginning alone."""
    line = " ".join(printable(text).split())
    return line if characters is None or len(line) <= characters else f"{line[:characters]} ..."


Answers = Mapping[int, Mapping[int, Reply]]
"""The replies of one reader, by item and question."""


def read_answers(path: Path, key: Sequence[SheetItem]) -> Answers:
    """Return a filled sheet. Raises InputError for an item or question that is missing, unknown or there twice."""
    found: dict[int, dict[int, Reply]] = {}
    for line in read_jsonl(path, _Filled):
        for item, replies in line.root.items():
            if item in found:
                raise InputError(f"{path}: item {item} is there twice: leave one")
            found[item] = replies
    expected = {one.item for one in key}
    if found.keys() != expected:
        wrong = min(found.keys() ^ expected)
        raise InputError(f"{path}: item {wrong} is {'not of this sheet' if wrong in found else 'missing'}")
    questions = set(range(1, len(RUBRIC) + 1))
    for item, replies in found.items():
        if replies.keys() != questions:
            wrong = min(replies.keys() ^ questions)
            raise InputError(f"{path}: item {item} has {'an unknown' if wrong in replies else 'no'} question {wrong}")
    return found


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Return Cohen's kappa of two readers' yes and no; None where each of them gave one answer alone, the same."""
    if not pairs:
        return None
    first, second = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
    chance = first * second + (1 - first) * (1 - second)
    return None if chance == 1 else (_agreement(pairs) - chance) / (1 - chance)


def _agreement(pairs: Sequence[tuple[bool, bool]]) -> float:
    return sum(one is other for one, other in pairs) / len(pairs)


def _pairs(key: Sequence[SheetItem], first: Answers, second: Answers, question: int) -> list[tuple[bool, bool]]:
    return [(first[one.item][question] == "yes", second[one.item][question] == "yes") for one in key]


def agreement_of(key: Sequence[SheetItem], first: Answers, second: Answers) -> Table:
    """Return a row for each question: how many tasks of each origin have a yes of either reader, and how they agree."""
    origins = list(dict.fromkeys(sorted(one.origin for one in key)))
    of = {origin: [one for one in key if one.origin == origin] for origin in origins}
    rows: list[tuple[str, ...]] = []
    every: list[tuple[bool, bool]] = []
    for number, question in enumerate(RUBRIC, start=1):
        pairs = _pairs(key, first, second, number)
        every += pairs
        cells = [_pairs(of[origin], first, second, number) for origin in origins]
        counts = (f"{sum(one for one, _ in cell)}, {sum(other for _, other in cell)}" for cell in cells)
        rows.append((f"{number}. {question.text}", *counts, *_agree(pairs)))
    rows.append(("all questions", *("" for _ in origins), *_agree(every)))
    return ("", *(f"{origin}: yes, of {len(of[origin])}" for origin in origins), "agree", "kappa"), rows


def _agree(pairs: Sequence[tuple[bool, bool]]) -> tuple[str, str]:
    value = kappa(pairs)
    return f"{_agreement(pairs):.0%}", "" if value is None else f"{value:.2f}"


def disagreements(key: Sequence[SheetItem], first: Answers, second: Answers) -> Table:
    """Return a row for each item and question that one reader alone answered with yes."""
    rows: list[tuple[str, ...]] = [
        (str(one.item), one.origin, one.task, f"{number}. {RUBRIC[number - 1].text}", a, b)
        for one in key
        for number in range(1, len(RUBRIC) + 1)
        if ((a := first[one.item][number]) == "yes") != ((b := second[one.item][number]) == "yes")
    ]
    return ("item", "origin", "task", "question", "first", "second"), rows


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    key: Annotated[Path, typer.Argument(help=f"{KEY} of the sheet")],
    first: Annotated[Path, typer.Argument(help=f"one reader's copy of {ANSWERS}, filled")],
    second: Annotated[Path, typer.Argument(help="another reader's")],
) -> None:
    """Compare two readers of a sheet of tasks (python -m evaluation.task_quality --sheet).

    Prints, for each question, the tasks of each origin that have a yes of the first and of the second reader, their
    agreement and Cohen's kappa, and then each answer that differs. Unclear counts as no.

    Exit status: 0, or 2 with one sentence for a file that is not filled.
    """
    with exit_statuses():
        items = read_jsonl(key, SheetItem)
        if not items:
            raise InputError(f"{key} has no item: name the {KEY} of a sheet")
        one, other = (read_answers(path, items) for path in (first, second))
        print_table("yes of the first and of the second reader", *agreement_of(items, one, other))
        print_table("answers that differ", *disagreements(items, one, other))


if __name__ == "__main__":
    run_to_end(app)
