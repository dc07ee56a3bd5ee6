"""What a run says at its end: places, one task from weakness to effect, words and commands."""

from __future__ import annotations

import importlib
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from environments.verification.verify import Refusal
from evaluation.settings import ScoringSettings
from graph.command import COMMANDS
from graph.recipe import load_recipe
from graph.report.closing import WORDS, _coevolve, closing, find_story
from graph.report.digest import REASONS, kind_words
from graph.report.summary import COLUMNS, Summary, summarise
from memory.records import PAPER_KINDS, SignalKind
from memory.run import RunDirectory, write_jsonl
from memory.tasks import load_tasks
from training.signal_settings import SignalSettings
from training.signals import GroupScore


@pytest.fixture(scope="module")
def evolved(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Summary]:
    """A run with an iteration, and the scores of a second one in which every task was rolled out again."""
    run = RunDirectory(tmp_path_factory.mktemp("evolved") / "a run")
    shutil.copytree(evolved.root, run.root)
    scores = [GroupScore(task_id=task.id, step=4, mean=0.75, n=4) for task in load_tasks(run)]
    write_jsonl(run.iteration(1) / "scores.jsonl", scores)
    for name in ("signals", "contexts"):
        write_jsonl(run.iteration(1) / f"{name}.jsonl", [])
    return run, summarise(run, load_recipe(run.settings_path), 0)


def told(run: RunDirectory, summary: Summary, *overrides: str) -> str:
    return closing(run, load_recipe(run.settings_path, list(overrides)), [summary])


@pytest.mark.slow
def test_a_weakness_is_followed_to_the_task_and_its_effect(evolved: tuple[RunDirectory, Summary]) -> None:
    run, _ = evolved
    story = find_story(run, 2)
    assert story is not None
    assert story.admitted.parents[1:] == (story.context.id, story.signal.id, story.signal.trajectory_id, story.weak.id)
    assert story.signal.kind is not SignalKind.RARE, "where a score changes comes first"
    assert story.weak_scores[1] == story.admitted_scores[1] == 0.75
    assert 0.0 <= story.weak_scores[0] < 1.0
    assert find_story(run, 1) is None, "nothing was rolled out after it was admitted"


def test_the_end_names_places_words_and_commands(
    evolved: tuple[RunDirectory, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary = evolved
    monkeypatch.setattr("graph.report.closing._coevolve", lambda: "coevolve")
    text = told(run, summary)
    for part in (f"  policy     {run.root}/policy/none", str(run.tasks_path), "(5 at the start,", "Words of the table"):
        assert part in text
    assert "From weakness to effect" not in text, "the run has one iteration: there is no effect yet"
    assert "  boundary " in text
    assert "  unsolved " not in text, "the run does not look for it"
    second = summary.model_copy(update={"iteration": 1})
    write = run.iteration(1) / "round.json"
    write.write_bytes((run.iteration(0) / "round.json").read_bytes())
    text = closing(run, load_recipe(run.settings_path), [summary, second])
    assert "From weakness to effect" in text
    assert "old task: " in text
    assert "75% (1)" in text
    commands = text[text.index("Next") :].splitlines()
    assert f"  coevolve evaluate --tasks '{run.tasks_path}' --model '{run.root}/policy/none'" in commands
    assert any(one.startswith(f"  coevolve evolve --run '{run.root}' --iterations 5 --resume ") for one in commands)
    story = find_story(run, 2)
    assert story is not None
    assert any(one.startswith(f"  coevolve show {story.admitted.id} --run '{run.root}' ") for one in commands)
    assert "lookup" not in text, "no task is held out, and of the training tasks a lookup knows everything"
    panel = told(run, summary, "evaluation.set=templated-dev")
    assert "coevolve evaluate --evaluation-set templated-dev --model lookup --train" in panel


def test_the_commands_can_be_copied(
    evolved: tuple[RunDirectory, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary = evolved
    read: list[ScoringSettings] = []
    monkeypatch.setattr("evaluation.run._evaluate", lambda settings, destination: read.append(settings))
    monkeypatch.setattr("graph.report.closing._coevolve", lambda: "coevolve")
    monkeypatch.setattr("memory.processes.watch_parent", lambda: None)
    own = ["environment.name=environments.example:depot", "environment.options.starts=7", "evaluation.set=null"]
    for overrides in ([], ["evaluation.set=templated-dev"], own):
        settings = load_recipe(run.settings_path, overrides)
        text = closing(run, settings, [summary])
        lines = [shlex.split(line, comments=True) for line in text[text.index("Next\n") :].splitlines()[1:-1]]
        assert len(lines) == 4 + (settings.evaluation.set is not None)
        for program, name, *arguments in lines:
            assert program == "coevolve"
            command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
            if name == "evaluate":
                command.main(arguments, standalone_mode=False)
                found = read.pop()
                assert found.options == settings.environment.for_evaluation
                assert found.environment == settings.environment.name
                continue
            given = command.make_context(name, arguments).params
            assert given["run"] == run.root
            assert given.get("resume", True)
    assert settings.environment.for_evaluation["starts"] == 7


def test_commands_are_those_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", str(tmp_path / "an env" / "bin" / "python"))
    assert _coevolve() == "python -m graph.command"
    (tmp_path / "an env" / "bin").mkdir(parents=True)
    (tmp_path / "an env" / "bin" / "coevolve").touch()
    assert _coevolve() == "'an env/bin/coevolve'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert _coevolve() == "coevolve"


def test_every_column_and_every_reason_has_its_words() -> None:
    assert list(REASONS) == [str(reason) for reason in Refusal], "in the order in which they are checked"
    words = WORDS | kind_words(SignalSettings())
    legend = " ".join(f"{word} {meaning}" for word, meaning in words.items())
    assert all(word in legend for word in (*COLUMNS[1:3], *PAPER_KINDS, *COLUMNS[5:]))


def test_no_iteration_says_nothing(evolved: tuple[RunDirectory, Summary]) -> None:
    assert closing(evolved[0], load_recipe(evolved[0].settings_path), []) == ""
