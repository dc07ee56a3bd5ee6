"""The progress display where there is no terminal."""

import pytest

from graph import progress as module
from graph.progress import Progress


def test_plain_lines_go_to_stderr_with_steps_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.0)
    with Progress() as progress, progress.stage("training", 4) as stage:
        stage.update(1, note="success 0.50")
        progress.say("a word")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "training ..."
    assert lines[1].startswith("training: 1 of 4, ")
    assert lines[1].endswith("s left success 0.50")
    assert lines[2] == "a word"
    assert lines[3].startswith("training: done in ")


def test_plain_lines_are_not_more_often_than_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress, progress.stage("training", 100) as stage:
        for step in range(100):
            stage.update(step)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_stage_that_fails_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress, pytest.raises(RuntimeError), progress.stage("training"):
        raise RuntimeError("no")
    assert "done" not in capsys.readouterr().err
