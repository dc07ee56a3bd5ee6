"""Contexts around one tool at a start state, tools in turn: what gives the starter a weak idea of every tool.

Unguided exploration seldom or never reaches tools that need others first, and a policy that has never seen a tool does
not sample it, so that no reward can raise it. A pretrained model has some idea of any documented tool (our choice).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from agents.scripted.reflector import with_neighbours
from environments.base import Environment, StartState
from memory.ids import derive_seed, record_id
from memory.records import FailureContext, Unsignalled


def tool_context(starts: Sequence[StartState], environment: Environment, number: int) -> FailureContext:
    """The ``number``-th such context, from 0: tools in order of name, each time at the next start state that has it.

    ``starts`` must not be empty.
    """
    names = sorted({name for start in starts for name in start.tools})
    name, turn = names[number % len(names)], number // len(names)
    having = [start for start in starts if name in start.tools]
    start = having[turn % len(having)]
    tools = {tool.name: tool for tool in environment.tools(start.tools)}
    identifier = record_id("context", Unsignalled.TOOL, start.environment, start.id, name, number)
    return FailureContext(
        id=identifier,
        kind=Unsignalled.TOOL,
        environment=start.environment,
        tool=name,
        explore=with_neighbours([name], tools[name], tuple(tools.values()), random.Random(derive_seed(0, identifier))),
        classes=start.classes,
        initial_state=start.initial_state,
        tools=start.tools,
    )
