"""Wires one co-evolution iteration, and unguided exploration through the same branch; nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import RetryPolicy

from graph.assembly import RunServices
from graph.branches import dispatch, fail_to_update, may_pass, record_failure, send_seeds, stopping
from graph.nodes.new_tasks import abstract, explore, update, verify
from graph.nodes.weaknesses import deduplicate, extract, reflect
from graph.state import BranchEnd, BranchState, IterationInput, IterationState, RunContext, SeedState

# A command gives services. LangGraph Studio gives its form, which names a run: graph.studio resolves it to services.
Given = RunContext | RunServices
FORM = cast("type[Given]", RunContext)

IterationGraph = StateGraph[IterationState, Given, IterationInput, IterationState]
SeedGraph = StateGraph[SeedState, Given, SeedState, SeedState]
BranchGraph = StateGraph[BranchState, Given, BranchState, BranchEnd]
Branch = CompiledStateGraph[BranchState, Given, BranchState, BranchEnd]

Called = Callable[..., Awaitable[Any]]  # a node, or the handler of a branch's failure
Resolve = Callable[[Called], Called]  # of a node that takes services, makes one that takes what the graph is given

RETRY = RetryPolicy(max_attempts=3, retry_on=may_pass)


def described(node: Callable[..., object]) -> dict[str, str]:
    """Return the first line of a node's docstring, which Studio and drawings of the graph show."""
    return {"description": (node.__doc__ or "").partition("\n")[0]}


def as_given(node: Called) -> Called:
    """Return ``node`` itself: commands give services."""
    return node


def branch(resolve: Resolve) -> Branch:
    """Wire the nodes of each new context: explore, abstract, verify."""
    graph = BranchGraph(BranchState, context_schema=FORM, output_schema=BranchEnd)
    for node in (explore, abstract, verify):
        guarded = resolve(stopping(node))
        graph.add_node(node.__name__, guarded, retry_policy=RETRY, metadata=described(node))
    graph.add_edge(START, "explore")
    graph.add_edge("explore", "abstract")
    graph.add_edge("abstract", "verify")
    graph.add_edge("verify", END)
    return graph.compile()


def iteration_graph(resolve: Resolve = as_given) -> IterationGraph:
    """Wire one iteration: signals of a round's trajectories in, tasks out."""
    graph = IterationGraph(IterationState, context_schema=FORM, input_schema=IterationInput)
    for node in (extract, reflect, deduplicate, update):
        graph.add_node(node.__name__, resolve(node), metadata=described(node))
    ends = ("branch", "update")
    graph.add_node("dispatch", resolve(dispatch), destinations=ends, metadata=described(dispatch))
    add_branches(graph, fail_to_update, "update", resolve)
    graph.add_edge(START, "extract")
    graph.add_edge("extract", "reflect")
    graph.add_edge("reflect", "deduplicate")
    graph.add_edge("deduplicate", "dispatch")
    graph.add_edge("branch", "update")
    graph.add_edge("update", END)
    return graph


def add_branches(
    graph: StateGraph[Any, Given, Any, Any], on_failure: Called, then: str = END, resolve: Resolve = as_given
) -> None:
    """Add the node ``branch``, and ``on_failure`` as the node ``branch_failed``, drawn between it and ``then``.

    LangGraph adds the handler of a node's errors under a name of its own, and draws it without an edge.
    """
    ends = {"branch_failed": "failed"}
    graph.add_node(
        "branch",
        branch(resolve),
        input_schema=BranchState,
        error_handler=resolve(on_failure),
        destinations=ends,
        metadata={"description": "Explore one weakness, propose tasks from what was found, and verify them"},
    )
    node = graph.nodes["branch"]
    assert node.error_handler_node is not None
    handler = graph.nodes.pop(node.error_handler_node)
    handler.ends, handler.metadata = (then,), described(on_failure)
    graph.nodes["branch_failed"] = handler
    node.error_handler_node = "branch_failed"


def seed_graph() -> SeedGraph:
    """Wire unguided exploration of a batch of start states, one branch each; commands only."""
    graph = SeedGraph(SeedState, context_schema=FORM)
    add_branches(graph, record_failure)
    graph.add_conditional_edges(START, send_seeds, ["branch"])
    graph.add_edge("branch", END)
    return graph
