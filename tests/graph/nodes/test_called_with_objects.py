"""Nodes are functions of their state and of services: called here without a command, a run's settings or a graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.runtime import Runtime
from support import ROOT
from support.bfcl_tasks import acted_out
from support.made_run import ENVIRONMENT, first_tasks, weakness_at

from agents.spending import Breaker, Ledger, RoleRefused
from environments.base import Environment, InputError, Observation, ObservationStatus, ToolCall
from graph.assembly import RunServices
from graph.branches import dispatch
from graph.nodes.new_tasks import abstract, explore, verify
from graph.nodes.new_tasks import update as join
from graph.nodes.weaknesses import deduplicate, extract, reflect
from graph.settings import RunSettings
from graph.state import IterationState
from memory.failures import FailureMemory
from memory.records import (
    Draft,
    DraftVerification,
    Evidence,
    FailureContext,
    Interaction,
    Signal,
    SignalKind,
    Writing,
)
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.run_files import ExtractionRecord, Failure
from memory.tasks import admit, load_tasks
from training.signals import PatternCount, SignalSettings

TASK = first_tasks()[0]
CONTEXT = weakness_at(TASK)


class Reflector:
    """Makes a context of each signal but the one to refuse."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.asked: list[str] = []
        self.compared: dict[str, str | None] = {}

    async def reflect(self, evidence: Evidence, environment: Environment) -> FailureContext:
        self.asked.append(evidence.signal.id)
        self.compared[evidence.trajectory.id] = evidence.counterpart and evidence.counterpart.id
        if evidence.signal.id == self.refused:
            raise RoleRefused("no usable reply")
        return CONTEXT.model_copy(update={"id": f"context-of-{evidence.signal.id}", "signal_id": evidence.signal.id})


class Explorer:
    """Makes one interaction that names its seed."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        observation = Observation(text=str(seed), status=ObservationStatus.OK)
        action = ToolCall(name="ls")
        return (
            Interaction(
                id="i", context_id=context.id, run=0, position=0, action=action, observation=observation, changed=False
            ),
        )


class Abstractor:
    """Proposes one draft, a task that the run does not have."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        spec = first_tasks()[2].model_dump(exclude={"id", "origin", "parents", "admitted_at"})
        return (Draft(**spec, id="draft-1", context_id=context.id),)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A folder that no command made: it has no settings.yaml."""
    return RunDirectory(tmp_path)


def services(
    run: RunDirectory, held_out: Sequence[str] = (), signals: SignalSettings | None = None, **roles: Any
) -> Runtime[RunServices]:
    given: Any = SimpleNamespace(**roles)
    settings = RunSettings(seed=5, signals=signals or SignalSettings())
    ledger = Ledger(None, settings.roles.budget)
    return Runtime(
        context=RunServices(run, settings, ENVIRONMENT, given, given, frozenset(held_out), ledger, Breaker())
    )


async def test_reflect_keeps_the_contexts_and_what_gave_up(run: RunDirectory) -> None:
    trajectory = acted_out(TASK, [ToolCall(name="pwd")], iteration=0, step=1, sample=0)
    signals = [
        Signal(id=name, kind=SignalKind.BOUNDARY, iteration=0, task_id=TASK.id, trajectory_id=trajectory.id)
        for name in ("signal-a", "signal-b", "signal-c")
    ]
    folder = run.iteration(0)
    write_jsonl(folder.signals, signals)
    write_jsonl(folder.trajectories, [trajectory])
    admit(run, [TASK])
    reflector = Reflector(refused="signal-b")
    state = IterationState(iteration=0, signals=("signal-a", "signal-b"))
    update = await reflect(state, services(run, reflector=reflector))
    assert update["contexts"] == ("context-of-signal-a",)
    assert update["digest"]["reflect"][0] == "1 context of 2 signals, 1 gave up"
    assert [one.id for one in read_jsonl(folder.contexts, FailureContext)] == ["context-of-signal-a"]
    (failure,) = read_jsonl(folder.reflection_failures, Failure)
    assert (failure.id, failure.node, failure.cause) == ("signal-b", "reflect", "RoleRefused")
    await reflect(state, services(run, reflector=reflector))
    assert sorted(reflector.asked) == ["signal-a", "signal-b", "signal-b"]  # what was reflected is not asked again


@pytest.mark.parametrize("limit", [24, None])
async def test_a_boundary_reaches_the_reflector_with_a_success_beside_a_failure(
    run: RunDirectory, limit: int | None
) -> None:
    good = acted_out(TASK, [*TASK.reference[0]], iteration=0, step=1, sample=0)
    bad = acted_out(TASK, [ToolCall(name="pwd")], iteration=0, step=1, sample=1)
    write_jsonl(run.iteration(0).trajectories, [good, bad])
    admit(run, [TASK])
    reflector = Reflector()
    runtime = services(run, signals=SignalSettings(contexts_per_iteration=limit), reflector=reflector)
    chosen = (await extract(IterationState(iteration=0), runtime))["signals"]
    await reflect(IterationState(iteration=0, signals=chosen), runtime)
    if limit is None:
        assert reflector.compared == {bad.id: good.id, good.id: bad.id}, "every marked trajectory is reflected on"
    else:
        assert reflector.compared == {bad.id: good.id}, "one context per task and kind, of a failure"
    signals = {one.id: one for one in read_jsonl(run.iteration(0).signals, Signal)}
    lost = [one.model_copy(update={"counterpart_id": "trajectory-lost"}) for one in signals.values()]
    write_jsonl(run.iteration(0).signals, lost)
    with pytest.raises(InputError, match="names a task or trajectory that the run does not have"):
        await reflect(IterationState(iteration=0, signals=chosen), runtime)


async def test_scores_and_patterns_of_former_rounds_are_read_from_their_records(run: RunDirectory) -> None:
    admit(run, [TASK])
    looking = [ToolCall(name="pwd")]
    write_jsonl(run.iteration(0).trajectories, [acted_out(TASK, [*TASK.reference[0]], iteration=0, step=1, sample=0)])
    write_jsonl(run.iteration(1).trajectories, [acted_out(TASK, looking, iteration=1, step=2, sample=0)])
    for iteration in (0, 1):
        await extract(IterationState(iteration=iteration), services(run))
    (signal,) = read_jsonl(run.iteration(1).signals, Signal)
    assert (signal.kind, signal.recent) == (SignalKind.FORGETTING, (1, 1))
    record = read_json(run.iteration(1).extraction, ExtractionRecord)
    assert (record.pattern_occurrences, record.different_patterns, record.marked) == (2, 2, 1)
    assert record.signal_tasks == {SignalKind.FORGETTING: 1, SignalKind.BOUNDARY: 0, SignalKind.RARE: 0}
    assert [one.pattern for one in read_jsonl(run.iteration(1).patterns, PatternCount)] == [("pwd",)], "its own alone"


async def test_a_weakness_goes_through_all_nodes(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule 8: each node is called with its state and its services; no graph, no command, no settings on disk."""
    admit(run, [TASK])
    played = ([*TASK.reference[0]], [ToolCall(name="pwd")])
    trajectories = [acted_out(TASK, calls, iteration=0, step=1, sample=sample) for sample, calls in enumerate(played)]
    write_jsonl(run.iteration(0).trajectories, trajectories)
    runtime = services(
        run,
        signals=SignalSettings(contexts_per_iteration=1),
        reflector=Reflector(),
        explorer=Explorer(),
        abstractor=Abstractor(),
    )
    state = IterationState(iteration=0)
    for node in (extract, reflect, deduplicate):
        update = await node(state, runtime)
        state = state.model_copy(update={name: ids for name, ids in update.items() if name != "digest"})
    assert len(state.signals) == len(state.contexts) == len(state.new) == 1
    (sent,) = (await dispatch(state, runtime)).goto
    for step in (explore, abstract, verify):
        await step(sent.arg, runtime)
    branch = run.iteration(0).branch(state.new[0])
    drafts, accepted = read_jsonl(branch.drafts, Draft), read_jsonl(branch.verdicts, DraftVerification)
    figures = {"drawn": 6, "wordings": 2, "round_trip": False, "margin": 0.05, "realism": -1.0, "difference": 0.5}
    for understood in (False, True):
        worded = [one.model_copy(update={"writing": Writing(**figures, understood=understood)}) for one in drafts]
        write_jsonl(branch.drafts, worded)
        await verify(sent.arg, runtime)
        (verdict,) = read_jsonl(branch.verdicts, DraftVerification)
        assert verdict == accepted[0] if understood else verdict.reason == "misread"
        assert understood or "0.05 nats a token" in verdict.detail
    digest = (await join(state, runtime))["digest"]["update"]
    (task,) = (one for one in load_tasks(run) if one.admitted_at == 0)
    assert task.parents[:2] == ("draft-1", *state.new)
    assert digest
    again = state.model_copy(update={"iteration": 1, "contexts": ("context-again",)})
    write_jsonl(run.iteration(1).contexts, [CONTEXT.model_copy(update={"id": "context-again", "iteration": 1})])
    assert (await deduplicate(again, runtime))["new"] == (), "it was remembered with its task"
    unseen = CONTEXT.model_copy(update={"id": "context-unseen", "iteration": 1, "tool": "touch"})
    write_jsonl(run.iteration(1).contexts, [unseen])
    # What the run never explored:
    with closing(FailureMemory(run.failures_path, runtime.context.settings.memory)) as memory:
        memory.remember([unseen.model_copy(update={"id": "context-0", "iteration": 0})])
    again = again.model_copy(update={"contexts": ("context-unseen",)})
    assert (await deduplicate(again, runtime))["new"] == ("context-unseen",), "the index is not believed"


def test_only_forks_resolve_a_path_to_services() -> None:
    """Rule 8: nodes, routers and error handlers see their dependencies in ``runtime.context``."""
    users = {
        path.relative_to(ROOT / "graph").as_posix()
        for path in (ROOT / "graph").rglob("*.py")
        if re.search(r"\bservices_at\b|\bstudio_run\b|\bopened_run\b", path.read_text())
    }
    readers = {"show.py", "write_report.py"}  # commands: of the newest run they read records, and make no services
    assert users == {
        "assembly.py",
        "checkpoints.py",
        "studio/forks.py",
        "studio/__main__.py",
        "studio/server.py",
        *readers,
    }
    assert not any("services_at" in (ROOT / "graph" / name).read_text() for name in readers)
    for path in (*(ROOT / "graph" / "nodes").glob("*.py"), ROOT / "graph" / "branches.py"):
        assert "RunContext" not in path.read_text(), path
