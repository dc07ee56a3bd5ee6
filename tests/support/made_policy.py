"""Tasks and policies made for the tests of training: real environment, no files from elsewhere."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path

from environments.base import ToolCall
from environments.bfcl.environment import BFCLEnvironment
from environments.bfcl.templated.wordings import render_task
from memory.records import Task
from memory.run import write_jsonl
from training.embedded.warm_start import WarmStartSettings, warm_start
from training.rollout.policy import Policy, load_policy

VEHICLE = "VehicleControlAPI"
FILES = "GorillaFileSystem"


@cache
def environment() -> BFCLEnvironment:
    return BFCLEnvironment([FILES, VEHICLE])


def task(*turns: tuple[ToolCall, ...], group: str = VEHICLE, seed: int = 0) -> Task:
    """A task from the first training state of ``group``, with its text rendered."""
    start = next(start for start in environment().starts() if start.classes == (group,))
    empty = Task(
        id=f"made-{seed}",
        origin="seed",
        environment="bfcl",
        split="train",
        classes=start.classes,
        turns=("",) * len(turns),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=turns,
    )
    return render_task(environment(), empty, random.Random(seed))


def call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"name": name, "arguments": arguments})


@cache
def made_tasks(count: int = 50) -> tuple[Task, ...]:
    """Different tasks of one or two calls, of both classes; every seventh gives each call a user turn of its own."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        vehicle = [
            call("fillFuelTank", fuelAmount=number % 7 + 1),
            call("set_navigation", destination=f"{number} Elm Street, Rivermist, CA"),
            call("setHeadlights", mode=rng.choice(["on", "off", "auto"])),
            call("gallon_to_liter", gallon=number + 0.5),
        ]
        files = [call("mkdir", dir_name=f"box{number}"), call("pwd"), call("touch", file_name=f"note{number}.txt")]
        pool, group = (vehicle, VEHICLE) if number % 2 else (files, FILES)
        calls = rng.sample(pool, rng.randint(1, 2))
        turns = [(one,) for one in calls] if number % 7 == 0 else [tuple(calls)]
        made.append(task(*turns, group=group, seed=number))
    return tuple(made)


@cache
def trained_policy(steps: int = 100) -> Policy:
    """A policy that mostly solves ``made_tasks``; trained in a few seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        write_jsonl(Path(folder) / "tasks.jsonl", made_tasks())
        warm_start(Path(folder) / "tasks.jsonl", path, small_settings(steps))
        return load_policy(str(path), device="cpu")


def small_settings(steps: int, seed: int = 0, **others: float | bool) -> WarmStartSettings:
    return WarmStartSettings(
        steps=steps, seed=seed, hidden=64, layers=2, vocabulary=640, batch=8, warmup_steps=10, held_out=5, **others
    )
