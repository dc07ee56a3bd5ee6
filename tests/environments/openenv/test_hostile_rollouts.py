"""Rollouts on a hostile OpenEnv server: each that it spoils is a counted fault, and the round goes on."""

from __future__ import annotations

import pytest
from support import ROOT
from support.openenv_host import ANSWERS, CounterHost

from environments.base import ToolCall
from environments.openenv import host as host_module
from environments.registry import open_named
from memory.records import Task
from training.rollout.episodes import EpisodeLimits, play_references
from training.rollout.policy import load_policy


@pytest.mark.slow
def test_a_spoilt_rollout_is_a_fault_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "STEP_SECONDS", 1.0)
    policy = load_policy(str(ROOT / "recipes" / "starter"), "cpu")
    with CounterHost() as fake:
        # A tool that the shipped policy has a token for.
        fake.tools = [{"name": "pwd", "description": "Show it.", "input_schema": {"type": "object", "properties": {}}}]
        environment = open_named("openenv", {"url": fake.url, "starts": 1})
        start = environment.starts()[0]
        task = Task(
            id="task",
            origin="seed",
            environment=start.environment,
            split="train",
            classes=start.classes,
            turns=("show the directory",),
            initial_state=start.initial_state,
            tools=start.tools,
            reference=((ToolCall(name="pwd"),),),
        )
        faults = 0
        for evil in ANSWERS.values():
            fake.evil, fake.after = evil, fake.calls
            (spoilt,) = play_references(policy, environment, [task], EpisodeLimits(max_tokens=4096))
            faults += spoilt.infrastructure_error is not None and spoilt.outcome is None
            fake.evil = None
            (fine,) = play_references(policy, environment, [task], EpisodeLimits(max_tokens=4096))
            assert fine.outcome is not None
            assert fine.infrastructure_error is None
        assert faults == len(ANSWERS) == 34
