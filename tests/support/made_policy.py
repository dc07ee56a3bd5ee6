"""Tasks and policies made for the tests of training: real environment, no files from elsewhere."""

from __future__ import annotations

import random
from functools import cache

from environments.base import ToolCall
from memory.records import Task
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES, call, rendered, seed_task
from training.embedded.new_policy import new_policy
from training.rollout.episodes import EpisodeLimits, play_references, token_row
from training.rollout.policy import Policy


def task(*turns: tuple[ToolCall, ...], group: str = CAR, seed: int = 0) -> Task:
    """A task from the first training state of ``group``, with its text rendered."""
    return seed_task(rendered(group, *turns, seed=seed), f"made-{seed}")


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
        pool, group = (vehicle, CAR) if number % 2 else (files, FILES)
        calls = rng.sample(pool, rng.randint(1, 2))
        turns = [(one,) for one in calls] if number % 7 == 0 else [tuple(calls)]
        made.append(task(*turns, group=group, seed=number))
    return tuple(made)


@cache
def trained_policy(steps: int = 100) -> Policy:
    """A policy that mostly solves ``made_tasks``; trained in a few seconds."""
    import torch

    from training.supervised import Learning, learn

    torch.set_num_threads(1)
    policy = new_policy(ENVIRONMENT, made_tasks(), positions=1024, seed=0, hidden=64, layers=2)
    limits = EpisodeLimits(max_new_tokens=200, max_tokens=1024)
    rows = [token_row(one, filler=0) for one in play_references(policy, ENVIRONMENT, made_tasks(), limits)]
    drawn = random.Random(0)
    updates = [drawn.choices(rows, k=8) for _ in range(steps)]
    for _ in learn(policy.model, updates, Learning(3e-3)):
        pass
    return policy
