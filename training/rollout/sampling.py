"""The contract between rollouts and a sampler: drive these episodes to their end, token in, token out.

An ``EpisodeDriver`` is one rollout: it opens an episode, renders what the policy reads, and executes what the policy
writes. A ``Sampler`` writes the messages, and knows nothing of tasks, tools or rewards. The loop of one episode is::

    while (prompt := driver.observe()) is not None:
        driver.act(<a message sampled after all ids so far and prompt.ids>)

Rollouts, evaluation and references use these protocols alone. Free of torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.base import Record


class EngineFailure(RuntimeError):
    """The engine of a sampler failed, so that the round or the evaluation ends: dead servers, wrong weights.

    It is never the failure of an episode: that would mask rollouts, and train on what is left of a step.
    """


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """The ids that the policy reads before its next message.

    ``ids`` (at least one) are appended to all ids of the episode so far: the whole prompt of the first message, a
    suffix of observations afterwards. ``max_new_tokens`` (at least one) limits the message.
    """

    ids: list[int]
    max_new_tokens: int

    def __post_init__(self) -> None:
        if not self.ids or self.max_new_tokens < 1:
            raise ValueError("a prompt needs at least one id and room for one sampled token")


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled message. One that an engine aborts is not sampled: it is sampled again.

    ``ids`` end with one of the driver's ``stop_ids``, or there are ``max_new_tokens`` of them. ``logprobs`` are theirs,
    in nats, of logits divided by the sampling temperature, over the whole vocabulary: no top-k, no top-p, no penalty.
    ``context`` is the number of ids that the sampler held before the message; the driver compares it with its own.
    """

    ids: list[int]
    logprobs: list[float]
    context: int


class EngineFigures(Record):
    """The work of an engine beside the trainer so far, in messages, tokens, nats and wall seconds.

    ``resampled`` messages were sampled again: the engine gave them up or failed. ``gap`` is the largest difference of a
    log-probability to the trainer's after a fixed prompt. ``sampling`` and ``load`` are times in which the trainer
    waits: for messages, and for weights to be written, read and checked.
    """

    messages: int = 0
    tokens: int = 0
    resampled: int = 0
    gap: float = 0.0
    sampling: float = 0.0
    load: float = 0.0

    def plus(self, other: EngineFigures, at_once: bool = False) -> EngineFigures:
        """Return the figures of both, one after the other or, of two processes, at one time: the longest times then."""
        values = {}
        for name in type(self).model_fields:
            mine, its = getattr(self, name), getattr(other, name)
            largest = name == "gap" or (at_once and isinstance(mine, float))
            values[name] = max(mine, its) if largest else mine + its
        return EngineFigures(**values)


class EpisodeDriver(Protocol):
    """One episode as a sampler sees it; single use.

    ``seed`` decides every draw of the episode, in whichever batch and order it is sampled: a sampler that sends one
    request per message derives the seed of each from it and the message's number. ``stop_ids`` end a message. Calls of
    one driver follow each other; drivers of one run share nothing but their environment and the policy's rendering.
    """

    seed: int
    stop_ids: frozenset[int]

    def observe(self) -> TokenPrompt | None:
        """Return what to append and sample after; None when the episode is over.

        The first call opens the episode. Further calls change nothing until ``act`` is called.
        """
        ...

    def act(self, message: Sampled) -> None:
        """Execute the message that was sampled after the last observation. Release the episode when it is over."""
        ...


class Sampler(Protocol):
    """Samples the messages of many episodes from one policy.

    An engine that fails (a dead server, a timeout) fails the run: it raises EngineFailure, and never masks an episode
    as the environment's fault would.
    """

    @abstractmethod
    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        """Drive every episode to its end.

        Episodes are opened in the given order, at most ``concurrency`` (at least 1) at a time. ``temperature`` 0 is
        greedy. Raises InputError for a negative one, and whatever a driver raises.
        """
        ...

    def load_weights(self, version: int) -> None:
        """Sample from the policy's weights after ``version`` global steps from now on.

        Rollouts call it before every training step, in each process of the trainer, so that it may gather sharded
        weights. A sampler with weights of its own returns when every engine has confirmed ``version``, else it raises.
        Optional: one that shares the trainer's weights inherits this method, which does nothing.
        """
        return

    def close(self) -> None:
        """Give back what the sampler holds. Optional: one without connections or memory of its own does nothing."""
        return

    def figures(self) -> EngineFigures | None:
        """Return what the engine did so far. Optional: None for one that shares the trainer's weights and time."""
        return None
