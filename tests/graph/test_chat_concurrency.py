"""Contexts are explored at the same time over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chat_table import answer
from support.faulty_server import FaultyServer
from support.made_run import CAR, ENVIRONMENT, make_run, services_of

from environments.base import StartState
from graph.iteration import seed_graph
from graph.state import SeedState
from memory.records import FailureContext, Interaction, SignalKind
from memory.run import RunDirectory, read_jsonl, write_json
from memory.run_files import KnownTasks

pytestmark = pytest.mark.slow

CONTEXTS = 16
ROUNDS, STEPS = 2, 5


def context(number: int, start: StartState) -> FailureContext:
    return FailureContext(
        id=f"context-{number:016x}",
        kind=SignalKind.BOUNDARY,
        environment="bfcl",
        tool="fillFuelTank",
        how=f"Attempt {number} put in another amount.",
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )


def prepare(run: RunDirectory) -> list[FailureContext]:
    start = next(start for start in ENVIRONMENT.starts() if start.classes == (CAR,))
    write_json(run.seed.known, KnownTasks(fingerprints=()))
    contexts = [context(number, start) for number in range(CONTEXTS)]
    for one in contexts:
        write_json(run.seed.branch(one.id).context, one)
    return contexts


def explored(run: RunDirectory, one: FailureContext) -> Path:
    return run.seed.branch(one.id).interactions


async def test_sixteen_contexts_are_explored_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint answers the first of them only when it has a request of each."""
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    with FaultyServer(lambda request: answer(request.schema, request.prompt), together=CONTEXTS) as endpoint:
        explorer = f"roles.explorer={{kind: chat, model: table, base_url: '{endpoint.url}'}}"
        exploration = f"roles.exploration={{rounds: {ROUNDS}, steps: {STEPS}, drafts_per_context: 1}}"
        run = make_run(tmp_path / "run", explorer, exploration)
        contexts = prepare(run)
        services = services_of(run)
        at_once = services.settings.roles.concurrency
        state = SeedState(contexts=tuple(one.id for one in contexts))
        await seed_graph().compile().ainvoke(state, {"max_concurrency": at_once}, context=services)
        assert endpoint.most_in_flight == CONTEXTS
    for one in contexts:
        assert len(read_jsonl(explored(run, one), Interaction)) == ROUNDS * STEPS
