"""Branches that fail, wait without end, or are killed: their siblings and the records of the iteration."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.errors import NodeTimeoutError
from support.made_run import make_run, records, run_graph

import graph.assembly
from agents.roles import Roles, build_roles
from agents.settings import RolesSettings
from agents.spending import Ledger, RepeatedFailure, RoleRefused
from environments.base import Environment, EnvironmentDefect, InputError
from graph.branches import describe
from memory.failures import DeduplicationResult
from memory.records import Draft, FailureContext, Interaction
from memory.run import RunDirectory, read_json, read_jsonl
from memory.run_files import Evolution, Failure

pytestmark = pytest.mark.slow

DEADLINE = 4.0
BUG = ZeroDivisionError("a bug of the explorer")
REFUSED = RoleRefused("nothing to explore")
DEFECT = EnvironmentDefect("Depot.weigh failed (KeyError: 'x') at depot.py:7: mend it")
HOPELESS = RepeatedFailure("the endpoint gave no answer to 5 questions")


def install(monkeypatch: pytest.MonkeyPatch, run: RunDirectory, faults: Mapping[int, Exception | float]) -> None:
    """Let branches, by position in their sorted ids, raise an exception or wait so many seconds before they explore."""

    def faulty_roles(settings: RolesSettings, ledger: Ledger, local: None) -> Roles:
        roles = build_roles(settings, ledger, local)

        async def explore(context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
            branches = sorted(path.name for path in run.iteration(0).branches.iterdir())
            fault = faults.get(branches.index(context.id), 0.0)
            if isinstance(fault, Exception):
                raise fault
            await asyncio.sleep(fault)
            return await roles.explorer.explore(context, environment, seed)

        return dataclasses.replace(roles, explorer=SimpleNamespace(explore=explore))

    monkeypatch.setattr(graph.assembly, "build_roles", faulty_roles)


def new_contexts(run: RunDirectory) -> list[str]:
    compared = read_jsonl(run.iteration(0) / "judgements.jsonl", DeduplicationResult)
    return sorted(one.context_id for one in compared if one.status == "new")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    run = make_run(tmp_path_factory.mktemp("undisturbed") / "run")
    run_graph(run)
    return records(run.root)


def test_failing_branches_are_recorded_and_the_others_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", f"roles.branch_timeout={DEADLINE}")
    install(monkeypatch, run, {0: BUG, 1: 3600.0, 2: REFUSED})
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
    run = make_run(tmp_path / "run")
    install(monkeypatch, run, {0: 0.9, 1: 0.6, 2: 0.3})
    run_graph(run)
    assert records(run.root) == undisturbed
    explored = (run.iteration(0) / "branches").glob("*/interactions.jsonl")
    ended = [path.parent.name for path in sorted(explored, key=lambda path: path.stat().st_mtime_ns)]
    assert ended[-3:] == list(reversed(new_contexts(run)[:3]))


def test_when_every_branch_fails_the_iteration_still_ends_in_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    install(monkeypatch, run, dict.fromkeys(range(10), REFUSED))
    run_graph(run)
    evolution = read_json(run.iteration(0) / "evolution.json", Evolution)
    assert evolution.failures == {"RoleRefused": evolution.new}
    assert evolution.admitted == ()


@pytest.mark.parametrize(
    ("fault", "stopped", "says"),
    [
        (
            BUG,
            RepeatedFailure,
            r"\d+ branches in a row failed alike, the last one in explore: "
            r"ZeroDivisionError\('a bug of the explorer'\) at test_branches.py:\d+: put that right",
        ),
        (DEFECT, InputError, f"^{re.escape(str(DEFECT))}"),
        (HOPELESS, RepeatedFailure, f"^{HOPELESS}"),
    ],
)
def test_branches_that_only_fail_stop_the_run_with_the_last_cause_until_it_is_gone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, str],
    fault: Exception,
    stopped: type[Exception],
    says: str,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("agents.spending.FAILURES_IN_A_ROW", 3)
        run = make_run(tmp_path / "run")
        install(patched, run, dict.fromkeys(range(10), fault))
        with pytest.raises(stopped, match=says):
            run_graph(run)
    run_graph(run)
    assert {**records(run.root), "settings.yaml": ""} == {**undisturbed, "settings.yaml": ""}


def test_a_users_mistake_that_ends_every_branch_stops_the_run_until_it_is_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, str]
) -> None:
    with monkeypatch.context() as patched:
        run = make_run(tmp_path / "run")
        install(patched, run, dict.fromkeys(range(10), InputError("the endpoint refused the key")))
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
