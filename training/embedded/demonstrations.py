"""Demonstrations: references of verified tasks, replayed in the environment and rendered for a policy to learn from.

Tasks of other splits than train and tasks of a held-out set (``environments.verification.decontamination``) are
refused: this is the decontamination of the supervised start.

A policy that shall know the cues of the learning interface learns them from demonstrations too (ours). Guidelines are
drawn at random: a correct demonstration does not depend on them, but the policy sees their tokens and goes on as it
would without. Some demonstrations get an injected error, a wrong action before the right one: the policy reads it with
its error and hint, and is trained only on what comes after.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from environments.base import (
    Action,
    Environment,
    InputError,
    MalformedCall,
    Observation,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.learning_interface.environment import LearningInterface
from environments.registry import benchmark_of, packaged
from environments.verification.canonical import canonical
from environments.verification.fingerprints import fingerprint
from memory.records import Task
from memory.run import read_jsonl
from training.embedded.compact import CompactRendering
from training.embedded.compact_text import CALL, LINE, CompactSettings, CompactText, constants_of
from training.rendering.base import EndTurn
from training.seal.interface import GUIDELINES, InterfaceState, learning_interface
from training.seal.settings import InterfaceSettings

GUIDED = 0.5
"""Share of demonstrations with guidelines."""

WITH_ERROR = 0.25
"""Share of demonstrations that are tried with an injected error; not every one is answered with an error."""


def cued(environment: Environment, rng: random.Random) -> LearningInterface:
    """Wrap the environment for one demonstration: up to three guidelines, or none, and hints."""
    settings = InterfaceSettings(schema_cues=False)
    number = rng.randint(1, settings.at_most) if rng.random() < GUIDED else 0
    labels = tuple(rng.sample([*GUIDELINES], number))
    return learning_interface(environment, settings, InterfaceState(guidelines=labels))


def injected_error(task: TaskSpec, tools: Sequence[ToolSpec], rng: random.Random) -> tuple[int, Action] | None:
    """Draw a wrong action and the index of the first turn's call that it precedes; None for most tasks."""
    if rng.random() >= WITH_ERROR or not task.reference[0]:
        return None
    place = rng.randrange(len(task.reference[0]))
    call = task.reference[0][place]
    tool = next(tool for tool in tools if tool.name == call.name)
    given = [one.name for one in tool.parameters if one.name in call.arguments]
    required = [one.name for one in tool.parameters if one.required and one.name in given]
    foreign = sorted({one.name for other in tools for one in other.parameters} - {one.name for one in tool.parameters})
    wrong: list[Action] = [_unreadable(call, tools)]
    if required:
        left_out = rng.choice(required)
        kept = {name: value for name, value in call.arguments.items() if name != left_out}
        wrong.append(call.model_copy(update={"arguments": kept}))
    if foreign:
        wrong.append(call.model_copy(update={"arguments": {**call.arguments, rng.choice(foreign): True}}))
    if given:
        wrong.append(call.model_copy(update={"arguments": {**call.arguments, rng.choice(given): "nowhere"}}))
    return place, rng.choice(wrong)


def _unreadable(call: ToolCall, tools: Sequence[ToolSpec]) -> MalformedCall:
    text = CompactText(CompactSettings())
    text.know(tools, frozenset())
    read = text.read(f"{CALL}{call.name} $\n")
    assert isinstance(read, MalformedCall)
    return read


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A task's replayed reference: for each user turn its calls and their observations.

    ``error_at`` is the index, among the first turn's actions, of the injected error; None without one. All other
    actions are the reference's.
    """

    task: Task
    turns: tuple[tuple[UserTurn, tuple[ToolSpec, ...], tuple[tuple[Action, Observation], ...]], ...]
    error_at: int | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A rendered demonstration; ``mask`` is 1 on the policy's own tokens, ``tools`` names the functions it calls."""

    ids: list[int]
    mask: list[int]
    tools: frozenset[str]


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks to learn from. Raises InputError naming the first that must not be learnt from, and why."""
    tasks = read_jsonl(path, Task)
    if len(tasks) < 2:
        raise InputError(f"{path} holds {len(tasks)} tasks: give 2 or more, one is held out")
    held_out = {name: _held_out(name) for name in {task.environment for task in tasks}}
    for number, task in enumerate(tasks, start=1):
        if task.split != "train":
            raise InputError(f"{path}, line {number}: task {task.id} is of the {task.split} split: give train only")
        if fingerprint(task) in held_out[task.environment]:
            raise InputError(f"{path}, line {number}: task {task.id} is in a held-out evaluation set: remove it")
    return tasks


def _held_out(name: str) -> Collection[str]:
    """Fingerprints that the packaged benchmark ``name`` holds out; any other one's are compared once it is open."""
    benchmark = packaged(name)
    return () if benchmark is None else benchmark.held_out()


def refuse_held_out(path: Path, tasks: Iterable[Task], environment: Environment) -> None:
    """Raise InputError naming the first task of ``path`` whose content is that of a held-out task."""
    sets = benchmark_of(environment).held_out()
    for number, task in enumerate(tasks, start=1):
        try:
            same = sets.match(task, canonical(environment, task))
        except RecursionError:
            same = "Its state contains itself."
        if same is not None:
            raise InputError(f"{path}, line {number}: task {task.id} is held out: {same} Remove it")


def demonstrate(
    environment: Environment,
    task: Task,
    leave_out: int | None = None,
    error: tuple[int, Action] | None = None,
) -> Demonstration:
    """Replay the reference; ``leave_out`` skips one call of the first turn, to collect the errors that follow.

    ``error`` is a wrong action and the index of the first turn's call that it precedes. If it is not refused, or
    changes the state, the reference is replayed without it.

    Raises InputError when the complete reference does not run without an error.
    """
    turns = []
    error_at: int | None = None
    with closing(environment.open(task)) as episode:
        turn: UserTurn | None = episode.start()
        for calls in task.reference:
            if turn is None:
                break
            tools = environment.tools(turn.tools)
            made = [call for place, call in enumerate(calls) if turn.index > 0 or place != leave_out]
            steps: list[tuple[Action, Observation]] = []
            errors = []
            for place, call in enumerate(in_order(made, tools)):
                if error is not None and (turn.index, place) == (0, error[0]):
                    before = episode.state()
                    wrong = episode.step(error[1])
                    if not wrong.failed or episode.state() != before:
                        return demonstrate(environment, task, leave_out)
                    error_at = len(steps)
                    steps.append((error[1], wrong))
                observation = episode.step(call)
                steps.append((call, observation))
                errors += [call.name] if observation.failed else []
            if errors and leave_out is None:
                raise InputError(f"task {task.id}: its reference fails at {errors[0]}: give verified tasks")
            turns.append((turn, tools, tuple(steps)))
            turn = episode.end_turn()
    return Demonstration(task, tuple(turns), error_at)


def in_order(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> Iterator[ToolCall]:
    """Yield the calls with every list of documented choices in the order of the documentation.

    Explorers draw such lists in any order; demonstrations with one order are easier to learn from.
    """
    choices = {(tool.name, parameter.name): parameter.choices for tool in tools for parameter in tool.parameters}
    for call in calls:
        arguments = dict(call.arguments)
        for name, value in arguments.items():
            documented = choices.get((call.name, name), ())
            if isinstance(value, list) and all(item in documented for item in value):
                arguments[name] = sorted(value, key=documented.index)
        yield call.model_copy(update={"arguments": arguments})


def lines(demonstration: Demonstration, settings: CompactSettings) -> Iterator[str]:
    """Yield the demonstration as compact lines of text, for training the tokenizer."""
    text = CompactText(settings)
    for turn, tools, steps in demonstration.turns:
        text.know(tools, frozenset().union(*map(constants_of, tools)))
        yield text.user(turn)
        for call, observation in steps:
            yield f"{call.text}{LINE}" if isinstance(call, MalformedCall) else text.action(call)
            yield text.observation(observation)


def example(demonstration: Demonstration, rendering: CompactRendering) -> Example:
    """Render the demonstration as the tokens of one episode. Raises InputError for tools outside the vocabulary."""
    dialogue = rendering.begin()
    ids: list[int] = []
    mask: list[int] = []

    def add(new: list[int], written: int) -> None:
        ids.extend(new)
        mask.extend([written] * len(new))

    for turn, tools, steps in demonstration.turns:
        add(dialogue.first(turn, tools) if turn.index == 0 else dialogue.next_turn(turn, tools), 0)
        for place, (call, observation) in enumerate(steps):
            wrong = (turn.index, place) == (0, demonstration.error_at)
            add(
                dialogue.malformed(call) if isinstance(call, MalformedCall) else dialogue.demonstrate(call),
                int(not wrong),
            )
            add(dialogue.observe([observation]), 0)
        add(dialogue.demonstrate(EndTurn()), 1)
    called = (call for _, _, steps in demonstration.turns for call, _ in steps)
    return Example(ids, mask, frozenset(call.name for call in called if isinstance(call, ToolCall)))
