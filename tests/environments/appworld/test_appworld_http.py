"""AppWorld on real ``appworld serve environment`` servers: the contract, what the worker answers, and what can fail."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import httpx
import pytest
from support.appworld_servers import Serving, serving
from support.contract import EnvironmentContract
from support.hand_written_tasks import ACCOUNT, ACCOUNT_AND_ANSWER, COMPLETE, WORLD
from support.solutions import note, solve

from environments.appworld.backend import WorldLost
from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.installation import Installation
from environments.appworld.official_tasks import official_task
from environments.appworld.outcomes import STATE_MISMATCH
from environments.appworld.records import EngineLimits, ExecutionStatus
from environments.appworld.servers import AppWorldServers
from environments.base import EnvironmentFault, InputError, TaskSpec
from environments.verification.replay import replay

LIMITS = EngineLimits(execute=30, grace=10.0)
QUICK = EngineLimits(execute=1, grace=10.0)


@pytest.fixture(scope="module")
def servers(installation: Installation) -> Iterator[Sequence[Serving]]:
    """Two: the contract opens up to two episodes at once in a thread, and its threads wait for each other."""
    with serving(installation, 2) as servers:
        yield servers


@pytest.fixture(scope="module")
def backend(installation: Installation, servers: Sequence[Serving]) -> AppWorldServers:
    return AppWorldServers([server.url for server in servers], installation, LIMITS)


@pytest.fixture
def quick(installation: Installation, servers: Sequence[Serving]) -> AppWorldServers:
    """The first server alone, with a second for code."""
    return AppWorldServers([servers[0].url], installation, QUICK)


class TestServedAppWorld(EnvironmentContract):
    starts_opened = 2
    actions_in_a_turn = 10
    backend: AppWorldServers

    @pytest.fixture(autouse=True)
    def _one_pool(self, backend: AppWorldServers) -> None:
        type(self).backend = backend

    def make(self) -> AppWorldEnvironment:
        return AppWorldEnvironment(engine=self.backend)

    def make_tasks(self, environment: object) -> Sequence[TaskSpec]:
        return (ACCOUNT_AND_ANSWER, ACCOUNT)


# As the worker


@pytest.mark.parametrize("task_id", ["made01_1", "made02_1"])
def test_a_server_answers_as_the_worker_does(engine: AppWorldEngine, backend: AppWorldServers, task_id: str) -> None:
    actions = (
        "print(apis.supervisor.show_profile()['email'], 1 + 1)",
        "apis.supervisor.show_profile()\napis.simple_note.login(username='a')",
        "import os",
        "x = (",
        "print('Execution failed. Traceback:')",
        "kept = apis.spotify.show_liked_songs(access_token='none')",
        note("Shelf", "oak"),
    )
    with engine.open(task_id) as own, backend.open(task_id) as served:
        assert served.opening == own.opening
        for code in actions:
            assert served.execute(code) == own.execute(code), code
        assert served.state() == own.state()
        assert served.evaluated_diff() == own.evaluated_diff()
        assert served.evaluate() == own.evaluate()
        assert not served.evaluate().success


def test_an_official_task_is_evaluated_by_the_servers_evaluation(installation, backend) -> None:  # type: ignore[no-untyped-def]
    environment = AppWorldEnvironment(engine=backend)
    task = official_task(installation, WORLD, "train")
    solved = replay(environment, task).outcome
    assert solved.success
    idle = replay(environment, task, ((),)).outcome
    assert (idle.success, idle.failure) == (False, STATE_MISMATCH)
    assert not replay(environment, task, ((COMPLETE,),)).outcome.success


def test_the_evaluation_disturbs_no_world(engine: AppWorldEngine, backend: AppWorldServers) -> None:
    with backend.open(WORLD) as world:
        world.execute("kept = 6")
        assert not world.evaluate().success
        assert world.execute("print(kept * 7, datetime.datetime.now().year)").output == "42 2023\n"
        executed = solve(engine, world)
        assert executed.completed
        assert world.evaluate().success


def test_the_apps_show_the_tasks_own_instruction(backend: AppWorldServers) -> None:
    show = "print(apis.supervisor.show_active_task()['instruction'])"
    with backend.open(WORLD, "Water the plants.") as world:
        assert world.opening.instruction == "Water the plants."
        assert world.execute(show).output == "Water the plants.\n"
        assert world.evaluated_diff().changes == {}


def test_one_server_is_enough_for_tasks_of_ours(installation, servers) -> None:  # type: ignore[no-untyped-def]
    environment = AppWorldEnvironment(engine=AppWorldServers([servers[0].url], installation, LIMITS))
    assert replay(environment, ACCOUNT_AND_ANSWER).outcome.success
    assert not replay(environment, ACCOUNT_AND_ANSWER, ((COMPLETE,),)).outcome.success


def test_an_episode_leaves_nothing_on_the_servers_disk(installation, servers) -> None:  # type: ignore[no-untyped-def]
    outputs = servers[0].root / "experiments" / "outputs"
    before = {*outputs.iterdir()}
    with AppWorldServers([servers[0].url], installation, LIMITS).open(WORLD) as world:
        world.execute(note("Shelf", "oak"))
        assert len({*outputs.iterdir()} - before) == 1
    assert {*outputs.iterdir()} <= before


# What can fail


def test_a_server_that_hangs_costs_its_episode_and_is_used_again_when_it_answers(installation, servers) -> None:  # type: ignore[no-untyped-def]
    (url, pid, _), (spare, *_) = servers
    alone = AppWorldServers([url], installation, EngineLimits(execute=1, grace=1.0))
    hasty = AppWorldServers([url], installation, EngineLimits(open=0.5))
    either = AppWorldServers([url, spare], installation, LIMITS)
    world = alone.open(WORLD)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(WorldLost, match=f"{url}: it did not answer /execute within 2 s"):
            world.execute("print(1)")
        with pytest.raises(EnvironmentFault, match=f"no server .* free within 0.5 s: .*{url}: it did not answer /"):
            hasty.open(WORLD)
        assert time.monotonic() - began < 30
        with either.open(WORLD) as other:
            assert other._lease.server.url == spare
    finally:
        os.kill(pid, signal.SIGCONT)
    world.close()
    with alone.open(WORLD) as again:
        assert again.execute("print(1)").output == "1\n"


def test_code_that_takes_too_long_is_told_so_and_the_world_goes_on(quick: AppWorldServers) -> None:
    with quick.open(WORLD) as world:
        executed = world.execute("while True: pass")
        assert executed.status is ExecutionStatus.FAILED
        assert "timed out after 1 seconds" in executed.output
        assert world.execute("print(1)").output == "1\n"


@pytest.mark.parametrize(
    ("task_id", "says"),
    [(WORLD, "another client opened a world there, so execute was not done"), ("made02_1", "HTTP status 500")],
)
def test_a_server_that_another_client_takes_over_is_noticed(quick, servers, task_id, says) -> None:  # type: ignore[no-untyped-def]
    with quick.open(WORLD) as world:
        world.execute(note("Shelf", "oak"))
        body = {"task_id": task_id, "experiment_name": "others"}
        httpx.post(f"{servers[0].url}/initialize", json=body, timeout=60, trust_env=False).raise_for_status()
        with pytest.raises(EnvironmentFault, match=says):
            world.execute(note("Desk", "ash"))
        world.close()
        if task_id == WORLD:  # nothing of ours reached the other's world
            show = {"task_id": WORLD, "code": "print(len(requester.request_tracker.requests))"}
            answer = httpx.post(f"{servers[0].url}/execute", json=show, timeout=60, trust_env=False).json()
            assert answer == {"output": "0\n"}
    with quick.open(WORLD) as world:
        assert world.evaluated_diff().changes == {}


def test_a_second_project_that_takes_a_server_over_is_noticed(quick: AppWorldServers) -> None:
    with quick.open(WORLD) as world:
        world._lease.release()  # as if it were on another machine
        with quick.open(WORLD) as other:
            other.execute(note("Shelf", "oak"))
            with pytest.raises(EnvironmentFault, match="another client opened a world there"):
                world.evaluated_diff()
            assert len(other.evaluated_diff().changes["simple_note.Note"].added) == 1


def test_an_episode_that_was_abandoned_leaves_nothing_to_the_next(quick: AppWorldServers) -> None:
    world = quick.open(WORLD)
    world.execute(note("Shelf", "oak"))
    world.execute("kept = 1")
    world._give_up()
    with quick.open(WORLD) as fresh:
        assert fresh.evaluated_diff().changes == {}
        assert fresh.execute("print(kept)").status is ExecutionStatus.FAILED


def test_a_server_plays_one_episode_at_a_time(installation, servers) -> None:  # type: ignore[no-untyped-def]
    hasty = AppWorldServers([servers[0].url], installation, EngineLimits(queue=0.3))
    patient = AppWorldServers([servers[0].url], installation, LIMITS)
    said: list[str] = []

    def wait() -> None:
        with pytest.raises(EnvironmentFault, match=f"{servers[0].url} plays another episode") as caught:
            hasty.open(WORLD)
        said.append(str(caught.value))
        with patient.open(WORLD) as mine:
            said.append(mine.execute("print(2)").output)

    with patient.open(WORLD) as world:
        with pytest.raises(
            InputError, match=r"environment\.options\.servers names 1, and more AppWorld episodes than that"
        ):
            patient.open(WORLD)
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(1.0)
        assert world.execute("print(1)").output == "1\n"
    waiting.join(60)
    assert said[1:] == ["2\n"]


def test_servers_of_another_world_are_refused(installation, servers, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A world whose task of this id asks for something else."""
    task = tmp_path / "blind" / "data" / "tasks" / WORLD
    task.mkdir(parents=True)
    (task / "specs.json").write_text(json.dumps({"instruction": "Paint the hall."}))
    other = Installation(python=installation.python, world=tmp_path)
    with pytest.raises(InputError, match=f"{servers[0].url} serves another task {WORLD} than the installation has"):
        AppWorldServers([servers[0].url], other, LIMITS).open(WORLD)
    with pytest.raises(InputError, match="has no task 'made02_1'"):
        AppWorldServers([servers[0].url], other, LIMITS).open("made02_1")
    with AppWorldServers([servers[0].url], installation, LIMITS).open(WORLD) as world:
        assert world.execute("print(1)").output == "1\n"


def test_a_server_that_is_killed_costs_its_episode_and_the_others_go_on(installation, servers) -> None:  # type: ignore[no-untyped-def]
    """The last test of the second server."""
    survivor, doomed = servers
    both = AppWorldServers([doomed.url, survivor.url], installation, LIMITS)
    world = both.open(WORLD)
    assert world._lease.server.url == doomed.url
    timer = threading.Timer(0.5, os.kill, (doomed.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(EnvironmentFault, match=rf"^AppWorld's server {doomed.url}: /execute failed: "):
        world.execute("while True: pass")
    timer.join()
    with pytest.raises(EnvironmentFault, match="evaluate was asked of an episode that is over"):
        world.evaluate()
    world.close()
    for _ in range(2):
        with both.open(WORLD) as other:
            assert other._lease.server.url == survivor.url
    with pytest.raises(
        InputError, match=f"environment.options.servers: AppWorld's server {doomed.url}: .*leave it out"
    ):
        AppWorldServers([doomed.url], installation)
