"""What a run says at its end: places, one task from weakness to effect, words and commands."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from environments.trust import TRUST_VARIABLE
from environments.verification.verify import Refusal
from evaluation.outcomes import Score, ScoreChange
from evaluation.settings import ScoringSettings
from graph.command import COMMANDS
from graph.report.closing import _coevolve, closing, gaps
from graph.report.digest import REASONS, call_words
from graph.report.lineage import History
from graph.report.stories import first_story
from graph.report.summary import Summary, summarise
from graph.report.tables import iterations_table
from graph.run.stages import scoring_settings
from graph.settings import load_recipe
from memory.records import SignalKind, Trajectory
from memory.run import RunDirectory, read_jsonl, write_json, write_jsonl
from memory.tasks import load_tasks


@pytest.fixture(scope="module")
def evolved(evolved: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Summary]:
    """A run with an iteration, and a second one in which every task was rolled out again, three of four with success.

    The second one has no summary, as where it goes on.
    """
    run = RunDirectory(tmp_path_factory.mktemp("evolved") / "a run")
    shutil.copytree(evolved.root, run.root)
    played = read_jsonl(run.iteration(0).trajectories, Trajectory)
    solved, failed = (next(one for one in played if one.success is result) for result in (True, False))
    rollouts = [
        (solved if sample else failed).model_copy(
            update={"id": f"again-{task.id}-{sample}", "task_id": task.id, "iteration": 1, "step": 4, "sample": sample}
        )
        for task in load_tasks(run)
        for sample in range(4)
    ]
    write_jsonl(run.iteration(1).trajectories, rollouts)
    write_jsonl(run.iteration(1).signals, [])
    write_jsonl(run.iteration(1).contexts, [])
    run.iteration(1).round.write_bytes(run.iteration(0).round.read_bytes())
    return run, summarise(run, load_recipe(run.settings_path), 0)


@pytest.fixture
def scored(evolved: tuple[RunDirectory, Summary]) -> Summary:
    """The summary with long figures: thousands of tasks, a score."""
    score = Score(
        group="templated-dev",
        n=102,
        successes=101,
        metrics={"success": 0.999, "goals": 0.5},
        interval=(0.0, 1.0),
        clusters=9,
        infrastructure_errors=0,
    )
    _, summary = evolved
    return summary.model_copy(
        update={
            "tasks": 12345,
            "admitted": 1234,
            "refused": {"duplicate": 2222},
            "signals": dict.fromkeys(SignalKind, 999),
            "evaluation": ScoreChange(before=score, after=score),
        }
    )


def told(run: RunDirectory, summaries: Sequence[Summary], before: int = 0, overrides: Sequence[str] = ()) -> str:
    return closing(run, load_recipe(run.settings_path, list(overrides)), summaries, before)


def test_each_iteration_is_one_line_of_a_terminal(scored: Summary) -> None:
    summaries = [scored.model_copy(update={"iteration": number}) for number in range(11)]
    head, *lines = repr(iterations_table(summaries)).splitlines()
    assert " ".join(head.split()) == "iteration tasks admitted success % (95 %) signals f/b/r seconds"
    assert [line.split()[0] for line in lines] == [str(number) for number in range(11)]
    assert max(map(len, (head, *lines))) <= 80
    assert " ".join(lines[3].split()[1:-1]) == "12345 1234 of 3456 99.9 -> 99.9 (0-100) 999/999/999"


def test_the_words_of_the_table_are_printed_once_and_fit(
    evolved: tuple[RunDirectory, Summary], scored: Summary
) -> None:
    run, plain = evolved
    summaries = [plain, plain.model_copy(update={"iteration": 1})]
    text = told(run, summaries)
    for once in ("Words of the table", "forgetting: a", "rare: a", "scripted roles", "admitted  "):
        assert text.count(once) == 1
    assert max(len(line) for line in text.splitlines() if str(run.root) not in line and "coevolve" not in line) <= 80
    scores = " ".join(told(run, [scored, scored]).split())
    assert "on 102 tasks held out of it (templated-dev)" in scores
    assert "goals 0.5 at the end" in scores
    assert "refused: 4444 duplicate" in scores


def test_a_second_command_does_not_print_everything_again(evolved: tuple[RunDirectory, Summary]) -> None:
    run, summary = evolved
    summaries = [summary.model_copy(update={"iteration": number}) for number in range(2)]
    again = told(run, summaries, before=2)
    assert "Nothing is left to do" in again
    assert [line[:9].strip() for line in again.splitlines()[:4]] == ["iteration", "1", "", "Nothing i"]
    assert "Words of the table" not in again
    assert "From weakness to effect" not in again
    assert "Next" in again
    resumed = told(run, summaries, before=1)
    assert [line[:1] for line in resumed.splitlines()[1:3]] == ["0", "1"], "the last line of before, and the new one"
    assert "Words of the table" in resumed


def test_the_end_follows_a_weakness_to_its_effect_and_names_places_and_commands(
    evolved: tuple[RunDirectory, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary = evolved
    monkeypatch.setattr("graph.report.closing._coevolve", lambda: "coevolve")
    text = told(run, [summary, summary.model_copy(update={"iteration": 1})])
    words = " ".join(text.split())
    for part in (f"policy {run.root}/policy/none", str(run.tasks_path), "(5 at the start,", "Words of the table"):
        assert part in words
    story = first_story(History.read(run))
    assert story is not None
    assert story.mistake is not None
    weak = story.chain.weak
    assert weak is not None
    assert f"expected {call_words(story.mistake.expected)}" in words
    assert f"new task {story.task.id} task {weak.id} {weak.turns[0]}" in words
    assert "wrong > " in words
    before, _ = History.read(run).course(weak.id)[0]
    assert f"parent {weak.id}: {before:.0%} of " in words
    assert words.count("75% of 4") == 2, "of the old task and of the new one"
    commands = text[text.index("Next") :].splitlines()
    assert f"  coevolve evaluate --tasks '{run.tasks_path}' --model '{run.root}/policy/none'" in commands
    assert any(one.startswith(f"  coevolve evolve --run '{run.root}' --iterations 5 --resume ") for one in commands)
    assert any(one.startswith(f"  coevolve show {story.task.id} --run '{run.root}' ") for one in commands)
    assert "lookup" not in text, "no task is held out, and of the training tasks a lookup knows everything"
    server = ["environment={name: mcp, options: {command: [cat]}}"]
    trusted = told(run, [summary], overrides=server)
    entry = load_recipe(run.settings_path, server).environment.program.entry
    for name in ("evolve", "evaluate", "studio"):
        assert f"\n  {TRUST_VARIABLE}={entry} coevolve {name} " in trusted
    panel = told(run, [summary], overrides=["evaluation.set=templated-dev"])
    assert "coevolve evaluate --evaluation-set templated-dev --model lookup --train" in panel


def test_without_a_second_iteration_the_end_says_that_no_task_can_be_followed(
    evolved: tuple[RunDirectory, Summary], tmp_path: Path
) -> None:
    run, summary = evolved
    alone = RunDirectory(shutil.copytree(run.root, tmp_path / "alone"))
    shutil.rmtree(alone.iteration(1).root)
    assert "No task can be followed yet" in told(alone, [summary])


def test_many_tools_without_a_task_are_cut_at_a_few_names(evolved: tuple[RunDirectory, Summary]) -> None:
    history = History.read(evolved[0])
    many = tuple(f"tool_{number}" for number in range(400))
    history.tasks = {
        name: task.model_copy(update={"tools": (*task.tools, *many)}) for name, task in history.tasks.items()
    }
    text = " ".join(" ".join(gaps(history)).split())
    more = re.search(r"^No task calls (\d+) of the \d+ tools: .* and (\d+) more \(coevolve show TOOL", text)
    assert more is not None
    assert int(more[1]) - 6 == int(more[2]) >= 394
    assert len(text) < 800
    assert "tool_399" not in text


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
        assert len(lines) == 5 + (settings.evaluation.set is not None)
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


def test_a_policy_is_scored_again_under_the_limits_of_its_run(
    evolved: tuple[RunDirectory, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary = evolved
    scored = RunDirectory(shutil.copytree(run.root, tmp_path / "scored"))
    stated = scoring_settings(load_recipe(run.settings_path, ["evaluation.set=templated-dev", "evaluation.limit=7"]))
    write_json(scored.iteration(summary.iteration).evaluation_settings, stated)
    monkeypatch.setattr("graph.report.closing._coevolve", lambda: "coevolve")
    commands = [line.strip() for line in told(scored, [summary]).splitlines()]
    (again,) = (line for line in commands if line.startswith("coevolve evaluate"))
    read: list[ScoringSettings] = []
    monkeypatch.setattr("evaluation.run._evaluate", lambda settings, destination: read.append(settings))
    monkeypatch.setattr("memory.processes.watch_parent", lambda: None)
    _, name, *arguments = shlex.split(again, comments=True)
    command = typer.main.get_command(importlib.import_module(COMMANDS[name][0]).app)
    command.main(arguments, standalone_mode=False)
    assert read == [stated.model_copy(update={"model": f"{scored.root}/policy/none"})]


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


def test_every_reason_has_its_words() -> None:
    assert list(REASONS) == [str(reason) for reason in Refusal], "in the order in which they are checked"


def test_no_iteration_says_nothing(evolved: tuple[RunDirectory, Summary]) -> None:
    assert closing(evolved[0], load_recipe(evolved[0].settings_path), []) == ""
