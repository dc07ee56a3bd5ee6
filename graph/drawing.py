"""What drawings of the graph, and Studio, say about a node."""

from __future__ import annotations

from collections.abc import Callable


def described(node: Callable[..., object]) -> dict[str, str]:
    """The first line of a node's docstring, which Studio and the drawings show."""
    return {"description": (node.__doc__ or "").partition("\n")[0]}
