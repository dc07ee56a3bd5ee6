"""AppWorld episodes on the real engine: the contract, both ways to act, and both ways to be evaluated."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing

import pytest
from support.bfcl_tasks import call
from support.contract import EnvironmentContract
from support.engine_pids import world_pid
from support.solutions import note

from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.episode import RESPONSE_MISMATCH, STATE_MISMATCH, WORLD_LOST
from environments.appworld.installation import official_task
from environments.appworld.records import Start
from environments.base import InputError, ObservationStatus, TaskSpec, ToolCall
from environments.verification.replay import replay

WORLD = "made01_1"
COMPLETE = call("supervisor.complete_task")


def written(text: str, *reference: ToolCall) -> TaskSpec:
    """A task on the synthetic world whose every call is needed, with ``python`` and the tools of its reference."""
    names = [one.name for one in reference if one.name not in ("python", COMPLETE.name)]
    tools = ("python", *dict.fromkeys(names), COMPLETE.name)
    return TaskSpec(
        environment="appworld",
        split="train",
        classes=tuple(dict.fromkeys(name.split(".")[0] for name in tools)),
        turns=(text,),
        initial_state=Start(task=WORLD).initial_state(),
        tools=tools,
        reference=(reference,),
    )


def account(app: str, title: str, first: str, last: str) -> tuple[str, ToolCall]:
    """What is asked for, and the call."""
    given = {"first_name": first, "last_name": last, "email": f"{first}.{last}@example.org".lower()}
    given["password"] = f"{first}-of-{last}"
    asked = "Make a {0} account for '{first_name}' '{last_name}' with '{email}' and the password '{password}'."
    return asked.format(title, **given), call(f"{app}.signup", **given)


ANSWER = written("Give the answer 'sage green'.", call(COMPLETE.name, answer="sage green"))
ACCOUNT = written(*account("simple_note", "Simple Note", "Olga", "Birk"))
ASKED, MADE = account("todoist", "Todoist", "Pim", "Vos")
ACCOUNT_AND_ANSWER = written(f"{ASKED} Then give the answer 'done'.", MADE, call(COMPLETE.name, answer="done"))


class TestAppWorld(EnvironmentContract):
    starts_opened = 2
    actions_in_a_turn = 10
    engine: AppWorldEngine

    @pytest.fixture(autouse=True)
    def _one_engine(self, engine: AppWorldEngine) -> None:
        type(self).engine = engine

    def make(self) -> AppWorldEnvironment:
        return AppWorldEnvironment(engine=self.engine)

    def make_tasks(self, environment: object) -> Sequence[TaskSpec]:
        return (ACCOUNT_AND_ANSWER, ACCOUNT)


@pytest.fixture(scope="module")
def environment(engine: AppWorldEngine) -> AppWorldEnvironment:
    return AppWorldEnvironment(engine=engine)


def python(code: str) -> ToolCall:
    return call("python", code=code)


NOTE_TASK = written("Create a note titled 'Shelf' with the content 'oak'.", python(note("Shelf", "oak")), COMPLETE)


def test_the_readable_way_to_log_in_and_write_a_note(environment: AppWorldEnvironment) -> None:
    """By name: the password as the supervisor's app shows it, the token as the login shows it."""
    names = ("supervisor.show_profile", "supervisor.show_account_passwords", "simple_note.login")
    update = {
        "classes": ("python", "supervisor", "simple_note"),
        "tools": (*NOTE_TASK.tools, *names, "simple_note.create_note"),
    }
    task = NOTE_TASK.model_copy(update=update)
    with closing(environment.open(task)) as episode:
        episode.start()
        profile = json.loads(episode.step(call("supervisor.show_profile")).text)
        passwords = json.loads(episode.step(call("supervisor.show_account_passwords")).text)
        password = next(entry["password"] for entry in passwords if entry["account_name"] == "simple_note")
        before = episode.state()
        login = episode.step(call("simple_note.login", username=profile["email"], password=password))
        assert episode.state() == before
        token = json.loads(login.text)["access_token"]
        made = call("simple_note.create_note", title="Shelf", content="oak", access_token=token)
        observation = episode.step(made)
        assert (observation.status, observation.calls) == (ObservationStatus.OK, (made,))
        assert episode.state() != before
        assert episode.outcome().turns[0].response is False  # not yet complete
        episode.step(COMPLETE)
        episode.end_turn()
        outcome = episode.outcome()
    assert outcome.success
    assert (outcome.turns[0].calls, outcome.turns[0].reference_calls) == (5, 2)


def test_code_tells_what_it_prints_and_which_calls_the_apps_accepted(environment: AppWorldEnvironment) -> None:
    with closing(environment.open(NOTE_TASK)) as episode:
        episode.start()
        silent = episode.step(python("kept = 6"))
        assert (silent.status, silent.calls) == (ObservationStatus.EMPTY, ())
        assert episode.step(python("print(kept * 7)")).text == "42"
        failing = episode.step(python("apis.supervisor.show_profile()\napis.simple_note.login(username='a')"))
        assert failing.status is ObservationStatus.ERROR
        assert [one.name for one in failing.calls] == ["supervisor.show_profile"]
        assert episode.step(python("import os")).status is ObservationStatus.ERROR
        long = episode.step(python("print('ab' * 9000)"))
        assert "[10000 characters left out]" in long.text
        written_down = episode.step(python(note("Shelf", "oak")))
        assert written_down.status is ObservationStatus.OK  # printed nothing, but changed something
        assert written_down.calls[-1].name == "simple_note.create_note"
        for arguments in ({}, {"code": 1}, {"code": "print(1)", "more": 2}):
            assert episode.step(ToolCall(name="python", arguments=arguments)).status is ObservationStatus.ERROR
        surplus = episode.step(call("supervisor.complete_task", reply="done"))
        assert (surplus.status, surplus.calls) == (ObservationStatus.ERROR, ())
        assert "no parameter 'reply'" in surplus.text


@pytest.mark.parametrize(
    ("actions", "failure"),
    [
        ((), STATE_MISMATCH),
        ((python(note("Shelf", "ash")), COMPLETE), STATE_MISMATCH),
        ((python(note("Shelf", "oak")), python(note("Other", "ash")), COMPLETE), STATE_MISMATCH),
        ((python(note("Shelf", "oak")),), RESPONSE_MISMATCH),
        ((python(note("Shelf", "oak")), call("supervisor.complete_task", answer=5)), RESPONSE_MISMATCH),
        ((python(note("Shelf", "oak")), call("supervisor.complete_task", status="fail")), RESPONSE_MISMATCH),
        ((python(note("Shelf", "oak") + "apis.supervisor.complete_task()"),), None),
    ],
    ids=["nothing", "wrong", "collateral", "not completed", "answered", "given up", "right"],
)
def test_a_task_of_ours_is_evaluated_against_its_reference(environment, actions, failure) -> None:  # type: ignore[no-untyped-def]
    outcome = replay(environment, NOTE_TASK, (actions,)).outcome
    assert (outcome.failure, outcome.success) == (failure, failure is None)


def test_nothing_runs_after_the_task_is_complete_or_the_limit_is_reached(engine: AppWorldEngine) -> None:
    environment = AppWorldEnvironment(max_steps=2, engine=engine)
    for first in (ANSWER.reference[0][0], python("apis.supervisor.complete_task(answer='sage green')")):
        with closing(environment.open(ANSWER)) as episode:
            episode.start()
            episode.step(first)
            assert "complete, nothing was run" in episode.step(python(note("a", "b"))).text
            assert episode.outcome().success
            assert "limit of 2 steps" in episode.step(python("print(1)")).text


def test_an_official_task_is_evaluated_by_the_benchmarks_checks(environment, installation) -> None:  # type: ignore[no-untyped-def]
    task = official_task(installation, WORLD, "train")
    assert task.tools == ("python",)
    solved = replay(environment, task).outcome
    assert (solved.success, solved.partial) == (True, 1.0)
    assert (solved.turns[0].state, solved.turns[0].response, solved.turns[0].reference_calls) == (True, True, 1)
    idle = replay(environment, task, ((),)).outcome
    assert (idle.success, idle.failure, idle.partial) == (False, STATE_MISMATCH, 0.0)
    assert (idle.turns[0].state, idle.turns[0].response) == (False, False)
    completed = replay(environment, task, ((python("apis.supervisor.complete_task()"),),)).outcome
    assert (completed.turns[0].state, completed.turns[0].response) == (False, True)


def test_an_official_task_does_not_ask_its_reference(environment, installation) -> None:  # type: ignore[no-untyped-def]
    task = official_task(installation, WORLD, "train")
    misled = task.model_copy(update={"reference": ((python("print(1)"),),)})
    assert not replay(environment, misled).outcome.success
    assert replay(environment, misled, task.reference).outcome.success


def test_test_splits_are_closed(installation) -> None:  # type: ignore[no-untyped-def]
    for split in ("test_normal", "test_challenge", "nowhere"):
        with pytest.raises(InputError, match="use train or dev"):
            installation.task_ids(split)
        with pytest.raises(InputError, match="use train or dev"):
            official_task(installation, WORLD, split)
    with pytest.raises(InputError, match="has no task"):
        official_task(installation, installation.task_ids("dev")[0], "train")


def test_starts_are_the_training_tasks_with_their_apps(environment, installation) -> None:  # type: ignore[no-untyped-def]
    starts = environment.starts()
    assert tuple(start.id for start in starts) == installation.task_ids("train")
    for start in starts:
        assert start.classes[:3] == ("python", "api_docs", "supervisor")
        assert "official" not in start.initial_state["appworld"]
        assert "python" in start.tools
        assert "supervisor.complete_task" in start.tools


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"initial_state": {}}, "initial state of an AppWorld task"),
        ({"initial_state": {"appworld": {}}}, "initial_state.appworld.task"),
        ({"initial_state": {"appworld": {"task": "made01_1", "seed": 1}}}, "initial_state.appworld.seed"),
        ({"initial_state": {"appworld": {"task": "nowhere_1"}}}, "no task 'nowhere_1'"),
        ({"initial_state": {"appworld": {"task": "nowhere_1", "official": True}}}, "no task 'nowhere_1'"),
        ({"tools": ("spotify.login",)}, "belongs to none of the task's apps"),
        ({"withheld": {3: ("python",)}}, "withheld until turn 3"),
        ({"setup": (ToolCall(name="spotify.no_such_api"),)}, "'spotify.no_such_api'"),
        (
            {
                "initial_state": {"appworld": {"task": "made01_1", "official": True}},
                "turns": ("a", "b"),
                "reference": ((), ()),
            },
            "2 user turns: give it one",
        ),
    ],
)
def test_what_cannot_be_opened_is_told(environment, change, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        environment.open(ACCOUNT.model_copy(update=change))


def test_a_world_that_died_after_it_was_given_code_is_a_failed_attempt(environment: AppWorldEnvironment) -> None:
    with closing(environment.open(ACCOUNT)) as broken, closing(environment.open(ACCOUNT)) as other:
        broken.start(), other.start()
        broken.step(python("print(1)"))
        os.kill(world_pid(broken._live()._world._world), 9)
        said = broken.step(python("print(1)"))
        assert said.failed
        assert said.text.startswith("Execution failed: the code ended this world: ")
        assert broken.step(ACCOUNT.reference[0][0]).text.endswith("nothing was run")
        assert "lost" in broken.state()
        assert (broken.outcome().success, broken.outcome().failure) == (False, WORLD_LOST)
        assert other.step(python("print(1)")).text == "1"
        other.step(ACCOUNT.reference[0][0])
        assert other.outcome().success


def test_an_official_attempt_whose_world_died_fails_every_check(environment: AppWorldEnvironment) -> None:
    task = official_task(environment._engine.installation, "made01_1", "train")
    with closing(environment.open(task)) as broken:
        broken.start()
        broken.step(python("print(1)"))
        os.kill(world_pid(broken._live()._world), 9)
        outcome = broken.outcome()
        assert (outcome.success, outcome.failure, outcome.partial) == (False, WORLD_LOST, 0.0)


def test_calls_by_name_whose_world_dies_are_a_failed_attempt_and_not_remembered(engine: AppWorldEngine) -> None:
    environment = AppWorldEnvironment(engine=engine).recorded()
    with closing(environment.open(ACCOUNT)) as broken:
        broken.start()
        (first, *_) = ACCOUNT.reference[0]
        assert not broken.step(first).failed
        os.kill(world_pid(broken._live()._world._world), 9)
        other = first.model_copy(update={"arguments": {**first.arguments, "email": "nobody@example.com"}})
        assert broken.step(other).text.startswith("Execution failed: the code ended this world")
        assert broken.step(first).text.endswith("nothing was run")
        assert broken.outcome().failure == WORLD_LOST
    assert replay(environment, ACCOUNT).outcome.success


def test_a_reference_that_was_replayed_is_not_played_again(engine: AppWorldEngine, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    opened: list[str] = []
    real = AppWorldEngine.open

    def counting(self: AppWorldEngine, task_id: str, instruction: str | None = None):  # type: ignore[no-untyped-def]
        opened.append(task_id)
        return real(self, task_id, instruction)

    monkeypatch.setattr(AppWorldEngine, "open", counting)
    environment = AppWorldEnvironment(engine=engine)
    for _ in range(3):
        assert replay(environment, ACCOUNT).outcome.success
    assert len(opened) == 3
