"""The contract of environments: what training, verification and the roles rely on, one property after the other.

It pins the protocols of ``environments/base.py``. The command ``coevolve environment check`` prints the properties, and
the tests of this project's environments hold them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from inspect import signature
from typing import NamedTuple

from pydantic import JsonValue

from environments.base import (
    Action,
    Environment,
    Episode,
    InputError,
    MalformedCall,
    Observation,
    ObservationStatus,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.declared import where
from environments.verification.replay import bare_task, replay
from environments.verification.verify import Refusal, verify

TYPES = {"string", "integer", "float", "boolean", "array", "dict", "code"}
MALFORMED = MalformedCall(text="open sesame", reason="not a call")
UNKNOWN = ToolCall(name="no_such_tool", arguments={"value": 1})
THREADS = 4
Tasks = Sequence[TaskSpec]
ODD: Sequence[JsonValue] = (None, True, -1, 1.5, 10**30, 1e300, "", "x" * 5000, "\n\t\0", [], [[1]], {}, {"a": [None]})
PLAIN: dict[str, JsonValue] = {"integer": 1, "float": 1.0, "boolean": True, "array": [], "dict": {}}


class Broken(AssertionError):
    """A property of the contract does not hold; the message says why."""


def hold(holds: object, why: str) -> None:
    """Raise Broken with ``why`` unless ``holds`` is true."""
    if not holds:
        raise Broken(why)


def raises(expected: type[Exception], act: Callable[[], object]) -> bool:
    """Return whether calling ``act`` raises ``expected``; any other exception comes out."""
    try:
        act()
    except expected:
        return True
    return False


@contextmanager
def started(environment: Environment, task: TaskSpec, calls: Sequence[ToolCall] = ()) -> Iterator[Episode]:
    """Lend an episode in its first turn, after ``calls``."""
    with closing(environment.open(task)) as episode:
        episode.start()
        for call in calls:
            episode.step(call)
        yield episode


def wrong_arguments(tools: Sequence[ToolSpec]) -> Iterator[ToolCall]:
    """Yield calls without arguments, with unknown ones, and with every odd value for one parameter after the other."""
    for tool in tools:
        plain = {parameter.name: PLAIN.get(parameter.type, "x") for parameter in tool.parameters}
        yield ToolCall(name=tool.name)
        yield ToolCall(name=tool.name, arguments=plain | {"no_such_parameter": 1})
        for parameter in tool.parameters:
            for odd in ODD:
                yield ToolCall(name=tool.name, arguments=plain | {parameter.name: odd})


def in_turns(tasks: Tasks) -> tuple[TaskSpec, ...]:
    """Return the tasks of several calls with a user turn for each call."""
    cut = []
    for task in tasks:
        if len(task.reference) == 1 and len(task.reference[0]) > 1:
            turns = tuple(f"turn {number}" for number in range(len(task.reference[0])))
            reference = tuple((call,) for call in task.reference[0])
            cut.append(task.model_copy(update={"turns": turns, "reference": reference}))
    return tuple(cut)


class Contract:
    """The properties of one environment: each public method checks one, named as its name reads.

    The docstring of a property says what follows where it does not hold. Methods get a fresh environment, most of them
    also verified tasks, and raise ``Broken`` with the reason, or what the environment raised.

    Args:
        make: makes the environment; called several times, it must give equal environments.
        starts_opened: how many start states are opened, evenly spaced; None: all.
        actions_in_a_turn: wrong actions in a user turn, at most the environment's limit.
    """

    def __init__(
        self, make: Callable[[], Environment], starts_opened: int | None = None, actions_in_a_turn: int = 1
    ) -> None:
        self.make = make
        self._starts_opened = starts_opened
        self._actions_in_a_turn = actions_in_a_turn

    def it_satisfies_the_protocol(self, environment: Environment) -> None:
        """No command can use it."""
        hold(isinstance(environment, Environment), "name, open, tools and starts are missing in part")
        hold(environment.name, "name is empty")

    def tools_are_documented_in_the_order_asked_for(self, environment: Environment) -> None:
        """Policies read other tools than they may call, and user turns cannot be worded."""
        for start in environment.starts():
            names = start.tools[::-1]
            tools = environment.tools(names)
            hold(tuple(tool.name for tool in tools) == names, "tools() answers in another order or with other tools")
            for tool in tools:
                hold(tool.description.strip(), f"{tool.name} has no description")
                hold(tool.group in start.classes, f"{tool.name}: its group {tool.group} is not a class of the start")
                given = [parameter.name for parameter in tool.parameters]
                hold(len(given) == len(set(given)), f"{tool.name} documents a parameter twice")
                for parameter in tool.parameters:
                    place = f"{tool.name}({parameter.name})"
                    hold(parameter.type in TYPES, f"{place}: {parameter.type} is none of the documented types")
                    hold(parameter.description.strip(), f"{place} has no description")
        hold(environment.tools(()) == (), "tools() of no name answers with tools")

    def unknown_tools_are_an_input_error(self, environment: Environment) -> None:
        """A mistake in a task goes unnoticed until it is played."""
        for names in (("no_such_tool",), (*environment.starts()[0].tools, "no_such_tool")):
            hold(raises(InputError, partial(environment.tools, names)), "tools() takes an unknown name")

    def starts_are_of_the_training_split_and_can_be_opened(self, environment: Environment) -> None:
        """Exploration has no place to begin, or a resumed run begins in another."""
        starts = environment.starts()
        hold(starts, "there is no start state: exploration has nowhere to begin")
        hold({start.split for start in starts} == {"train"}, "a start is not of the training split")
        hold({start.environment for start in starts} == {environment.name}, "a start names another environment")
        hold(len({start.id for start in starts}) == len(starts), "two starts have one id")
        hold(environment.starts() == starts == self.make().starts(), "starts() differs between calls or instances")
        for start in starts[:: -(-len(starts) // (self._starts_opened or len(starts)))]:
            with closing(environment.open(bare_task(start))) as episode:
                hold(set(episode.start().tools) == set(start.tools), f"{start.id} opens with other tools than its own")

    def tasks_survive_json(self, environment: Environment, tasks: Tasks) -> None:
        """A task from a file differs from the one that was verified."""
        for task in tasks:
            again = TaskSpec.model_validate_json(task.model_dump_json(include=set(TaskSpec.model_fields)))
            hold(replay(environment, again) == replay(environment, task), "a task that was written plays differently")

    def an_episode_satisfies_the_protocol_and_starts_once(self, environment: Environment, tasks: Tasks) -> None:
        """Rollouts end in an error."""
        with closing(environment.open(tasks[0])) as episode:
            hold(isinstance(episode, Episode), "a method of Episode is missing")
            hold(raises(RuntimeError, lambda: episode.step(UNKNOWN)), "step() before start() must raise RuntimeError")
            episode.start()
            hold(raises(RuntimeError, episode.start), "a second start() must raise RuntimeError")

    def turns_come_in_order_and_end_with_none(self, environment: Environment, tasks: Tasks) -> None:
        """Tasks of several turns are played wrongly."""
        for task in in_turns(tasks):
            with closing(environment.open(task)) as episode:
                turns: list[UserTurn | None] = [episode.start()]
                while turns[-1] is not None and len(turns) <= len(task.turns):
                    turns.append(episode.end_turn())
                told = [(turn.index, turn.text) for turn in turns if turn is not None]
                hold(turns[-1] is None, "end_turn() of the last turn must answer None")
                hold(told == [*enumerate(task.turns)], "user turns are not those of the task in order")
                hold(all(set(turn.tools) <= set(task.tools) for turn in turns if turn), "a turn has foreign tools")
                ended = raises(RuntimeError, partial(episode.step, UNKNOWN))
                hold(ended, "step() after the last turn must raise RuntimeError")

    def malformed_actions_are_answered_and_counted(self, environment: Environment, tasks: Tasks) -> None:
        """A malformed call of a policy ends its rollout, or costs nothing."""
        with started(environment, tasks[0]) as episode:
            before = episode.state()
            for action, status in ((MALFORMED, "malformed"), (UNKNOWN, "error"), (MALFORMED, "malformed")):
                observation = episode.step(action)
                hold(observation.status == status, f"{action} is answered as {observation.status}, not {status}")
                hold(observation.text.strip(), f"{action} is answered without a text")
                hold(observation.calls == (), f"{action} is said to have run")
            hold(episode.state() == before, "an action that did not run changed the state")
            hold(episode.outcome().turns[0].malformed == 2, "malformed actions are not counted")

    def no_action_raises(self, environment: Environment, tasks: Tasks) -> None:
        """A wrong call of a policy counts as the environment's fault, and the rollout is masked."""
        tried: set[tuple[str, str]] = set()
        for task in tasks[:2]:
            fresh = [name for name in task.tools if (repr(task.initial_state), name) not in tried]  # from there
            tried |= {(repr(task.initial_state), name) for name in fresh}
            actions: list[Action] = [*wrong_arguments(environment.tools(fresh)), MALFORMED, UNKNOWN, ToolCall(name="")]
            for action, _, observation, after in self._answered(environment, task, actions):
                hold(isinstance(observation, Observation), f"{action} is answered with {observation!r}")
                again = Observation.model_validate_json(observation.model_dump_json())
                hold(again == observation, f"the answer to {action} is not the same once it was written")
                hold(isinstance(after, str), f"after {action} state() is not a text")

    def missing_and_surplus_arguments_are_errors(self, environment: Environment, tasks: Tasks) -> None:
        """Wrong calls of a policy pass, and explorers learn nothing from them."""
        tools = environment.tools(tasks[0].tools)
        needy = [tool for tool in tools if any(parameter.required for parameter in tool.parameters)]
        calls = [ToolCall(name=tool.name, arguments={"no_such_parameter": 1}) for tool in tools]
        calls += [ToolCall(name=tool.name) for tool in needy]
        for call, before, observation, after in self._answered(environment, tasks[0], calls):
            status = observation.status
            hold(status is ObservationStatus.ERROR, f"{call} is answered as {status}")
            hold(after == before, f"{call} changed the state")

    def _answered(
        self, environment: Environment, task: TaskSpec, actions: Sequence[Action]
    ) -> Iterator[tuple[Action, str, Observation, str]]:
        """Yield each wrong action with the state before it, its answer and the state after it.

        Raises Broken where the environment raises: a wrong action is data.
        """
        with started(environment, bare_task(task, len(actions))) as episode:
            for number, action in enumerate(actions, 1):
                before = episode.state()
                try:
                    observation = episode.step(action)
                except Exception as error:
                    raise Broken(f"{action} raised {error!r}") from error
                yield action, before, observation, episode.state()
                if number % self._actions_in_a_turn == 0:
                    episode.end_turn()

    def empty_answers_change_nothing(self, environment: Environment, tasks: Tasks) -> None:
        """Verification takes a call with an effect for one without."""
        for task in tasks:
            with started(environment, task) as episode:
                for call in task.reference[0]:
                    before = episode.state()
                    if episode.step(call).status is ObservationStatus.EMPTY:
                        hold(episode.state() == before, f"{call} changed the state and is answered as empty")

    def state_is_canonical(self, environment: Environment, tasks: Tasks) -> None:
        """Equal states count as different, so that right rollouts fail."""
        changed = False
        for task in tasks:
            with started(environment, task) as one, started(environment, task) as other:
                hold(one.state() == one.state() == other.state(), "equal states have different texts")
                for call in task.reference[0]:
                    before = one.state()
                    one.step(call), other.step(call)
                    hold(one.state() == other.state(), f"after {call} equal states have different texts")
                    changed |= one.state() != before
        hold(changed, "no call of any reference changes the text of the state")

    def the_setup_is_played_unseen(self, environment: Environment, tasks: Tasks) -> None:
        """Tasks that are cut from longer runs begin in the wrong state."""
        for task in tasks:
            calls = task.reference[0]
            prepared = task.model_copy(update={"setup": (*task.setup, *calls)})
            with closing(environment.open(task)) as played, closing(environment.open(prepared)) as given:
                tools, turn = played.start().tools, given.start()
                for call in calls:
                    played.step(call)
                shown = UserTurn(index=0, text=task.turns[0], tools=tools, preface=turn.preface, note=turn.note)
                hold(turn == shown, f"after setup calls the first turn is {turn}, not {shown}")
                hold(given.state() == played.state(), "setup calls do not lead where the same calls of an agent lead")
                hold(given.outcome().turns[0].calls == 0, "setup calls are counted as the agent's")

    def closing_twice_is_fine(self, environment: Environment, tasks: Tasks) -> None:
        """A rollout that ends early raises."""
        for steps in range(3):
            episode = environment.open(tasks[0])
            if steps > 0:
                episode.start()
            if steps > 1:
                episode.step(tasks[0].reference[0][0])
            episode.close()
            episode.close()

    def the_reference_succeeds(self, environment: Environment, tasks: Tasks) -> None:
        """No task is admitted."""
        for task in (*tasks, *in_turns(tasks)):
            outcome = replay(environment, task).outcome
            hold(outcome.success, f"the reference fails: {outcome}")
            hold((outcome.failure, outcome.failed_turn) == (None, None), f"a success has a failure: {outcome}")
            calls = [len(calls) for calls in task.reference]
            hold([turn.reference_calls for turn in outcome.turns] == calls, "the reference's calls are miscounted")
            hold([turn.calls for turn in outcome.turns] == calls, "the calls of a rollout are miscounted")

    def doing_nothing_fails(self, environment: Environment, tasks: Tasks) -> None:
        """A policy is rewarded for nothing."""
        for task in (*tasks, *in_turns(tasks)):
            outcome = replay(environment, task, ((),) * len(task.turns)).outcome
            hold(not outcome.success, f"a task is solved by doing nothing: {task.turns}")
            hold(outcome.failure, "a failure has no name")

    def a_task_that_was_not_finished_fails(self, environment: Environment, tasks: Tasks) -> None:
        """A policy is rewarded for half a task."""
        for task in in_turns(tasks):
            with started(environment, task, task.reference[0]) as episode:
                outcome = episode.outcome()
                hold(not outcome.success, "the first turn alone counts as success")
                hold(len(outcome.turns) == len(task.turns), "turns that were not reached are not evaluated")

    def another_final_state_fails(self, environment: Environment, tasks: Tasks) -> None:
        """A policy is rewarded for damage."""
        evaluated = 0
        for task in tasks:
            for call in (call for other in tasks for call in other.reference[0]):
                with started(environment, task, task.reference[0]) as episode:
                    wanted = episode.state()
                    episode.step(call)
                    if episode.state() != wanted:
                        evaluated += 1
                        hold(not episode.outcome().success, f"{call} changed the state after the reference, unnoticed")
        hold(evaluated, "no call changes the state after any reference: give tasks that do")

    def the_outcome_can_be_asked_at_any_time(self, environment: Environment, tasks: Tasks) -> None:
        """Asking for the outcome changes the reward."""
        for task in in_turns(tasks):
            undisturbed = replay(environment, task)
            with started(environment, task) as episode:
                for calls in task.reference:
                    for call in calls:
                        hold(episode.outcome() == episode.outcome(), "two outcomes in a row differ")
                        episode.step(call)
                    episode.outcome()
                    episode.end_turn()
                asked = episode.state(), episode.outcome()
            hold(asked == (undisturbed.end_states()[-1], undisturbed.outcome), "outcome() changes the episode")

    def episodes_of_one_task_are_equal_and_isolated(self, environment: Environment, tasks: Tasks) -> None:
        """Drafts are refused as nondeterministic, and rewards depend on earlier rollouts."""
        for task in tasks:
            before = task.model_dump()
            alone, others = replay(environment, task), self.make()
            hold(replay(environment, task) == alone, "a second replay differs: something outlives the episode")
            hold(replay(others, task) == alone, "another instance of the environment plays differently")
            with started(environment, task) as one, started(environment, task) as other:
                initial = other.state()
                for call in task.reference[0]:
                    one.step(call)
                hold(other.state() == initial, "an episode sees what happens in another one")
            hold(task.model_dump() == before, "playing a task changes it")

    def concurrent_episodes_are_independent(self, environment: Environment, tasks: Tasks) -> None:
        """Rollouts in threads disturb each other."""
        work = [*tasks] * THREADS
        random.Random(0).shuffle(work)
        alone = {id(task): replay(environment, task) for task in tasks}
        with ThreadPoolExecutor(THREADS) as pool:
            played = [*pool.map(lambda task: replay(environment, task), work)]
        hold(played == [alone[id(task)] for task in work], "episodes in threads disturb each other")

    def foreign_tasks_are_an_input_error(self, environment: Environment, tasks: Tasks) -> None:
        """A task of another environment is played in this one."""
        changes: tuple[dict[str, object], ...] = (
            {"environment": "elsewhere"},
            {"tools": (*tasks[0].tools, "no_such_tool")},
            {"classes": ("NoSuchClass",)},
            {"turns": (), "reference": ()},
        )
        for change in changes:
            foreign = tasks[0].model_copy(update=change)
            hold(raises(InputError, partial(environment.open, foreign)), f"open() takes {change}")

    def verification_accepts_its_tasks_and_refuses_broken_ones(self, environment: Environment, tasks: Tasks) -> None:
        """No task is admitted, or wrong ones are."""
        for task in tasks:
            result = verify(task, environment, (), ())
            hold(result.accepted, f"{result.reason}: {result.detail}")
        for change, refusal in (
            ({"tools": (*tasks[0].tools, "no_such_tool")}, Refusal.UNKNOWN_TOOL),
            ({"environment": "elsewhere"}, Refusal.CANNOT_OPEN),
        ):
            reason = verify(tasks[0].model_copy(update=change), environment, (), ()).reason
            hold(reason is refusal, f"a task with {change} is answered with {reason}")


PROPERTIES = tuple(name for name in vars(Contract) if not name.startswith("_"))
"""The names of the properties, in the order in which they are checked."""

WITHOUT_TASKS = tuple(name for name in PROPERTIES if "tasks" not in signature(getattr(Contract, name)).parameters)
"""Those that are checked without tasks, the first ones; methods of the others take verified tasks."""


class Checked(NamedTuple):
    """A property in words, why it does not hold (None where it does), and what follows where it does not."""

    words: str
    problem: str | None
    follows: str


def check(contract: Contract, tasks: Tasks | None = None) -> Iterator[Checked]:
    """Check one property of the contract after the other, each on a fresh environment, and yield each.

    These are ``WITHOUT_TASKS``, and with ``tasks`` all others. Tasks are verified; one of them changes the state, and
    one has several calls.
    """
    for name in PROPERTIES:
        if (name in WITHOUT_TASKS) is (tasks is None):
            method, problem = getattr(contract, name), None
            try:
                copies = [] if tasks is None else [[task.model_copy(deep=True) for task in tasks]]
                method(contract.make(), *copies)
            except Broken as broken:
                problem = str(broken)
            except Exception as error:  # noqa: BLE001 - an environment may raise anything, and that is the answer
                problem = f"it raised {where(error)}"
            yield Checked(name.replace("_", " "), problem, str(method.__doc__))
