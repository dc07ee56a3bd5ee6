"""An environment with the learning interface around it: the same episodes, told with cues.

What an episode does, its state, its outcome and the calls it records are those of the environment inside. What the
agent reads differs in three places, each where a setting says so: descriptions of parameters, the end of an error
observation, and the beginning of the first user turn. Evaluation opens the environment itself and knows nothing of
this; that is SEAL's rule, and a test holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from environments.base import (
    Action,
    Environment,
    Episode,
    Observation,
    Outcome,
    StartState,
    TaskSpec,
    ToolSpec,
    UserTurn,
    at_once,
)
from environments.learning_interface.cues import with_guidelines, with_hint
from environments.learning_interface.recovery import hint_for
from environments.learning_interface.schema import with_schema_cues
from environments.learning_interface.settings import InterfaceSettings
from environments.learning_interface.state import InterfaceState
from environments.registry import benchmark_of


class LearningInterface:
    """Implements ``environments.base.Environment`` around another one; its ``state`` never changes.

    With guidelines in its state the first user turn differs from the task's by them; without, user turns are the
    task's own.
    """

    def __init__(self, inside: Environment, settings: InterfaceSettings, state: InterfaceState | None = None) -> None:
        self.name = inside.name
        self.benchmark = benchmark_of(inside)
        self.settings = settings
        self.state = state or InterfaceState()
        self._inside = inside
        self._cued: dict[str, ToolSpec] = {}

    @property
    def at_once(self) -> int | None:
        """How many episodes the environment inside can have open at a time."""
        return at_once(self._inside)

    def with_state(self, state: InterfaceState) -> LearningInterface:
        """The same interface in another state."""
        return LearningInterface(self._inside, self.settings, state)

    def open(self, task: TaskSpec) -> LearningEpisode:
        """A fresh episode. Raises InputError like the environment inside."""
        return LearningEpisode(self._inside.open(task), self)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Documentation of the named tools with its cues. Raises InputError for an unknown one."""
        plain = self._inside.tools(names)
        return tuple(map(self._with_cues, plain)) if self.settings.schema_cues else plain

    def starts(self) -> tuple[StartState, ...]:
        """The start states of the environment inside."""
        return self._inside.starts()

    def documented(self, names: Sequence[str]) -> Mapping[str, ToolSpec]:
        """Documentation by name, without cues."""
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
        """The first user turn, behind the guidelines that the interface shows."""
        turn = self._inside.start()
        self._shown = turn.tools
        guidelines = self._interface.state.guidelines
        return turn.model_copy(update={"text": with_guidelines(turn.text, guidelines)}) if guidelines else turn

    def step(self, action: Action) -> Observation:
        """Execute one action; the answer to an error has a line more where there is a hint for it."""
        observation = self._inside.step(action)
        if not self._interface.settings.recovery_hints or not observation.failed:
            return observation
        hint = hint_for(action, observation, self._interface.documented(self._shown))
        if hint is None:
            return observation
        return observation.model_copy(update={"text": with_hint(observation.text, hint.kind, hint.sentence)})

    def end_turn(self) -> UserTurn | None:
        """The next user turn, or None when the episode is over."""
        turn = self._inside.end_turn()
        if turn is not None:
            self._shown = turn.tools
        return turn

    def state(self) -> str:
        """The state of the episode inside."""
        return self._inside.state()

    def outcome(self) -> Outcome:
        """The outcome of the episode inside."""
        return self._inside.outcome()

    def close(self) -> None:
        """Close the episode inside. Idempotent."""
        self._inside.close()
