"""Environments that break the contract in one way each, and the test that has to notice."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from environments import example
from environments.base import (
    Action,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.python_class.environment import PythonEnvironment


class Passing:
    """An episode that passes everything on to a sound one; broken ones override a method."""

    def __init__(self, environment: PassingEnvironment, task: TaskSpec) -> None:
        self.environment, self.task = environment, task
        self.inner = environment.inner.open(task)

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


class PassingEnvironment:
    """An environment that passes everything on; ``episode`` is what it opens."""

    name = "depot"

    def __init__(self, episode: Callable[[PassingEnvironment, TaskSpec], Passing] = Passing) -> None:
        self.inner = example.depot()
        self.episode = episode

    def open(self, task: TaskSpec) -> Passing:
        return self.episode(self, task)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        return self.inner.tools(names)

    def starts(self) -> tuple[StartState, ...]:
        return self.inner.starts()


class Depot(example.Depot):
    """Broken worlds are depots, because tasks name the class."""


class RemembersAll(Depot):
    carried: list[str] = []

    def load_parcel(self, label: example.Label, van: example.Van) -> str:
        """Put one parcel from the depot into a van."""
        self.carried.append(label)
        return super().load_parcel(label, van) + f", {len(self.carried)} ever"


def with_world(world: type[Depot]) -> Callable[[], PythonEnvironment]:
    def make() -> PythonEnvironment:
        world.__name__ = "Depot"
        starts = [start.initial_state["Depot"] for start in example.depot().starts()]
        return PythonEnvironment("depot", world, starts)

    return make


class WithoutName:
    def __init__(self) -> None:
        self.inner = example.depot()
        self.open, self.tools, self.starts = self.inner.open, self.inner.tools, self.inner.starts


class SortsTools(PassingEnvironment):
    def tools(self, names):
        return super().tools(sorted(names))


class SkipsUnknownTools(PassingEnvironment):
    def tools(self, names):
        return super().tools([name for name in names if name != "no_such_tool"])


class StartsAtRandom(PassingEnvironment):
    def starts(self):
        return tuple(random.sample(super().starts(), 5))


class TakesForeignTasks(PassingEnvironment):
    def open(self, task):
        return super().open(task.model_copy(update={"environment": "depot"}))


class KnowsTasksByObject(Passing):
    def step(self, action):
        observation = super().step(action)
        return observation.model_copy(update={"text": f"{observation.text} {id(self.task)}"})


class StartsAgain(Passing):
    def start(self):
        self.inner = self.environment.inner.open(self.task)
        return super().start()


class StaysInTheLastTurn(Passing):
    def start(self):
        self.latest = super().start()
        return self.latest

    def end_turn(self):
        self.latest = self.latest if self.latest.index + 1 == len(self.task.turns) else super().end_turn()
        return self.latest


class ForgetsMalformed(Passing):
    def outcome(self):
        outcome = super().outcome()
        return outcome.model_copy(
            update={"turns": tuple(turn.model_copy(update={"malformed": 0}) for turn in outcome.turns)}
        )


class RaisesOnMalformed(Passing):
    def step(self, action):
        if isinstance(action, MalformedCall):
            raise ValueError(action.reason)
        return super().step(action)


class DropsSurplusArguments(Passing):
    def step(self, action):
        if isinstance(action, ToolCall):
            known = {key: value for key, value in action.arguments.items() if key != "no_such_parameter"}
            action = action.model_copy(update={"arguments": known})
        return super().step(action)


class CallsChangesEmpty(Passing):
    def step(self, action):
        observation = super().step(action)
        fine = observation.status is ObservationStatus.OK
        return observation.model_copy(update={"status": ObservationStatus.EMPTY}) if fine else observation


class CountsInItsState(Passing):
    ticks = itertools.count()

    def state(self):
        return f"{super().state()} {next(self.ticks)}"


class SkipsSetup(Passing):
    def __init__(self, environment, task):
        super().__init__(environment, task.model_copy(update={"setup": ()}))


class ClosesOnce(Passing):
    closed = False

    def close(self):
        assert not self.closed
        self.closed = True


class NeverSucceeds(Passing):
    def outcome(self):
        return super().outcome().model_copy(update={"success": False, "failure": "no"})


class AlwaysSucceeds(Passing):
    def outcome(self):
        return super().outcome().model_copy(update={"success": True, "failure": None, "failed_turn": None})


class EvaluatesTheFirstTurnOnly(Passing):
    def outcome(self):
        outcome = super().outcome()
        first = outcome.turns[0]
        return outcome.model_copy(update={"success": first.state is not False and first.response is not False})


class EvaluatesAnswersOnly(Passing):
    def outcome(self):
        outcome = super().outcome()
        told = all(turn.response is not False for turn in outcome.turns)
        return outcome.model_copy(update={"success": told and any(turn.calls for turn in outcome.turns)})


class EvaluatingOpensTheGate(Passing):
    def outcome(self):
        outcome = super().outcome()
        self.inner._world.run(ToolCall(name="open_gate"))
        return outcome


class SharesOneWorld(PassingEnvironment):
    """Every episode acts in the one that was opened last."""

    class Last(Passing):
        def __init__(self, environment, task):
            super().__init__(environment, task)
            environment.last = self.inner

        def step(self, action):
            return self.environment.last.step(action)

    def __init__(self):
        super().__init__(self.Last)


class KeepsTheActionBetweenThreads(PassingEnvironment):
    class Slow(Passing):
        def step(self, action):
            self.environment.action = action
            time.sleep(0.001)
            return super().step(self.environment.action)

    def __init__(self):
        super().__init__(self.Slow)


class Broken(NamedTuple):
    """How the environment is made, and the test of the contract that has to fail."""

    make: Callable[[], object]
    noticed_by: str


def episodes(kind: type[Passing]) -> Callable[[], PassingEnvironment]:
    return lambda: PassingEnvironment(kind)


BROKEN = {
    "without name": Broken(WithoutName, "it_satisfies_the_protocol"),
    "sorts tools": Broken(SortsTools, "tools_are_documented_in_the_order_asked_for"),
    "skips unknown tools": Broken(SkipsUnknownTools, "unknown_tools_are_an_input_error"),
    "starts at random": Broken(StartsAtRandom, "starts_are_of_the_training_split_and_can_be_opened"),
    "knows tasks by object": Broken(episodes(KnowsTasksByObject), "tasks_survive_json"),
    "starts again": Broken(episodes(StartsAgain), "an_episode_satisfies_the_protocol_and_starts_once"),
    "stays in the last turn": Broken(episodes(StaysInTheLastTurn), "turns_come_in_order_and_end_with_none"),
    "forgets malformed": Broken(episodes(ForgetsMalformed), "malformed_actions_are_answered_and_counted"),
    "raises on malformed": Broken(episodes(RaisesOnMalformed), "no_action_raises"),
    "drops surplus": Broken(episodes(DropsSurplusArguments), "missing_and_surplus_arguments_are_errors"),
    "calls changes empty": Broken(episodes(CallsChangesEmpty), "empty_answers_change_nothing"),
    "counts in its state": Broken(episodes(CountsInItsState), "state_is_canonical"),
    "skips setup": Broken(episodes(SkipsSetup), "the_setup_is_played_unseen"),
    "closes once": Broken(episodes(ClosesOnce), "closing_twice_is_fine"),
    "never succeeds": Broken(episodes(NeverSucceeds), "the_reference_succeeds"),
    "always succeeds": Broken(episodes(AlwaysSucceeds), "doing_nothing_fails"),
    "evaluates the first turn": Broken(episodes(EvaluatesTheFirstTurnOnly), "a_task_that_was_not_finished_fails"),
    "evaluates answers": Broken(episodes(EvaluatesAnswersOnly), "another_final_state_fails"),
    "evaluating acts": Broken(episodes(EvaluatingOpensTheGate), "the_outcome_can_be_asked_at_any_time"),
    "remembers all": Broken(with_world(RemembersAll), "episodes_of_one_task_are_equal_and_isolated"),
    "shares one world": Broken(SharesOneWorld, "episodes_of_one_task_are_equal_and_isolated"),
    "keeps the action": Broken(KeepsTheActionBetweenThreads, "concurrent_episodes_are_independent"),
    "takes foreign tasks": Broken(TakesForeignTasks, "foreign_tasks_are_an_input_error"),
    "never verified": Broken(episodes(NeverSucceeds), "verification_accepts_its_tasks_and_refuses_broken_ones"),
}
