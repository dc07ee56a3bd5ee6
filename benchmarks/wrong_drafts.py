"""`python -m benchmarks.wrong_drafts`: what verification says of drafts that are right, and of drafts made wrong.

Right ones are drafts of unguided exploration, the same in the words of the documentation, and the user turns that
people wrote for official training tasks, with the official calls of earlier turns as setup. A wrong one is a right one
with one argument or one call of its reference changed, or with one more call, which needs no argument. Of each
right draft that is accepted without the rules of ``verification.turn_text`` two of both are made. The table has what is
accepted without and with these rules.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import typer
from pydantic import JsonValue

from agents.scripted.arguments import UniformArguments
from agents.scripted.values import Sightings
from environments.base import Environment, ToolCall, ToolSpec
from environments.benchmark import AnyBenchmark, Options
from environments.registry import benchmark_of
from environments.task_text import render_documented
from environments.verification import verify as verification
from environments.verification.verify import Refusal, verify
from graph.settings import load_recipe
from memory.jsonl import derive_seed, read_jsonl
from memory.records import Draft
from memory.run import RunDirectory

_DRAWS = 8
_LARGEST = 1e9


class Change(StrEnum):
    """The change of a reference. ``argument``: another value for one argument. ``replaced``: a call of another tool.
    ``left_out``: one call less."""

    ARGUMENT = "argument"
    REPLACED = "replaced"
    LEFT_OUT = "left_out"


ADDED = "added"
KINDS = ("right", *map(str, Change), ADDED)
SETS = (("templates, two classes", "quickstart"), ("templates, eight classes", "world"), ("depot", "own-environment"))
BY_WORDS = (Refusal.UNMET_REQUEST, Refusal.UNASKED_CALL)
_CHANGES = 2
_CATEGORY = "base-"  # the other official categories have its turns again
_HEAD = ("drafts", "kind", "all", *(f"`{reason}`" for reason in BY_WORDS), "accepted without", "accepted with")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(count: Annotated[int, typer.Option(min=1, help="tasks of each recipe")] = 250) -> None:
    """Print the table as Markdown; takes some two minutes of one core."""
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}")
    for name, environment, drafts in _sets(count):
        for kind, counts in measured(environment, drafts).items():
            print(f"| {name} | {kind} | {' | '.join(map(str, counts))} |", flush=True)


def measured(environment: Environment, drafts: Iterable[Draft]) -> dict[str, tuple[int, ...]]:
    """Return the last five columns of the table by kind of draft."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}

    def accepted(kind: str, draft: Draft) -> bool:
        """Count the draft, and return whether it is accepted without the rules on words."""
        result = verify(draft, environment, (), ())
        without = result.accepted
        if result.reason in BY_WORDS:
            with patch.multiple(verification, unmet_request=_none, unasked_call=_none):
                without = verify(draft, environment, (), ()).accepted
        # A draft that the other checks refuse, too, is not a find of these rules.
        found[kind].update(["all", *(["without", result.reason or "with"] if without else [])])
        return without

    for draft in drafts:
        if accepted("right", draft):
            for kind, changed in _wrong(draft, environment):
                accepted(kind, changed)
    return {kind: tuple(counts[one] for one in ("all", *BY_WORDS, "without", "with")) for kind, counts in found.items()}


def _none(*_: object) -> None:
    return None


def _wrong(draft: Draft, environment: Environment) -> Iterator[tuple[str, Draft]]:
    for seed in range(_CHANGES):
        if made := perturb(draft, seed, environment):
            yield str(made[0]), made[1]
        rng = random.Random(f"{draft.id} {seed}")
        free = [tool for tool in environment.tools(draft.tools) if not any(p.required for p in tool.parameters)]
        turn = rng.randrange(len(draft.reference))
        place = rng.randint(0, len(draft.reference[turn]))
        yield ADDED, _changed(draft, turn, slice(place, place), [ToolCall(name=rng.choice(free).name)])


def _changed(draft: Draft, turn: int, place: slice, calls: Sequence[ToolCall]) -> Draft:
    """Return the draft with ``calls`` in ``place`` of a turn's reference."""
    own = list(draft.reference[turn])
    own[place] = calls
    return draft.model_copy(update={"reference": (*draft.reference[:turn], tuple(own), *draft.reference[turn + 1 :])})


def _sets(count: int) -> Iterator[tuple[str, Environment, list[Draft]]]:
    for name, recipe in SETS:
        path = Path("recipes") / f"{recipe}.yaml"
        settings = load_recipe(path, []).environment
        environment = settings.open()
        drafts = _explored(path, count)
        yield name, environment, drafts
        if benchmark_of(environment).has_official_tasks:
            worded = [render_documented(environment, draft, random.Random(draft.id)) for draft in drafts]
            yield name.replace("templates", "documentation"), environment, worded
        if recipe == "world":
            benchmark = benchmark_of(environment)
            yield "people, eight classes", environment, list(_turns(benchmark, benchmark.parse(settings.options)))


def _explored(recipe: Path, count: int) -> list[Draft]:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        options = ["--recipe", str(recipe), "--count", str(count), "--seed", "0", "--run", str(root)]
        options += ["--set", "evaluation.tasks=null"]  # its file is made by hand
        subprocess.run([sys.executable, "-m", "graph.seed_tasks", *options], check=True, capture_output=True)
        return read_jsonl(RunDirectory(root).seed.drafts, Draft)[:count]


def _turns(benchmark: AnyBenchmark, options: Options) -> Iterator[Draft]:
    """Yield each user turn of the official training tasks of one category as a draft of its own."""
    found = benchmark.official_tasks(options)
    for task in [] if found is None else [one for one in found.tasks if one.id.startswith(_CATEGORY)]:
        before: tuple[ToolCall, ...] = ()
        for t, (text, calls) in enumerate(zip(task.spec.turns, task.spec.reference, strict=True)):
            alone = {"turns": (text,), "reference": (calls,), "setup": before, "withheld": {}}
            if calls:
                own = {"id": f"{task.id}-{t}", "context_id": ""}
                yield Draft.model_validate({**dict(task.spec), **alone, **own})
            before += calls


def perturb(draft: Draft, seed: int, environment: Environment) -> tuple[Change, Draft] | None:
    """Return the draft with one change of its reference, and which; None where there is nothing to change.

    ``seed`` and the draft's id decide how it is changed. Where a call has arguments, every second change is one of an
    argument. Values are drawn uniformly, as with ``unguided: uniform_calls``, from those documented and those that fit
    in the draft's initial state and calls. Equal arguments give equal results; text and setup stay as they are.
    """
    rng = random.Random(derive_seed(seed, "perturb", draft.id))
    rng.random()  # keeps the changes that docs/results.md counts
    places = [(t, c) for t, turn in enumerate(draft.reference) for c in range(len(turn))]
    if not places:
        return None
    turn, place = rng.choice(places)
    before = draft.reference[turn][place]
    tools = {tool.name: tool for tool in environment.tools(draft.tools)}
    others = [tool for name, tool in sorted(tools.items()) if name != before.name]
    arguments = UniformArguments(_sightings(draft), rng)
    after: list[ToolCall] = []
    if before.name in tools and before.arguments and (rng.random() < 0.5 or (len(places) == 1 and not others)):
        change, after = Change.ARGUMENT, [_with_another_value(before, tools[before.name], arguments, rng)]
    elif others and (len(places) == 1 or rng.random() < 0.5):
        drawn = filter(None, map(arguments.draw, rng.sample(others, len(others))))
        change, after = Change.REPLACED, [*islice(drawn, 1)]
    elif len(places) > 1:
        change = Change.LEFT_OUT
    else:
        return None
    return change, _changed(draft, turn, slice(place, place + 1), after)


def _with_another_value(call: ToolCall, tool: ToolSpec, arguments: UniformArguments, rng: random.Random) -> ToolCall:
    name = rng.choice(sorted(call.arguments))
    given = call.arguments[name]
    drawn = filter(None, (arguments.draw(tool) for _ in range(_DRAWS)))
    values = (one.arguments.get(name, given) for one in drawn)
    value = next((one for one in values if one != given), _next_to(given))
    return ToolCall(name=call.name, arguments=call.arguments | {name: value})


def _next_to(value: JsonValue) -> JsonValue:
    """Return another value of the same JSON type, for a draw that found none."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1 if abs(value) < _LARGEST else 0
        case str():
            return f"{value}_2"
        case list():
            return value[:-1] if value else [0]
        case dict():
            return {} if value else {"value": 0}
        case _:
            return 0


def _sightings(draft: Draft) -> Sightings:
    sightings = Sightings()
    sightings.see_state(draft.initial_state)
    for call in (*draft.setup, *(call for turn in draft.reference for call in turn)):
        sightings.see_call(call, {})
    return sightings


if __name__ == "__main__":
    app()
