"""What every environment must do, as tests: subclass ``EnvironmentContract`` and say how yours is made.

    class TestMine(EnvironmentContract):
        def make(self) -> Environment:
            return open_shop()

It pins the protocols of ``environments/base.py``: what training, verification and the roles rely on. ``make`` is called
several times and must give equal environments. The tasks that are played are found by exploration and verification;
override ``make_tasks`` where that finds none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest

import pytest

from environments.base import (
    Environment,
    Episode,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    TaskSpec,
    ToolCall,
    UserTurn,
)
from environments.verification.replay import replay
from environments.verification.verify import Refusal, verify
from support.contract_play import acted, live, played_tools, raises, replay_asking, telling, told, wrong_arguments
from support.contract_tasks import explored_tasks, in_turns

TYPES = {"string", "integer", "float", "boolean", "array", "dict", "code"}
MALFORMED = MalformedCall(text="open sesame", reason="not a call")
UNKNOWN = ToolCall(name="no_such_tool", arguments={"value": 1})
THREADS = 4


class EnvironmentContract:
    """The tests; each takes a fresh environment and verified tasks of it."""

    starts_opened: int | None = None
    """How many of the starts are opened, evenly spaced; None: all. For environments that take long to open one."""

    actions_in_a_turn = 1
    """Odd actions in a user turn, at most its limit of steps. More for environments that take long to end one."""

    _kept: Sequence[TaskSpec]

    def make(self) -> Environment:
        """The environment under test."""
        raise NotImplementedError("say how your environment is made")

    def make_tasks(self, environment: Environment) -> Sequence[TaskSpec]:
        """Tasks that verification accepts; one of them changes the state, one has several calls."""
        return explored_tasks(environment)

    @pytest.fixture
    def tasks(self) -> Sequence[TaskSpec]:
        if "_kept" not in vars(type(self)):
            type(self)._kept = self.make_tasks(self.make())
        return type(self)._kept

    @pytest.fixture
    def environment(self) -> Environment:
        return self.make()

    # The environment itself

    def test_it_satisfies_the_protocol(self, environment: Environment) -> None:
        assert isinstance(environment, Environment), "name, open, tools and starts are missing in part"
        assert environment.name, "name is empty"

    def test_tools_are_documented_in_the_order_asked_for(self, environment: Environment) -> None:
        for start in environment.starts():
            names = start.tools[::-1]
            tools = environment.tools(names)
            assert tuple(tool.name for tool in tools) == names, "tools() answers in another order or with other tools"
            for tool in tools:
                assert tool.description.strip(), f"{tool.name} has no description"
                assert tool.group in start.classes, f"{tool.name}: its group {tool.group} is no class of the start"
                given = [parameter.name for parameter in tool.parameters]
                assert len(given) == len(set(given)), f"{tool.name} documents a parameter twice"
                for parameter in tool.parameters:
                    where = f"{tool.name}({parameter.name})"
                    assert parameter.type in TYPES, f"{where}: {parameter.type} is none of the documented types"
                    assert parameter.description.strip(), f"{where} has no description"
        assert environment.tools(()) == ()

    def test_unknown_tools_are_an_input_error(self, environment: Environment) -> None:
        for names in (("no_such_tool",), (*environment.starts()[0].tools, "no_such_tool")):
            assert raises(InputError, lambda names=names: environment.tools(names)), "tools() takes an unknown name"

    def test_starts_are_of_the_training_split_and_can_be_opened(self, environment: Environment) -> None:
        starts = environment.starts()
        assert starts, "there is no start state: exploration has nowhere to begin"
        assert {start.split for start in starts} == {"train"}, "a start is not of the training split"
        assert {start.environment for start in starts} == {environment.name}, "a start names another environment"
        assert len({start.id for start in starts}) == len(starts), "two starts have one id"
        assert environment.starts() == starts == self.make().starts(), "starts() differs between calls or instances"
        for start in starts[:: -(-len(starts) // (self.starts_opened or len(starts)))]:
            with closing(live(environment, start)) as episode:
                assert set(episode.start().tools) == set(start.tools)

    # One episode

    def test_tasks_survive_json(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in tasks:
            again = TaskSpec.model_validate_json(task.model_dump_json(include=set(TaskSpec.model_fields)))
            assert replay(environment, again) == replay(environment, task), "a task that was written plays differently"

    def test_an_episode_satisfies_the_protocol_and_starts_once(
        self, environment: Environment, tasks: Sequence[TaskSpec]
    ) -> None:
        with closing(environment.open(tasks[0])) as episode:
            assert isinstance(episode, Episode), "a method of Episode is missing"
            assert raises(RuntimeError, lambda: episode.step(UNKNOWN)), "step() before start() must raise RuntimeError"
            episode.start()
            assert raises(RuntimeError, episode.start), "a second start() must raise RuntimeError"

    def test_turns_come_in_order_and_end_with_none(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in in_turns(tasks):
            with closing(environment.open(task)) as episode:
                turns: list[UserTurn | None] = [episode.start()]
                while turns[-1] is not None and len(turns) <= len(task.turns):
                    turns.append(episode.end_turn())
                told = [(turn.index, turn.text) for turn in turns if turn is not None]
                assert turns[-1] is None, "end_turn() of the last turn must answer None"
                assert told == [*enumerate(task.turns)], "user turns are not those of the task in order"
                assert all(set(turn.tools) <= set(task.tools) for turn in turns if turn), "a turn has foreign tools"
                assert raises(RuntimeError, lambda episode=episode: episode.step(UNKNOWN)), (
                    "step() after the last turn must raise RuntimeError"
                )

    def test_what_is_no_call_is_answered_and_counted(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        with closing(environment.open(tasks[0])) as episode:
            episode.start()
            before = episode.state()
            for action, status in ((MALFORMED, "malformed"), (UNKNOWN, "error"), (MALFORMED, "malformed")):
                observation = episode.step(action)
                assert observation.status == status, f"{action} is answered as {observation.status}, not {status}"
                assert observation.text.strip(), f"{action} is answered without a text"
                assert observation.calls == (), f"{action} is said to have run"
            assert episode.state() == before, "an action that did not run changed the state"
            assert episode.outcome().turns[0].malformed == 2, "malformed actions are not counted"

    def test_no_action_raises(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        tried: set[tuple[str, str]] = set()
        for task in tasks[:2]:
            fresh = [name for name in task.tools if (repr(task.initial_state), name) not in tried]  # from there
            tried |= {(repr(task.initial_state), name) for name in fresh}
            actions = [*wrong_arguments(environment.tools(fresh)), MALFORMED, UNKNOWN, ToolCall(name="")]
            with closing(live(environment, task, len(actions))) as episode:
                episode.start()
                for number, action in enumerate(actions, 1):
                    observation = acted(episode, action)
                    assert isinstance(observation, Observation), f"{action} is answered with {observation!r}"
                    assert Observation.model_validate_json(observation.model_dump_json()) == observation
                    assert isinstance(episode.state(), str)
                    if number % self.actions_in_a_turn == 0:
                        episode.end_turn()

    def test_missing_and_surplus_arguments_are_errors(
        self, environment: Environment, tasks: Sequence[TaskSpec]
    ) -> None:
        tools = environment.tools(tasks[0].tools)
        needy = [tool for tool in tools if any(parameter.required for parameter in tool.parameters)]
        calls = [ToolCall(name=tool.name, arguments={"no_such_parameter": 1}) for tool in tools]
        calls += [ToolCall(name=tool.name) for tool in needy]
        with closing(live(environment, tasks[0], len(calls))) as episode:
            episode.start()
            for number, call in enumerate(calls, 1):
                before = episode.state()
                status = acted(episode, call).status
                assert status is ObservationStatus.ERROR, f"{call} is answered as {status}"
                assert episode.state() == before, f"{call} changed the state"
                if number % self.actions_in_a_turn == 0:
                    episode.end_turn()

    def test_empty_answers_change_nothing(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in tasks:
            with closing(environment.open(task)) as episode:
                episode.start()
                for call in task.reference[0]:
                    before = episode.state()
                    if episode.step(call).status is ObservationStatus.EMPTY:
                        assert episode.state() == before, f"{call} changed the state and is answered as empty"

    def test_state_is_canonical(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        changed = False
        for task in tasks:
            with closing(environment.open(task)) as one, closing(environment.open(task)) as other:
                one.start(), other.start()
                assert one.state() == one.state() == other.state(), "equal states have different texts"
                for call in task.reference[0]:
                    before = one.state()
                    one.step(call), other.step(call)
                    assert one.state() == other.state(), f"after {call} equal states have different texts"
                    changed |= one.state() != before
        assert changed, "no call of any reference changes the text of the state"

    def test_the_setup_is_played_unseen(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in tasks:
            calls = task.reference[0]
            prepared = task.model_copy(update={"setup": (*task.setup, *calls)})
            with closing(environment.open(task)) as played, closing(environment.open(prepared)) as given:
                played.start()
                for call in calls:
                    played.step(call)
                turn = given.start()
                shown = UserTurn(index=0, text=task.turns[0], tools=played_tools(environment, task))
                assert turn == shown.model_copy(update={"preface": turn.preface, "note": turn.note})
                assert given.state() == played.state(), "setup calls do not lead where the same calls of an agent lead"
                assert given.outcome().turns[0].calls == 0, "setup calls are counted as the agent's"

    def test_closing_twice_is_fine(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for steps in range(3):
            episode = environment.open(tasks[0])
            if steps > 0:
                episode.start()
            if steps > 1:
                episode.step(tasks[0].reference[0][0])
            episode.close()
            episode.close()

    # Evaluating

    def test_the_reference_succeeds(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in (*tasks, *in_turns(tasks)):
            outcome = replay(environment, task).outcome
            assert outcome.success, f"the reference fails: {outcome}"
            assert outcome.failure is None, f"a success has the failure {outcome.failure!r}"
            assert outcome.failed_turn is None, "a success has a failed turn"
            assert [turn.reference_calls for turn in outcome.turns] == [len(calls) for calls in task.reference]
            assert [turn.calls for turn in outcome.turns] == [len(calls) for calls in task.reference]

    def test_doing_nothing_fails(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in (*tasks, *in_turns(tasks)):
            outcome = replay(environment, task, ((),) * len(task.turns)).outcome
            assert not outcome.success, f"a task is solved by doing nothing: {task.turns}"
            assert outcome.failure, "a failure has no name"

    def test_a_task_that_was_not_finished_fails(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in in_turns(tasks):
            with closing(environment.open(task)) as episode:
                episode.start()
                for call in task.reference[0]:
                    episode.step(call)
                outcome = episode.outcome()
                assert not outcome.success, "the first turn alone counts as success"
                assert len(outcome.turns) == len(task.turns), "turns that were not reached are not evaluated"

    def test_another_final_state_fails(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        evaluated = 0
        for task in tasks:
            for call in (call for other in tasks for call in other.reference[0]):
                with closing(environment.open(task)) as episode:
                    episode.start()
                    for own in task.reference[0]:
                        episode.step(own)
                    wanted = episode.state()
                    episode.step(call)
                    if episode.state() != wanted:
                        evaluated += 1
                        assert not episode.outcome().success, f"{call} changed the state after the reference, unnoticed"
        assert evaluated, "no call changes the state after any reference: give tasks that do"

    def test_the_outcome_can_be_asked_at_any_time(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        for task in in_turns(tasks):
            undisturbed, asked = replay(environment, task), replay_asking(environment, task)
            assert asked == (undisturbed.end_states()[-1], undisturbed.outcome), "outcome() changes the episode"

    # Many episodes

    def test_episodes_of_one_task_are_equal_and_isolated(
        self, environment: Environment, tasks: Sequence[TaskSpec]
    ) -> None:
        for task in tasks:
            before = task.model_dump()
            alone, others = replay(environment, task), self.make()
            assert replay(environment, task) == alone, "a second replay differs: something outlives the episode"
            assert replay(others, task) == alone, "another instance of the environment plays differently"
            with closing(environment.open(task)) as one, closing(environment.open(task)) as other:
                one.start(), other.start()
                initial = other.state()
                for call in task.reference[0]:
                    one.step(call)
                assert other.state() == initial, "an episode sees what happens in another one"
            assert task.model_dump() == before, "playing a task changes it"

    def test_interleaved_episodes_are_independent(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        alone = [told(environment, task) for task in tasks]
        playing = [telling(environment, task) for task in tasks]
        rounds = [*zip_longest(*playing)]
        together = [tuple(text for text in column if text is not None) for column in zip(*rounds, strict=True)]
        assert together == alone, "episodes that take turns answer differently"

    def test_concurrent_episodes_are_independent(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        work = [*tasks] * THREADS
        random.Random(0).shuffle(work)
        alone = {id(task): replay(environment, task) for task in tasks}
        with ThreadPoolExecutor(THREADS) as pool:
            played = [*pool.map(lambda task: replay(environment, task), work)]
        assert played == [alone[id(task)] for task in work], "episodes in threads disturb each other"

    # Tasks that are none of its own

    def test_foreign_tasks_are_an_input_error(self, environment: Environment, tasks: Sequence[TaskSpec]) -> None:
        changes: tuple[dict[str, object], ...] = (
            {"environment": "elsewhere"},
            {"tools": (*tasks[0].tools, "no_such_tool")},
            {"classes": ("NoSuchClass",)},
            {"turns": (), "reference": ()},
        )
        for change in changes:
            foreign = tasks[0].model_copy(update=change)
            assert raises(InputError, lambda foreign=foreign: environment.open(foreign)), f"open() takes {change}"

    def test_verification_accepts_its_tasks_and_refuses_broken_ones(
        self, environment: Environment, tasks: Sequence[TaskSpec]
    ) -> None:
        for task in tasks:
            result = verify(task, environment, (), ())
            assert result.accepted, f"{result.reason}: {result.detail}"
        task = tasks[0]
        broken = task.model_copy(update={"tools": (*task.tools, "no_such_tool")})
        assert verify(broken, environment, (), ()).reason is Refusal.UNKNOWN_TOOL
        foreign = task.model_copy(update={"environment": "elsewhere"})
        assert verify(foreign, environment, (), ()).reason is Refusal.CANNOT_OPEN
