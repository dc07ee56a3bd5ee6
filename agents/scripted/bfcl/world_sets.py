"""Make the evaluation sets of all eight classes: slices of human paths, and tasks that exploration finds beside them.

Human paths of the held-out splits call 44 (dev) and 75 (test) of the 128 functions. Here the guided explorer aims at
each function in turn from start states of held-out indices, and the scripted abstractor cuts what it did, as for
training; the start states, the draws (by a seed of their own) and the wordings are not those of training. The result
is verified like every task, and fixed in a file: later changes of the explorer do not change the sets.

Run ``python -m agents.scripted.bfcl.world_sets`` to make the files in ``environments/bfcl/panels/``. The record of
held-out content (``Benchmark.make_held_out_record``) has to be made anew after it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from agents.roles import RoleRefused
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.baselines import tool_context
from agents.scripted.explorer import GuidedExplorer
from agents.settings import ExplorationSettings
from environments.base import Environment, StartState
from environments.bfcl.docs import tool_names
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.official import Split, load_category
from environments.bfcl.templated.evaluation_sets import (
    FAMILIES,
    describe,
    family_of,
    make_set,
    set_names,
    set_paths,
    split_of_set,
    write_set,
)
from environments.bfcl.templated.slices import Found
from environments.command import exit_statuses
from environments.verification.fingerprints import sets_folder
from memory.jsonl import derive_seed

STARTS: dict[Split, int] = {"dev": 3, "test": 3}
"""Start states from which each function is aimed at (ours)."""

_EXPLORATION = ExplorationSettings(rounds=4, steps=12, order="easy_first")
_DRAFTS: dict[str, dict[str, int | float]] = {
    "world": {"drafts_per_context": 3},
    "world-longer": {"drafts_per_context": 2, "max_reference_calls": 6},
    "world-turns": {"drafts_per_context": 2, "max_reference_calls": 6, "two_turns": 1.0},
}


def found_tasks(environment: Environment, split: Split, seed: int = 0) -> dict[str, tuple[Found, ...]]:
    """Return what exploration finds from the start states of ``split``, by family of sets.

    Equal arguments give equal results.
    """
    starts = held_out_starts(split)
    found: dict[str, list[Found]] = {family: [] for family in _DRAFTS}
    for name in tool_names(dict.fromkeys(one for start in starts for one in start.classes)):
        having = [start for start in starts if name in start.tools]
        for start in random.Random(f"{seed}-{split}-{name}").sample(having, min(STARTS[split], len(having))):
            for family, one in _around(environment, start, name, derive_seed(seed, split, name, start.id)):
                found[family].append(one)
    return {family: tuple(ones) for family, ones in found.items()}


def held_out_starts(split: Split) -> tuple[StartState, ...]:
    """Return the start states of the base tasks of a split, with all their classes."""
    return tuple(
        StartState(
            id=task.id,
            environment=task.spec.environment,
            split=split,
            classes=task.spec.classes,
            initial_state=task.spec.initial_state,
            tools=task.spec.tools,
        )
        for task in load_category("base", (split,))
    )


def _around(environment: Environment, start: StartState, name: str, seed: int) -> Iterator[tuple[str, Found]]:
    context = tool_context((start,), environment, sorted(start.tools).index(name))
    interactions = GuidedExplorer(_EXPLORATION).explore_now(context, environment, seed)
    index = int(start.id.rpartition("-")[2])
    rng = random.Random(seed)
    for family, limits in _DRAFTS.items():
        # Drafts come from the shortest on: where they begin is drawn, so that every length has some.
        lengths = FAMILIES[family].lengths
        shortest = min(lengths) if family == "world" else rng.choice(lengths)
        own = limits | {"min_reference_calls": shortest}
        abstractor = TemplateAbstractor(_EXPLORATION.model_copy(update=own))
        try:
            drafts = abstractor.abstract_now(context, interactions, environment, seed)
        except RoleRefused:
            continue
        for draft in drafts:
            calls = sum(map(len, draft.reference))
            turns = len(draft.reference) == 1 + FAMILIES[family].two_turns
            if turns and calls in FAMILIES[family].lengths and name in {c.name for t in draft.reference for c in t}:
                yield family, Found(index, draft.setup, draft.reference)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the files of the sets. Exit status: 0, or 2 for a user's mistake."""
    names = tuple(name for name in set_names() if family_of(name).explored)
    parser = argparse.ArgumentParser(
        prog="python -m agents.scripted.bfcl.world_sets", description="Make the fixed evaluation sets of all classes."
    )
    parser.add_argument("--force", action="store_true", help="replace the files that exist")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of exploration, sample, order and wordings (default 0)"
    )
    parser.add_argument("--set", action="append", dest="sets", choices=names, help="this one only; may be repeated")
    parser.add_argument("--folder", type=Path, default=sets_folder("bfcl"), help="where to write")
    options = parser.parse_args(arguments)
    with exit_statuses():
        environment = BFCLEnvironment()
        for name in options.sets or names:
            set_paths(options.folder, name, force=options.force)  # before exploration, which takes minutes
        for split in dict.fromkeys(map(split_of_set, options.sets or names)):
            found = found_tasks(environment, split, options.seed)
            for name in options.sets or names:
                if split_of_set(name) == split:
                    family = name.rpartition("-")[0]
                    file, tasks = make_set(name, environment, options.seed, found[family])
                    paths = write_set(options.folder, file, tasks, force=options.force)
                    describe(file, tasks)
                    print(f"  wrote {' and '.join(map(str, paths))}")


if __name__ == "__main__":
    main()
