"""How ``contract.py`` plays episodes, and the odd calls that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def live(environment: Environment, place: StartState | TaskSpec, turns: int = 1) -> Episode:
    """An episode without a reference where ``place`` begins, with a user turn for each action to come."""
    return environment.open(
        TaskSpec(
            environment=place.environment,
            split=place.split,
            classes=place.classes,
            turns=("",) * turns,
            initial_state=place.initial_state,
            tools=place.tools,
            reference=((),) * turns,
        )
    )


def wrong_arguments(tools: Sequence[ToolSpec]) -> list[ToolCall]:
    """Calls without arguments, with unknown ones, and with every odd value for one parameter after the other."""
    calls = []
    for tool in tools:
        plain: dict[str, JsonValue] = {parameter.name: _plain(parameter.type) for parameter in tool.parameters}
        calls += [ToolCall(name=tool.name), ToolCall(name=tool.name, arguments=plain | {"no_such_parameter": 1})]
        for parameter in tool.parameters:
            calls += [ToolCall(name=tool.name, arguments=plain | {parameter.name: odd}) for odd in ODD]
    return calls


def acted(episode: Episode, action: Action) -> Observation:
    """The answer to an action. Fails where the environment raises: a bad action is data, not a crash."""
    try:
        return episode.step(action)
    except Exception as error:
        raise AssertionError(f"{action} raised {error!r}") from error


def raises(expected: type[Exception], act: Callable[[], object]) -> bool:
    """Whether calling ``act`` raises ``expected``; any other exception comes out."""
    try:
        act()
    except expected:
        return True
    return False


def played_tools(environment: Environment, task: TaskSpec) -> tuple[str, ...]:
    """The tools that the first turn of a task shows."""
    with closing(environment.open(task)) as episode:
        return episode.start().tools


def replay_asking(environment: Environment, task: TaskSpec) -> tuple[str, Outcome]:
    """Final state and outcome of the reference when the outcome is asked for twice after every action."""
    with closing(environment.open(task)) as episode:
        episode.start()
        for calls in task.reference:
            for call in calls:
                assert episode.outcome() == episode.outcome(), "two outcomes in a row differ"
                episode.step(call)
            episode.outcome()
            episode.end_turn()
        return episode.state(), episode.outcome()


def telling(environment: Environment, task: TaskSpec) -> Iterator[str]:
    """Texts and states of the reference, one step after the other."""
    with closing(environment.open(task)) as episode:
        episode.start()
        yield episode.state()
        for call in task.reference[0]:
            yield f"{episode.step(call).text}\n{episode.state()}"


def told(environment: Environment, task: TaskSpec) -> tuple[str, ...]:
    """All that ``telling`` yields."""
    return tuple(telling(environment, task))


def _plain(type_name: str) -> JsonValue:
    plain: dict[str, JsonValue] = {"integer": 1, "float": 1.0, "boolean": True, "array": [], "dict": {}}
    return plain.get(type_name, "x")
