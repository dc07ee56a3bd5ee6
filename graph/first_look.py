"""Look at an environment before a run: does it begin alike, answer alike, show its state, and what follows if not.

A few unguided episodes are explored, and each is played twice more from its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from agents.assembly import UNGUIDED_EXPLORATION, unguided_context
from agents.scripted.explorer import UnguidedExplorer
from environments.base import Environment, EnvironmentFault, InputError, ToolCall
from environments.contract.checks import Checked
from environments.verification.replay import bare_task, replay

EPISODES = 4
"""Episodes that are explored (our choice): a tool that is called in none is said to be."""


class Look(NamedTuple):
    """What was seen: by tool its calls, those refused, those that answered differently or changed the state.

    ``begins`` names starts that differed between two episodes; ``faults`` are the causes of episodes that failed.
    """

    tools: tuple[str, ...]
    calls: Counter[str]
    refused: Counter[str]
    differs: Counter[str]
    changes: Counter[str]
    begins: tuple[str, ...]
    faults: tuple[str, ...]


def look_at(environment: Environment, episodes: int = EPISODES) -> Look:
    """Explore ``episodes`` episodes and play each twice more. A fault of the environment ends its episode alone."""
    starts = environment.starts()
    seen = Look(tuple(starts[0].tools), Counter(), Counter(), Counter(), Counter(), (), ())
    begins, faults = dict[str, None](), []
    for position in range(episodes):
        start = starts[position % len(starts)]
        try:
            explorer = UnguidedExplorer(UNGUIDED_EXPLORATION)
            found = explorer.explore_now(unguided_context(start, position), environment, position)
            calls = tuple(one.action for one in found if isinstance(one.action, ToolCall))
            played = [replay(environment, bare_task(start), (calls,)) for _ in range(2)]
        except (EnvironmentFault, InputError) as error:
            faults.append(str(error))
            continue
        if played[0].initial != played[1].initial:
            begins[start.id] = None
        answers, again = (one.turns[0].observations for one in played)
        changed, changed_again = (
            [before != after for before, after in pairwise((one.initial, *one.turns[0].states))] for one in played
        )
        for place, call in enumerate(calls):
            seen.calls[call.name] += 1
            seen.refused[call.name] += answers[place].failed
            seen.changes[call.name] += changed[place]
            seen.differs[call.name] += (answers[place], changed[place]) != (again[place], changed_again[place])
    return seen._replace(begins=tuple(begins), faults=tuple(faults))


def findings(look: Look) -> Iterator[Checked]:
    """Yield each property in words, why it does not hold, and what follows."""
    yield Checked(
        "it answers",
        f"{len(look.faults)} of {EPISODES} episodes failed, the last so: {look.faults[-1]}" if look.faults else None,
        "Such rollouts and drafts count as faults, never as failures of the policy: correct the environment.",
    )
    yield Checked(
        "it begins alike each time",
        f"two episodes of {', '.join(look.begins)} begin in different states" if look.begins else None,
        "Nothing can be verified: drafts are refused as nondeterministic. Have it reset, or compare less of its state.",
    )
    differ = _named(look, lambda name: look.differs[name] > 0)
    yield Checked(
        "equal calls do equal things",
        f"{', '.join(differ)} did not" if differ else None,
        "Drafts that call them are refused as nondeterministic: tasks are made of the other tools.",
    )
    yield Checked(
        "calls change the state that is compared",
        None if look.changes.total() else f"none of {look.calls.total()} calls did",
        "Only answers are compared: calls that only change something make no task, and damage goes unnoticed.",
    )
    never = _named(look, lambda name: look.refused[name] == look.calls[name])
    yield Checked(
        "every tool was called and ran",
        f"{', '.join(never)} did not" if never else None,
        "No task may use them: give starts in which they work, and documentation that names values.",
    )


def _named(look: Look, holds: Callable[[str], bool]) -> list[str]:
    return [name for name in look.tools if holds(name)]
