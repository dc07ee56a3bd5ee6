"""Make vLLM's request for one message, and check its answer: the part that servers and an engine in process share.

A ``Conversation`` is one episode driver with all of its ids. It makes a ``MessageRequest`` for the next message; the
engine's answer becomes an ``EngineAnswer``, which ``check`` holds against the request before the driver sees it. Free
of torch, httpx and vLLM.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from memory.jsonl import complaint, derive_seed
from training.rollout.sampling import EpisodeDriver, FinishReason, Sampled, TokenPrompt

__all__ = [
    "Aborted",
    "BadAnswer",
    "Conversation",
    "EngineAnswer",
    "MessageRequest",
    "Scores",
    "VersionSpan",
    "WrongWeights",
    "canaries",
    "check",
    "largest_difference",
    "read_answer",
    "reply_bytes",
]

ROUNDING = 1e-3
"""Nats by which a log-probability may be above 0: float rounding of an engine in bfloat16 (ours)."""

CANARY_PROMPT, CANARY_TOKENS, CANARY_TEMPERATURE = 16, 8, 0.7
"""Ids of the canary's prompt, tokens of its first answers, and the temperature of those that are drawn (ours)."""

CANARY_AGAIN = 1
"""Tokens of the canary's answer at every later load: each takes a pass of the engine that no other shares (ours)."""

FINAL_ONLY = 2
"""vLLM's output kind of an answer that is sent once, when it is whole."""


class BadAnswer(ValueError):
    """An answer that is not one to the request: cut, malformed, or with values that cannot be."""


class Aborted(BadAnswer):
    """The engine ended the message before its end: what there is of it is not sampled."""


class WrongWeights(BadAnswer):
    """Tokens of the message were sampled with other weights than the wanted ones."""


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """One message to sample: equal requests to equal weights give equal messages, wherever they are sent.

    ``group`` is equal for episodes with an equal first prompt. ``key`` names the message in the engine's log.
    """

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    stop_ids: tuple[int, ...]
    group: str
    key: str

    def sampling_params(self) -> dict[str, Any]:
        """Return vLLM's parameters, every one of them that changes an answer."""
        # Unstated ones are taken from the model's generation_config.json. ignore_eos: the driver's stop ids end a
        # message, and nothing else does.
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": self.seed,
            "logprobs": 0,
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,
            "output_kind": FINAL_ONLY,
            "detokenize": False,
        }


class VersionSpan(BaseModel):
    """Output tokens from ``start`` to before ``end`` were sampled with the weights ``version``."""

    version: Annotated[str, Field(max_length=500)]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The answer of an engine. ``versions`` and ``prompt_tokens`` are None where the engine does not say."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    versions: list[VersionSpan] | None = None
    prompt_tokens: int | None = None


class _TokenLogprob(BaseModel):
    token_id: int | None = None
    logprob: Annotated[float, Field(allow_inf_nan=True)]


class _Logprobs(BaseModel):
    content: Annotated[list[_TokenLogprob], Field(max_length=2**21)]


class _Choice(BaseModel):
    token_ids: Annotated[list[int], Field(max_length=2**21)]
    finish_reason: Annotated[str, Field(max_length=100)]
    logprobs: _Logprobs | None = None
    weight_versions: Annotated[list[VersionSpan], Field(max_length=2**16)] | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None


class _Reply(BaseModel):
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]
    usage: _Usage | None = None


def reply_bytes(max_tokens: int) -> int:
    """Return the most bytes that an answer of ``max_tokens`` tokens may have (ours, several times what it takes)."""
    return 2**18 + 2048 * max_tokens


def read_answer(body: bytes) -> EngineAnswer:
    """Read what ``/inference/v1/generate`` answered. Raises BadAnswer."""
    try:
        reply = _Reply.model_validate_json(body)
    except ValidationError as error:
        raise BadAnswer(f"the answer cannot be read, {complaint(error)[:300]}") from None
    choice = reply.choices[0]
    content = [] if choice.logprobs is None else choice.logprobs.content
    if any(one.token_id not in (None, drawn) for one, drawn in zip(content, choice.token_ids, strict=False)):
        raise BadAnswer("the answer's log-probabilities are of other tokens than it holds")
    return EngineAnswer(
        token_ids=choice.token_ids,
        logprobs=[one.logprob for one in content],
        finish_reason=choice.finish_reason,
        versions=choice.weight_versions,
        prompt_tokens=None if reply.usage is None else reply.usage.prompt_tokens,
    )


def check(answer: EngineAnswer, request: MessageRequest, vocabulary: int, version: str | None) -> Sampled:
    """Return the answer as a sampled message.

    Args:
        vocabulary: number of ids that the policy knows.
        version: the weights that every token has to come from; None where the engine cannot have others.

    Raises Aborted for a message that the engine gave up, WrongWeights, and BadAnswer for every other fault.
    """
    if answer.finish_reason not in ("stop", "length"):
        raise Aborted(f"the message ended with {answer.finish_reason!r} after {len(answer.token_ids)} tokens")
    if version is not None:
        _check_versions(answer, version)
    ids, asked = answer.token_ids, len(request.token_ids)
    if answer.prompt_tokens not in (None, asked):
        raise BadAnswer(f"{asked} tokens were sent and {answer.prompt_tokens} read")
    if not 0 < len(ids) <= request.max_tokens:
        raise BadAnswer(f"the message has {len(ids)} tokens, {request.max_tokens} at most were asked for")
    if len(answer.logprobs) != len(ids):
        raise BadAnswer(f"the message has {len(ids)} tokens and {len(answer.logprobs)} log-probabilities")
    if outside := [one for one in ids if not 0 <= one < vocabulary]:
        raise BadAnswer(f"the token {outside[0]} is not among the policy's {vocabulary}")
    for place, logprob in enumerate(answer.logprobs):
        if not math.isfinite(logprob) or logprob > ROUNDING:
            raise BadAnswer(f"the log-probability of token {place} is {logprob}")
    stops = [place for place, one in enumerate(ids) if one in request.stop_ids]
    if stops and stops[0] < len(ids) - 1:
        raise BadAnswer(f"the message goes on after its stop id at token {stops[0]}")
    if not stops and len(ids) < request.max_tokens:
        raise BadAnswer(
            f"the message has {len(ids)} tokens of {request.max_tokens} and no stop id: the server's --max-model-len "
            "is too small, or it stops at other ids"
        )
    reason = FinishReason.STOP if stops else FinishReason.LENGTH
    return Sampled(ids, [min(one, 0.0) for one in answer.logprobs], asked, reason)


def _check_versions(answer: EngineAnswer, version: str) -> None:
    """Raise WrongWeights where a token is not known to come from ``version``."""
    spans = answer.versions
    if not spans:
        raise WrongWeights("the answer does not say which weights sampled it")
    others = [span.version for span in spans if span.version != version]
    if others:
        raise WrongWeights(f"weights {others[0]!r} sampled it and {version!r} was wanted")
    place = 0
    for span in spans:
        if span.start != place or span.end < span.start:
            raise WrongWeights("the answer's spans of weights leave out tokens")
        place = span.end
    if place != len(answer.token_ids):
        raise WrongWeights(f"the answer says which weights sampled {place} of its {len(answer.token_ids)} tokens")


@dataclass(slots=True)
class Conversation:
    """One episode: its driver, and all ids that it has so far, which the engine is sent with every message."""

    driver: EpisodeDriver
    ids: list[int]
    max_new_tokens: int
    group: str
    messages: int = 0
    stop_ids: tuple[int, ...] = field(default=())

    @classmethod
    def open(cls, driver: EpisodeDriver) -> Conversation | None:
        """Open the episode; None when it is over at once."""
        prompt = driver.observe()
        if prompt is None:
            return None
        group = hashlib.sha256(",".join(map(str, prompt.ids)).encode()).hexdigest()[:16]
        conversation = cls(driver, [], 0, group, stop_ids=tuple(sorted(driver.stop_ids)))
        conversation._observe(prompt)
        return conversation

    def request(self, temperature: float) -> MessageRequest:
        """Return the request for the next message."""
        return MessageRequest(
            token_ids=list(self.ids),
            max_tokens=self.max_new_tokens,
            temperature=temperature,
            seed=derive_seed(self.driver.seed, "message", self.messages),
            stop_ids=self.stop_ids,
            group=self.group,
            key=f"{self.driver.seed:x}-{self.messages}",
        )

    def take(self, message: Sampled) -> bool:
        """Hand the message to the driver; return False when it ended the episode."""
        self.ids += message.ids
        self.messages += 1
        self.driver.act(message)
        prompt = self.driver.observe()
        if prompt is None:
            return False
        self._observe(prompt)
        return True

    def _observe(self, prompt: TokenPrompt) -> None:
        if not prompt.ids or prompt.max_new_tokens < 1:
            raise ValueError("a prompt needs at least one id and room for one sampled token")
        self.ids += prompt.ids
        self.max_new_tokens = prompt.max_new_tokens


class Scores(NamedTuple):
    """Log-probabilities in nats of a message's ids, and of the likeliest id at each of its places."""

    chosen: tuple[float, ...]
    best: tuple[float, ...]


def canary_prompt(vocabulary: int) -> list[int]:
    """Return the ids that a canary answers to."""
    return [(7919 * place + 31) % vocabulary for place in range(CANARY_PROMPT)]


def canaries(vocabulary: int, key: str, *, first: bool) -> tuple[MessageRequest, ...]:
    """Return fixed messages that show whether an engine holds the right weights.

    One is drawn at a temperature: its ids are less likely ones, which other weights move more, and it shows an engine
    that reports log-probabilities before the temperature. ``first``: nothing was compared since the engine's start.
    Then a greedy message is added, and both are long enough to be decoded from the engine's own cache. Later ones are
    short: what a load leaves stale stays stale, and is farther off after every step.
    """
    asked = [(CANARY_TEMPERATURE, CANARY_AGAIN)]
    if first:
        asked = [(0.0, CANARY_TOKENS), (CANARY_TEMPERATURE, CANARY_TOKENS)]
    return tuple(
        MessageRequest(canary_prompt(vocabulary), tokens, temperature, 0, (), "canary", f"canary-{key}-{temperature:g}")
        for temperature, tokens in asked
    )


def largest_difference(message: Sampled, scores: Scores, temperature: float) -> float:
    """Return by how many nats an engine's canary differs from the trainer's ``scores`` of its ids, at most.

    A greedy message also differs by what its ids are less likely than the likeliest ones: ties may go either way.
    """
    said = message.logprobs[: len(scores.chosen)]
    differences = [abs(engine - own) for engine, own in zip(said, scores.chosen, strict=True)]
    if temperature == 0:
        differences += [best - own for best, own in zip(scores.best, scores.chosen, strict=True)]
    # max() would pass over what is not a number, which a policy that has diverged gives.
    return max(differences) if all(map(math.isfinite, differences)) else math.inf
