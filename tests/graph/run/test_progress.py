"""The progress display: lines on stderr."""

import re

import pytest

from environments import command as module
from environments.command import say, show_stage
from graph.run.stages import _reporter
from training.grpo.record import RoundProgress


def test_plain_lines_go_to_stderr_with_steps_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    with show_stage("training", 4) as stage:
        stage.update(1, note="success 0.50")
        stage.update(2, note="success 0.60")
        stage.update(3)
        say("a word")
        stage.result = "60.0% of 4 tasks solved"
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "training ..."
    assert lines[1] == "training: 1 of 4, success 0.50", "what came before the first part says nothing of the pace"
    assert re.fullmatch(r"training: 2 of 4, \d+ s left, success 0\.60", lines[2])
    assert re.fullmatch(r"training: 3 of 4, \d+ s left", lines[3])
    assert lines[4] == "a word"
    assert re.fullmatch(r"training: done in \d+\.\d s, 60\.0% of 4 tasks solved", lines[5])


def test_the_time_left_is_that_of_the_parts_and_not_of_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    seconds = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: seconds[0])
    stage = module.Stage("training", 20)
    for done, at in ((1, 100.0), (2, 102.0)):
        seconds[0] = at
        stage.update(done)
    assert capsys.readouterr().err.splitlines()[-1] == "training: 2 of 20, 36 s left"


def test_training_tells_its_mean_so_far(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    report = _reporter(module.Stage("training", 4))
    for step, success in ((1, 0.2), (2, 0.5)):
        report(RoundProgress(step=step, of=4, success=success, reward=success).model_dump_json())
    assert capsys.readouterr().err.splitlines()[-1].endswith("success 0.50, mean 0.35")


def test_plain_lines_are_not_more_often_than_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with show_stage("training", 100) as stage:
        for step in range(100):
            stage.update(step)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_stage_that_fails_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), show_stage("training"):
        raise RuntimeError("no")
    assert "done" not in capsys.readouterr().err
