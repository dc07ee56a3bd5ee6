"""The graph that LangGraph's server offers, named in langgraph.json."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from langgraph.graph.state import CompiledStateGraph

from environments.base import InputError
from graph.iteration import iteration_graph
from graph.studio.forks import with_services

Compiled = CompiledStateGraph[Any, Any, Any, Any]


class _Asking(CompiledStateGraph[Any, Any, Any, Any]):
    """A graph that refuses an input with keys that it does not ask for; LangGraph would drop them silently."""

    async def astream(self, input: object, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        known = self.builder.input_schema.model_fields
        if isinstance(input, dict) and (odd := next((key for key in input if key not in known), None)) is not None:
            raise InputError(f"input: {odd!r:.80} is not asked for: give {', '.join(known)} alone, or nothing")
        async for event in super().astream(input, *args, **kwargs):
            yield event


def asking(compiled: Compiled) -> Compiled:
    """Return ``compiled``, which from now on refuses an input with keys that it does not ask for.

    The library makes its own class of graph in ``compile``: its class is changed afterwards.
    """
    compiled.__class__ = _Asking
    return compiled


iteration = asking(iteration_graph(with_services).compile())
