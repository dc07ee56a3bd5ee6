"""`python -m benchmarks.wordings`: how well a model words calls, and reads them in words, that it was not taught.

The questions are BFCL's single-turn ones whose functions are held out (``Benchmark.written_turns``), drawn by hash. The
reader gets people's words for the calls, and the words that people wrote for another question (exchanged), bare and
with the values of the calls behind them: of the first it should understand all, of the others none. The writer words
the calls anew, as the abstractor asks it to; what the reader makes of these words is the yield of the round trip.

It measures the local roles' adapters, or with --model what a chat abstractor asks that words cut calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from agents.local.model import LocalModel
from agents.local.selection import Reading, readings
from agents.said import shuffled, unsaid
from agents.settings import BudgetSettings, LocalSettings, RoleSettings
from agents.spending import Ledger, RoleRefused
from environments.base import ToolSpec
from environments.benchmark import HumanTurn
from environments.registry import DEFAULT, benchmark_of, open_named
from environments.task_text import leaves
from environments.turn_lines import TurnView, one_line, words_prompt
from memory.jsonl import derive_seed

if TYPE_CHECKING:
    from agents.chat.models import StructuredModel

_DECOYS = 3
_MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_KINDS = ("people's", "exchanged", "exchanged, with the values", "written")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    adapters: Annotated[str, typer.Option(help="folder of the two adapters")] = LocalSettings().adapters,
    model: Annotated[str | None, typer.Option(help="model of a chat endpoint, in place of the adapters")] = None,
    base_url: Annotated[str | None, typer.Option(help="its address, to which COEVOLVE_KEYS binds a key")] = None,
    count: Annotated[int, typer.Option(min=2, help="questions")] = 60,
) -> None:
    """Print the tables as Markdown; takes some half a minute of two cores for each question."""
    environment = open_named(DEFAULT, None)
    turns = [turn for turn in benchmark_of(environment).written_turns(environment) if turn.held_out]
    questions = list(_questions(sorted(turns, key=lambda turn: derive_seed(0, turn.words))[:count]))
    if model is not None:
        from agents.chat.models import open_model

        chat = RoleSettings.model_validate({"kind": "chat", "model": model, "base_url": base_url})
        asked = open_model(chat, "abstractor", Ledger(None, BudgetSettings()), concurrency=1)
        _table({name: [[one] for one in found] for name, found in asyncio.run(_by_chat(asked, questions)).items()}, [])
        return
    from training.local_model import AdaptedModel

    rows = measured(AdaptedModel(adapters), questions, LocalSettings())
    shares = {
        name: [[one.exact, *(one.understood(margin) for margin in _MARGINS)] for one in read]
        for name, read in rows.items()
    }
    _table(shares, [f"margin {margin:g}" for margin in _MARGINS])


def _table(rows: Mapping[str, Sequence[Sequence[bool]]], columns: Sequence[str]) -> None:
    """Print the percentage of each column, the first of which is "read back", for each kind of words."""
    print("| words | " + " | ".join(("read back", *columns)) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for name, found in rows.items():
        shares = (f"{100 * sum(column) / len(found):.0f}" for column in zip(*found, strict=True))
        print(f"| {name} ({len(found)}) | " + " | ".join(shares) + " |")


class UntaughtQuestion(NamedTuple):
    """A turn, the tools that its words are read among, and words: its own, another one's, and these with its values."""

    turn: HumanTurn
    offered: tuple[ToolSpec, ...]
    said: tuple[str, str, str]
    rng: random.Random


def _questions(turns: Sequence[HumanTurn]) -> Iterator[UntaughtQuestion]:
    for place, turn in enumerate(turns):
        rng = random.Random(derive_seed(0, "measured", turn.words))
        decoys = rng.sample(turn.others, min(_DECOYS, len(turn.others)))
        if len(decoys) < _DECOYS:
            strange = [tool for other in turns for tool in other.tools if tool not in turn.tools]
            decoys += rng.sample(strange, min(_DECOYS - len(decoys), len(strange)))
        offered = shuffled([*turn.tools, *decoys], rng)
        other = next(one for one in (*turns[place + 1 :], *turns) if one.tools != turn.tools)
        values = " ".join(
            str(leaf) for call in turn.calls for value in call.arguments.values() for leaf in leaves(value)
        )
        said = one_line(turn.words), one_line(other.words), f"{one_line(other.words)} {values}"
        yield UntaughtQuestion(turn, offered, said, rng)


def measured(
    model: LocalModel, questions: Sequence[UntaughtQuestion], settings: LocalSettings
) -> dict[str, list[Reading]]:
    """Return the readings by kind of words."""
    found: dict[str, list[Reading]] = {name: [] for name in _KINDS}
    complete, examples = 0, list[str]()
    for turn, offered, said, rng in questions:
        view = TurnView(offered)
        read = readings(model, view, said, turn.calls)
        for name, one in zip(_KINDS[:-1], read, strict=True):
            found[name].append(one)
        prompt = words_prompt(TurnView(shuffled(turn.tools, rng)), turn.calls)
        draws = settings.draws
        texts = model.write([prompt] * draws, list(range(draws)), "writer", temperature=settings.temperature, most=90)
        wordings = [one_line(text).strip(' "') for text, _ in texts]
        tools = {tool.name: tool for tool in turn.tools}
        complete += sum(unsaid(words, turn.calls, tools) is None for words in wordings)
        kept = [words for words in dict.fromkeys(wordings) if unsaid(words, turn.calls, tools) is None]
        if kept:
            read = readings(model, view, kept, turn.calls)
            best = max(range(len(kept)), key=lambda place: (read[place].exact, read[place].margin))
            found["written"].append(read[best])
            examples.append(_example(turn, kept[best]))
    print("\n".join(examples))
    drawn = len(questions) * settings.draws
    print(f"{complete} of {drawn} wordings have every value; {len(examples)} of {len(questions)} calls")
    return found


async def _by_chat(model: StructuredModel, questions: Sequence[UntaughtQuestion]) -> dict[str, list[bool]]:
    """Return whether the model reads the calls, by kind of words; of those that it writes, once, the usable ones."""
    from agents.chat.wording import CallWords

    found: dict[str, list[bool]] = {name: [] for name in _KINDS}
    for turn, offered, said, rng in questions:
        asked = CallWords(model, "benchmark")
        words = dict(zip(_KINDS, said, strict=False))
        with suppress(RoleRefused):
            tools = {tool.name: tool for tool in shuffled(turn.tools, rng)}
            words["written"], _ = await asked.written(turn.calls, tools)
            print(_example(turn, words["written"]), flush=True)  # each takes half a minute
        for name, text in words.items():
            try:
                found[name].append((await asked.read(text, turn.calls, offered))[0] is None)
            except RoleRefused:
                found[name].append(False)
    return found


def _example(turn: HumanTurn, words: str) -> str:
    return f"{turn.calls}\n    people: {one_line(turn.words)}\n    written: {words}"


if __name__ == "__main__":
    app()
