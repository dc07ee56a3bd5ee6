"""Branches that fail, wait without end, or are killed: their siblings and the records of the iteration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.errors import NodeTimeoutError
from support.faulty_explorer import install
from support.made_run import make_run, records, run_graph

import graph.assembly
from agents.spending import RepeatedFailure
from environments.base import InputError
from graph.branches import describe
from memory.failures import DeduplicationResult
from memory.records import Draft
from memory.run import RunDirectory, read_json, read_jsonl
from memory.run_files import Evolution, Failure

pytestmark = pytest.mark.slow

DEADLINE = 4.0


def new_contexts(run: RunDirectory) -> list[str]:
    compared = read_jsonl(run.iteration(0) / "judgements.jsonl", DeduplicationResult)
    return sorted(one.context_id for one in compared if one.status == "new")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    run = make_run(tmp_path_factory.mktemp("undisturbed") / "run")
    run_graph(run)
    return records(run.root)


def test_failing_branches_are_recorded_and_the_others_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.assembly, "build_roles", graph.assembly.build_roles)
    run = make_run(tmp_path / "run", f"roles.branch_timeout={DEADLINE}")
    install(run.iteration(0), {0: "raise", 1: "wait", 2: "refuse"})
    run_graph(run)
    new = new_contexts(run)
    failures = read_jsonl(run.iteration(0) / "branch_failures.jsonl", Failure)
    assert [failure.id for failure in failures] == new[:3]
    assert [failure.cause for failure in failures] == ["ZeroDivisionError", "deadline", "RoleRefused"]
    assert [failure.node for failure in failures] == ["explore"] * 3
    assert "a bug of the explorer" in failures[0].detail
    assert "4 s" in failures[1].detail
    for failure in failures:
        assert read_json(run.iteration(0) / "branches" / failure.id / "failure.json", Failure) == failure
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert evolution.failures == {"RoleRefused": 1, "ZeroDivisionError": 1, "deadline": 1}
    assert evolution.admitted
    assert {draft.context_id for draft in read_jsonl(run.iteration(0) / "drafts.jsonl", Draft)} == set(new[3:])


def test_the_order_in_which_branches_end_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, str]
) -> None:
    monkeypatch.setattr(graph.assembly, "build_roles", graph.assembly.build_roles)
    run = make_run(tmp_path / "run")
    install(run.iteration(0), {0: "late 0.9", 1: "late 0.6", 2: "late 0.3"})
    run_graph(run)
    assert records(run.root) == undisturbed
    explored = (run.iteration(0) / "branches").glob("*/interactions.jsonl")
    ended = [path.parent.name for path in sorted(explored, key=lambda path: path.stat().st_mtime_ns)]
    assert ended[-3:] == list(reversed(new_contexts(run)[:3]))


def test_when_every_branch_fails_the_iteration_still_ends_in_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph.assembly, "build_roles", graph.assembly.build_roles)
    run = make_run(tmp_path / "run")
    install(run.iteration(0), dict.fromkeys(range(10), "refuse"))
    run_graph(run)
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert evolution.failures == {"RoleRefused": evolution.new}
    assert evolution.admitted == ()


@pytest.mark.parametrize(
    ("fault", "stopped", "says"),
    [
        (
            "raise",
            RepeatedFailure,
            r"\d+ branches in a row failed alike, the last one in explore: "
            r"ZeroDivisionError\('a bug of the explorer'\) at faulty_explorer.py:\d+: put that right",
        ),
        ("defect", InputError, r"^Depot.weigh failed \(KeyError: 'x'\) at depot.py:7: mend it"),
        ("hopeless", RepeatedFailure, "^the endpoint gave no answer to 5 questions"),
    ],
)
def test_branches_that_only_fail_stop_the_run_with_the_last_cause_until_it_is_gone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, str],
    fault: str,
    stopped: type[Exception],
    says: str,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(graph.assembly, "build_roles", graph.assembly.build_roles)
        patched.setattr("agents.spending.FAILURES_IN_A_ROW", 3)
        run = make_run(tmp_path / "run")
        install(run.iteration(0), dict.fromkeys(range(10), fault))
        with pytest.raises(stopped, match=says):
            run_graph(run)
    run_graph(run)
    assert {**records(run.root), "settings.yaml": ""} == {**undisturbed, "settings.yaml": ""}


def test_a_users_mistake_that_ends_every_branch_stops_the_run_until_it_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(graph.assembly, "build_roles", graph.assembly.build_roles)
        run = make_run(tmp_path / "run")
        install(run.iteration(0), dict.fromkeys(range(10), "mistake"))
        with pytest.raises(InputError, match=r"every branch .*the endpoint refused the key"):
            run_graph(run)
    run_graph(run)
    assert records(run.root) == undisturbed


def test_a_resumed_graph_gets_a_failure_as_text_and_records_the_same() -> None:
    error = ValueError("no such 'thing'")
    assert describe(error, "context-1", "explore", 1.0) == describe(repr(error), "context-1", "explore", 1.0)


@given(elapsed=st.floats(min_value=1.0, max_value=1e6))
def test_the_time_that_passed_is_not_part_of_the_record(elapsed: float) -> None:
    error = NodeTimeoutError("branch", elapsed, kind="run", run_timeout=1.0)
    told = describe(error, "context-1", "explore", 1.0)
    assert told == describe(TimeoutError(), "context-1", "explore", 1.0)
    assert (told.cause, told.detail) == ("deadline", "ran past roles.branch_timeout, 1 s")
