"""An environment with a learning interface around it: the same episodes, with cues for the agent.

Actions, states, outcomes and recorded calls are those of the environment inside. Cues are of three kinds, each with a
switch, the terms of SEAL's equation 9: marks in the descriptions of parameters with a note on them (phi_schema), a hint
beside an error observation (phi_err), and guidelines (phi_cap). Note and guidelines come with the first user turn.
Equation 9 has phi_err depend on the diagnostic context of earlier rollouts, H_t, too. Here, as in SEAL's released code,
a hint depends on the error alone. Evaluation opens the environment itself, without cues (SEAL's rule; a test holds it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from environments.base import (
    Action,
    Cue,
    Environment,
    Episode,
    Observation,
    Outcome,
    Parameter,
    StartState,
    TaskSpec,
    ToolSpec,
    UserTurn,
)
from environments.learning_interface.recovery import hint_for, shown_value
from environments.registry import benchmark_of

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
