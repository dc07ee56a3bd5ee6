"""Each broken environment is noticed by the property of the contract that is there for it, a sound one by none."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import cache

import pytest

from environments.base import (
    Action,
    EnvironmentFault,
    Episode,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    TaskSpec,
    ToolCall,
    UserTurn,
)
from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Contract
from environments.example import LABELS, Depot, Label, Van, depot
from environments.python_class.environment import PythonEnvironment
from graph.check_environment import explored_tasks


class Passing:
    """An episode that passes everything on to a sound one; broken ones override a method."""

    def __init__(self, environment: PassingEnvironment, task: TaskSpec) -> None:
        self.environment, self.task = environment, task
        self.inner = environment.sound(task)

    def start(self) -> UserTurn:
        return self.inner.start()

    def step(self, action: Action) -> Observation:
        return self.inner.step(action)

    def end_turn(self) -> UserTurn | None:
        return self.inner.end_turn()

    def state(self) -> str:
        return self.inner.state()

    def outcome(self) -> Outcome:
        return self.inner.outcome()

    def close(self) -> None:
        self.inner.close()


class PassingEnvironment(PythonEnvironment):
    """The depot's environment; ``episode`` is what it opens."""

    world = Depot
    episode: Callable[[PassingEnvironment, TaskSpec], Passing] = Passing

    def __init__(self) -> None:
        self.world.__name__ = "Depot"  # tasks name the class
        super().__init__("depot", self.world, [start.initial_state["Depot"] for start in depot().starts()])

    def sound(self, task: TaskSpec) -> Episode:
        return super().open(task)

    def open(self, task: TaskSpec) -> Passing:
        return self.episode(self, task)


BROKEN: dict[str, tuple[Callable[[], object], str]] = {}
"""How each broken environment is made, and the property that has to fail."""


def noticed_by(*properties: str) -> Callable[[type], type]:
    def register(kind: type) -> type:
        make = type("Broken", (PassingEnvironment,), {"episode": kind}) if issubclass(kind, Passing) else kind
        BROKEN.update({f"{kind.__name__}: {name}": (make, name) for name in properties})
        return kind

    return register


@noticed_by("episodes_of_one_task_are_equal_and_isolated")
class RemembersAll(PassingEnvironment):
    class world(Depot):
        carried: list[str] = []

        def load_parcel(self, label: Label, van: Van) -> str:
            """Put one parcel from the depot into a van."""
            self.carried.append(label)
            return super().load_parcel(label, van) + f", {len(self.carried)} ever"


@noticed_by("it_satisfies_the_protocol")
class WithoutName:
    def __init__(self) -> None:
        self.inner = depot()
        self.open, self.tools, self.starts = self.inner.open, self.inner.tools, self.inner.starts


@noticed_by("tools_are_documented_in_the_order_asked_for")
class SortsTools(PassingEnvironment):
    def tools(self, names):
        return super().tools(sorted(names))


@noticed_by("unknown_tools_are_an_input_error")
class SkipsUnknownTools(PassingEnvironment):
    def tools(self, names):
        return super().tools([name for name in names if name != "no_such_tool"])


@noticed_by("starts_are_of_the_training_split_and_can_be_opened")
class StartsAtRandom(PassingEnvironment):
    def starts(self):
        return tuple(random.sample(super().starts(), 5))


@noticed_by("foreign_tasks_are_an_input_error")
class TakesForeignTasks(PassingEnvironment):
    def open(self, task):
        return super().open(task.model_copy(update={"environment": "depot"}))


@noticed_by("tasks_survive_json")
class KnowsTasksByObject(Passing):
    def step(self, action):
        observation = super().step(action)
        return observation.model_copy(update={"text": f"{observation.text} {id(self.task)}"})


@noticed_by("an_episode_satisfies_the_protocol_and_starts_once")
class StartsAgain(Passing):
    def start(self):
        self.inner = self.environment.sound(self.task)
        return super().start()


@noticed_by("turns_come_in_order_and_end_with_none")
class StaysInTheLastTurn(Passing):
    def start(self):
        self.latest = super().start()
        return self.latest

    def end_turn(self):
        self.latest = self.latest if self.latest.index + 1 == len(self.task.turns) else super().end_turn()
        return self.latest


@noticed_by("malformed_actions_are_answered_and_counted")
class ForgetsMalformed(Passing):
    def outcome(self):
        outcome = super().outcome()
        return outcome.model_copy(
            update={"turns": tuple(turn.model_copy(update={"malformed": 0}) for turn in outcome.turns)}
        )


@noticed_by("no_action_raises")
class RaisesOnMalformed(Passing):
    def step(self, action):
        if isinstance(action, MalformedCall):
            raise ValueError(action.reason)
        return super().step(action)


@noticed_by("missing_and_surplus_arguments_are_errors")
class DropsSurplusArguments(Passing):
    def step(self, action):
        if isinstance(action, ToolCall):
            known = {key: value for key, value in action.arguments.items() if key != "no_such_parameter"}
            action = action.model_copy(update={"arguments": known})
        return super().step(action)


@noticed_by("empty_answers_change_nothing")
class CallsChangesEmpty(Passing):
    def step(self, action):
        observation = super().step(action)
        fine = observation.status is ObservationStatus.OK
        return observation.model_copy(update={"status": ObservationStatus.EMPTY}) if fine else observation


@noticed_by("state_is_canonical")
class CountsInItsState(Passing):
    ticks = itertools.count()

    def state(self):
        return f"{super().state()} {next(self.ticks)}"


@noticed_by("the_setup_is_played_unseen")
class SkipsSetup(Passing):
    def __init__(self, environment, task):
        super().__init__(environment, task.model_copy(update={"setup": ()}))


@noticed_by("closing_twice_is_fine")
class ClosesOnce(Passing):
    closed = False

    def close(self):
        assert not self.closed
        self.closed = True


@noticed_by("the_reference_succeeds", "verification_accepts_its_tasks_and_refuses_broken_ones")
class NeverSucceeds(Passing):
    def outcome(self):
        return super().outcome().model_copy(update={"success": False, "failure": "no"})


@noticed_by("doing_nothing_fails")
class AlwaysSucceeds(Passing):
    def outcome(self):
        return super().outcome().model_copy(update={"success": True, "failure": None, "failed_turn": None})


@noticed_by("a_task_that_was_not_finished_fails")
class EvaluatesTheFirstTurnOnly(Passing):
    def outcome(self):
        outcome = super().outcome()
        first = outcome.turns[0]
        return outcome.model_copy(update={"success": first.state is not False and first.response is not False})


@noticed_by("another_final_state_fails")
class EvaluatesAnswersOnly(Passing):
    def outcome(self):
        outcome = super().outcome()
        told = all(turn.response is not False for turn in outcome.turns)
        return outcome.model_copy(update={"success": told and any(turn.calls for turn in outcome.turns)})


@noticed_by("the_outcome_can_be_asked_at_any_time")
class EvaluatingInsuresWhatWaits(Passing):
    def outcome(self):
        outcome = super().outcome()
        # Every start has parcels that wait, and no task insures each of them.
        for label in LABELS:
            self.inner._world.run(ToolCall(name="insure_parcel", arguments={"label": label, "euros": 400}))
        return outcome


@noticed_by("episodes_of_one_task_are_equal_and_isolated")
class SharesOneWorld(PassingEnvironment):
    """Every episode acts in the one that was opened last."""

    class episode(Passing):
        def __init__(self, environment, task):
            super().__init__(environment, task)
            environment.last = self.inner

        def step(self, action):
            return self.environment.last.step(action)


@noticed_by("concurrent_episodes_are_independent")
class KeepsTheActionBetweenThreads(PassingEnvironment):
    class episode(Passing):
        def step(self, action):
            self.environment.action = action
            time.sleep(0.001)
            return super().step(self.environment.action)


@cache
def sound_tasks() -> tuple[TaskSpec, ...]:
    return explored_tasks(depot())


def problem(make: Callable[[], object], name: str) -> str | None:
    """What one property has against an environment, None if nothing."""
    contract = Contract(make)
    # The tasks are copied: a broken environment may change them.
    given = [] if name in WITHOUT_TASKS else [[task.model_copy(deep=True) for task in sound_tasks()]]
    try:
        getattr(contract, name)(make(), *given)
    except (AssertionError, AttributeError, InputError, EnvironmentFault, RuntimeError, ValueError) as error:
        return str(error) or repr(error)
    return None


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_sound_environment_passes(name: str) -> None:
    assert problem(PassingEnvironment, name) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_noticed(name: str) -> None:
    assert problem(*BROKEN[name])


def test_every_property_has_an_environment_that_fails_it() -> None:
    assert {name for _, name in BROKEN.values()} == set(PROPERTIES)


def test_without_tasks_that_act_the_contract_asks_for_some() -> None:
    class Silent(Depot):
        def __init__(self, parcels) -> None:
            super().__init__(parcels, gate_open=True)

        def _waiting(self, label):
            return {"kilograms": 1, "euros": 100}

        def list_parcels(self) -> None:
            """List nothing."""

        open_gate = send_van = load_parcel = insure_parcel = weigh_parcel = list_parcels

    with pytest.raises(InputError, match="exploration found 0 tasks in 40 episodes"):
        explored_tasks(PythonEnvironment("silent", Silent, [{"parcels": {}}]))
