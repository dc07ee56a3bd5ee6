"""The local abstractor: calls that belong together become a task, in words that a small language model wrote (ours).

A cut is one purpose of an explorer's run, one call of it, or a call with the earlier ones whose answers hold its
values, reduced by replays to the calls that it needs. The writer sees the documentation of the called tools and the
calls; a value that an earlier answer gives is hidden from it (``environments.turn_lines.FOUND``). Calls that it holds
for unlikely are left out. Of the others several wordings are drawn. Those that lack a value which the user has to say,
or that name tools, are left out. One is drawn from which a reader gets the calls back, so that tasks are worded at
several lengths; where it gets them back from none, the one that says most is taken.

The reader measures how much a wording says (``agents.local.selection``). The draft carries this, how likely the calls
are for the writer (their realism), and how much likelier the words are for it than for the model before it was taught
(Moore and Lewis). A draft whose words the reader does not understand is refused before verification, as misread.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from pydantic import JsonValue

from agents.absence import without_value
from agents.evidence import call_of, context_task, successful_runs
from agents.local.model import LocalModel, around, hidden_values, in_thread, own_tools, shuffled
from agents.local.selection import readings
from agents.scripted.abstractor import Cut, with_setup
from agents.scripted.links import links
from agents.settings import ExplorationSettings, LocalSettings
from agents.spending import RoleRefused
from environments.base import Environment, TaskSpec, ToolCall, ToolSpec
from environments.task_text import Seen, documented, leaves
from environments.turn_lines import (
    FOUND,
    TurnView,
    calls_text,
    one_line,
    words_prompt,
    writer_prompt,
)
from environments.verification.replay import reduce, replay
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction, Writing

_MOST_TOKENS = 90  # of a wording
_SHOWN = 4  # tools that the reader chooses from
_PASSED_ON = 0.7  # probability that a cut comes first in which an answer's value is used
_LONG = 0.4  # probability that a cut comes before shorter ones
_LIKELY = -2.5  # nats a token: calls that are less likely for the writer are not worded
_SHORTEST = 10  # characters of a wording
_NAME = 3  # characters of a value that is not there by chance
_TOOL_NAME = re.compile(r"\w+_\w+\(?|\w+\(")


class LocalAbstractor:
    """Abstractor whose user turns a language model writes."""

    def __init__(self, exploration: ExplorationSettings, settings: LocalSettings, model: LocalModel) -> None:
        self._exploration = exploration
        self._settings = settings
        self._model = model

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Make at most ``drafts_per_context`` drafts. Raises RoleRefused when no cut can be put into words."""
        return await in_thread(
            self._model,
            lambda model: LocalAbstractor(self._exploration, self._settings, model).abstract_now(
                context, interactions, environment, seed
            ),
        )

    def abstract_now(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        """Make the drafts without an event loop."""
        rng = random.Random(seed)
        drafts: list[Draft] = []
        references: list[tuple[tuple[ToolCall, ...], ...]] = []
        sequences: Counter[tuple[str, ...]] = Counter()
        tried = 0
        shortest, longest = self._exploration.min_reference_calls, self._exploration.max_reference_calls
        for cut in _ordered(context, _cuts(interactions, longest, context, environment), rng):
            if len(drafts) == self._exploration.drafts_per_context:
                break
            names = cut.names()
            if sequences[names] and tried < 2 * self._exploration.drafts_per_context:
                continue
            task = context_task(context).model_copy(
                update={"setup": (*context.setup, *cut.setup), "reference": (tuple(map(call_of, cut.reference)),)}
            )
            reduced = reduce(environment, task)
            if reduced is None or reduced.reference in references or len(reduced.reference[0]) < shortest:
                continue
            references.append(reduced.reference)
            tried += 1
            worded = self._worded(reduced, environment, rng)
            if worded is None:
                continue
            words, writing = worded
            sequences[names] += 1
            kept = reduced.reference[0]
            drafts.append(
                Draft(
                    **reduced.model_copy(update={"turns": (words,)}).model_dump(),
                    id=record_id("draft", context.id, len(drafts)),
                    context_id=context.id,
                    parents=tuple(one.id for one in cut.reference if call_of(one) in kept),
                    writing=writing,
                )
            )
        if tried and not drafts:
            raise RoleRefused(f"no wording of {tried} paths of context {context.id} says what the calls take")
        return tuple(drafts)

    def reworded(self, draft: Draft, missing: JsonValue, environment: Environment, rng: random.Random) -> Draft | None:
        """Return ``draft`` in words for its calls without the value ``missing``, which the writer does not see."""
        worded = self._worded(draft, environment, rng, missing)
        return None if worded is None else draft.model_copy(update={"turns": worded[:1], "writing": worded[1]})

    def _worded(
        self, task: TaskSpec, environment: Environment, rng: random.Random, missing: JsonValue = None
    ) -> tuple[str, Writing] | None:
        """Return the wording that says most about the calls, with its figures; None where none says what it must.

        Arguments that are ``missing`` are left out of the calls, and the words must not have them.
        """
        (calls,) = task.reference
        tools = own_tools(environment.tools(task.tools))
        called = [tools[name] for name in dict.fromkeys(call.name for call in calls)]
        answers = [observation.text for turn in replay(environment, task).turns for observation in turn.observations]
        shown = hidden_values(calls, answers)
        if missing is not None:
            shown = without_value(shown, missing)
        view = TurnView(shuffled(called, rng))
        (realism,) = self._model.likelihood([(writer_prompt(view), calls_text(shown))], "writer")
        if realism < _LIKELY:
            return None
        count = self._settings.draws
        seeds = [rng.randrange(2**62) for _ in range(count)]
        prompt = words_prompt(view, shown)
        texts = self._model.write(
            [prompt] * count, seeds, "words", temperature=self._settings.temperature, most=_MOST_TOKENS
        )
        distinct = dict.fromkeys(_words(text) for text, _ in texts)
        wordings = [one for one in distinct if says(one, shown, tools) and not Seen([one]).has(missing)]
        if not wordings:
            return None
        offered = TurnView(shuffled(around(called, tuple(tools.values()), _SHOWN), rng))
        read = readings(self._model, offered, wordings, shown)
        understood = [place for place, one in enumerate(read) if one.understood(self._settings.margin)]
        best = rng.choice(understood) if understood else max(range(len(read)), key=lambda place: read[place].margin)
        words, reading = wordings[best], read[best]
        said = (prompt, f" {words}")
        (taught,), (untaught,) = (self._model.likelihood([said], one) for one in ("writer", "untaught"))
        return words, Writing(
            wordings=len(wordings),
            drawn=count,
            round_trip=reading.exact,
            margin=reading.margin,
            realism=round(realism, 4),
            difference=round(taught - untaught, 4),
            understood=reading.understood(self._settings.margin),
        )


def _cuts(
    interactions: Sequence[Interaction], longest: int, context: FailureContext, environment: Environment
) -> Iterator[Cut]:
    """Yield each purpose of a run whole, each call alone, and each call with those that it goes with.

    These are the earlier calls that answer what a user need not say, or the last one that it needs or that is about the
    same thing.
    """
    for run in successful_runs(interactions):
        linked = links(run, context, environment)
        pieces = [[*places][-longest:] for _, places in groupby(range(len(run)), key=lambda place: run[place].purpose)]
        for place, kin in enumerate(linked):
            pieces.append([place])
            sources = sorted(earlier for earlier, takes in kin.items() if takes)[1 - longest :]
            if sources and longest > 1 and _is_looked_up(run, [*sources, place]):
                pieces.append([*sources, place])
            if (others := [earlier for earlier, takes in kin.items() if not takes]) and longest > 1:
                pieces.append([max(others), place])
        yield from (with_setup(run, piece, context, environment) for piece in pieces)


def _is_looked_up(run: Sequence[Interaction], places: Sequence[int]) -> bool:
    """Return whether the last of the calls takes a value that the user need not say."""
    shown = hidden_values([call_of(run[place]) for place in places], [run[place].observation.text for place in places])
    return FOUND in shown[-1].arguments.values()


def _ordered(context: FailureContext, cuts: Iterator[Cut], rng: random.Random) -> list[Cut]:
    """Return the cuts: those with the context's tool first, then with tools worth reaching, then others."""
    wanted = [name for name in (context.tool, *context.explore) if name]
    rank = {name: place for place, name in reversed(list(enumerate(wanted)))}

    def order(cut: Cut) -> tuple[int, bool, float, float]:
        best = min((rank.get(name, len(wanted)) for name in cut.names()), default=len(wanted))
        first = cut.passes_on() and rng.random() < _PASSED_ON
        return best, not first, -len(cut.reference) * (rng.random() < _LONG), rng.random()

    distinct = {tuple(one.id for one in cut.reference): cut for cut in cuts if not cut.solved_blindly()}
    return sorted(distinct.values(), key=order)


def _words(text: str) -> str:
    """Return the first line of what a writer wrote, as a user would send it: without quotes around the whole."""
    line = one_line(next((line for line in text.splitlines() if line.strip()), ""))
    return line[1:-1] if len(line) > 1 and line[0] == line[-1] == '"' and line.count('"') == 2 else line


def says(words: str, calls: Sequence[ToolCall], tools: dict[str, ToolSpec]) -> bool:
    """Return whether the words have each value that is not found or documented, and read like a request.

    A small writer circles around a value. People say one more often than their calls have it in 6 of 167 turns.
    """
    if len(words) < _SHORTEST or FOUND in words or _TOOL_NAME.search(words) or words.count('"') % 2:
        return False
    parts = [leaf for call in calls for value in call.arguments.values() for leaf in leaves(value)]
    names = Counter(part.casefold() for part in parts if isinstance(part, str) and len(part) >= _NAME)
    for name, count in names.items():
        if len(re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", words.casefold())) > count:
            return False
    seen = Seen([words])
    for call in calls:
        tool = tools[call.name]
        for name, value in call.arguments.items():
            parameter = tool.parameter(name)
            for leaf in leaves(value):
                if leaf == FOUND or seen.has(leaf) or (parameter is not None and documented(leaf, tool, parameter)):
                    continue
                return False
    return True
