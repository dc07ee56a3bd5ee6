"""The scripted abstractor: cuts interactions into drafts, reduces them to the calls that matter, and writes their text.

CoEvolve (section 3) lets an LLM abstract tasks; here the benchmark writes the text: from templates of its own, or
from the tools' documentation. Which cut is tried first is our choice: the context's tool, then the tools
worth exploring; by length (``exploration.order``); then variety. ``long_first`` begins with the longest reference
(the paper's prompt, figure 12), ``easy_first`` with one call, then two, and so on (ours): a small policy that fails at
a long task is unlikely to succeed at another long one around the same tool, and learns nothing from it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from agents.live import Cut, around, call_of, context_task, partition, successful_runs
from agents.scripted.knowledge import PLAIN, Guidance, read_context
from agents.settings import ExplorationSettings, own_roles
from agents.spending import RoleRefused
from environments.base import Environment, InputError, TaskSpec, ToolCall
from environments.registry import benchmark_of
from environments.verification.replay import reduce
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction

_AGAIN = 0.7
_SAME_SEQUENCE = 2.0
_HELD = 1.5  # lengths that a cut with a sequence of the focus pattern may be off


class TemplateAbstractor:
    """Abstractor that writes user turns from templates."""

    def __init__(self, settings: ExplorationSettings) -> None:
        self._settings = settings

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Make at most ``drafts_per_context`` drafts; equal arguments give equal drafts.

        Raises RoleRefused when none of the cuts can be put into words.
        """
        return await asyncio.to_thread(self.abstract_now, context, interactions, environment, seed)

    def abstract_now(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Make the drafts without an event loop."""
        own = own_roles(environment)
        if own is not None:
            return own.draft(context, interactions, environment, self._settings, seed)
        render = benchmark_of(environment).render
        rng = random.Random(seed)
        drafts: list[Draft] = []
        seen: list[tuple[tuple[ToolCall, ...], ...]] = []
        chosen: Counter[tuple[str, ...]] = Counter()
        unworded = ""
        for cut, target in self._cuts(context, interactions, environment, rng, chosen):
            task = _reduced(cut, target, context, environment)
            if task is not None and self._settings.two_turns and rng.random() < self._settings.two_turns:
                task = _in_two_turns(task, target, environment, rng)
            if task is None or task.reference in seen or len(_sequence(task)) < self._settings.min_reference_calls:
                continue
            seen.append(task.reference)
            try:
                written = render(environment, task, rng)
            except InputError as error:
                unworded = str(error)
                continue
            drafts.append(_draft(written, context, cut, len(drafts)))
            chosen[_sequence(written)] += 1
            if len(drafts) == self._settings.drafts_per_context:
                break
        if unworded and not drafts:
            raise RoleRefused(f"the templates fit no cut of context {context.id}; the last: {unworded}")
        return tuple(drafts)

    def _cuts(
        self,
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
        rng: random.Random,
        chosen: Counter[tuple[str, ...]],
    ) -> Iterator[tuple[Cut, str]]:
        """Cuts to try, each with the tool it must keep ("" for none); ``chosen`` counts the drafts made so far."""
        runs = successful_runs(interactions)
        guidance = read_context(context, 0) if self._settings.guidance == "context" else PLAIN
        own = (context.tool,) if context.tool else ()
        focus = (name for sequence in guidance.sequences for name in sequence)
        wanted = list(dict.fromkeys((*own, *focus, *context.explore)))
        if wanted:
            yield from self._wanted_cuts(context, environment, runs, wanted, rng, chosen, guidance)
            return
        settings, long_first = self._settings, self._settings.order == "long_first"
        longest, shortest = settings.max_reference_calls, settings.min_reference_calls
        pieces = [cut for run in runs for cut in partition(run, longest, rng, shortest=shortest, long_only=long_first)]
        rng.shuffle(pieces)
        if long_first:
            pieces.sort(key=lambda cut: len(cut.reference), reverse=True)
        for cut in pieces:
            if not cut.solved_blindly():
                yield cut, ""

    def _wanted_cuts(
        self,
        context: FailureContext,
        environment: Environment,
        runs: Sequence[Sequence[Interaction]],
        wanted: Sequence[str],
        rng: random.Random,
        chosen: Counter[tuple[str, ...]],
        guidance: Guidance,
    ) -> Iterator[tuple[Cut, str]]:
        """Cuts around calls of wanted tools, one at a time: what comes next depends on what was chosen."""
        rank = {name: float(k) for k, name in enumerate(wanted)}
        names = {
            (r, p): name
            for r, run in enumerate(runs)
            for p, interaction in enumerate(run)
            if (name := call_of(interaction).name) in rank
        }
        open_places: dict[tuple[int, int], list[Cut] | None] = dict.fromkeys(names)
        order = {place: rng.random() for place in open_places}
        tried: Counter[str] = Counter()
        lengths = range(self._settings.min_reference_calls, self._settings.max_reference_calls + 1)
        if guidance.long or self._settings.order == "long_first":
            lengths = lengths[::-1]
        while open_places:
            place = min(open_places, key=lambda p: (rank[names[p]] + _AGAIN * tried[names[p]], order[p]))
            name = names[place]
            cuts = open_places[place]
            if cuts is None:
                cuts = list(around(runs[place[0]], place[1], self._settings.max_reference_calls, context, environment))
                shortest = self._settings.min_reference_calls
                cuts = [cut for cut in cuts if len(cut.reference) >= shortest and not cut.solved_blindly()]
                rng.shuffle(cuts)
            if not cuts:
                del open_places[place]
                continue
            before = sum(chosen.values())
            length = lengths[before % len(lengths)]
            cuts.sort(
                key=lambda cut: (
                    abs(len(cut.reference) - length)
                    + _SAME_SEQUENCE * chosen[cut.names()]
                    - _HELD * guidance.holds(cut.names())
                )
            )
            yield cuts.pop(0), name
            open_places[place] = cuts
            if sum(chosen.values()) > before:
                tried[name] += 1
                del open_places[place]


def _reduced(cut: Cut, target: str, context: FailureContext, environment: Environment) -> TaskSpec | None:
    """Return the cut as a task without text, reduced; None if the target or nothing of worth remains."""
    task = context_task(context).model_copy(
        update={
            "setup": (*context.setup, *cut.setup),
            "reference": (tuple(call_of(interaction) for interaction in cut.reference),),
        }
    )
    reduced = reduce(environment, task)
    if reduced is None or (target and target not in _sequence(reduced)):
        return None
    return None if Cut(cut.setup, _kept(cut, reduced)).solved_blindly() else reduced


def _in_two_turns(task: TaskSpec, target: str, environment: Environment, rng: random.Random) -> TaskSpec:
    """Return the task as one of two user turns, reduced; as it is where no border leaves a call on each side."""
    (calls,) = task.reference
    for border in rng.sample(range(1, len(calls)), len(calls) - 1):
        parted = task.model_copy(update={"turns": ("", ""), "reference": (calls[:border], calls[border:])})
        reduced = reduce(environment, parted)
        if reduced is not None and len(reduced.reference) == 2 and (not target or target in _sequence(reduced)):
            return reduced
    return task


def _kept(cut: Cut, task: TaskSpec) -> tuple[Interaction, ...]:
    """Return the interactions of a cut whose calls a reduced task still has."""
    kept = [call for turn in task.reference for call in turn]
    return tuple(interaction for interaction in cut.reference if call_of(interaction) in kept)


def _sequence(task: TaskSpec) -> tuple[str, ...]:
    return tuple(call.name for turn in task.reference for call in turn)


def _draft(task: TaskSpec, context: FailureContext, cut: Cut, position: int) -> Draft:
    return Draft(
        **task.model_dump(),
        id=record_id("draft", context.id, position),
        context_id=context.id,
        parents=tuple(interaction.id for interaction in _kept(cut, task)),
    )
