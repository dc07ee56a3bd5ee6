"""From a trajectory to a context, and a live episode at it: what the roles of every kind share.

A trajectory is read for its failing step, the error message without values, and the facts around it
(``failure_context``). Except for that function's ``setup``, which no prompt shows, nothing here reads a reference, so
all of it may go into a prompt. ``context_task`` is the task without text that opens an episode at a context, a
``LiveRun`` the interactions in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from pydantic import JsonValue

from environments.answers import says_error
from environments.base import (
    Action,
    Environment,
    Episode,
    MalformedCall,
    Observation,
    ObservationStatus,
    TaskSpec,
    ToolCall,
)
from memory.jsonl import record_id
from memory.records import Cause, Evidence, FailureContext, Interaction, Measured, Step, Task, Trajectory

_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`\n]*`")
_PATH = re.compile(r"(?<=: )\S+(?=: )")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LISTED = re.compile(r":\s+[\w.-]+(?:,\s*[\w.-]+)*\s*$")
_TEXT_VALUE = re.compile(r"\"([^\"\n]{1,80})\"|(?<![\w.$])(-?\d+(?:\.\d+)?)(?![\w.])")
_MAX_CLASS = 160
_MAX_FACT = 200
_MAX_FACTS = 16

SAID, OBSERVED, WROTE = "said", "observed", "wrote"
"""Names of facts: a value of the user's, an answer's text, and a text that was not a call."""

LONGEST_SENTENCES, LONGEST_ITEM, MOST_ITEMS = 800, 240, 8
"""Most characters of a text and of one item of a list of a failure context, and most items of a list (ours)."""


def error_message(text: str) -> str:
    """Return the message of an error observation: the value of its ``error`` key, or the whole text."""
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    said = parsed.get("error") if isinstance(parsed, dict) else None
    return str(said) if said else text


def error_class(observation: Observation) -> str:
    """Return the error message with its values taken out, so that equal mistakes are equal; "" without an error.

    Quoted strings become <text>, numbers <number>, and a listing after the last colon <list>.
    """
    if not observation.failed:
        return ""
    message = _QUOTED.sub("<text>", error_message(observation.text))
    message = _PATH.sub("<text>", message)
    message = _LISTED.sub(lambda found: ": <list>" if "," in found.group() else found.group(), message)
    return _NUMBER.sub("<number>", message)[:_MAX_CLASS]


def step_at(trajectory: Trajectory, where: tuple[int, int]) -> Step | None:
    """Return the step at (turn, step); None if the trajectory stopped before it."""
    turn, index = where
    steps = trajectory.turns[turn].steps if 0 <= turn < len(trajectory.turns) else ()
    return steps[index] if 0 <= index < len(steps) else None


def facts_around(task: Task, trajectory: Trajectory, where: tuple[int, int], *, errors: bool = True) -> tuple[str, ...]:
    """Return the varying values around a step as ``name=JSON``: the user's values, arguments, observations.

    They distinguish a context from others of its kind, and an explorer can use them (``fact_values``). Without
    ``errors`` the observations of failed calls and malformed calls are left out.
    """
    turn, index = where
    turns, step = trajectory.turns, step_at(trajectory, where)
    found = [] if step is None else _action_facts(step, errors)
    for text in [seen.text for seen in turns[: turn + 1]] or task.turns[:1]:
        found += [f"{SAID}={_json(quoted or float(number))}" for quoted, number in _TEXT_VALUE.findall(text)]
    for near in turns[turn].steps[max(0, index - 2) : index] if turn < len(turns) else ():
        found += _action_facts(near, errors)
    return tuple(dict.fromkeys(found))[:_MAX_FACTS]


def fact_values(context_facts: Sequence[str]) -> tuple[tuple[str, JsonValue], ...]:
    """Parse (name, value) of each fact written as ``name=JSON``; facts in another form are left out."""
    values: list[tuple[str, JsonValue]] = []
    for fact in context_facts:
        name, _, text = fact.partition("=")
        with suppress(ValueError):
            values.append((name, json.loads(text)))
    return tuple(values)


def _action_facts(step: Step, errors: bool) -> list[str]:
    if isinstance(step.action, MalformedCall):
        return [f"{WROTE}={_json(step.action.text[:_MAX_FACT])}"] if errors else []
    given = [f"{name}={_json(value)}" for name, value in step.action.arguments.items()]
    if step.observation.failed and not errors:
        return given
    return [*given, f"{OBSERVED}={_json(step.observation.text[:_MAX_FACT])}"]


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def executed(action: ToolCall | MalformedCall) -> str:
    """Write an action as one line of Python, for sentences and prompts."""
    if isinstance(action, MalformedCall):
        return action.text
    return f"{action.name}({', '.join(f'{name}={value!r}' for name, value in action.arguments.items())})"


def failed_turn(evidence: Evidence) -> int:
    """Return the turn to blame: the official one, else the first with a failed check; at most the last one reached."""
    outcome, reached = evidence.trajectory.outcome, len(evidence.trajectory.turns)
    last = max(0, reached - 1)
    if outcome is not None and outcome.failed_turn is not None:
        return min(outcome.failed_turn, last)
    turns = enumerate(outcome.turns[:reached]) if outcome is not None else ()
    return next((t for t, turn in turns if False in (turn.instances, turn.state, turn.response)), last)


def blamed_place(evidence: Evidence) -> tuple[int, int]:
    """Return the (turn, step) to look at where no reflector names one (ours; it reads no reference).

    Of a success it is the call that completes the rare pattern, otherwise the last step. Of a failure it is the first
    refused step of the blamed turn whose tool did not succeed after it; one past the last step if there is none.
    """
    turns = evidence.trajectory.turns
    if evidence.trajectory.success:
        steps = [*evidence.trajectory.own_steps()]
        last = evidence.signal.pattern[-1:]
        completing = [where for where, step in steps if any(call.name in last for call in step.observation.calls)]
        return (completing or [where for where, _ in steps][-1:] or [(evidence.trajectory.played, 0)])[0]
    turn = failed_turn(evidence)
    played = turns[turn].steps if turns else ()
    for place, step in enumerate(played):
        later = {call.name for one in played[place:] if not one.observation.failed for call in one.observation.calls}
        if step.observation.failed and (isinstance(step.action, MalformedCall) or step.action.name not in later):
            return turn, place
    return turn, len(played)


def tool_at(evidence: Evidence, where: tuple[int, int]) -> str:
    """Return the tool of a step, or of the agent's last call before it where the step has none; "" without a call."""
    steps = [step for place, step in evidence.trajectory.own_steps() if place <= where]
    called = [step.action.name for step in steps if isinstance(step.action, ToolCall)]
    return next((name for name in reversed(called) if name in evidence.task.tools), "")


def what_happened(evidence: Evidence, where: tuple[int, int]) -> str:
    """Return in a sentence what a step did and what was answered."""
    turn, place = where
    step = step_at(evidence.trajectory, where)
    if step is None:
        return f"Turn {turn + 1} ended after {place} actions."
    kind = "was refused" if step.observation.failed else "was answered"
    answer = error_message(step.observation.text)[:200]
    return f"Turn {turn + 1}, action {place + 1}: {executed(step.action)[:200]} {kind}: {answer}"


def failure_context(
    evidence: Evidence,
    *,
    cause: Cause,
    where: tuple[int, int],
    tool: str,
    how: str,
    why: str,
    explore: tuple[str, ...],
    summary: str = "",
    instability_pattern: str = "",
    focus_pattern: Iterable[str] = (),
    exploration_objectives: Iterable[str] = (),
    do_not_repeat: Iterable[str] = (),
    measured: Measured | None = None,
) -> FailureContext:
    """Build the context of ``evidence``; its error class and facts come from the trajectory.

    Sentences and lists are cut to ``LONGEST_SENTENCES``, ``LONGEST_ITEM`` and ``MOST_ITEMS``: they go into every prompt
    of the context.

    An explorer starts where the failing turn started: after the task's setup and the reference of earlier turns, which
    become the context's setup and are never shown.
    """
    task, step = evidence.task, step_at(evidence.trajectory, where)
    earlier = tuple(call for turn in task.reference[: where[0]] for call in turn)
    return FailureContext(
        id=record_id("context", evidence.signal.id),
        signal_id=evidence.signal.id,
        task_id=task.id,
        trajectory_id=evidence.trajectory.id,
        iteration=evidence.signal.iteration,
        kind=evidence.signal.kind,
        environment=task.environment,
        cause=cause,
        where=where,
        tool=tool,
        error_class=error_class(step.observation) if step is not None else "",
        how=_cut(how, LONGEST_SENTENCES),
        why=_cut(why, LONGEST_SENTENCES),
        summary=_cut(summary, LONGEST_SENTENCES),
        instability_pattern=_cut(instability_pattern, LONGEST_SENTENCES),
        focus_pattern=_items(focus_pattern),
        exploration_objectives=_items(exploration_objectives),
        do_not_repeat=_items(do_not_repeat),
        facts=facts_around(task, evidence.trajectory, where),
        explore=explore,
        classes=task.classes,
        initial_state=task.initial_state,
        setup=(*task.setup, *earlier),
        tools=task.tools,
        measured=measured or Measured(),
    )


def _items(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different texts of a list, without empty ones, cut in number and length."""
    return tuple(dict.fromkeys(_cut(text, LONGEST_ITEM) for text in texts if text.strip()))[:MOST_ITEMS]


def _cut(text: str, most: int) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= most else f"{shown[: most - 4]} ..."


def context_task(context: FailureContext, turns: int = 1) -> TaskSpec:
    """Return the context as a task with empty turns and no reference, for an explorer to open."""
    return TaskSpec(
        environment=context.environment,
        split="train",
        classes=context.classes,
        turns=("",) * turns,
        initial_state=context.initial_state,
        setup=context.setup,
        tools=context.tools,
        reference=((),) * turns,
    )


class LiveRun:
    """One episode of an explorer: executes actions and records every interaction with whether it changed the state.

    ``preface`` is the environment's text before the first action. Every action has a turn of its own, so that an
    environment's limit of actions per turn never cuts the episode off.
    """

    def __init__(self, episode: Episode, context: FailureContext, run: int, preface: str = "") -> None:
        self.preface = preface
        self._episode = episode
        self._context = context
        self._run = run
        self._state = episode.state()
        self.interactions: list[Interaction] = []

    def act(self, action: Action, measured: Measured | None = None, purpose: int = 0, aim: str = "") -> Interaction:
        """Execute one action and record it; ``purpose`` and ``aim`` as in the record."""
        if self.interactions:
            self._episode.end_turn()
        observation = self._episode.step(action)
        state = self._episode.state()
        position = len(self.interactions)
        interaction = Interaction(
            id=record_id("interaction", self._context.id, self._run, position),
            context_id=self._context.id,
            run=self._run,
            position=position,
            action=action,
            observation=observation,
            changed=state != self._state,
            purpose=purpose,
            aim=aim,
            measured=measured or Measured(),
        )
        self._state = state
        self.interactions.append(interaction)
        return interaction


@contextmanager
def live_run(environment: Environment, context: FailureContext, run: int, steps: int) -> Iterator[LiveRun]:
    """Open a fresh episode on the context's initial state, after its setup, for at most ``steps`` actions."""
    with closing(environment.open(context_task(context, turns=steps))) as episode:
        turn = episode.start()
        yield LiveRun(episode, context, run, turn.preface)


def preface_of(environment: Environment, context: FailureContext) -> str:
    """Return the environment's text before an agent's first action at this context."""
    with closing(environment.open(context_task(context))) as episode:
        return episode.start().preface


def call_of(interaction: Interaction) -> ToolCall:
    """Return the call of an interaction whose action is known to be a call."""
    assert isinstance(interaction.action, ToolCall)
    return interaction.action


def is_success(observation: Observation) -> bool:
    """Return whether a call returned or changed something, and its answer is not an error, whatever its status is."""
    return observation.status is ObservationStatus.OK and not says_error(observation.text)


def successful_runs(interactions: Sequence[Interaction]) -> tuple[tuple[Interaction, ...], ...]:
    """Return the successful calls of each run in order; runs without any are left out."""
    runs: dict[int, list[Interaction]] = {}
    for interaction in sorted(interactions, key=lambda i: (i.run, i.position)):
        if isinstance(interaction.action, ToolCall) and is_success(interaction.observation):
            runs.setdefault(interaction.run, []).append(interaction)
    return tuple(tuple(run) for run in runs.values())
