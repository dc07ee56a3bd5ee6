"""People's requests joined, exchanged and parted: by table, and on the benchmark's own training conversations."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.bfcl_tasks import ENVIRONMENT, FILES, task_of
from typer.testing import CliRunner

from agents.recombination import MOST_CALLS, Turn, exchanged, joined, parted, recombined
from environments.base import ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import load_category
from environments.verification.replay import replay
from graph.recombine_tasks import app
from memory.records import Task
from memory.run import read_jsonl


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


MAKE, LOOK = call("mkdir", dir_name="box"), call("cat", file_name="notes.md")
ONE, OTHER = Turn("Please make a folder 'box'.", (MAKE,)), Turn("Show me notes.md!", (LOOK,))


def test_two_requests_are_joined_in_their_order() -> None:
    assert joined([ONE, OTHER]) == [Turn("Please make a folder 'box'. Show me notes.md!", (MAKE, LOOK))]
    assert joined([ONE]) is None
    assert joined([ONE, Turn("Thanks.", ())]) is None
    assert joined([Turn("All.", (MAKE,) * MOST_CALLS), OTHER]) is None


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("Show me notes.md!", True),
        ("Then show me notes.md!", False),
        ("Show me notes.md again.", False),
        ("Show me notes.md in that folder.", False),
        ("Show me its notes.md.", False),
        ("Show me the notes.", False),  # a value is left to the first
        ("Now that this is done, show me notes.md!", False),
    ],
)
def test_a_request_goes_first_that_refers_to_nothing(words: str, fits: bool) -> None:
    assert exchanged([ONE, Turn(words, (LOOK,))]) == ([Turn(words, (LOOK,)), ONE] if fits else None)


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        ("Make a folder 'box'. Show me notes.md!", True),
        ("Make a folder 'box'. I wait for it. Show me notes.md!", True),
        ("Make a folder 'box' and show me notes.md.", False),  # one sentence
        ("Show me notes.md. Make a folder 'box'.", False),  # not in the order of the calls
        ("Make a folder 'box' beside notes.md. Show me notes.md!", False),  # the first part asks for both
        ("Make a folder 'box'. Show me the notes.", False),
        ("Make a folder and look into it. Its name is box, notes.md is read.", False),
    ],
)
def test_a_turn_is_parted_where_its_sentences_are(words: str, fits: bool) -> None:
    made = parted([Turn(words, (MAKE, LOOK)), ONE])
    assert (made is not None) is fits
    if made is not None:
        assert [one.calls for one in made] == [(MAKE,), (LOOK,), (MAKE,)]
        assert " ".join(one.words for one in made[:2]) == words


def test_an_exchange_that_changes_an_answer_is_left_out() -> None:
    one = task_of(
        (MAKE,), (call("find", name="box"),), turns=("Make a box.", "Find every box."), tools=("mkdir", "find")
    )
    assert exchanged([Turn(*pair) for pair in zip(one.turns, one.reference, strict=True)]) is not None
    made = [recombined(one, ENVIRONMENT, random.Random(seed)) for seed in range(30)]
    assert {two.turns for two in made if two is not None} == {("Make a box. Find every box.",)}


@pytest.mark.slow
def test_the_benchmarks_own_conversations_stay_what_they_were() -> None:
    specs = [one.spec for one in load_category("base", ("train",))]
    environment = BFCLEnvironment(tuple(sorted({name for spec in specs for name in spec.classes})))
    changed = 0
    for spec in specs:
        made = recombined(spec, environment, random.Random(spec.turns[0]))
        assert made == recombined(spec, environment, random.Random(spec.turns[0]))
        if made is None:
            continue
        changed += 1
        before, after = replay(environment, spec), replay(environment, made)
        assert after.outcome.success
        assert after.end_states()[-1] == before.end_states()[-1]
        assert sorted(" ".join(made.turns).split()) == sorted(" ".join(spec.turns).split()), "people's words, all"
    assert changed > len(specs) / 2


def run(*given: str):
    return CliRunner().invoke(app, list(given))


@pytest.mark.slow
def test_the_command_writes_training_tasks_once(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"environment: {{name: bfcl, options: {{classes: [{FILES}], categories: [base]}}}}\n")
    output = tmp_path / "made.jsonl"
    result = run("--recipe", str(recipe), "--output", str(output), "--variants", "3", "--turns")
    assert result.exit_code == 0, result.output
    tasks = read_jsonl(output, Task)
    assert {(one.origin, one.split, len(one.parents)) for one in tasks} == {("given", "train", 1)}
    assert {one.played for one in tasks} >= {0}
    assert all(one.played == len(one.turns) - 1 for one in tasks)
    assert len({one.id for one in tasks}) == len(tasks) == len({(one.turns, str(one.reference)) for one in tasks})
    again = run("--recipe", str(recipe), "--output", str(output))
    assert again.exit_code == 2
    assert read_jsonl(output, Task) == tasks


def test_an_environment_without_tasks_of_its_own_is_refused(tmp_path: Path) -> None:
    result = run("--recipe", "recipes/own-environment.yaml", "--output", str(tmp_path / "made.jsonl"))
    assert result.exit_code == 2
    assert "has no official tasks to recombine: choose another benchmark" in result.output
    assert not (tmp_path / "made.jsonl").exists()
