"""How the contract plays episodes, and the wrong calls that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from pydantic import JsonValue

from environments.base import (
    Action,
    Environment,
    Episode,
    Observation,
    Outcome,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
)
from environments.verification.replay import bare_task

ODD: tuple[JsonValue, ...] = (
    None,
    True,
    -1,
    1.5,
    10**30,
    1e300,
    "",
    "x" * 5000,
    "\n\t\0",
    [],
    [[1]],
    {},
    {"a": [None]},
)


class Broken(AssertionError):
    """A property of the contract does not hold; the message says why."""


def hold(holds: object, why: str) -> None:
    """Raise Broken with ``why`` unless ``holds`` is true."""
    if not holds:
        raise Broken(why)


def live(environment: Environment, place: StartState | TaskSpec, turns: int = 1) -> Episode:
    """Open an episode without a reference where ``place`` begins, with a user turn for each action to come."""
    return environment.open(bare_task(place, turns))


def wrong_arguments(tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """Return calls without arguments, with unknown ones, and with every odd value for one parameter after the other."""
    calls = []
    for tool in tools:
        plain: dict[str, JsonValue] = {parameter.name: _plain(parameter.type) for parameter in tool.parameters}
        calls += [ToolCall(name=tool.name), ToolCall(name=tool.name, arguments=plain | {"no_such_parameter": 1})]
        for parameter in tool.parameters:
            calls += [ToolCall(name=tool.name, arguments=plain | {parameter.name: odd}) for odd in ODD]
    return calls


def acted(episode: Episode, action: Action) -> Observation:
    """Return the answer to an action. Raises Broken where the environment raises: a wrong action is data."""
    try:
        return episode.step(action)
    except Exception as error:
        raise Broken(f"{action} raised {error!r}") from error


def raises(expected: type[Exception], act: Callable[[], object]) -> bool:
    """Return whether calling ``act`` raises ``expected``; any other exception comes out."""
    try:
        act()
    except expected:
        return True
    return False


def played_tools(environment: Environment, task: TaskSpec) -> tuple[str, ...]:
    """Return the tools that the first turn of a task shows."""
    with closing(environment.open(task)) as episode:
        return episode.start().tools


def replay_asking(environment: Environment, task: TaskSpec) -> tuple[str, Outcome]:
    """Return final state and outcome of the reference when the outcome is asked for twice after every action."""
    with closing(environment.open(task)) as episode:
        episode.start()
        for calls in task.reference:
            for call in calls:
                hold(episode.outcome() == episode.outcome(), "two outcomes in a row differ")
                episode.step(call)
            episode.outcome()
            episode.end_turn()
        return episode.state(), episode.outcome()


def in_turns(tasks: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
    """Return the tasks of several calls with a user turn for each call."""
    return tuple(
        task.model_copy(
            update={
                "turns": tuple(f"turn {number}" for number in range(len(task.reference[0]))),
                "reference": tuple((call,) for call in task.reference[0]),
            }
        )
        for task in tasks
        if len(task.reference) == 1 and len(task.reference[0]) > 1
    )


def _plain(type_name: str) -> JsonValue:
    plain: dict[str, JsonValue] = {"integer": 1, "float": 1.0, "boolean": True, "array": [], "dict": {}}
    return plain.get(type_name, "x")
