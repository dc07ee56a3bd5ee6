"""The scripted abstractor: cuts interactions into drafts, reduces them to the calls that matter, and writes their text.

CoEvolve (section 3) lets an LLM abstract tasks; here the benchmark writes the text: from templates of its own, or
from the tools' documentation. Which cut is tried first is our choice: the context's tool, then the tools
worth exploring; by length (``exploration.order``); then variety. ``long_first`` begins with the longest reference
(the paper's prompt, figure 12), ``easy_first`` with one call, then two, and so on (ours): a small policy that fails at
a long task is unlikely to succeed at another long one around the same tool, and learns nothing from it.

A cut is a proposal of calls that really ran, in their order, and belong together: neighbours alone do not. Its setup
is the context's setup plus those earlier calls of the run without which the cut's observations would differ; a chat
abstractor finds its setup in the same way.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import NamedTuple

from pydantic import JsonValue

from agents.absence import cut_out, without_value
from agents.evidence import call_of, context_task, successful_runs
from agents.scripted.knowledge import PLAIN, read_context
from agents.scripted.links import Links, answers_to, links, told
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
_WORDINGS = 8  # of a draft from which a value may be cut out
_PASSED_ON = 0.5  # as much for one in which a call takes a value of another's answer


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
        unworded = ""
        for cut, target in self._cuts(context, interactions, environment, rng, drafts):
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
            drafts.append(
                Draft(
                    **written.model_dump(),
                    id=record_id("draft", context.id, len(drafts)),
                    context_id=context.id,
                    parents=tuple(interaction.id for interaction in _kept(cut, written)),
                )
            )
            if len(drafts) == self._settings.drafts_per_context:
                break
        if unworded and not drafts:
            raise RoleRefused(f"the templates fit no cut of context {context.id}; the last: {unworded}")
        return tuple(drafts)

    def reworded(self, draft: Draft, missing: JsonValue, environment: Environment, rng: random.Random) -> Draft | None:
        """Return ``draft`` worded without the value ``missing``: by the templates, or cut out of its words."""
        render = benchmark_of(environment).render
        left = draft.model_copy(update={"reference": (without_value(draft.reference[0], missing),)})
        with suppress(InputError):  # most templates have all values that a call requires
            return draft.model_copy(update={"turns": render(environment, left, rng).turns})
        wordings = (render(environment, draft, rng).turns[0] for _ in range(_WORDINGS))
        cut = next(filter(None, (cut_out(text, missing) for text in chain(draft.turns, wordings))), None)
        return None if cut is None else draft.model_copy(update={"turns": (cut,)})

    def _cuts(
        self,
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
        rng: random.Random,
        drafts: Sequence[Draft],
    ) -> Iterator[tuple[Cut, str]]:
        """Cuts to try, each with the tool it must keep ("" for none); what comes next depends on the ``drafts`` so far.

        They are around calls of wanted tools, one at a time, or pieces of the runs where no tool is wanted.
        """
        settings, long_first = self._settings, self._settings.order == "long_first"
        shortest, longest = settings.min_reference_calls, settings.max_reference_calls
        runs = successful_runs(interactions)
        guidance = read_context(context, 0) if settings.guidance == "context" else PLAIN
        own = (context.tool,) if context.tool else ()
        wanted = [*dict.fromkeys((*own, *chain.from_iterable(guidance.sequences), *context.explore))]
        if not wanted:
            pieces = [
                one
                for run in runs
                for one in partition(
                    run, links(run, context, environment), longest, rng, shortest, long_only=long_first
                )
            ]
            rng.shuffle(pieces)
            if long_first:
                pieces.sort(key=lambda cut: (cut.passes_on(), len(cut.reference)), reverse=True)
            yield from ((cut, "") for cut in pieces if not cut.solved_blindly())
            return
        lengths = range(shortest, longest + 1)[:: -1 if guidance.long or long_first else 1]
        called = {(r, p): call_of(one).name for r, run in enumerate(runs) for p, one in enumerate(run)}
        names = {place: name for place, name in called.items() if name in wanted}
        open_places: dict[tuple[int, int], list[Cut] | None] = dict.fromkeys(names)
        linked = cache(lambda number: links(runs[number], context, environment))
        order = {place: rng.random() for place in open_places}
        tried: Counter[str] = Counter()
        while open_places:
            place = min(open_places, key=lambda p: (wanted.index(names[p]) + _AGAIN * tried[names[p]], order[p]))
            cuts = open_places[place]
            if cuts is None:
                around_it = around(runs[place[0]], linked(place[0]), place[1], longest, context, environment)
                cuts = [cut for cut in around_it if len(cut.reference) >= shortest and not cut.solved_blindly()]
                rng.shuffle(cuts)
            if not cuts:
                del open_places[place]
                continue
            before, chosen = len(drafts), Counter(map(_sequence, drafts))
            length = lengths[before % len(lengths)]

            def unfit(cut: Cut, length: int = length, chosen: Counter[tuple[str, ...]] = chosen) -> float:
                off = abs(len(cut.reference) - length)
                liked = _HELD * guidance.holds(cut.names()) + _PASSED_ON * cut.passes_on()
                return off + _SAME_SEQUENCE * chosen[cut.names()] - liked

            cuts.sort(key=unfit)
            yield cuts.pop(0), names[place]
            open_places[place] = cuts
            if len(drafts) > before:
                tried[names[place]] += 1
                del open_places[place]


def _reduced(cut: Cut, target: str, context: FailureContext, environment: Environment) -> TaskSpec | None:
    """Return the cut as a task without text, reduced; None if the target or nothing of worth remains."""
    task = context_task(context).model_copy(
        update={"setup": (*context.setup, *cut.setup), "reference": (_calls(cut.reference),)}
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
    kept = [*chain.from_iterable(task.reference)]
    return tuple(interaction for interaction in cut.reference if call_of(interaction) in kept)


def _sequence(task: TaskSpec) -> tuple[str, ...]:
    return tuple(call.name for call in chain.from_iterable(task.reference))


_LENGTHS = (1, 1, 2, 2, 3)
_MOST_PIECES = 12  # around one call (ours)


class Cut(NamedTuple):
    """Interactions that become the reference, and calls that run before it (the context's own setup left out)."""

    setup: tuple[ToolCall, ...]
    reference: tuple[Interaction, ...]

    def names(self) -> tuple[str, ...]:
        """Return the tools of the reference in order."""
        return tuple(call.name for call in _calls(self.reference))

    def passes_on(self) -> bool:
        """Return whether a call of the reference takes a value of an earlier one's answer."""
        calls = enumerate(self.reference)
        return any(answers_to(earlier, call_of(later)) for place, later in calls for earlier in self.reference[:place])

    def solved_blindly(self) -> bool:
        """Return whether calls without arguments solve it: one such call, or only reads. Verification refuses those."""
        if any(call_of(interaction).arguments for interaction in self.reference):
            return False
        return len(self.reference) == 1 or not any(interaction.changed for interaction in self.reference)


def partition(
    run: Sequence[Interaction],
    linked: Links,
    longest: int,
    rng: random.Random,
    shortest: int = 1,
    *,
    long_only: bool = False,
) -> tuple[Cut, ...]:
    """Cut the run into pieces of up to ``longest`` calls that are ``linked``; the other earlier changes are the setup.

    Every call is in one piece at most. Lengths are drawn, short ones more often (ours), but two at least where a call
    takes a value of another's answer; ``long_only`` makes all pieces as long as may be. A piece of fewer than
    ``shortest`` calls is left out.
    """
    drawn = (*_LENGTHS, *range(max(_LENGTHS) + 1, longest + 1))
    lengths = [longest] if long_only else [length for length in drawn if shortest <= length <= longest]
    cuts, left = list[Cut](), set(range(len(run)))
    for last in reversed(range(len(run))):
        if last not in left:
            continue
        length, piece = rng.choice(lengths), {last}
        while kin := _kin(piece, linked) & left - piece:
            sources = {p for p in kin if any(linked[member].get(p) for member in piece)}
            if len(piece) >= (max(length, min(2, longest)) if sources else length):
                break
            piece.add(max(sources or kin))
        if len(piece) >= shortest:
            cuts.append(_cut(run, piece, _changes(_besides(run, piece))))
        left -= piece
    return tuple(reversed(cuts))


def _kin(piece: Collection[int], linked: Links) -> set[int]:
    """Return the earlier calls that are linked with one of the piece."""
    return {place for member in piece for place in linked[member]}


def _besides(run: Sequence[Interaction], piece: Collection[int]) -> list[Interaction]:
    return [run[place] for place in range(max(piece)) if place not in piece]


def _cut(run: Sequence[Interaction], piece: Collection[int], setup: tuple[ToolCall, ...]) -> Cut:
    return Cut(setup, tuple(run[place] for place in sorted(piece)))


def with_setup(
    run: Sequence[Interaction], piece: Collection[int], context: FailureContext, environment: Environment
) -> Cut:
    """Return the calls at the places ``piece`` of a run as a cut, whose setup is of the others before its last one."""
    members = [run[place] for place in sorted(piece)]
    return _cut(run, piece, setup_for(_besides(run, piece), members, context, environment))


def around(
    run: Sequence[Interaction],
    linked: Links,
    place: int,
    longest: int,
    context: FailureContext,
    environment: Environment,
) -> tuple[Cut, ...]:
    """Cut around the call at ``place``: alone, with calls that it needs, and with others that are ``linked``.

    The calls that it needs are found by leaving out earlier calls, one by one, while its observation stays the same.
    """
    target = run[place]
    needed = _needed(run[:place], target, context, environment)
    cuts = []
    if needed is not None:
        for count in range(min(len(needed), longest - 1) + 1):
            kept = len(needed) - count
            cuts.append(Cut(_calls(needed[:kept]), (*needed[kept:], target)))
    pieces = [frozenset((place,))]
    for piece in pieces:  # the list grows while it is read
        near = _kin(piece, linked) | {p for p, kin in enumerate(linked) if not piece.isdisjoint(kin)}
        pieces += [more for p in sorted(near - piece) if len(piece) < longest and (more := piece | {p}) not in pieces]
        if len(pieces) > _MOST_PIECES:
            break
    for piece in pieces[:_MOST_PIECES]:
        cuts.append(with_setup(run, piece, context, environment))
    distinct: dict[tuple[str, ...], Cut] = {}
    for cut in cuts:
        distinct.setdefault(tuple(interaction.id for interaction in cut.reference), cut)
    return tuple(distinct.values())


def setup_for(
    before: Sequence[Interaction], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> tuple[ToolCall, ...]:
    """Choose those of the successful calls ``before`` a piece that become its setup.

    These are the calls that changed the state, or all calls if the piece's observations differ without the others (for
    example a change of the working directory).
    """
    changes = _changes(before)
    if len(changes) == len(before) or _same_answers(changes, piece, context, environment):
        return changes
    return _calls(before)


def dependent(
    pieces: Sequence[Interaction], setup: Sequence[ToolCall], context: FailureContext, environment: Environment
) -> bool:
    """Return whether a later call of a reference takes a text of an earlier one's observation, or needs an earlier one.

    ``setup`` are the calls before the reference, without the context's own setup.
    """
    for place, later in enumerate(pieces):
        if any(answers_to(earlier, call_of(later)) for earlier in pieces[:place]):
            return True
        if place > 0 and not _same_answers(setup, (later,), context, environment):
            return True
    return False


def _needed(
    before: Sequence[Interaction], target: Interaction, context: FailureContext, environment: Environment
) -> tuple[Interaction, ...] | None:
    """Return the fewest earlier calls after which ``target`` is answered as before; None if not even after all."""
    kept = list(before)
    if not _same_answers(_calls(kept), (target,), context, environment):
        return None
    for candidate in before:
        rest = [interaction for interaction in kept if interaction is not candidate]
        if _same_answers(_calls(rest), (target,), context, environment):
            kept = rest
    return tuple(kept)


def _same_answers(
    setup: Sequence[ToolCall], piece: Sequence[Interaction], context: FailureContext, environment: Environment
) -> bool:
    found = told((*setup, *_calls(piece)), context, environment)
    return found[len(setup) :] == tuple(one.observation.text for one in piece)


def _changes(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions if interaction.changed)


def _calls(interactions: Sequence[Interaction]) -> tuple[ToolCall, ...]:
    return tuple(call_of(interaction) for interaction in interactions)
