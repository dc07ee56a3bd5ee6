"""Find which calls of a run belong to one purpose: by values of answers, by effects, and by the things that they name.

Effects are found by replays that leave one call out. Which rules join calls is our choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from agents.evidence import call_of, context_task
from agents.scripted.fitting import constants, wanted
from environments.answers import decoded
from environments.base import Environment, ToolCall, ToolSpec
from environments.task_text import is_count, leaves
from memory.records import FailureContext, Interaction

Links = Sequence[Mapping[int, bool]]
"""For each call of a run the places of earlier ones that it belongs with, and whether it takes a value of theirs."""


def links(run: Sequence[Interaction], context: FailureContext, environment: Environment) -> Links:
    """Return which calls of a run belong to one purpose (ours).

    A later one takes a value of the earlier's answer, is answered differently without its effect, or names the same
    thing. Documented constants are values of nobody.
    """
    tools = {tool.name: tool for tool in environment.tools([*dict.fromkeys(call_of(one).name for one in run)])}
    free = [_undocumented(call_of(one), tools[call_of(one).name]) for one in run]
    things = [_things(call, tools[call.name]) for call in free]
    calls = [call_of(one) for one in run]
    usual = told(calls, context, environment)
    found: list[dict[int, bool]] = [{} for _ in run]
    for place, earlier in enumerate(run):
        rest = range(place + 1, len(run))
        without = usual
        if earlier.changed and rest:
            without = (*usual[: place + 1], *told(calls[:place] + calls[place + 1 :], context, environment)[place:])
        for later in rest:
            takes = answers_to(earlier, free[later])
            if takes or things[place] & things[later] or without[later] != usual[later]:
                found[later][place] = takes
    return found


def _undocumented(call: ToolCall, tool: ToolSpec) -> ToolCall:
    """Return the call without the arguments that its tool's documentation lists."""
    known = {one.name for one in tool.parameters if constants(one)}
    return ToolCall(name=call.name, arguments={n: v for n, v in call.arguments.items() if n not in known})


def _things(call: ToolCall, tool: ToolSpec) -> set[str]:
    """Return the identifiers and names that a call gives: texts but prose and dates, and numbers that identify."""
    found = set()
    for parameter in (one for one in tool.parameters if one.name in call.arguments):
        asked = wanted(tool.name, parameter.name, parameter.description)
        values = leaves(call.arguments[parameter.name])
        texts = not (asked.prose or asked.dated or asked.searched)
        found |= {str(one) for one in values if asked.identifier or (texts and isinstance(one, str) and len(one) > 1)}
    return found


def told(calls: Sequence[ToolCall], context: FailureContext, environment: Environment) -> tuple[str, ...]:
    """Return the answers to calls, one after another from the context's start."""
    with closing(environment.open(context_task(context, max(1, len(calls))))) as episode:
        episode.start()
        texts = []
        for call in calls:
            texts.append(episode.step(call).text)
            episode.end_turn()
        return tuple(texts)


def answers_to(source: Interaction, call: ToolCall) -> bool:
    """Return whether a text of ``call``, or a number that is not small, occurs in the observation of ``source``."""
    given = [*leaves(call.arguments)]
    if any(f'"{text}"' in source.observation.text for text in given if isinstance(text, str) and len(text) > 1):
        return True
    numbers = {one for one in given if isinstance(one, int | float) and not is_count(one)}
    return bool(numbers) and not numbers.isdisjoint(
        one for one in leaves(decoded(source.observation.text)) if isinstance(one, int | float)
    )
