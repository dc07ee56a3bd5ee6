"""`python -m benchmarks.wrong_drafts`: what verification says of drafts that are right, and of drafts made wrong.

Right ones are drafts of unguided exploration, the same in the words of the documentation, and the user turns that
people wrote for official training tasks, with the official calls of earlier turns as setup. A wrong one is a right one
with a change of ``benchmarks.wrong_references`` or, as that makes none, with one more call, which needs no argument. Of
each right draft that is accepted without the rules of ``verification.asking`` two of both are made. The table has what
is accepted without and with these rules.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import typer

from benchmarks.wrong_references import Change, perturb
from environments.base import Environment, TaskSpec, ToolCall
from environments.benchmark import AnyBenchmark
from environments.registry import benchmark_of, open_environment
from environments.task_text import render_documented
from environments.verification import verify as verification
from environments.verification.verify import Refusal, verify
from graph.recipe import load_recipe
from memory.jsonl import read_jsonl
from memory.records import Draft
from memory.run import RunDirectory

ADDED = "added"
KINDS = ("right", *map(str, Change), ADDED)
SETS = (("templates, two classes", "quickstart"), ("templates, eight classes", "world"), ("depot", "own-environment"))
BY_WORDS = (Refusal.UNMET_REQUEST, Refusal.UNASKED_CALL)
WITHOUT = "accepted without"
_CHANGES = 2
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
    for draft in drafts:
        if _count(found["right"], draft, environment):
            for kind, changed in _wrong(draft, environment):
                _count(found[kind], changed, environment)
    return {kind: _row(counts) for kind, counts in found.items()}


def _count(counts: Counter[str], draft: Draft, environment: Environment) -> bool:
    """Count the draft, and return whether it is accepted without the rules on words."""
    result = verify(draft, environment, (), ())
    accepted = result.accepted
    if result.reason in BY_WORDS:
        with patch.multiple(verification, unmet_request=_none, unasked_call=_none):
            accepted = verify(draft, environment, (), ()).accepted
    counts[WITHOUT] += accepted
    # A draft that the other checks refuse, too, is not a find of these rules.
    counts[(result.reason or "accepted") if accepted else "refused"] += 1
    return accepted


def _none(*_: object) -> None:
    return None


def _row(counts: Counter[str]) -> tuple[int, ...]:
    whole = counts[WITHOUT] + counts["refused"]
    return (whole, *(counts[reason] for reason in BY_WORDS), counts[WITHOUT], counts["accepted"])


def _wrong(draft: Draft, environment: Environment) -> Iterator[tuple[str, Draft]]:
    for seed in range(_CHANGES):
        if made := perturb(draft, seed, environment):
            yield str(made[0]), made[1]
        rng = random.Random(f"{draft.id} {seed}")
        free = [tool for tool in environment.tools(draft.tools) if not any(p.required for p in tool.parameters)]
        t = rng.randrange(len(draft.reference))
        calls = list(draft.reference[t])
        calls.insert(rng.randint(0, len(calls)), ToolCall(name=rng.choice(free).name))
        reference = (*draft.reference[:t], tuple(calls), *draft.reference[t + 1 :])
        yield ADDED, draft.model_copy(update={"reference": reference})


def _sets(count: int) -> Iterator[tuple[str, Environment, list[Draft]]]:
    for name, recipe in SETS:
        path = Path("recipes") / f"{recipe}.yaml"
        environment = open_environment(load_recipe(path, []).environment)
        drafts = _explored(path, count)
        yield name, environment, drafts
        if benchmark_of(environment).has_official_tasks:
            worded = [render_documented(environment, draft, random.Random(draft.id)) for draft in drafts]
            yield name.replace("templates", "documentation"), environment, worded
        if recipe == "world":
            yield "people, eight classes", environment, list(_turns(benchmark_of(environment)))


def _explored(recipe: Path, count: int) -> list[Draft]:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        options = ["--recipe", str(recipe), "--count", str(count), "--seed", "0", "--run", str(root)]
        options += ["--set", "evaluation.tasks=null"]  # its file is made by hand
        subprocess.run([sys.executable, "-m", "graph.seed_tasks", *options], check=True, capture_output=True)
        return read_jsonl(RunDirectory(root).seed.drafts, Draft)[:count]


def _turns(benchmark: AnyBenchmark) -> Iterator[Draft]:
    """Yield each user turn of the official training tasks of the first category as a draft of its own."""
    for task in benchmark.open_category(benchmark.categories[0], "train"):
        before: tuple[ToolCall, ...] = ()
        for t, (text, calls) in enumerate(zip(task.spec.turns, task.spec.reference, strict=True)):
            alone = {"turns": (text,), "reference": (calls,), "setup": before, "withheld": {}}
            if calls:
                yield _draft(task.spec.model_copy(update=alone), f"{task.id}-{t}")
            before += calls


def _draft(task: TaskSpec, name: str) -> Draft:
    return Draft(**{field: getattr(task, field) for field in TaskSpec.model_fields}, id=name, context_id="")


if __name__ == "__main__":
    app()
