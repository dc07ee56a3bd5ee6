"""The learning interface (SEAL, arXiv 2605.24426): an environment wrapper that adds cues, for training only.

Actions, states, outcomes and recorded calls are those of the environment inside. Cues are of three kinds, each with a
switch, the terms of SEAL's equation 9: marks in the descriptions of parameters with a note on them (phi_schema), a hint
beside an error observation (phi_err), and guidelines (phi_cap). Note and guidelines come with the first user turn.
Evaluation opens the environment itself, without cues (SEAL's rule; a test holds it).

A hint is one sentence of advice for a kind of error, derived from the call and its documentation. It holds names and
values of the documentation only: nothing that the agent wrote, nothing of the task's reference. Equation 9 has phi_err
depend on the diagnostic context of earlier rollouts, H_t, too. Here, as in SEAL's released code, a hint depends on the
error alone. The sentences are ours.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import JsonValue

from environments.base import (
    Action,
    Cue,
    Environment,
    Episode,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    Parameter,
    StartState,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.registry import benchmark_of
from environments.verification.replay import argument_problem

NAMES = 20
"""Most tools that one hint names (our choice): the first ones, or those with the most similar names."""

_NOT_AUTHENTICATED = re.compile(
    r"not authenticated|not logged in|log ?in first|no user is currently logged in|unauthori[sz]ed"
    r"|(?:invalid|missing) access token|token (?:expired|not initialized)",
    re.IGNORECASE,
)
_BAD_PATH = re.compile(
    r"no such (?:file|directory)|not a directory|unsupported path|path not allowed|already the root", re.IGNORECASE
)


class HintKind(StrEnum):
    """Kinds of errors that have a hint: SEAL's six (arXiv 2605.24426), and malformed calls (ours)."""

    MISSING_ARGUMENT = "missing_argument"
    UNEXPECTED_ARGUMENT = "unexpected_argument"
    BAD_PATH = "bad_path"
    NOT_AUTHENTICATED = "not_authenticated"
    UNKNOWN_TOOL = "unknown_tool"
    WRONG_TYPE = "wrong_type"
    MALFORMED = "malformed"


def hint_for(action: Action, observation: Observation, tools: Mapping[str, ToolSpec]) -> Cue | None:
    """Return the hint for ``observation``; None where it is not an error, and for an error of an unknown kind.

    ``tools`` documents the tools that the agent was shown, by name.
    """
    if isinstance(action, MalformedCall):
        if observation.status is not ObservationStatus.MALFORMED:
            return None
        say = "write one call in the format of the tools, a name and named arguments, and nothing else; the tools are"
        return _hint(HintKind.MALFORMED, f"{say} {_listed([*tools][:NAMES], len(tools))}.")
    if observation.status is not ObservationStatus.ERROR:
        return None
    tool = tools.get(action.name)
    if tool is None:
        return None if observation.calls else _unknown_tool(action.name, tools)
    return _argument_hint(action, tool) or _message_hint(observation.text)


def _hint(kind: HintKind, text: str) -> Cue:
    return Cue(kind=kind.value, text=text)


def _unknown_tool(name: str, tools: Mapping[str, ToolSpec]) -> Cue:
    near = difflib.get_close_matches(name[:100], tools, n=NAMES, cutoff=0.0)
    return _hint(HintKind.UNKNOWN_TOOL, f"there is no such tool; the tools are {_listed(near, len(tools))}.")


def _argument_hint(call: ToolCall, tool: ToolSpec) -> Cue | None:
    """Compare the arguments with the documentation: unknown names first, because a misspelt one is missing too."""
    known = [parameter.name for parameter in tool.parameters]
    if any(name not in known for name in call.arguments):
        takes = f"takes {', '.join(known)} and nothing else" if known else "takes no arguments"
        return _hint(HintKind.UNEXPECTED_ARGUMENT, f"{tool.name} {takes}.")
    missing = [one.name for one in tool.parameters if one.required and one.name not in call.arguments]
    if missing:
        return _hint(HintKind.MISSING_ARGUMENT, f"{tool.name} also needs {', '.join(missing)}.")
    wrong = next((one for one in tool.parameters if one.name in call.arguments and _is_wrong(call, tool, one)), None)
    return None if wrong is None else _hint(HintKind.WRONG_TYPE, f"{tool.name} takes {_kind_of(wrong)}.")


def _is_wrong(call: ToolCall, tool: ToolSpec, parameter: Parameter) -> bool:
    alone = call.model_copy(update={"arguments": {parameter.name: call.arguments[parameter.name]}})
    return argument_problem(alone, tool.model_copy(update={"parameters": (parameter,)})) is not None


def _kind_of(parameter: Parameter) -> str:
    kind = f"{parameter.type} of {parameter.items}" if parameter.items else parameter.type
    choices = f", from {', '.join(map(shown_value, parameter.choices))}" if parameter.choices else ""
    return f"{parameter.name} as {kind}{choices}"


def _message_hint(text: str) -> Cue | None:
    if _NOT_AUTHENTICATED.search(text):
        return _hint(HintKind.NOT_AUTHENTICATED, "log in first, with the tool that does it, then call this one again.")
    if _BAD_PATH.search(text):
        return _hint(HintKind.BAD_PATH, "look where you are and what is there, then give a name that exists there.")
    return None


def _listed(names: list[str], of: int) -> str:
    return ", ".join(names) + (" and others" if len(names) < of else "")


def shown_value(value: JsonValue) -> str:
    """Return a documented value as text: strings as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


SCHEMA_NOTE = (
    "About the tools: give every argument that is marked [required], as its description says, and call no tool that is "
    "not documented here."
)
"""The sentence of the system message that goes with the marks."""


def with_schema_cues(tool: ToolSpec) -> ToolSpec:
    """Return ``tool`` with ``[required]`` and ``Allowed values: ...`` after the parameters' descriptions.

    SEAL's phi_schema (arXiv 2605.24426, appendix D.2): the marks are the paper's, the wording of the note is ours.
    """
    return tool.model_copy(update={"parameters": tuple(map(_cued, tool.parameters))})


def _cued(parameter: Parameter) -> Parameter:
    cues = ["[required]"] if parameter.required else []
    if parameter.choices:
        cues.append(f"Allowed values: {', '.join(map(shown_value, parameter.choices))}.")
    return parameter.model_copy(update={"description": " ".join((parameter.description, *cues))})


class LearningInterface:
    """Implements ``environments.base.Environment`` around another one; immutable."""

    def __init__(
        self,
        inside: Environment,
        *,
        schema_cues: bool = False,
        recovery_hints: bool = False,
        guidelines: Sequence[Cue] = (),
    ) -> None:
        """Wrap ``inside``.

        Args:
            inside: the environment.
            schema_cues: mark required arguments and allowed values in the descriptions of parameters, and add a note.
            recovery_hints: add a hint to errors of known kinds.
            guidelines: shown with the first user turn of every episode.
        """
        self.name = inside.name
        self.benchmark = benchmark_of(inside)
        self.guidelines = tuple(guidelines)
        self.recovery_hints = recovery_hints
        self.note = SCHEMA_NOTE if schema_cues else ""
        self._schema_cues = schema_cues
        self._inside = inside
        self._cued: dict[str, ToolSpec] = {}

    def open(self, task: TaskSpec) -> LearningEpisode:
        """Open a fresh episode. Raises InputError like the environment inside."""
        return LearningEpisode(self._inside.open(task), self)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Return the documentation of the named tools with its cues. Raises InputError for an unknown name."""
        plain = self._inside.tools(names)
        return tuple(map(self._with_cues, plain)) if self._schema_cues else plain

    def starts(self) -> tuple[StartState, ...]:
        """Return the start states of the environment inside."""
        return self._inside.starts()

    def documented(self, names: Sequence[str]) -> Mapping[str, ToolSpec]:
        """Return the documentation by name, without cues."""
        return {tool.name: tool for tool in self._inside.tools(names)}

    def _with_cues(self, tool: ToolSpec) -> ToolSpec:
        if tool.name not in self._cued:
            self._cued[tool.name] = with_schema_cues(tool)
        return self._cued[tool.name]


class LearningEpisode:
    """Implements ``environments.base.Episode`` around another one; single use."""

    def __init__(self, inside: Episode, interface: LearningInterface) -> None:
        self._inside = inside
        self._interface = interface
        self._shown: tuple[str, ...] = ()

    def start(self) -> UserTurn:
        """Return the first user turn with the note and the guidelines."""
        turn = self._inside.start()
        self._shown = turn.tools
        return turn.model_copy(update={"note": self._interface.note, "guidelines": self._interface.guidelines})

    def step(self, action: Action) -> Observation:
        """Execute one action; the observation of an error gets a hint if its kind is known."""
        observation = self._inside.step(action)
        if not self._interface.recovery_hints or not observation.failed:
            return observation
        hint = hint_for(action, observation, self._interface.documented(self._shown))
        return observation.model_copy(update={"hint": hint})

    def end_turn(self) -> UserTurn | None:
        """End the turn; return the next one, or None when the episode is over."""
        turn = self._inside.end_turn()
        if turn is not None:
            self._shown = turn.tools
        return turn

    def state(self) -> str:
        """Return the state of the episode inside."""
        return self._inside.state()

    def outcome(self) -> Outcome:
        """Return the outcome of the episode inside."""
        return self._inside.outcome()

    def close(self) -> None:
        """Close the episode inside. Idempotent."""
        self._inside.close()
