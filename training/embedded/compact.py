"""The pointer-copy rendering in tokens: ``CompactText`` through the tiny policy's own tokenizer.

Pointers to values are a property of the embedded policy: see ``training.embedded.compact_text``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.base import Action, InputError, Observation, ToolSpec, UserTurn
from training.embedded.compact_text import CALL, LINE, CompactSettings, CompactText
from training.rendering.base import EndTurn
from training.seal.settings import InterfaceSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CompactRendering:
    """Opens pointer-copy dialogues for a policy whose tokenizer ``training.embedded.new_policy`` made."""

    name = "compact"

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: CompactSettings) -> None:
        """Raise InputError for a tokenizer that was not made for this rendering."""
        self.tokenizer = tokenizer
        self.settings = settings
        self.vocabulary: dict[str, int] = tokenizer.get_vocab()
        if LINE not in self.vocabulary:
            raise InputError(
                "the tokenizer was not made for the compact rendering: use python -m training.warm_start "
                "--model embedded"
            )

    def begin(self) -> CompactDialogue:
        """Open a dialogue for one episode."""
        return CompactDialogue(self)

    def check_interface(self, interface: InterfaceSettings) -> None:
        """Raise InputError for cues that this policy could not read."""
        key = "training.seal.interface"
        if interface.schema_cues:
            raise InputError(f"{key}.schema_cues: the compact rendering shows no documentation: set it to false")
        if not self.settings.cues:
            raise InputError(
                f"{key}: the policy has no tokens for cues: take recipes/starter-seal, or a language model, or "
                f"set {key} to null"
            )

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Raise InputError for tools outside the vocabulary."""
        unknown = [tool.name for tool in tools if f"{CALL}{tool.name}" not in self.vocabulary]
        if unknown:
            raise InputError(
                f"the policy's vocabulary has no token for {', '.join(unknown[:3])}: use the classes that it was "
                "made for, or make an initial policy for these with python -m training.warm_start --model embedded"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


class CompactDialogue:
    """One episode in tokens of the pointer-copy rendering (see ``training.rendering.base.Dialogue``)."""

    def __init__(self, rendering: CompactRendering) -> None:
        self.text = CompactText(rendering.settings)
        self.stop_ids = frozenset({rendering.vocabulary[LINE]})
        self._rendering = rendering
        self._ended = True

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return ids of a user line. Raises InputError for tools outside the vocabulary."""
        self._rendering.check_tools(tools)
        self.text.know(tools)
        return self._rendering.encode(self._line_end() + self.text.user(turn))

    next_turn = first

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        """Parse the sampled line: one action, or the end of the turn."""
        self._ended = bool(ids) and ids[-1] in self.stop_ids
        complete = ids[:-1] if self._ended else ids
        tokenizer = self._rendering.tokenizer
        said = str(tokenizer.decode(list(complete), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        # A line feed that is not the stop id comes from a byte token: it does not end the line.
        read = self.text.read(said.replace(LINE, " ") + (LINE if self._ended else ""))
        return read if isinstance(read, EndTurn) else (read,)

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        """Return ids of the observation line: exactly one, because a line holds one action."""
        (observation,) = observations
        return self._rendering.encode(self._line_end() + self.text.observation(observation))

    def demonstrate(self, action: Action | EndTurn) -> list[int]:
        """Return ids of an action as demonstrations write it."""
        return self._rendering.encode(self.text.action(action))

    def _line_end(self) -> str:
        """Return what ends a line that was cut off while it was sampled; empty where it ended itself."""
        ended, self._ended = self._ended, True
        return "" if ended else LINE
