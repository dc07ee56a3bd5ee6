"""Held-out tasks made to look like others: changes of the record that leave the task what it is."""

from __future__ import annotations

import copy
import inspect
import json
import random
from collections.abc import Callable, Iterator
from functools import cache

from pydantic import JsonValue

from environments.base import TaskSpec, ToolCall
from environments.bfcl.evaluation_sets import TEMPLATED_SETS, load_set
from environments.bfcl.official import CATEGORIES, all_tools, load_category
from environments.verification.canonical import words

Change = Callable[[TaskSpec, random.Random], TaskSpec | None]
"""Returns None for a task that it cannot change."""

FILES, CAR = "GorillaFileSystem", "VehicleControlAPI"
READS = {FILES: "pwd", CAR: "check_tire_pressure", "TradingBot": "get_stock_info", "TravelAPI": "list_all_airports"}


def copied(task: TaskSpec, **changes: object) -> TaskSpec:
    return task.model_copy(update={"initial_state": copy.deepcopy(task.initial_state), **changes})


def in_state(task: TaskSpec, name: str, change: Callable[[dict[str, JsonValue]], bool]) -> TaskSpec | None:
    """The task with one class's configuration changed, None where ``change`` finds nothing."""
    other = copied(task)
    configuration = other.initial_state.get(name)
    return other if isinstance(configuration, dict) and change(configuration) else None


def folders(configuration: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """The contents of every directory below."""
    if isinstance(configuration, dict):
        if configuration.get("type") == "directory":
            yield configuration["contents"]
        for value in configuration.values():
            yield from folders(value)


def files(configuration: JsonValue) -> Iterator[tuple[dict[str, JsonValue], str]]:
    for folder in folders(configuration):
        yield from ((folder, name) for name, entry in folder.items() if entry.get("type") == "file")


def calls(task: TaskSpec) -> list[ToolCall]:
    return [*task.setup, *(call for turn in task.reference for call in turn)]


def said(task: TaskSpec) -> str:
    return json.dumps([call.arguments for call in calls(task)])


def unchanged(task, rng):
    return copied(task)


def reworded(task, rng):
    openings = ("Could you see to this:", "My request,", "I would like the following done.", "Next on the list,")
    turns = tuple(f"{rng.choice(openings)} {' '.join(reversed(text.split()))} thanks" for text in task.turns)
    return copied(task, turns=turns)


def unused_part(task, rng):
    other = copied(task)
    other.initial_state["unused"] = rng.choice((1, "x", {"a": []}))
    return other


def unused_key(task, rng):
    names = [name for name in task.initial_state if isinstance(task.initial_state[name], dict)]
    return names and in_state(task, rng.choice(names), lambda c: c.update({"unused": rng.randint(0, 9)}) is None)


def unused_file(task, rng):
    def add(configuration):
        for folder in (found := list(folders(configuration))):
            folder[f"unused_{rng.randint(0, 99)}.txt"] = {"type": "file", "content": "nothing of use"}
        return bool(found)

    return in_state(task, FILES, add)


def unused_files_gone(task, rng):
    def remove(configuration):
        unused = [(folder, name) for folder, name in files(configuration) if name not in said(task)]
        for folder, name in unused:
            del folder[name]
        return bool(unused)

    return in_state(task, FILES, remove)


def default_written(task, rng):
    return in_state(task, CAR, lambda c: not ("random_seed" in c or c.update(random_seed=141053)))


def number_unused(task, rng):
    def nudge(configuration):
        unused = [key for key in ("batteryVoltage", "distanceToNextService") if key in configuration]
        for key in unused:
            configuration[key] += rng.choice((0.25, 0.5))
        return bool(unused) and not any(call.name in ("displayCarStatus", "startEngine") for call in calls(task))

    return in_state(task, CAR, nudge)


def renamed(value: JsonValue, old: str, new: str) -> JsonValue:
    if isinstance(value, dict):
        return {new if key == old else key: renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def renamed_in(task: TaskSpec, names: list[str], rng: random.Random) -> TaskSpec | None:
    """Renamed wherever the task says the name; those that its calls say first."""
    names = [name for name in names if name in said(task)] or names
    if not names:
        return None
    old, new = rng.choice(names), f"zebra_{rng.randint(100, 999)}"

    def with_new(call: ToolCall) -> ToolCall:
        return ToolCall(name=call.name, arguments=renamed(call.arguments, old, new))

    return copied(
        task,
        initial_state=renamed(task.initial_state, old, new),
        setup=tuple(map(with_new, task.setup)),
        reference=tuple(tuple(map(with_new, turn)) for turn in task.reference),
        turns=tuple(text.replace(old, new) for text in task.turns),
    )


def file_renamed(task, rng):
    return renamed_in(task, [name for _, name in files(task.initial_state.get(FILES))], rng)


def all_files_renamed(task, rng):
    other: TaskSpec | None = task
    for name in sorted({name for _, name in files(task.initial_state.get(FILES))}):
        other = renamed_in(other, [name], rng)
    return other if other is not task else None


def contents_reordered(task, rng):
    return in_contents(task, lambda content: " ".join(reversed(content.split())))


def setup_played(task, rng):
    """The last calls of the setup are asked for too."""
    if not task.setup:
        return None
    kept = rng.randrange(len(task.setup))
    first = (*task.setup[kept:], *task.reference[0])
    return copied(task, setup=task.setup[:kept], reference=(first, *task.reference[1:]))


def first_call_in_setup(task, rng):
    if len(task.reference[0]) < 2:
        return None
    moved, *rest = task.reference[0]
    return copied(task, setup=(*task.setup, moved), reference=(tuple(rest), *task.reference[1:]))


def change_more(task, rng):
    more = {FILES: ToolCall(name="mkdir", arguments={"dir_name": f"more{rng.randint(0, 9)}"})}
    more[CAR] = ToolCall(name="setHeadlights", arguments={"mode": "auto"})
    extra = [call for name, call in more.items() if name in task.classes and call.name in task.tools]
    return extra and copied(task, reference=(*task.reference[:-1], (*task.reference[-1], rng.choice(extra))))


def in_contents(task, change):
    def alter(configuration):
        found = [(folder, name) for folder, name in files(configuration) if folder[name].get("content", "").strip()]
        for folder, name in found:
            folder[name]["content"] = change(folder[name]["content"])
        return bool(found)

    return in_state(task, FILES, alter)


def blank_at_end(task, rng):
    return in_contents(task, lambda content: f"{content} ")


def blank_inside(task, rng):
    return in_contents(task, lambda content: f"{content[: len(content) // 2]} {content[len(content) // 2 :]}")


def reads_of(task):
    return [ToolCall(name=READS[name]) for name in task.classes if READS.get(name) in task.tools]


def read_in_setup(task, rng):
    reads = reads_of(task)
    at = rng.randint(0, len(task.setup))
    return reads and copied(task, setup=(*task.setup[:at], rng.choice(reads), *task.setup[at:]))


def read_in_reference(task, rng):
    reads = reads_of(task)
    turn = rng.randrange(len(task.reference))
    first = rng.random() < 0.5
    given = task.reference[turn]
    longer = reads and ((rng.choice(reads), *given) if first else (*given, rng.choice(reads)))
    return reads and copied(task, reference=(*task.reference[:turn], tuple(longer), *task.reference[turn + 1 :]))


def default_given(task, rng):
    """Every argument that is left out is given as documented."""

    def whole(call: ToolCall) -> ToolCall:
        defaults = {
            p.name: p.default for p in all_tools()[call.name].parameters if not p.required and p.default is not None
        }
        return ToolCall(name=call.name, arguments={**defaults, **call.arguments})

    other = copied(task, reference=tuple(tuple(map(whole, turn)) for turn in task.reference))
    return other if other != task else None


def numbers_as_floats(task, rng):
    def floats(value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {key: floats(item) for key, item in value.items()}
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    return in_state(task, CAR, lambda c: c.update(floats(c)) is None)


def lists_in_other_order(task, rng):
    def turned(call: ToolCall) -> ToolCall:
        given = {key: value[::-1] if isinstance(value, list) else value for key, value in call.arguments.items()}
        return ToolCall(name=call.name, arguments=given)

    if not any(isinstance(value, list) for turn in task.reference for c in turn for value in c.arguments.values()):
        return None
    return copied(task, reference=tuple(tuple(map(turned, turn)) for turn in task.reference))


def class_more(task, rng):
    return None if "MathAPI" in task.classes else copied(task, classes=(*task.classes, "MathAPI"))


def longer_context(task, rng):
    return copied(task, long_context=not task.long_context)


def fewer_tools(task, rng):
    needed = {call.name for call in calls(task)}
    tools = tuple(name for name in task.tools if name in needed or rng.random() < 0.3)
    return copied(task, tools=tools, withheld={})


def keys_reordered(task, rng):
    return copied(task, initial_state=dict(reversed(task.initial_state.items())), classes=task.classes[::-1])


def turns_joined(task, rng):
    if len(task.turns) < 2:
        return None
    whole = tuple(call for turn in task.reference for call in turn)
    return copied(task, turns=(" ".join(task.turns),), reference=(whole,), withheld={})


def first_turns(task, rng):
    if len(task.turns) < 2:
        return None
    kept = rng.randint(1, len(task.turns) - 1)
    if not any(task.reference[:kept]):
        return None
    return copied(task, turns=task.turns[:kept], reference=task.reference[:kept], withheld={})


CHANGES: dict[str, Change] = {
    name: one
    for name, one in list(globals().items())
    if inspect.isfunction(one) and inspect.signature(one).parameters.keys() == {"task", "rng"}
}
"""Every function above of a task and a random generator."""


def changed(task: TaskSpec, kinds: tuple[str, ...], rng: random.Random) -> TaskSpec | None:
    """``task`` relabelled train, reworded if a kind says so, and changed by every kind in turn."""
    other: TaskSpec | None = copied(task, split="train")
    for kind in kinds:
        other = CHANGES[kind](other, rng) if other is not None else None
        if not other:
            return None
    return other


@cache
def held_out_tasks() -> tuple[tuple[str, str, TaskSpec], ...]:
    """(set, id, task) of every evaluation set and of the official tasks of the splits dev, test and reserved."""
    sets = [("panel", task.id, task.spec) for name in TEMPLATED_SETS for task in load_set(name)]
    return (
        *sets,
        *(
            (task.spec.split, task.id, task.spec)
            for name in CATEGORIES
            for task in load_category(name, ("dev", "test", "reserved"), equality_test=True)
        ),
    )


def human_wordings() -> set[str]:
    """Runs of eight words that stand in held-out official tasks, and in none of training."""
    held = {
        run for found, _, task in held_out_tasks() if found != "panel" for text in task.turns for run in shingles(text)
    }
    train = [task.spec for name in CATEGORIES for task in load_category(name, ("train",))]
    return held - {run for task in train for text in task.turns for run in shingles(text)}


def shingles(text: str, length: int = 8) -> set[str]:
    """Every run of ``length`` words of a text."""
    found = words(text)
    return {" ".join(found[at : at + length]) for at in range(len(found) - length + 1)}
