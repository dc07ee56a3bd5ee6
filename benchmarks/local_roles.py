"""`python -m benchmarks.local_roles`: what the local roles' adapters do on questions that they were not taught.

The questions are BFCL's single-turn ones whose functions are held out (``Benchmark.written_turns``), drawn by hash. The
reader gets people's words for the calls, and the words that people wrote for another question (exchanged), bare and
with the values of the calls behind them: of the first it should understand all, of the others none. The writer words
the calls anew, as the abstractor asks it to; what the reader makes of these words is the yield of the round trip.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated

import typer

from agents.local.model import LocalModel
from agents.local.selection import Reading, readings
from agents.said import shuffled, unsaid
from agents.settings import LocalSettings
from environments.benchmark import HumanTurn
from environments.registry import DEFAULT, benchmark_of, open_named
from environments.task_text import leaves
from environments.turn_lines import TurnView, one_line, words_prompt
from memory.jsonl import derive_seed

_DECOYS = 3
_MARGINS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    adapters: Annotated[str, typer.Option(help="folder of the two adapters")] = LocalSettings().adapters,
    count: Annotated[int, typer.Option(min=2, help="questions")] = 60,
) -> None:
    """Print the tables as Markdown; takes some half a minute of two cores for each question."""
    from training.local_model import AdaptedModel

    environment = open_named(DEFAULT, None)
    turns = [turn for turn in benchmark_of(environment).written_turns(environment) if turn.held_out]
    drawn = sorted(turns, key=lambda turn: derive_seed(0, turn.words))[:count]
    rows = measured(AdaptedModel(adapters), drawn, LocalSettings())
    print("| words | " + " | ".join(("read back", *(f"margin {margin:g}" for margin in _MARGINS))) + " |")
    print("|---" * (len(_MARGINS) + 2) + "|")
    for name, read in rows.items():
        shares = [sum(one.exact for one in read), *(sum(one.understood(margin) for one in read) for margin in _MARGINS)]
        print(f"| {name} ({len(read)}) | " + " | ".join(f"{100 * one / len(read):.0f}" for one in shares) + " |")


def measured(model: LocalModel, turns: Sequence[HumanTurn], settings: LocalSettings) -> dict[str, list[Reading]]:
    """Return the readings by kind of words."""
    found: dict[str, list[Reading]] = {
        "people's": [],
        "exchanged": [],
        "exchanged, with the values": [],
        "written": [],
    }
    complete, examples = 0, list[str]()
    for place, turn in enumerate(turns):
        rng = random.Random(derive_seed(0, "measured", turn.words))
        decoys = rng.sample(turn.others, min(_DECOYS, len(turn.others)))
        if len(decoys) < _DECOYS:
            strange = [tool for other in turns for tool in other.tools if tool not in turn.tools]
            decoys += rng.sample(strange, min(_DECOYS - len(decoys), len(strange)))
        view = TurnView(shuffled([*turn.tools, *decoys], rng))
        other = next(one for one in (*turns[place + 1 :], *turns) if one.tools != turn.tools)
        values = " ".join(
            str(leaf) for call in turn.calls for value in call.arguments.values() for leaf in leaves(value)
        )
        said = [one_line(turn.words), one_line(other.words), f"{one_line(other.words)} {values}"]
        read = readings(model, view, said, turn.calls)
        for name, one in zip(("people's", "exchanged", "exchanged, with the values"), read, strict=True):
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
            examples.append(f"{turn.calls}\n    people: {one_line(turn.words)}\n    written: {kept[best]}")
    print("\n".join(examples))
    print(
        f"{complete} of {len(turns) * settings.draws} wordings have every value; {len(examples)} of {len(turns)} calls"
    )
    return found


if __name__ == "__main__":
    app()
