"""Episodes in a row with processes killed at random: each is accounted for."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress

from support.solutions import solve

from environments.appworld.backend import WorldLost
from environments.appworld.client import AppWorldEngine
from environments.appworld.installation import Installation
from environments.appworld.records import EngineLimits
from environments.base import EnvironmentFault

EPISODES = 8
KINDS = ("none", "none", "none", "none", "world", "world", "judge", "worker")


def test_every_episode_is_accounted_for(installation: Installation) -> None:
    draw = random.Random(3)
    outcomes: Counter[tuple[str, str]] = Counter()
    ids = installation.task_ids("train")
    with AppWorldEngine(installation, EngineLimits(episodes=100)) as engine:
        for number in range(EPISODES):
            kind = KINDS[number % len(KINDS)]
            outcomes[kind, play(engine, ids[number % len(ids)], kind, draw.uniform(0.0, 0.4))] += 1
        assert sum(outcomes.values()) == EPISODES
        assert {outcome for kind, outcome in outcomes if kind == "none"} == {"solved"}
        assert {outcome for _, outcome in outcomes} <= {"solved", "fault"}
        assert any(outcome == "fault" for _, outcome in outcomes)


def play(engine: AppWorldEngine, task_id: str, kind: str, after: float) -> str:
    """One episode during which a process of ``kind`` is killed ``after`` seconds: how it ended."""
    timer = None
    try:
        with engine.open(task_id) as world:
            process = {"world": lambda: world.pid, "worker": lambda: world.process.pid}
            process["judge"] = lambda: engine._judge.pid if engine._judge else world.pid
            if kind != "none":
                timer = threading.Timer(after, _kill, (process[kind](),))
                timer.start()
            try:
                solve(engine, world)
                return "solved" if world.evaluate().success else "failed"
            finally:  # while the world is open, so that its number is still its own
                if timer is not None:
                    timer.cancel()
                    timer.join()
    except (EnvironmentFault, WorldLost):
        return "fault"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
