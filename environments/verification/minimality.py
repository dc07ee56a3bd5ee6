"""Find superfluous calls of a reference, and reduce paths to the calls that are needed.

The official response check asks for as many results as the reference has, so inside one turn every omitted call fails
it, useful or not. A call is therefore superfluous (our rule) when the reference without it

- succeeds by the official rule, also where that counts results of the setup, or
- ends every turn in the same state, returns everything that the full reference had returned by the end of that
  turn, and makes no remaining call fail,

and every value in a remaining call is still grounded (``grounding``): where the user turn does not ask for the results
of reads, later calls may need their values.

A call's information is the text of its result, unless the environment marks it empty or it is null or blank. A read
adds its result once; a second read of the same text adds nothing, and neither does a change that is overwritten before
the turn ends and has an empty result. Conversely, whenever a call is not superfluous, the trajectory without it fails
the official check.
"""

from __future__ import annotations

from collections import Counter

from environments.base import Environment, TaskSpec, ToolCall
from environments.verification.grounding import ungrounded
from environments.verification.replay import Replay, is_informative, replay, succeeds

Calls = tuple[tuple[ToolCall, ...], ...]


def superfluous(environment: Environment, task: TaskSpec, full: Replay, turn: int, call: int) -> bool:
    """Return whether the reference has the same effects and results without call ``call`` of turn ``turn``.

    Both are counted from 0. ``full`` is a replay of the whole reference.
    """
    calls = without(task.reference, turn, call)
    try:
        rest = replay(environment, task, calls)
        solved = rest.outcome.success or succeeds(environment, task, calls)
    except RecursionError:
        return False
    if not solved and (rest.errors() or rest.end_states() != full.end_states()):
        return False
    if not solved and not all(_informative_results(full, t) <= _results(rest, t) for t in range(len(full.turns))):
        return False
    return missing_values(environment, task, rest) <= missing_values(environment, task, full)


def reduce(environment: Environment, task: TaskSpec) -> TaskSpec | None:
    """Return the task with its reference reduced by replays until no call is superfluous; None if no call remains.

    Use it for paths before their text is written: turns that lose their last call are dropped with their text. Calls
    that fail are dropped first. Of two calls with the same information, the later one is dropped, so that the earlier
    result can ground the calls between. The result is a fixed point: reducing it again changes nothing. Raises
    InputError for a task that the environment cannot open, EnvironmentFault when the environment itself failed.
    """
    current = _drop_empty_turns(task, task.reference)
    while current is not None:
        try:
            full = replay(environment, current)
        except RecursionError:
            return None
        place = next(iter(full.errors()), None) or _last_superfluous(environment, current, full)
        if place is None:
            return current
        current = _drop_empty_turns(current, without(current.reference, *place))
    return None


def _last_superfluous(environment: Environment, task: TaskSpec, full: Replay) -> tuple[int, int] | None:
    places = [(t, c) for t, turn in enumerate(task.reference) for c in range(len(turn))]
    return next((place for place in reversed(places) if superfluous(environment, task, full, *place)), None)


def missing_values(environment: Environment, task: TaskSpec, played: Replay) -> Counter[str]:
    """Count the ungrounded values of the calls of ``played``, a replay of calls of ``task``."""
    played_task = task.model_copy(update={"reference": tuple(turn.calls for turn in played.turns)})
    return Counter(phrase.partition(": ")[2] for phrase in ungrounded(environment, played_task, played))


def without(reference: Calls, turn: int, call: int) -> Calls:
    """Return the reference without one call; both places are counted from 0."""
    left = reference[turn][:call] + reference[turn][call + 1 :]
    return (*reference[:turn], left, *reference[turn + 1 :])


def _drop_empty_turns(task: TaskSpec, reference: Calls) -> TaskSpec | None:
    kept = [(text, calls) for text, calls in zip(task.turns, reference, strict=True) if calls]
    if not kept:
        return None
    turns, calls = zip(*kept, strict=True)
    return task.model_copy(update={"turns": turns, "reference": calls})


def _informative_results(played: Replay, turn: int) -> set[str]:
    """Return the informative results up to the end of the turn."""
    return {
        observation.text
        for replayed in played.turns[: turn + 1]
        for observation in replayed.observations
        if is_informative(observation)
    }


def _results(played: Replay, turn: int) -> set[str]:
    """Return all results up to the end of the turn."""
    return {o.text for replayed in played.turns[: turn + 1] for o in replayed.observations if not o.failed}
