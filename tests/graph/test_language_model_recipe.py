"""recipes/lm.yaml as it ships, but for sizes, over other language models; killed and resumed; twice the same.

The models are tiny: a Llama with the chat template of smollm2-135m, and a Qwen3 with its own. Both have a head large
enough that a round scores as it does with the real one. The last test is on smollm2-135m itself, where it is made.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import run_here
from support.killing import command, contents, differences, finish, held_at, kill, start, wait_for
from support.preloaded import alone
from support.taught_models import RECIPE, TOY, UNSCORED, given, save_taught

from environments.checkout import PACKAGED_FOLDER
from graph.report.summary import Summary
from graph.settings import RunSettings, dotted, load_recipe
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.run_files import Evolution
from memory.tasks import load_tasks
from training.grpo.record import RoundRecord, StepMetrics

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long, pytest.mark.usefixtures("preloaded")]

PATIENCE = 1800.0  # seconds of one command; on an idle machine the longest takes two minutes
TINY_ROUND = {
    "training.expert.passes": "1",
    "training.expert.learning_rate": "2e-4",
    "training.steps": "1",
    "training.tasks_per_step": "2",
    "training.rollouts_per_task": "2",
    "training.micro_batch": "2",
    "training.max_new_tokens": "64",
    "tasks.repeats": "1",
    "training.kl": "0.001",
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_taught(tmp_path_factory.mktemp("llama"), "smollm2")


@pytest.fixture(scope="module")
def over_qwen3(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Both iterations of the recipe."""
    folder = tmp_path_factory.mktemp("qwen3")
    sizes = {**TOY, "evaluation.limit": "4", "policy.thinking": "false"}
    options = given(save_taught(folder, "qwen3"), **sizes)
    done = run_here("graph.run_iteration", "--recipe", str(RECIPE), "--run", str(folder / "run"), "--json", *options)
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(folder / "run")
    summaries = [Summary.model_validate_json(line) for line in done.stdout.splitlines()]
    rounds = [read_json(run.iteration(number).round, RoundRecord) for number in range(len(summaries))]
    return SimpleNamespace(run=run, sizes=sizes, summaries=summaries, rounds=rounds)


def test_nothing_but_sizes_differs_from_the_recipe(over_qwen3: SimpleNamespace) -> None:
    shipped, used = map(dotted, (load_recipe(RECIPE), over_qwen3.run.settings(RunSettings)))
    differ = {key for key in shipped.keys() | used.keys() if shipped.get(key) != used.get(key)}
    assert differ <= {*over_qwen3.sizes, "policy.path"}


def test_a_qwen3_goes_through_both_iterations(over_qwen3: SimpleNamespace) -> None:
    """It calls tools as its template writes them, learns from groups that differ, and gets tasks of its weaknesses."""
    first, second = over_qwen3.rounds
    rollouts = read_jsonl(over_qwen3.run.iteration(0).trajectories, Trajectory)
    assert any(one.success and one.calls() for one in rollouts)
    assert first.mixed_groups > 0
    assert max(step.grad_norm for step in first.steps) > 0
    evolution = read_json(over_qwen3.run.iteration(0).evolution, Evolution)
    assert evolution.new > 0
    assert evolution.admitted
    assert over_qwen3.summaries[0].admitted == len(evolution.admitted)
    assert second.tasks == first.tasks + len(evolution.admitted)
    assert second.expert.references == len(evolution.admitted), "the new ones, and older ones are replayed"
    assert second.expert.replayed > 0
    assert all(one.evaluation.after.group == "human-dev" for one in over_qwen3.summaries)


def test_sampler_and_trainer_differ_by_the_rounding_of_bfloat16(over_qwen3: SimpleNamespace) -> None:
    for number, record in enumerate(over_qwen3.rounds):
        assert record.gap is not None
        assert 0 < record.gap.mean < 1e-2
        steps = read_jsonl(over_qwen3.run.iteration(number).metrics, StepMetrics)
        means = [step.measured["sampling/sampling_logp_difference/mean"] for step in steps]
        assert record.gap.mean == pytest.approx(sum(means) / len(means))
        assert not [name for step in steps for name in step.rollouts if "gap" in name or "measured" in name]


@pytest.fixture(scope="module")
def undisturbed(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One iteration on the Llama, without evaluation."""
    options = given(llama, **{**TOY, **UNSCORED})
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    run_whole(root, options)
    record = read_json(RunDirectory.open(root).iteration(0).round, RoundRecord)
    assert max(step.grad_norm for step in record.steps) > 0, "GRPO has something to learn from"
    assert len(load_tasks(RunDirectory.open(root))) > record.tasks, "tasks were made"
    return SimpleNamespace(options=options, contents=contents(root))


def run_whole(root: Path, options: list[str], **environment: str) -> None:
    root.parent.mkdir(exist_ok=True)
    log = root.parent / "log"
    assert finish(command(root, RECIPE, *options), log, PATIENCE, **environment) == 0, log.read_text()


def killed_and_resumed(root: Path, options: list[str], timeout: float) -> None:
    """A run that SIGKILL ends in its expert step, in GRPO, and at a checkpoint that is not yet marked as whole."""
    root.parent.mkdir(exist_ok=True)
    iteration, log = root / "iterations" / "000", root.parent / "log"
    points = (iteration / "expert.json", iteration / "metrics.jsonl", root / "policy" / "*" / "model.safetensors")
    for number, file in enumerate(points):
        marker = root.parent / f"held {number}"
        argv = command(root, RECIPE, *options, *(["--resume"] if number else []))
        process = start(held_at("training.run_round", file, marker, argv), log)
        assert wait_for(marker.exists, process, timeout), log.read_text()
        kill(process, "both", root)
        assert not (iteration / "round.json").exists()
    run_whole(root, [*options, "--resume"])


def test_an_equal_run_has_equal_tasks_trajectories_and_weights(undisturbed: SimpleNamespace, tmp_path: Path) -> None:
    """In processes of its own, with another order of hashes."""
    with alone():
        run_whole(tmp_path / "run", undisturbed.options, PYTHONHASHSEED="7")
    assert differences(contents(tmp_path / "run"), undisturbed.contents) == []


def test_a_run_killed_in_the_expert_step_and_in_grpo_resumes_to_equal_records(
    undisturbed: SimpleNamespace, tmp_path: Path
) -> None:
    killed_and_resumed(tmp_path / "run", undisturbed.options, 120)
    assert differences(contents(tmp_path / "run"), undisturbed.contents) == []


@pytest.mark.skipif(not PACKAGED_FOLDER.is_dir(), reason="make model has not been run here")
def test_the_real_model_killed_and_resumed_ends_as_undisturbed(tmp_path: Path) -> None:
    """At a size of minutes and 5 GB. A KL term moves the weights where all rewards of a group are equal."""
    sizes = {**TOY, **TINY_ROUND, **UNSCORED, "policy.dtype": "auto"}
    options = given(PACKAGED_FOLDER.name, **sizes)
    run_whole(tmp_path / "undisturbed" / "run", options)
    record = read_json(RunDirectory.open(tmp_path / "undisturbed" / "run").iteration(0).round, RoundRecord)
    assert max(step.grad_norm for step in record.steps) > 0
    assert record.gap is not None
    assert record.gap.mean < 0.1
    killed_and_resumed(tmp_path / "disturbed" / "run", options, 600)
    assert differences(contents(tmp_path / "disturbed" / "run"), contents(tmp_path / "undisturbed" / "run")) == []
