"""One iteration of the graph on trajectories that a script acted out: real simulators, roles, Chroma and SQLite."""

from __future__ import annotations

import ast
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.made_run import ENVIRONMENT, first_tasks, make_run, records, run_graph, services_of
from support.official_audit import audit

import graph.iteration
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import held_out_fingerprints
from environments.verification.verify import verify
from graph.nodes.new_tasks import join
from graph.state import BranchUpdate, IterationState, IterationUpdate
from memory.failures import DeduplicationResult
from memory.records import (
    Draft,
    DraftVerification,
    Interaction,
    SignalKind,
    Trajectory,
)
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.run_files import Evolution, ExtractionRecord
from memory.tasks import load_tasks, tasks_at


@pytest.fixture(scope="module")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = make_run(tmp_path_factory.mktemp("evolved") / "run")
    run_graph(run)
    return run


@pytest.fixture
def copied(evolved: RunDirectory, tmp_path: Path) -> RunDirectory:
    shutil.copytree(evolved.root, tmp_path / "run")
    return RunDirectory.open(tmp_path / "run")


def rows(run: RunDirectory, name: str, model: type) -> list:
    return read_jsonl(run.iteration(0) / name, model)


def test_the_iteration_admits_tasks_and_says_why_it_refuses_others(evolved: RunDirectory) -> None:
    evolution = read_json(evolved.iteration(0) / "evolution.json", Evolution)
    found = read_json(evolved.iteration(0).extraction, ExtractionRecord)
    assert all(found.signals[kind] > 0 for kind in SignalKind)
    assert evolution.new + evolution.known == 6
    assert len(evolution.admitted) + sum(evolution.refused.values()) == evolution.drafts
    assert evolution.admitted
    assert evolution.failures == {}
    tasks = load_tasks(evolved)
    assert len(tasks_at(tasks, 0)) == len(first_tasks())
    assert {task.id for task in tasks if task.admitted_at == 0} == set(evolution.admitted)
    assert all(task.origin == "evolved" and task.split == "train" for task in tasks if task.admitted_at == 0)


def test_every_admitted_task_passes_verification_on_its_own(evolved: RunDirectory) -> None:
    tasks = load_tasks(evolved)
    before = {fingerprint(task) for task in tasks_at(tasks, 0)}
    for task in tasks:
        if task.admitted_at == 0:
            assert verify(task, ENVIRONMENT, before, held_out_fingerprints("bfcl")).accepted
    assert len({fingerprint(task) for task in tasks}) == len(tasks)


def test_every_admitted_task_passes_the_official_audit(evolved: RunDirectory) -> None:
    admitted = [task for task in load_tasks(evolved) if task.origin == "evolved"]
    assert admitted
    assert {task.id: problems for task in admitted if (problems := audit(task))} == {}


def test_a_branch_writes_its_own_folder_and_update_joins_them_in_order(evolved: RunDirectory) -> None:
    folder = evolved.iteration(0)
    branches = sorted(path.name for path in (folder / "branches").iterdir())
    compared = rows(evolved, "judgements.jsonl", DeduplicationResult)
    assert branches == sorted(one.context_id for one in compared if one.status == "new")
    for name, model in [("interactions.jsonl", Interaction), ("drafts.jsonl", Draft)]:
        joined = rows(evolved, name, model)
        assert [one.id for one in joined] == sorted(one.id for one in joined)
        assert {one.context_id for one in joined} == set(branches)
        apart = [one for branch in branches for one in read_jsonl(folder / "branches" / branch / name, model)]
        assert sorted(one.id for one in apart) == [one.id for one in joined]


def test_update_done_twice_changes_nothing(copied: RunDirectory) -> None:
    before, tasks = records(copied.root), copied.tasks_path.read_bytes()
    compared = rows(copied, "judgements.jsonl", DeduplicationResult)
    new = tuple(one.context_id for one in compared if one.status == "new")
    services = services_of(copied)
    join(services, IterationState(iteration=0, new=new))
    assert records(copied.root) == before
    assert copied.tasks_path.read_bytes() == tasks


def test_of_two_equal_drafts_in_different_branches_the_later_is_a_duplicate(copied: RunDirectory) -> None:
    folder = copied.iteration(0)
    new = sorted(one.context_id for one in rows(copied, "judgements.jsonl", DeduplicationResult) if one.status == "new")
    first, second = new[0], new[1]
    (draft, *_) = read_jsonl(folder / "branches" / first / "drafts.jsonl", Draft)
    twin = draft.model_copy(update={"id": "draft-ffffffffffffffff", "context_id": second})
    verification = DraftVerification(draft_id=twin.id, context_id=second, accepted=True)
    first_verification = verification.model_copy(update={"draft_id": draft.id, "context_id": first})
    write_jsonl(folder / "branches" / first / "drafts.jsonl", [draft])
    write_jsonl(folder / "branches" / first / "verdicts.jsonl", [first_verification])
    write_jsonl(folder / "branches" / second / "drafts.jsonl", [twin])
    write_jsonl(folder / "branches" / second / "verdicts.jsonl", [verification])
    write_jsonl(copied.tasks_path, first_tasks())
    join(services_of(copied), IterationState(iteration=0, new=(first, second)))
    by_draft = {one.draft_id: one for one in rows(copied, "verdicts.jsonl", DraftVerification)}
    assert by_draft[draft.id].accepted
    assert by_draft[twin.id].reason == "duplicate"
    assert draft.id in by_draft[twin.id].detail
    assert len(load_tasks(copied)) == len(first_tasks()) + 1


def test_without_a_signal_the_iteration_ends_in_update(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    good = [one for one in rows(run, "trajectories.jsonl", Trajectory) if one.step == 1]
    common = [one for one in good if len(one.calls()) == 1]
    write_jsonl(run.iteration(0) / "trajectories.jsonl", common)
    run_graph(run)
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert (evolution.new, evolution.drafts, evolution.admitted) == (0, 0, ())
    assert len(load_tasks(run)) == len(first_tasks())


def test_a_later_iteration_knows_what_the_records_have_whatever_the_index_holds(copied: RunDirectory) -> None:
    known = {one.context_id for one in rows(copied, "judgements.jsonl", DeduplicationResult) if one.status == "new"}
    (copied.failures_path / "chroma.sqlite3").write_bytes(b"no database" * 1000)
    later = [
        one.model_copy(update={"iteration": 1, "id": f"trajectory-{n:016x}", "step": one.step + 3})
        for n, one in enumerate(rows(copied, "trajectories.jsonl", Trajectory))
    ]
    write_jsonl(copied.iteration(1) / "trajectories.jsonl", later)
    run_graph(copied, 1)
    compared = read_jsonl(copied.iteration(1) / "judgements.jsonl", DeduplicationResult)
    assert any(one.status == "known" and one.nearest in known for one in compared)


def test_the_checkpoints_hold_ids_and_not_payloads(evolved: RunDirectory) -> None:
    with sqlite3.connect(evolved.checkpoints_path) as database:
        sizes = [size for (size,) in database.execute("select length(checkpoint) from checkpoints")]
        values = [size for (size,) in database.execute("select length(value) from writes")]
    assert sizes
    assert max(sizes + values) < 8000  # ids, and a digest of a few lines a node


def test_the_wiring_is_short() -> None:
    source = Path(graph.iteration.__file__).read_text()
    assert len(source.splitlines()) < 110
    assert {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)} == {
        "described",
        "as_given",
        "branch",
        "iteration_graph",
        "add_branches",
        "seed_graph",
    }


def test_nodes_may_write_only_what_the_state_has() -> None:
    assert set(IterationUpdate.__annotations__) <= set(IterationState.model_fields)
    assert set(BranchUpdate.__annotations__) <= set(IterationState.model_fields)
