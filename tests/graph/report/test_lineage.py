"""A run's records joined: every admitted task leads back to its rollout, and a rollout can be read by its id."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from environments.base import InputError
from graph.report.digest import (
    REASONS,
    WIDTH,
    calls_words,
    draft_words,
    exploration_words,
    named_weakness,
    signal_words,
    task_words,
    verification_words,
)
from graph.report.lineage import History, pooled
from memory.records import Draft, DraftVerification, FailureContext, Interaction, SignalKind, Trajectory
from memory.run import RunDirectory, read_jsonl
from memory.tasks import load_tasks


@pytest.fixture(scope="module")
def history(evolved: RunDirectory) -> History:
    return History.read(evolved)


def test_every_admitted_task_leads_back_to_the_rollout(evolved: RunDirectory, history: History) -> None:
    admitted = [task for task in load_tasks(evolved) if task.admitted_at is not None]
    assert admitted
    for task in admitted:
        chain = history.chain_of(task.id)
        assert chain is not None
        assert chain.signal is not None
        assert chain.weak is not None
        assert chain.rollout is not None
        outcome = next(one for one in chain.outcomes if one.task == task)
        ids = (outcome.draft.id, chain.context.id, chain.signal.id, chain.rollout.id, chain.weak.id)
        assert task.parents == ids
        assert chain in history.chains_from(chain.signal.id)
        assert chain in history.chains_from(chain.weak.id)
        assert chain.iteration == task.admitted_at
        assert chain.interactions
    seeds = [task for task in load_tasks(evolved) if task.admitted_at is None]
    assert all(history.chain_of(task.id) is None for task in seeds)


def test_nothing_is_lost_and_refusals_are_kept(evolved: RunDirectory, history: History) -> None:
    folder = evolved.iteration(0)
    assert set(history.chains) == {one.id for one in read_jsonl(folder.contexts, FailureContext)}
    outcomes = [one for chain in history.chains.values() for one in chain.outcomes]
    assert {one.draft.id for one in outcomes} == {one.id for one in read_jsonl(folder.drafts, Draft)}
    verifications = {one.draft_id: one for one in read_jsonl(folder.verdicts, DraftVerification)}
    assert all(one.verification == verifications[one.draft.id] for one in outcomes)
    assert all((one.task is None) == (not verifications[one.draft.id].accepted) for one in outcomes)
    explored = sum(len(chain.interactions) for chain in history.chains.values())
    assert explored == len(read_jsonl(folder.interactions, Interaction))


def test_a_rollout_is_read_by_its_id_and_stands_in_its_group(evolved: RunDirectory, history: History) -> None:
    trajectories = read_jsonl(evolved.iteration(0).trajectories, Trajectory)
    assert len(history.rollouts) == len(trajectories)
    for one in trajectories:
        head = history.rollouts[one.id]
        assert (head.task_id, head.step, head.sample, head.success) == (one.task_id, one.step, one.sample, one.success)
    assert history.trajectory(trajectories[-1].id) == trajectories[-1]
    groups = [group for of_task in history.groups.values() for group in of_task]
    assert sum(len(group.rollouts) for group in groups) == len(trajectories)
    assert all([one.sample for one in group.rollouts] == list(range(len(group.rollouts))) for group in groups)
    mixed = next(group for group in groups if group.carries_signal)
    failed = next(one for one in mixed.rollouts if not one.success)
    sibling = history.sibling(failed, success=True)
    assert sibling is not None
    assert (sibling.task_id, sibling.step, sibling.success) == (mixed.task_id, mixed.step, True)
    assert list(history.course(mixed.task_id)) == [0]


def test_success_of_several_iterations_is_weighted_by_rollouts() -> None:
    assert pooled([(0.25, 8), (0.5, 8)]) == (0.375, 16)
    assert pooled([(0.5, 8), (1.0, 24)]) == ((4 + 24) / 32, 32)
    assert pooled([]) is None


def test_ids_are_found_by_how_they_begin(history: History) -> None:
    task_id = next(iter(history.tasks))
    assert history.starting_with(task_id) == history.starting_with(task_id[:12]) == [task_id]
    assert history.starting_with("task-") == sorted(history.tasks)
    assert history.starting_with("nothing") == history.starting_with("") == []


def test_a_run_that_goes_on_can_be_read(evolved: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "copy")
    shutil.copytree(evolved.root, run.root)
    folder = run.iteration(0)
    whole = folder.trajectories.read_bytes()
    folder.trajectories.write_bytes(whole[:-20])
    for joined in (folder.interactions, folder.drafts, folder.verdicts, folder.branch_failures):
        joined.unlink()
    history, before = History.read(run), History.read(evolved)
    assert len(history.rollouts) == len(before.rollouts) - 1, "a line that is half written is not read"
    drafted = {id: [one.draft for one in chain.outcomes] for id, chain in before.chains.items()}
    assert {id: [one.draft for one in chain.outcomes] for id, chain in history.chains.items()} == drafted
    folder.trajectories.write_bytes(b"{}\n" + whole)
    with pytest.raises(InputError, match=r"trajectories.jsonl, line 1: "):
        History.read(run)


def test_every_record_has_one_line(history: History) -> None:
    for chain in history.chains.values():
        assert chain.signal is not None
        lines = [
            signal_words(chain.signal, chain.weak),
            named_weakness(chain.context, chain.signal, chain.weak),
            named_weakness(chain.context),
            exploration_words(chain.interactions),
            *(draft_words(one.draft) for one in chain.outcomes),
            *(verification_words(one.verification) for one in chain.outcomes),
            *(task_words(task) for task in chain.admitted),
            *(calls_words(turn) for task in chain.admitted for turn in task.reference),
        ]
        assert all(line and len(line) <= WIDTH and line.isprintable() for line in lines), lines
        assert lines[0].startswith(chain.signal.kind)
        if chain.context.tool:
            assert chain.context.tool in lines[2]
    refused = [one.verification for chain in history.chains.values() for one in chain.outcomes if one.task is None]
    assert all(one is not None and verification_words(one).startswith(f"refused, {one.reason}") for one in refused)
    assert verification_words(None) == "not verified"
    assert set(REASONS) >= {one.reason for one in refused if one is not None}
    assert {chain.signal.kind for chain in history.chains.values() if chain.signal} <= set(SignalKind)
