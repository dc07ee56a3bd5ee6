"""The wiring of one co-evolution iteration, and of unguided exploration through the same branch; nothing else."""

from __future__ import annotations

from collections.abc import Callable

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import RetryPolicy

from graph.branches import fail_to_update, may_pass, record_failure, send_branches, send_seeds, stopping
from graph.nodes.abstract import abstract
from graph.nodes.deduplicate import deduplicate
from graph.nodes.explore import explore
from graph.nodes.extract import extract
from graph.nodes.reflect import reflect
from graph.nodes.update import update
from graph.nodes.verify import verify
from graph.state import BranchEnd, BranchState, IterationState, RunContext, SeedState

# What drawings of the graph, and Studio, say about a node.


def _described(node: Callable[..., object]) -> dict[str, str]:
    """The first line of a node's docstring, which Studio and the drawings show."""
    return {"description": (node.__doc__ or "").partition("\n")[0]}


IterationGraph = StateGraph[IterationState, RunContext, IterationState, IterationState]
SeedGraph = StateGraph[SeedState, RunContext, SeedState, SeedState]
Branch = CompiledStateGraph[BranchState, RunContext, BranchState, BranchEnd]

RETRY = RetryPolicy(max_attempts=3, retry_on=may_pass)


def branch() -> Branch:
    """Explore, abstract, verify: what each new context goes through."""
    graph = StateGraph(BranchState, context_schema=RunContext, output_schema=BranchEnd)
    graph.add_node("explore", stopping(explore), retry_policy=RETRY, metadata=_described(explore))
    graph.add_node("abstract", stopping(abstract), retry_policy=RETRY, metadata=_described(abstract))
    graph.add_node("verify", stopping(verify), retry_policy=RETRY, metadata=_described(verify))
    graph.add_edge(START, "explore")
    graph.add_edge("explore", "abstract")
    graph.add_edge("abstract", "verify")
    graph.add_edge("verify", END)
    return graph.compile()


def iteration_graph() -> IterationGraph:
    """One iteration: signals of a round's trajectories in, tasks out."""
    graph = StateGraph(IterationState, context_schema=RunContext)
    for node in (extract, reflect, deduplicate, update):
        graph.add_node(node.__name__, node, metadata=_described(node))
    graph.add_node("branch", branch(), input_schema=BranchState, error_handler=fail_to_update)
    graph.add_edge(START, "extract")
    graph.add_edge("extract", "reflect")
    graph.add_edge("reflect", "deduplicate")
    graph.add_conditional_edges("deduplicate", send_branches, ["branch", "update"])
    graph.add_edge("branch", "update")
    graph.add_edge("update", END)
    return graph


def seed_graph() -> SeedGraph:
    """Unguided exploration of a batch of start states, a branch each."""
    graph = StateGraph(SeedState, context_schema=RunContext)
    graph.add_node("branch", branch(), input_schema=BranchState, error_handler=record_failure)
    graph.add_conditional_edges(START, send_seeds, ["branch"])
    graph.add_edge("branch", END)
    return graph


graph = iteration_graph().compile()
