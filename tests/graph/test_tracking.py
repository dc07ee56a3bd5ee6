"""What trackers are sent of a run, how often, and what their failures do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.made_run import STEPS, begun_run, finish_iteration, make_round

from environments.base import InputError
from graph import tracking
from graph.run_iteration import open_run
from graph.settings import RunSettings, load_recipe
from graph.tracking import TrackedRun, Tracker, follow_run
from memory.run import RunDirectory, write_jsonl
from training.seal.diagnosis import FailureProfile
from training.seal.seal import SealState, SealStep


class Kept:
    """A tracker that keeps what it is sent, over several processes as a package's database would."""

    def __init__(self, fault: Callable[[int], object] = lambda step: None) -> None:
        self.fault = fault
        self.opened: list[TrackedRun] = []
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def open(self, run: TrackedRun) -> Tracker:
        self.opened.append(run)
        return Tracker("in memory", self.log, self.close)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.fault(step)
        self.numbers.append((step, dict(values)))

    def close(self) -> None:
        self.closed += 1

    def steps(self, name: str = "rollouts/success") -> list[int]:
        return [step for step, values in self.numbers if name in values]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return begun_run(tmp_path / "run")


def send(run: RunDirectory, iteration: int = 0, times: int = 1, **kept: Kept) -> list[str]:
    """What a command does: open, send an iteration, close. Returns what it says."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "open_tracker", lambda name, tracked: kept[name].open(tracked))
        settings = settings_of(run, f"training.report_to=[{', '.join(kept)}]")
        with follow_run(run, settings, said.append) as send:
            for _ in range(times):
                send(iteration)
    return said


def test_iterations_of_several_commands_are_one_run_of_the_tracker(run: RunDirectory) -> None:
    kept = Kept()
    for iteration in (0, 1):
        make_round(run, iteration)
        finish_iteration(run, iteration)
        assert send(run, iteration, trackio=kept) == ["trackio: in memory"]
    assert kept.steps() == [1, 2, 3, 4, 5, 6]
    assert kept.steps("admitted") == [STEPS, 2 * STEPS]
    assert kept.steps("evaluation/success") == [0, STEPS, 2 * STEPS]
    assert len({one.id for one in kept.opened}) == 1
    assert kept.closed == 2


def test_the_numbers_are_those_of_the_records(run: RunDirectory) -> None:
    kept = Kept()
    make_round(run, 0)
    state = SealState.model_validate({"rho": {"updates": 1, "rho": {"state_mismatch": 0.25}}})
    finish_iteration(run, 0)
    write_jsonl(run.iteration(0).seal, [SealStep(step=n, profile=FailureProfile(), state=state) for n in (1, 2, 3)])
    send(run, trackio=kept)
    by_step = {step: values for step, values in kept.numbers if "train/loss" in values}
    assert by_step[2]["train/loss"] == 2.0
    assert by_step[2]["train/step_time"] == 0.5
    assert "train/epoch" not in by_step[2]
    assert (by_step[1]["rollouts/mixed_groups"], by_step[2]["rollouts/mixed_groups"]) == (0.0, 1.0)
    assert by_step[1]["rollouts/success"] == 1.0
    assert by_step[1]["seal/state/rho/rho/state_mismatch"] == 0.25
    (of_iteration,) = (values for _, values in kept.numbers if "admitted" in values)
    expected = {
        "admitted": 2.0,
        "refused/duplicate": 1.0,
        "signals/forgetting": 3.0,
        "signals/boundary": 4.0,
        "marked": 6.0,
        "contexts/known": 1.0,
        "evaluation/success": 0.35,
        "evaluation/low": 0.22,
        "seconds/train": 12.0,
        "cost/sampled_tokens": 7.0,
        "round/measured/rollouts": 2.0,
    }
    assert {name: of_iteration.get(name) for name in expected} == expected
    assert not any(name.startswith("round/steps") for name in of_iteration)


def refuse(step: int) -> None:
    if step == 2:
        raise ConnectionError("the server\nis gone")


def test_a_tracker_that_fails_is_reported_once_and_the_others_go_on(run: RunDirectory) -> None:
    kept, broken = Kept(), Kept(refuse)
    make_round(run, 0)
    finish_iteration(run, 0)
    said = send(run, times=2, trackio=broken, tensorboard=kept)
    assert [line for line in said if "failed" in line] == [
        "training.report_to: trackio failed (ConnectionError: the server is gone): the run goes on without it, "
        "--resume sends later iterations"
    ]
    assert (broken.steps(), kept.steps(), broken.closed, kept.closed) == ([1], [1, 2, 3, 1, 2, 3], 0, 1)


@pytest.mark.parametrize("error", [ImportError("no module gradio"), SystemExit(1), KeyError("x")])
def test_a_tracker_that_cannot_be_opened_does_not_end_the_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refused(_run: TrackedRun) -> Tracker:
        raise error

    make_round(run, 0)
    finish_iteration(run, 0)
    monkeypatch.setattr(kept := Kept(), "open", refused)
    (said,) = send(run, trackio=kept)
    assert type(error).__name__ in said


def settings_of(run: RunDirectory, *overrides: str) -> RunSettings:
    return load_recipe(run.settings_path, overrides)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("none", ()),
        ("null", ()),
        ("trackio", ("trackio",)),
        ("[tensorboard, wandb, wandb]", ("tensorboard", "wandb")),
        ("[]", ()),
    ],
)
def test_one_tracker_or_several_are_named(run: RunDirectory, given: str, names: tuple[str, ...]) -> None:
    assert settings_of(run, f"training.report_to={given}").training.report_to == names


def test_other_trackers_are_refused(run: RunDirectory) -> None:
    with pytest.raises(InputError, match="'trackio', 'tensorboard' or 'wandb'"):
        settings_of(run, "training.report_to=mlflow")


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)


@pytest.mark.usefixtures("uninstalled")
def test_a_missing_package_is_refused_before_anything_is_done_and_at_resumption(run: RunDirectory) -> None:
    words = r"training\.report_to: the package trackio is not installed: run pip install .*\[trackio\]"
    make_round(run, 0)
    with pytest.raises(InputError, match=words):
        open_run(run.root, None, ["training.report_to=trackio"], None, resume=True)
    with pytest.raises(InputError, match=words):
        open_run(run.root.parent / "new", None, ["training.report_to=trackio"], None, resume=False)
    assert not (run.root.parent / "new").exists()


def test_a_resumed_run_may_have_another_tracker(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    make_round(run, 0)
    settings = open_run(run.root, None, ["training.report_to=tensorboard"], None, resume=True).settings
    assert settings.training.report_to == ("tensorboard",)
    run.save_settings(settings)
    settings = open_run(run.root, None, [], None, resume=True).settings
    assert settings.training.report_to == ("tensorboard",)


def test_without_a_tracker_nothing_is_written(run: RunDirectory) -> None:
    make_round(run, 0)
    with follow_run(run, settings_of(run), pytest.fail) as send:
        send(0)
    assert not run.trackers_path.exists()
