"""Verify that a draft is executable, deterministic, minimal and solvable from its text.

The result depends only on replays in the real environment, and every refusal has one reason. The checks run in the
order of ``Refusal``, from cheap to expensive; the first that fails is the reason. CoEvolve validates with an LLM and
one execution instead.

Trivial policies act without reading the task; a draft that one of them solves is refused (``solving_policy``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from contextlib import closing
from enum import StrEnum
from itertools import chain

from environments.base import Environment, InputError, Record, TaskSpec, ToolCall, ToolSpec, recorded
from environments.settings import VerificationSettings
from environments.verification.absence import asked_at_once, unneeded_turn
from environments.verification.canonical import canonical, fingerprint
from environments.verification.decontamination import HeldOut
from environments.verification.replay import (
    PlayedReference,
    Replay,
    argument_problem,
    attempt,
    is_informative,
    replay,
    setup_as_turns,
    succeeds,
    ungrounded,
)
from environments.verification.turn_text import foreign_text, unasked_call, unmet_request


def solving_policy(environment: Environment, task: TaskSpec) -> str | None:
    """Return a phrase that names the first trivial policy that solves ``task``, None if none does.

    The policies, each applied in every user turn of the agent's: no call; each tool of the task alone, without
    arguments; each value that a tool's only required parameter documents as trivial; all reads without arguments
    together, in the order of ``task.tools``. A read is a tool that needs no argument, does not fail and does not change
    the state. Tools that document a required argument all fail without it, so the first of them represents all.
    """

    def solve(*calls: ToolCall) -> bool:
        given = task.reference[: task.played]
        return succeeds(environment, task, (*given, *(calls,) * (len(task.turns) - task.played)))

    if solve():
        return "making no call"
    free, demanding, given = list[ToolCall](), list[ToolCall](), list[ToolCall]()
    for tool in environment.tools(task.tools):
        required = [parameter for parameter in tool.parameters if parameter.required]
        (demanding if required else free).append(ToolCall(name=tool.name))
        if len(required) == 1:
            given += [ToolCall(name=tool.name, arguments={required[0].name: value}) for value in required[0].trivial]
    for call in (*free, *demanding[:1], *given):
        if solve(call):
            values = ", ".join(f"{n}={v!r:.80}" for n, v in call.arguments.items())
            return f"calling {call.name} {f'with {values}' if values else 'without arguments'}"
    reads = tuple(call for call in free if _reads(environment, task, call))
    if len(reads) > 1 and solve(*reads):
        return "calling all reads without arguments"
    return None


def _reads(environment: Environment, task: TaskSpec, call: ToolCall) -> bool:
    with closing(environment.open(task)) as episode:
        episode.start()
        before = episode.state()
        return not episode.step(call).failed and episode.state() == before


_SHOWN = 200  # characters of an error that a refusal quotes


class Refusal(StrEnum):
    """Why a draft is refused, in the order in which the checks run; docs/glossary.md explains each.

    ``verify`` never returns the last four: ``misread`` is of a draft whose words a local reader does not understand,
    ``agent`` and ``not_validated`` come from the agent that carries out drafts
    (``verification.mode``), ``over_quota`` from ``tasks.admissions``.
    """

    EMPTY_REFERENCE = "empty_reference"
    TOO_LONG = "too_long"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    EMPTY_TURN = "empty_turn"
    HELD_OUT = "sealed"
    DUPLICATE = "duplicate"
    FOREIGN_TEXT = "foreign_text"
    CANNOT_OPEN = "cannot_open"
    ERROR_RESULT = "error_result"
    UNSTABLE_STATE = "unstable_state"
    NONDETERMINISTIC = "nondeterministic"
    NO_EFFECT = "no_effect"
    NOT_SOLVED = "not_solved"
    UNMET_REQUEST = "unmet_request"
    TRIVIAL_POLICY = "trivial_policy"
    SUPERFLUOUS_CALL = "superfluous_call"
    UNGROUNDED_ARGUMENT = "ungrounded_argument"
    UNASKED_CALL = "unasked_call"
    MISREAD = "misread"
    AGENT = "agent"
    NOT_VALIDATED = "not_validated"
    OVER_QUOTA = "over_quota"


class VerificationResult(Record):
    """The verification result of one draft. ``detail`` is a sentence with the call, argument or turn, from 1."""

    reason: Refusal | None = None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        """Return whether the draft may become a task."""
        return self.reason is None


def verify(
    draft: TaskSpec,
    environment: Environment,
    known: Collection[str],
    held_out: Container[str],
    settings: VerificationSettings | None = None,
    observed: Collection[str] = (),
) -> VerificationResult:
    """Accept ``draft``, or refuse it with the first reason that applies.

    ``known`` holds fingerprints of tasks that exist already, ``held_out`` those of the held-out sets; a ``HeldOut`` is
    also compared by content. ``observed`` are the observations that led to the draft: its turns may not repeat them.
    Equal arguments give equal results. Raises EnvironmentFault when the environment itself failed, which is not a
    property of the draft.
    """
    settings = settings or VerificationSettings()
    given = chain(_form(draft, settings), _calls(draft, environment), _empty_turns(draft, environment))
    new = chain(_fingerprint(draft, environment, known, held_out), _turn_text(draft, environment, observed))
    return _first(chain(given, new, _behaviour(draft, environment)))


def can_train(
    draft: TaskSpec,
    environment: Environment,
    known: Collection[str],
    held_out: Container[str],
    observed: Collection[str] = (),
) -> VerificationResult:
    """Accept every draft that an agent can be trained on: the remainder of ``verify`` where verification is off.

    The reference need not succeed: where a call of it fails, the environment compares with the state after the failure,
    so that only an agent that repeats the failing call succeeds. Raises EnvironmentFault when the environment itself
    failed.
    """
    return _first(
        chain(
            _can_be_checked(draft, environment),
            _fingerprint(draft, environment, known, held_out),
            _turn_text(draft, environment, observed),
            _can_be_played(draft, environment),
        )
    )


_Refused = tuple[Refusal, str]


def _first(checks: Iterator[_Refused]) -> VerificationResult:
    """Return the first refusal of ``checks``, which go no further; what the environment cannot open is one, too."""
    try:
        found = next(checks, None)
    except InputError as error:
        found = Refusal.CANNOT_OPEN, f"The environment does not open it: {error}"
    except RecursionError:
        found = Refusal.UNSTABLE_STATE, "The state that the reference leads to contains itself."
    return VerificationResult() if found is None else VerificationResult(reason=found[0], detail=found[1])


def _can_be_checked(draft: TaskSpec, environment: Environment) -> Iterator[_Refused]:
    if not any(draft.reference):
        yield Refusal.EMPTY_REFERENCE, "The reference has no call."
    try:
        environment.tools(draft.tools)
    except InputError as error:
        yield Refusal.UNKNOWN_TOOL, str(error)


def _can_be_played(draft: TaskSpec, environment: Environment) -> Iterator[_Refused]:
    attempt(environment, draft, draft.reference)
    yield from ()


def _form(draft: TaskSpec, settings: VerificationSettings) -> Iterator[_Refused]:
    total = sum(len(turn) for turn in draft.reference)
    if total == 0:
        yield Refusal.EMPTY_REFERENCE, "The reference has no call."
    if total > settings.max_calls:
        yield Refusal.TOO_LONG, f"The reference has {total} calls, {settings.max_calls} are allowed."


def _calls(draft: TaskSpec, environment: Environment) -> Iterator[_Refused]:
    tools: dict[str, ToolSpec] = {}
    for name in dict.fromkeys((*draft.tools, *(call.name for _, call in _places(draft)))):
        try:
            tools[name] = environment.tools((name,))[0]
        except InputError:
            yield Refusal.UNKNOWN_TOOL, f"The environment {environment.name} has no function {name!r}."
        if tools[name].group not in draft.classes:
            said = f"{name} belongs to {tools[name].group}, which is not among the draft's classes."
            yield Refusal.UNKNOWN_TOOL, said
    offered = set(draft.tools)
    for place, call in _places(draft, setup=False):
        if call.name not in offered:
            yield Refusal.UNKNOWN_TOOL, f"{place} uses {call.name}, which is not among the draft's tools."
    for place, call in _places(draft, setup=False):
        if problem := argument_problem(call, tools[call.name]):
            yield Refusal.BAD_ARGUMENTS, f"{place}: {problem}."


def _empty_turns(draft: TaskSpec, environment: Environment) -> Iterator[_Refused]:
    for t, text in enumerate(draft.turns, start=1):
        if not text.strip():
            yield Refusal.EMPTY_TURN, f"Turn {t} has no text."
    if unneeded := unneeded_turn(environment, draft):
        yield Refusal.EMPTY_TURN, _sentence(unneeded)


def _fingerprint(
    draft: TaskSpec, environment: Environment, known: Collection[str], held_out: Container[str]
) -> Iterator[_Refused]:
    own = fingerprint(draft)
    if own in held_out:
        yield Refusal.HELD_OUT, f"A held-out set has this task (fingerprint {own[:16]})."
    # A task without a canonical form cannot be compared, so it is refused: decontamination must not fail open.
    if isinstance(held_out, HeldOut) and (same := held_out.match(draft, canonical(environment, draft))) is not None:
        yield Refusal.HELD_OUT, same
    if own in known:
        yield Refusal.DUPLICATE, f"This task exists already (fingerprint {own[:16]})."


def _turn_text(draft: TaskSpec, environment: Environment, observed: Collection[str]) -> Iterator[_Refused]:
    if foreign := foreign_text(environment, draft, observed):
        yield Refusal.FOREIGN_TEXT, _sentence(foreign)


def _behaviour(draft: TaskSpec, environment: Environment) -> Iterator[_Refused]:
    first = replay(environment, draft)
    turns = first.turns
    if draft.setup:
        turns = replay(environment, setup_as_turns(draft)).turns[: len(draft.setup)] + turns
    results = [observation for turn in turns for observation in turn.observations]
    for (place, call), observation in zip(_places(draft), results, strict=True):
        if observation.failed:
            yield Refusal.ERROR_RESULT, f"{place}, {call.name}, fails: {_beginning_and_end(observation.text)}"
    for t, outcome in enumerate(first.outcome.turns, start=1):
        if outcome.checker_error:
            yield Refusal.UNSTABLE_STATE, f"The state after turn {t} cannot be compared: {outcome.checker_error}"
    again = replay(environment, draft)
    if again != first:
        yield Refusal.NONDETERMINISTIC, f"A second replay differs from the first {_difference(first, again)}."
    ends = (first.initial, *first.end_states())
    for t, turn in enumerate(first.turns):
        if (
            turn.calls
            and ends[t] == ends[t + 1]
            and not any(is_informative(observation) for observation in turn.observations)
        ):
            yield Refusal.NO_EFFECT, f"Turn {t + 1} changes nothing and returns nothing informative."
    if not first.outcome.success:
        yield Refusal.NOT_SOLVED, f"The reference itself does not succeed: {first.outcome.failure}."
    yield from _worth(draft, recorded(environment), first)


def _beginning_and_end(text: str) -> str:
    """Shorten ``text`` in the middle, because a traceback has its error at the end."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"


def _difference(first: Replay, again: Replay) -> str:
    if first.initial != again.initial:
        return "before the first call"
    for t, (one, two) in enumerate(zip(first.turns, again.turns, strict=True), start=1):
        for c, call in enumerate(one.calls):
            if one.observations[c] != two.observations[c]:
                return f"in the result of turn {t}, call {c + 1}, {call.name}"
            if one.states[c] != two.states[c]:
                return f"in the state after turn {t}, call {c + 1}, {call.name}"
    return "in its outcome"


def _worth(draft: TaskSpec, environment: Environment, first: Replay) -> Iterator[_Refused]:
    played = asked = PlayedReference(environment, draft, first)
    if not all(draft.reference):  # what such a turn asks for is done in the next one
        whole = asked_at_once(draft)
        asked = PlayedReference(environment, whole, replay(environment, whole))
    if unmet := unmet_request(asked):
        yield Refusal.UNMET_REQUEST, _sentence(unmet)
    if policy := solving_policy(environment, draft):
        yield Refusal.TRIVIAL_POLICY, f"It is solved by {policy} in every turn."
    for t, calls in enumerate(draft.reference):
        for c, call in enumerate(calls):
            if played.superfluous(t, c):
                yield Refusal.SUPERFLUOUS_CALL, f"Turn {t + 1}, call {c + 1}, {call.name}, can be left out."
    for missing in ungrounded(environment, draft, first):
        said = f"Neither the turns, nor earlier observations, nor the documentation state {missing}."
        yield Refusal.UNGROUNDED_ARGUMENT, said
    if unasked := unasked_call(asked):
        yield Refusal.UNASKED_CALL, _sentence(unasked)


def _sentence(phrase: str) -> str:
    return f"{phrase[0].upper()}{phrase[1:]}."


def _places(draft: TaskSpec, setup: bool = True) -> Iterator[tuple[str, ToolCall]]:
    """Yield each call with its name in sentences, counted from 1."""
    if setup:
        yield from ((f"Setup call {c}", call) for c, call in enumerate(draft.setup, start=1))
    for t, turn in enumerate(draft.reference, start=1):
        yield from ((f"Turn {t}, call {c}", call) for c, call in enumerate(turn, start=1))
