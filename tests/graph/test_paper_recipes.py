"""The loop of each paper goes through two whole iterations as its recipe ships, at toy size, and its records agree.

Overridden are sizes, the policy, what it can read, D_0 and the address of the chat roles. Processes, environments,
trainer, graph and endpoint (over HTTP, with a table of replies) are real; the policy half knows five small tasks.
That the recipes state the papers' values is checked by tests/graph/test_literal_recipes.py, chat templates and
adapters in a round by tests/training/grpo/test_round_of_a_chat_model.py.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from support import ROOT
from support.chat_table import KEY, answer
from support.commands import run_here
from support.faulty_server import FaultyServer
from support.small_policy import make_policy, small_tasks

from agents.spending import read_requests
from evaluation.study.study import load_study
from graph.report.summary import Summary
from graph.settings import RunSettings, load_recipe
from memory.records import (
    Draft,
    DraftVerification,
    FailureContext,
    Signal,
    SignalKind,
    StopReason,
    Trajectory,
)
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.run_files import Evolution, ExtractionRecord
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord
from training.seal.seal import FIRST_RHO, SealStep

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long, pytest.mark.usefixtures("preloaded")]

PER_STEP, K = 2, 8
SMALL = {
    "iterations": "2",
    "policy.device": "cpu",
    "policy.dtype": "float32",
    "training.steps": "1",
    "training.tasks_per_step": str(PER_STEP),
    "training.rollouts_per_task": str(K),
    "training.max_new_tokens": "16",
    "training.max_tokens": "120",
    "training.max_actions": "3",
    "environment.options.classes": "[GorillaFileSystem]",
}
COEVOLVE = {
    "roles.exploration.rounds": "2",
    "roles.exploration.steps": "5",
    "roles.exploration.min_reference_calls": "1",
}
SEAL = {"training.seal.interface.schema_cues": "false", "training.updates_per_step": "2"}


def evolve(folder: Path, recipe: str, sizes: dict[str, str]) -> SimpleNamespace:
    """Both iterations by the command; what the settings differ in from the recipe as it ships is ``sizes`` alone."""
    make_policy(folder / "policy", small_tasks(), cues=True)
    write_jsonl(folder / "tasks.jsonl", small_tasks())
    sizes = {**SMALL, **sizes, "policy.path": str(folder / "policy"), "tasks.initial": str(folder / "tasks.jsonl")}
    given = [word for key, value in sizes.items() for word in ("--set", f"{key}={value}")]
    done = run_here("graph.run_iteration", "--recipe", recipe, "--run", str(folder / "run"), "--json", *given)
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(folder / "run")
    settings = run.settings(RunSettings)
    shipped, used = (leaves(one.model_dump(mode="json")) for one in (load_recipe(ROOT / recipe), settings))
    assert {key for key in shipped.keys() | used.keys() if shipped.get(key) != used.get(key)} <= sizes.keys()
    summaries = [Summary.model_validate_json(line) for line in done.stdout.splitlines()]
    return SimpleNamespace(run=run, settings=settings, summaries=summaries)


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree of settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@pytest.fixture(scope="module")
def coevolve(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """CoEvolve on BFCL, literally: a context for every signal, one draft of each, an agent that carries it out."""
    with (
        FaultyServer(lambda asked: answer(asked.schema, asked.prompt)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DASHSCOPE_API_KEY", KEY)
        patch.setenv("COEVOLVE_KEYS", f"{server.url}=DASHSCOPE_API_KEY")
        roles = {"roles.chat.base_url": server.url}
        made = evolve(tmp_path_factory.mktemp("coevolve"), "recipes/papers/literal-bfcl.yaml", COEVOLVE | roles)
        made.requests = server.requests
        return made


@pytest.fixture(scope="module")
def seal(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """SEAL by the paper's text: a fixed rho, an interface that follows the failure profile."""
    return evolve(tmp_path_factory.mktemp("seal"), "recipes/seal-bfcl/seal.yaml", SEAL)


@pytest.fixture(params=["coevolve", "seal"])
def made(request: pytest.FixtureRequest) -> SimpleNamespace:
    return request.getfixturevalue(request.param)


def rollouts(made: SimpleNamespace, iteration: int) -> list[Trajectory]:
    return read_jsonl(made.run.iteration(iteration).trajectories, Trajectory)


def test_the_second_round_goes_on_from_the_first(made: SimpleNamespace) -> None:
    for iteration in (0, 1):
        record = read_json(made.run.iteration(iteration).round, RoundRecord)
        (step,) = record.steps
        assert (record.policy, step.step) == (f"policy/checkpoint-{iteration + 1}", iteration + 1)
        assert step.rollouts == len(rollouts(made, iteration)) == PER_STEP * K
        assert step.infrastructure_errors == 0
        assert (step.clipped is None) == (made.settings.training.updates_per_step == 1)
        stopped = {one.turns[-1].stop_reason for one in rollouts(made, iteration)}
        assert StopReason.END_OF_TURN in stopped


def test_signals_are_those_of_the_definition(made: SimpleNamespace) -> None:
    for iteration in (0, 1):
        played = rollouts(made, iteration)
        signals = read_jsonl(made.run.iteration(iteration).signals, Signal)
        results: dict[str, set[bool]] = {}
        for one in played:
            results.setdefault(one.task_id, set()).add(one.success)
        mixed = {one.id for one in played if len(results[one.task_id]) == 2}
        assert {one.trajectory_id for one in signals if one.kind is SignalKind.BOUNDARY} == mixed
        solved = {one.task_id for one in rollouts(made, 0) if one.success} if iteration else set()
        forgotten = {one.id for one in played if one.task_id in solved and not one.success}
        assert {one.trajectory_id for one in signals if one.kind is SignalKind.FORGETTING} == forgotten
        limit = made.settings.signals.contexts_per_iteration
        chosen = read_json(made.run.iteration(iteration).extraction, ExtractionRecord).chosen
        assert len(chosen) == (len(signals) if limit is None else min(limit, len(signals)))


def test_what_became_of_signals_is_the_chat_roles(coevolve: SimpleNamespace) -> None:
    tasks = load_tasks(coevolve.run)
    for iteration, summary in enumerate(coevolve.summaries):
        folder = coevolve.run.iteration(iteration)
        contexts = read_jsonl(folder.contexts, FailureContext)
        assert {one.signal_id for one in contexts} == set(read_json(folder.extraction, ExtractionRecord).chosen)
        verifications = read_jsonl(folder.verdicts, DraftVerification)
        assert {one.draft_id for one in verifications} == {one.id for one in read_jsonl(folder.drafts, Draft)}
        evolution = read_json(folder.evolution, Evolution)
        assert len(evolution.admitted) == summary.admitted == sum(one.accepted for one in verifications)
        grown = {one.id for one in tasks_at(tasks, iteration + 1)} - {one.id for one in tasks_at(tasks, iteration)}
        assert grown == set(evolution.admitted)
        assert not summary.failed
    assert sum(one.admitted for one in coevolve.summaries) > 0


def test_every_request_is_paid_by_the_roles_key_and_counted(coevolve: SimpleNamespace) -> None:
    assert all(KEY in one.authorization for one in coevolve.requests)
    assert {one.body["model"] for one in coevolve.requests} == {"qwen3-max"}
    ledger = read_requests(coevolve.run.spending_path)
    assert sum(one.measured.calls for one in ledger) == len(coevolve.requests)
    assert sum(one.cost.model_calls for one in coevolve.summaries) == len(coevolve.requests)


def test_seals_labels_rho_and_interface_are_recorded_for_each_step(seal: SimpleNamespace) -> None:
    tasks = {one.id: one for one in load_tasks(seal.run)}
    shown: set[str] = set()
    for iteration in (0, 1):
        (step,) = read_jsonl(seal.run.iteration(iteration).seal, SealStep)
        played = rollouts(seal, iteration)
        assert {tasks[one.task_id].origin for one in played} == {"given"}, "evolved tasks are not drawn"
        assert (step.step, step.profile.trajectories, step.profile.left_out) == (iteration + 1, len(played), 0)
        padded = sum(len(tasks[one.task_id].turns) for one in played)
        assert sum(found.count for found in step.profile.labels.values()) == padded, "each turn of a task has a label"
        assert step.state.rho is not None
        assert (step.state.rho.rho, step.state.rho.updates) == (FIRST_RHO.rho, 0)
        assert step.state.interface.updates == iteration + 1
        for one in played:
            assert {cue.kind for cue in one.turns[0].guidelines} == shown
        shown = set(step.state.interface.guidelines)
        figures = seal.summaries[iteration].seal.figures
        assert figures.labels == {label: found.count for label, found in step.profile.labels.items()}
    assert "SEAL" in seal.summaries[0].labels
    assert all("scripted roles" in one.labels for one in seal.summaries)


TABLES = sorted((ROOT / "recipes" / "papers").glob("*.yaml"))
STUDIES = [path for path in TABLES if not path.stem.startswith("literal")]


@pytest.mark.parametrize("path", [path for path in STUDIES if "appworld" not in path.stem], ids=lambda path: path.stem)
def test_every_arm_of_a_papers_table_is_a_recipe(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of AppWorld are the same arms over another base, whose sets only an installation can name."""
    monkeypatch.chdir(ROOT)
    study = load_study(path.relative_to(ROOT))
    for arm in (one for one in study.recipe.arms if not one.untrained):
        admissions = [1] * study.iterations(arm) if arm.match_admissions else None
        (tmp_path / "arm.yaml").write_text(yaml.safe_dump(study.settings_of(arm, 0, admissions)))
        load_recipe(tmp_path / "arm.yaml")
