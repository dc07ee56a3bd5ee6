"""Count which functions tasks exercise, and which ordered pairs of functions: those that their references call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from environments.base import TaskSpec, ToolCall, ToolSpec
from environments.verification.programs import called

Pair = tuple[str, str]


class Exercised:
    """The number of tasks that call each function, and each function somewhere after another one.

    Args:
        tasks: the tasks.
        tools: documentation of the tools that they may call. In programs for one of them the functions that are called
            count in place of the tool.
    """

    def __init__(self, tasks: Iterable[TaskSpec], tools: Iterable[ToolSpec]) -> None:
        self.functions: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        programs = program_parameters(tools)
        for task in tasks:
            names = [
                name for turn in task.reference for call in turn for name in functions_of(call, programs.get(call.name))
            ]
            self.functions.update(set(names))
            self.pairs.update({pair for pair in combinations(names, 2) if pair[0] != pair[1]})


def program_parameters(tools: Iterable[ToolSpec]) -> dict[str, str]:
    """Return the parameter that holds a program, by the name of its tool."""
    return {tool.name: tool.program.name for tool in tools if tool.program is not None}


def functions_of(call: ToolCall, parameter: str | None) -> Sequence[str]:
    """Return the functions that a call calls; ``parameter`` holds its program, None where the call is not a program."""
    code = call.arguments.get(parameter) if parameter is not None else None
    if not isinstance(code, str):
        return (call.name,)
    try:
        return called(code)
    except ValueError:  # it is not Python, and calls nothing
        return ()
