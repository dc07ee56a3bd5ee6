"""How alike an agent's calls are to a reference's, from 0 to 1: what a failed rollout may be rewarded for.

The idea is the similarity reward of STAR (Sim-RL): the name of a call first, then its arguments. The formula is ours.
CoEvolve and SEAL reward success alone. Nothing here decides about success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice, zip_longest
from math import fsum
from statistics import fmean

from pydantic import JsonValue

from environments.answers import rounded
from environments.base import Action, ToolCall
from environments.task_text import leaves

_NAME = 0.5  # of a call's similarity is in its name, the rest in its arguments
_CHARACTERS = 4000  # of a text that are compared
_LEAVES = 1000  # of a value


def similarity(actions: Sequence[Sequence[Action]], reference: Sequence[Sequence[ToolCall]]) -> float:
    """Return the mean similarity of the turns of ``reference``, which has one, to the agent's actions in them.

    A turn that was not reached has 0, and so has one with actions where the reference has none.
    """
    turns = islice(zip_longest(actions, reference), len(reference))
    return fmean(0.0 if own is None else _of_turn(own, wanted or ()) for own, wanted in turns)


def _of_turn(own: Sequence[Action], wanted: Sequence[ToolCall]) -> float:
    """Return the sum of the best alignment in order, by the longer of the two: calls beyond the reference cost."""
    if not own or not wanted:
        return float(not own and not wanted)
    best = [0.0] * (len(wanted) + 1)
    for action in own:
        row = [0.0]
        for place, call in enumerate(wanted):
            both = best[place] + of_call(action, call)
            row.append(max(both, best[place + 1], row[place]))
        best = row
    return best[-1] / max(len(own), len(wanted))


def of_call(action: Action, call: ToolCall) -> float:
    """Return 0 for a call of another name or one that cannot be read, else a half and the arguments' mean half.

    The mean is over the arguments that either has: of one that only one has it is 0.
    """
    if not isinstance(action, ToolCall) or action.name != call.name:
        return 0.0
    own, wanted = action.arguments, call.arguments
    if not (names := own.keys() | wanted.keys()):
        return 1.0
    both = own.keys() & wanted.keys()
    return _NAME + (1 - _NAME) * fsum(_of_value(own[name], wanted[name]) for name in both) / len(names)


def _of_value(own: JsonValue, wanted: JsonValue) -> float:
    """Return 1 for equal values, else twice the parts in common by the parts of both: words, items, or one number."""
    left, right = _parts(own), _parts(wanted)
    both = left.total() + right.total()
    return 2 * (left & right).total() / both if both else 1.0


def _parts(value: JsonValue) -> Counter[str]:
    parts: Counter[str] = Counter()
    for leaf in islice(leaves(value), _LEAVES):
        if isinstance(leaf, str):
            parts.update(leaf[:_CHARACTERS].casefold().split())
        else:
            parts[repr(rounded(leaf))] += 1
    return parts
