"""What a starter learns the learning interface's cues from: guidelines drawn at random, and slips that are hinted at.

A guideline says nothing about a demonstration that is right anyway: it is drawn, so that the policy has seen its token
and goes on as it would. A slip is a wrong action before the right one; the policy reads it, with the error and its
hint, and learns only what comes after. All of this is our choice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.base import Action, Environment, MalformedCall, TaskSpec, ToolCall, ToolSpec
from environments.learning_interface.cues import GUIDELINES
from environments.learning_interface.environment import LearningInterface
from environments.learning_interface.settings import InterfaceSettings
from environments.learning_interface.state import InterfaceState
from training.compact_text import CALL, CompactSettings, CompactText

GUIDED = 0.5
"""Share of demonstrations with guidelines."""

SLIPPING = 0.25
"""Share of demonstrations that are tried with a slip; not every slip is answered with an error."""


def cued(environment: Environment, rng: random.Random) -> LearningInterface:
    """The environment as one demonstration sees it: up to three guidelines, or none, and hints."""
    settings = InterfaceSettings(schema_cues=False)
    number = rng.randint(1, settings.at_most) if rng.random() < GUIDED else 0
    labels = tuple(rng.sample([*GUIDELINES], number))
    return LearningInterface(environment, settings, InterfaceState(guidelines=labels))


def slip(task: TaskSpec, tools: Sequence[ToolSpec], rng: random.Random) -> tuple[int, Action] | None:
    """A wrong action and the call of the first turn that it comes before; None for most tasks (``SLIPPING``)."""
    if rng.random() >= SLIPPING or not task.reference[0]:
        return None
    place = rng.randrange(len(task.reference[0]))
    call = task.reference[0][place]
    tool = next(tool for tool in tools if tool.name == call.name)
    given = [one.name for one in tool.parameters if one.name in call.arguments]
    required = [one.name for one in tool.parameters if one.required and one.name in given]
    foreign = sorted({one.name for other in tools for one in other.parameters} - {one.name for one in tool.parameters})
    wrong: list[Action] = [_unreadable(call, tools)]
    if required:
        left_out = rng.choice(required)
        kept = {name: value for name, value in call.arguments.items() if name != left_out}
        wrong.append(call.model_copy(update={"arguments": kept}))
    if foreign:
        wrong.append(call.model_copy(update={"arguments": {**call.arguments, rng.choice(foreign): True}}))
    if given:
        wrong.append(call.model_copy(update={"arguments": {**call.arguments, rng.choice(given): "nowhere"}}))
    return place, rng.choice(wrong)


def _unreadable(call: ToolCall, tools: Sequence[ToolSpec]) -> MalformedCall:
    text = CompactText(CompactSettings())
    text.know(tools, frozenset())
    read = text.read(f"{CALL}{call.name} $\n")
    assert isinstance(read, MalformedCall)
    return read
