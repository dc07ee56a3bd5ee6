"""The runs that notebooks read: a named one is only read, a folder without one is refused, a failure says why.

The recorded run of the language model is whole, small and of no machine. And given actions become a rollout that the
environment evaluated.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.bfcl_tasks import acted_out
from support.made_run import make_run, records, run_graph

import graph.walkthrough
from environments.base import InputError, MalformedCall, ObservationStatus, ToolCall
from environments.checkout import GRPO_ALONE, ROOT
from environments.example import depot
from graph.report.lineage import History
from graph.report.summary import summarise
from graph.settings import RunSettings, dotted, load_recipe
from graph.walkthrough import OVERRIDES, RECORDED, VARIABLE, answers_table, language_model_run, prepared_run
from memory.records import Task
from memory.run import RunDirectory, write_json

ENVIRONMENT = depot(4)  # its first start state has a closed gate
GATE = ToolCall(name="open_gate")
LIST = ToolCall(name="list_parcels")


def task(*reference: tuple[ToolCall, ...]) -> Task:
    start = ENVIRONMENT.starts()[0]
    return Task(
        id="task",
        origin="given",
        environment="depot",
        split="train",
        classes=start.classes,
        turns=tuple(f"turn {number}" for number in range(len(reference))),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=reference,
    )


def finished(root: Path) -> RunDirectory:
    run = make_run(root)
    run_graph(run)
    write_json(run.iteration(0).summary, summarise(run, load_recipe(run.settings_path), 0))
    return run


@pytest.mark.slow
def test_a_named_run_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path / "run")
    before = records(run.root)
    monkeypatch.setenv(VARIABLE, str(run.root))
    monkeypatch.setattr(graph.walkthrough, "_make", lambda root: pytest.fail(f"it makes {root}"))
    assert prepared_run().root == run.root
    assert records(run.root) == before


@pytest.mark.slow
def test_without_a_name_it_is_made_in_a_temporary_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(tmp_path / "run")
    at_exit: list[tuple[Any, ...]] = []
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(graph.walkthrough, "_make", lambda root: shutil.copytree(run.root, root))
    monkeypatch.setattr(graph.walkthrough.atexit, "register", lambda *words, **options: at_exit.append(words))
    root = prepared_run().root
    assert root.parent.parent == tmp_path
    ((remove, folder),) = at_exit
    remove(folder)
    assert not root.exists()
    assert run.root.exists()


def test_a_folder_without_a_finished_iteration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "note.txt").write_text("mine")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match=f"{VARIABLE}.*no finished iteration: remove it"):
        prepared_run()
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_the_settings_are_those_of_grpo_alone_but_for_sizes() -> None:
    settings = load_recipe(GRPO_ALONE, OVERRIDES)
    assert settings.training.expert is None
    assert settings.iterations == 2
    assert settings.evaluation.scored is None


@pytest.mark.process
def test_a_failure_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    monkeypatch.setattr(graph.walkthrough, "OVERRIDES", ("training.stepps=4",))
    with pytest.raises(RuntimeError, match=r"status 2.*training\.stepps"):
        prepared_run()


def test_the_reference_succeeds_and_anything_else_is_evaluated_too() -> None:
    one = task((GATE,), (LIST,))
    right = acted_out(one, (GATE,), (LIST,), environment=ENVIRONMENT)
    assert (right.success, right.reward) == (True, 1.0)
    babble = MalformedCall(text="open sesame", reason="no call")
    wrong = acted_out(one, (babble,), (LIST,), environment=ENVIRONMENT, sample=1)
    assert (wrong.success, wrong.reward) == (False, 0.0)
    assert wrong.turns[0].steps[0].observation.status is ObservationStatus.MALFORMED
    assert wrong.outcome is not None
    assert [turn.calls for turn in wrong.outcome.turns] == [0, 1]
    assert right.id != wrong.id


def test_turns_that_are_not_given_are_not_played() -> None:
    played = acted_out(task((GATE,), (LIST,)), (GATE,), environment=ENVIRONMENT)
    assert [turn.text for turn in played.turns] == ["turn 0"]
    assert not played.success


@pytest.fixture(scope="module")
def history() -> History:
    return History.read(language_model_run())


def test_the_archive_holds_records_alone() -> None:
    assert RECORDED.stat().st_size < 1_000_000
    with tarfile.open(RECORDED) as archive:
        for entry in archive.getmembers():
            assert entry.isfile()
            assert (entry.uid, entry.gid, entry.uname, entry.mtime) == (0, 0, "", 0)
            assert entry.name == "answers.jsonl" or entry.name.startswith("run/")
            assert entry.name.endswith((".json", ".jsonl", ".yaml"))
            held = archive.extractfile(entry)
            assert held is not None
            text = held.read()
            # BFCL's file systems have a folder /tmp, which an explorer may enter.
            folders = (b"/work/", b"/home/", b"/root/") + ((b"/tmp/",) if "interactions" not in entry.name else ())
            assert not any(path in text for path in folders)


def test_it_is_a_run_of_the_recipe_on_the_packaged_model(history: History) -> None:
    shipped, used = dotted(load_recipe(ROOT / "recipes" / "lm.yaml")), dotted(history.run.settings(RunSettings))
    changed = {key for key in shipped | used if shipped.get(key) != used.get(key)}
    assert "policy.path" not in changed
    assert not [key for key in changed if key.startswith(("tasks.", "roles."))]


def test_a_task_of_it_came_of_a_weakness(history: History) -> None:
    assert any(chain.signal is not None and chain.admitted for chain in history.chains.values())


def test_each_turn_was_answered_before_and_after(history: History) -> None:
    rows = answers_table(history).rows
    assert rows
    assert [row[0] for row in rows] == ["user", "reference", "before", "after"] * (len(rows) // 4)
    assert {row[2] for row in rows if row[0] in ("before", "after")} <= {"done", "failed"}
    assert all(row[1] for row in rows if row[0] in ("user", "reference"))
