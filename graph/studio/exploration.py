"""Unguided exploration of a few start states, as LangGraph Studio runs it: the branch of D_0, in a copy of the run.

The commands make D_0 by ``graph.run.initial_tasks``, which prepares, explores and joins chunk after chunk until there
are enough tasks. Here it is one chunk, to look at. The copy is a run before its first task: it can be continued.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from langgraph.errors import NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send

from environments.base import InputError
from environments.registry import benchmark_of
from graph.assembly import RunServices
from graph.branches import record_failure, sends
from graph.digests import lines
from graph.iteration import FORM, Given, add_branches, described
from graph.report.digest import counts_words, number_words, task_words
from graph.run.initial_tasks import Seeds, join, prepare
from graph.state import BranchState, ExplorationInput, ExplorationState
from graph.studio.forks import with_services
from memory.records import FailureContext
from memory.run import SEED_STAGE, read_json

ExplorationGraph = StateGraph[ExplorationState, Given, ExplorationInput, ExplorationState]


def exploration_graph() -> ExplorationGraph:
    """Wire unguided exploration: start states in, a branch each, drafts of tasks out."""
    graph = ExplorationGraph(ExplorationState, context_schema=FORM, input_schema=ExplorationInput)
    graph.add_node("prepare", with_services(_prepare), destinations=("branch",), metadata=described(_prepare))
    add_branches(graph, _fail_to_join, "join", with_services)
    graph.add_node("join", with_services(_join), metadata=described(_join))
    graph.add_edge(START, "prepare")
    graph.add_edge("branch", "join")
    graph.add_edge("join", END)
    return graph


async def _prepare(state: ExplorationState, runtime: Runtime[RunServices]) -> Command[Literal["branch"]]:
    """Choose start states of the environment, and send a branch into each, without a weakness to look at.

    Raises InputError for a wrong number and an environment without start states.
    """
    services = runtime.context
    contexts = await asyncio.to_thread(_contexts, services, state.start_states)
    digest = lines([f"{number_words(len(contexts), 'start state')} in {services.run.root.name}"])
    sent: list[Send] = await asyncio.to_thread(sends, services, SEED_STAGE, contexts)
    return Command(update={"contexts": tuple(contexts), "digest": {"prepare": digest}}, goto=sent)


def _contexts(services: RunServices, count: object) -> list[str]:
    benchmark = benchmark_of(services.environment)
    most = benchmark.exploration.seed_chunk
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise InputError(f"start_states: {count!r:.80} is not a number of start states: give one from 1 to {most}")
    starts = services.environment.starts()
    if not starts:
        raise InputError(benchmark.explain_no_starts(services.environment.name))
    return [one.id for one in prepare(services, starts, range(count), set())]


async def _fail_to_join(
    state: BranchState, error: NodeError, runtime: Runtime[RunServices]
) -> Command[Literal["join"]]:
    """Record why a branch failed, and go on without it."""
    return Command(update=await record_failure(state, error, runtime), goto="join")


async def _join(state: ExplorationState, runtime: Runtime[RunServices]) -> dict[str, object]:
    """Join the branches: accepted drafts are what D_0 would begin with."""
    services, seeds = runtime.context, Seeds()

    def joined() -> None:
        branches = [services.run.seed.branch(one) for one in state.contexts]
        contexts = [read_json(branch.context, FailureContext) for branch in branches]
        join(services, contexts, seeds, set())

    await asyncio.to_thread(joined)
    digest = lines(
        [
            f"{len(seeds.tasks)} of {number_words(seeds.drafts, 'draft')} would be tasks of D_0",
            f"refused: {counts_words(seeds.refused.most_common())}",
            f"branches that failed: {counts_words(seeds.failures.most_common())}",
            *(task_words(task) for task in seeds.tasks),
        ]
    )
    return {"digest": {"join": digest}}
