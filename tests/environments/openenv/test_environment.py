"""An OpenEnv server as an environment: tasks are made and verified on it, and its own are played for the reward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.openenv_host import CounterHost, observation, task

from environments.base import ObservationStatus, ToolCall
from environments.contract.checks import Contract, check
from environments.openenv import host as host_module
from environments.openenv.benchmark import BENCHMARK, OpenEnvEnvironment, OpenEnvOptions
from environments.openenv.host import Host
from environments.registry import open_named
from environments.settings import EnvironmentSettings
from environments.verification.verify import Refusal, verify

READ = ToolCall(name="read_count")


def add(number: int) -> ToolCall:
    return ToolCall(name="add_number", arguments={"number": number})


@pytest.fixture
def host() -> Iterator[CounterHost]:
    with CounterHost() as host:
        yield host


def opened(host: CounterHost, **options: str) -> OpenEnvEnvironment:
    environment = open_named("openenv", {"url": host.url, "starts": 3, **options})
    assert isinstance(environment, OpenEnvEnvironment)
    return environment


def test_the_contract_holds(host: CounterHost) -> None:
    tasks = [
        task(opened(host), "Add the number 2 to the counter, and read the counter.", add(2), READ),
        task(opened(host), "Add the number 3 to the counter.", add(3)),
    ]
    contract = Contract(lambda: opened(host))
    broken = [(words, problem) for words, problem, _ in [*check(contract), *check(contract, tasks)] if problem]
    assert broken == []


def test_a_draft_is_verified_by_the_servers_state(host: CounterHost) -> None:
    environment = opened(host)
    assert verify(task(environment, "Add the number 3 to the counter.", add(3)), environment, (), ()).accepted
    twice = task(environment, "Add the number 3 to the counter, add the number 0.", add(3), add(0))
    assert verify(twice, environment, (), ()).reason is Refusal.SUPERFLUOUS_CALL


def test_without_a_state_a_draft_needs_a_result_or_a_reward(host: CounterHost) -> None:
    environment = opened(host, compare="reward")
    silent = task(environment, "Add the number 3 to the counter.", add(3))
    assert verify(silent, environment, (), ()).reason is Refusal.NO_EFFECT, "the change cannot be seen"
    read = task(environment, "Add the number 3 to the counter, and read the counter.", add(3), READ)
    assert verify(read, environment, (), ()).accepted
    paid = task(environment, "Add the number 5 to the counter.", add(5))
    assert verify(paid, environment, (), ()).accepted, "its reward is seen"
    settings = EnvironmentSettings(name="openenv", options={"url": host.url, "compare": "reward"})
    assert settings.verification_label == "tasks verified by results and reward alone, not by state"
    assert EnvironmentSettings(name="openenv", options={"url": host.url}).verification_label is None


def test_the_servers_own_tasks_are_solved_by_its_reward(host: CounterHost) -> None:
    official = BENCHMARK.official_tasks(OpenEnvOptions(url=host.url, starts=3)).tasks
    assert [one.spec.turns for one in official] == [(f"Bring the counter to {n}.",) for n in (1, 2, 3)]
    environment = opened(host)
    for calls, success in (((add(2),), False), ((add(2), add(3)), True)):
        with closing(environment.open(official[0].spec)) as episode:
            episode.start()
            for call in calls:
                episode.step(call)
            assert episode.outcome().success is success


def test_an_episode_that_is_over_answers_no_call(host: CounterHost) -> None:
    environment = opened(host)
    with closing(environment.open(task(environment, "Read.", READ))) as episode:
        episode.start()
        last = json.dumps(observation({"tool_name": "read_count", "result": 1}, 0.5, done=True))
        host.evil = lambda connection: connection.send(last)
        assert episode.step(READ).status is ObservationStatus.OK
        host.evil = None
        calls = host.calls
        assert "is over" in episode.step(READ).text
        assert host.calls == calls


def test_a_reference_that_was_played_is_not_played_again(host: CounterHost) -> None:
    environment = opened(host)
    spec = task(environment, "Add the number 3 to the counter.", add(3))
    for expected in (1, 2, 3):  # the call of each attempt
        with closing(environment.open(spec)) as episode:
            episode.start()
            episode.step(add(3))
            assert episode.outcome().success
        assert host.calls == expected


def test_an_environment_of_actions_has_one_tool(host: CounterHost, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {
        "properties": {"move": {"type": "string", "enum": ["left", "right"]}, "metadata": {"type": "object"}},
        "required": ["move"],
    }
    host.answers["list_tools"] = {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": ""}}
    documented = host_module._Schemas.model_validate({"action": schema, "observation": {}, "state": {}})
    monkeypatch.setattr(Host, "action_schema", lambda self: documented.action)
    environment = opened(host)
    (tool,) = environment.tools(["act"])
    assert [(one.name, one.choices) for one in tool.parameters] == [("move", ("left", "right"))]
