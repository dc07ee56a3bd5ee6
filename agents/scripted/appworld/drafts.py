"""Drafts tasks from an exploration of AppWorld: paths to calls, ended by complete_task, and their texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agents.live import call_of, context_task, successful_runs
from agents.scripted.appworld.explorer import can_be_aimed_at
from agents.scripted.appworld.session import COMPLETE
from agents.scripted.appworld.wording import Path, answer_call, path_to, question, said_text
from agents.settings import ExplorationSettings
from environments.base import Environment, ToolCall, ToolSpec
from environments.task_text import CONNECTIVES
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction

_AGAIN = 0.7
_TWO = 0.3


def draft_appworld(
    context: FailureContext,
    interactions: Sequence[Interaction],
    environment: Environment,
    settings: ExplorationSettings,
    seed: int,
) -> tuple[Draft, ...]:
    """Make at most ``drafts_per_context`` drafts within the settings' limits of calls; deterministic.

    A path to a call that changed something becomes a task to do that; a path to a call that only reads becomes a
    question. Now and then two changes are one task. With ``order: easy_first`` tools that the context names come first,
    then variety; with ``long_first`` the longest drafts do, and these among equals.
    """
    rng = random.Random(seed)
    tools = {tool.name: tool for tool in environment.tools(context.tools)}
    drafts: list[Draft] = []
    for text, calls, used in _ordered(_tasks(context, interactions, tools, settings, rng), settings):
        drafts.append(
            Draft(
                **context_task(context).model_copy(update={"turns": (text,), "reference": (calls,)}).model_dump(),
                id=record_id("draft", context.id, len(drafts)),
                context_id=context.id,
                parents=tuple(interaction.id for interaction in used),
            )
        )
        if len(drafts) == settings.drafts_per_context:
            break
    return tuple(drafts)


_Task = tuple[str, tuple[ToolCall, ...], tuple[Interaction, ...]]


def _tasks(
    context: FailureContext,
    interactions: Sequence[Interaction],
    tools: dict[str, ToolSpec],
    settings: ExplorationSettings,
    rng: random.Random,
) -> Iterator[_Task]:
    """Yield text, reference and interactions of each task whose length is allowed; equal texts once."""
    seen: set[str] = set()
    for run, places in _targets(context, interactions, rng):
        task = _task(run, places, tools, rng)
        if task is None or not settings.min_reference_calls <= len(task[1]) <= settings.max_reference_calls:
            continue
        if task[0] not in seen:
            seen.add(task[0])
            yield task


def _ordered(tasks: Iterator[_Task], settings: ExplorationSettings) -> Iterable[_Task]:
    return tasks if settings.order == "easy_first" else sorted(tasks, key=lambda task: -len(task[1]))


def _targets(
    context: FailureContext, interactions: Sequence[Interaction], rng: random.Random
) -> Iterator[tuple[Sequence[Interaction], tuple[int, ...]]]:
    """Yield runs of successful calls with the indices that a task is to be about, the most wanted first."""
    wanted = list(dict.fromkeys((context.tool, *context.explore) if context.tool else context.explore))
    rank = {name: float(place) for place, name in enumerate(wanted)}
    found: list[tuple[float, float, tuple[Interaction, ...], int]] = []
    times: Counter[str] = Counter()
    for run in successful_runs(interactions):
        for place, interaction in enumerate(run):
            name = call_of(interaction).name
            if can_be_aimed_at(name):
                found.append((rank.get(name, float(len(wanted))) + _AGAIN * times[name], rng.random(), run, place))
                times[name] += 1
    found.sort(key=lambda entry: entry[:2])
    for _, _, run, place in found:
        before = [other for other in range(place) if run[other].changed and can_be_aimed_at(call_of(run[other]).name)]
        if before and run[place].changed and rng.random() < _TWO:
            yield run, (rng.choice(before), place)
        yield run, (place,)


def _task(
    run: Sequence[Interaction], places: Sequence[int], tools: dict[str, ToolSpec], rng: random.Random
) -> _Task | None:
    """Make text, reference and interactions of the task to repeat the calls at ``places``; None if that fails."""
    paths = [path_to(run, place) for place in places]
    last = run[places[-1]]
    asked = None if last.changed else question(last, rng)
    if not last.changed and asked is None:
        return None
    text = said_text(paths, tools, run, rng)
    if text is None:
        return None
    used = _joined(run, paths)
    end = answer_call(None if asked is None else asked[1], COMPLETE)
    calls = (*(call_of(interaction) for interaction in used), end)
    return text if asked is None else f"{text}{rng.choice(CONNECTIVES)}{asked[0]}", calls, used


def _joined(run: Sequence[Interaction], paths: Sequence[Path]) -> tuple[Interaction, ...]:
    kept = {interaction.id for path in paths for interaction in path.interactions}
    return tuple(interaction for interaction in run if interaction.id in kept)
