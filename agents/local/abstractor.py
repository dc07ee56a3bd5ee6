"""The local abstractor: calls that belong together become a task, in words that a small language model wrote (ours).

The calls are cuts of an explorer's run (``agents.cuts``). The writer sees the documentation of the called tools and the
calls. Calls that it holds for unlikely are left out. Of the others several wordings are drawn. Those that lack a value
which the user has to say, or that name tools, are left out. One is drawn from which a reader gets the calls back, so
that tasks are worded at several lengths; where it gets them back from none, the one that says most is taken.

The reader measures how much a wording says (``agents.local.selection``). The draft carries this, how likely the calls
are for the writer (their realism), and how much likelier the words are for it than for the model before it was taught
(Moore and Lewis). A draft whose words the reader does not understand is refused before verification, as misread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import JsonValue

from agents.absence import without_value
from agents.cuts import Drafting
from agents.local.model import LocalModel, in_thread
from agents.local.selection import readings
from agents.said import around, own_tools, shown_calls, shuffled, unsaid, words_of
from agents.settings import ExplorationSettings, LocalSettings
from environments.base import Environment, TaskSpec, ToolCall
from environments.task_text import Seen
from environments.turn_lines import TurnView, calls_text, words_prompt, writer_prompt
from environments.verification.replay import replay
from memory.records import Draft, FailureContext, Interaction, Writing

_MOST_TOKENS = 90  # of a wording
_SHOWN = 4  # tools that the reader chooses from
_LIKELY = -2.5  # nats a token: calls that are less likely for the writer are not worded


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
        drafting = Drafting(context, interactions, environment, self._exploration, rng)
        while (path := drafting.next()) is not None:
            if (worded := self._worded(path.task, path.shown, environment, rng)) is not None:
                drafting.add(path, *worded)
        return drafting.drafts()

    def reworded(self, draft: Draft, missing: JsonValue, environment: Environment, rng: random.Random) -> Draft | None:
        """Return ``draft`` in words for its calls without the value ``missing``, which the writer does not see."""
        shown = without_value(shown_calls(replay(environment, draft)), missing)
        worded = self._worded(draft, shown, environment, rng, missing)
        return None if worded is None else draft.model_copy(update={"turns": worded[:1], "writing": worded[1]})

    def _worded(
        self,
        task: TaskSpec,
        shown: Sequence[ToolCall],
        environment: Environment,
        rng: random.Random,
        missing: JsonValue = None,
    ) -> tuple[str, Writing] | None:
        """Return the wording that says most about the calls ``shown``, with its figures; None where none says all.

        The words must not have the value that is ``missing``.
        """
        tools = own_tools(environment.tools(task.tools))
        called = [tools[name] for name in dict.fromkeys(call.name for call in shown)]
        view = TurnView(shuffled(called, rng))
        (realism,) = self._model.likelihood([(writer_prompt(view), calls_text(shown))], "writer")
        if realism < _LIKELY:
            return None
        count = self._settings.draws
        seeds = [rng.randrange(2**62) for _ in range(count)]
        prompt = words_prompt(view, shown)
        texts = self._model.write(
            [prompt] * count, seeds, "writer", temperature=self._settings.temperature, most=_MOST_TOKENS
        )
        distinct = dict.fromkeys(words_of(text) for text, _ in texts)
        wordings = [one for one in distinct if unsaid(one, shown, tools) is None and not Seen([one]).has(missing)]
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
