"""Play episodes, token in, token out: what was sampled, what the environment answered, the outcome, why it stopped.

Which sampler writes the messages is the caller's choice (``training.rollout.sampling``). An episode may also be a
task's reference, written in the policy's own format: its ids take the path of sampled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from pydantic import Field

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    Episode,
    InputError,
    MalformedCall,
    Observation,
    Outcome,
    Record,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.turns import GivenTurn, open_for_agent
from memory.jsonl import derive_seed
from memory.records import Step, StopReason, Task, TrajectoryTurn
from training.rendering.base import ASKS_BACK, Dialogue, EndTurn, Rendering, Unwritable
from training.rollout.policy import Policy
from training.rollout.sampling import EpisodeDriver, Sampled, Sampler, TokenPrompt
from training.settings import TrainingSettings

SYNTHESISED = frozenset({"seed", "evolved"})
"""Origins of tasks that no person wrote."""

LEARNABLE = SYNTHESISED | {"given", "official"}
"""Origins of tasks whose references may be learnt from: verified ones, and a benchmark's own of its training split."""

TAG = "This conversation was made up for training."
"""The note in the system message of a synthesised task, where the settings ask for it (ours)."""


class EpisodeLimits(Record):
    """The limits of an episode.

    ``max_new_tokens`` of one message: a longer one is a malformed call, counted and answered. ``max_tokens`` of the
    episode, prompt and observations included, ``max_actions`` of one user turn and ``max_steps``, messages of the
    episode (None: no limit), end the episode where they are reached; ``max_actions`` also in the middle of a message
    with several actions. Of a task with played turns the history counts for ``max_tokens`` alone: the others limit the
    agent's own messages. After the last allowed action the policy may still end its turn, as in the official rule. The
    last of ``max_steps`` messages is executed, and the outcome is that of what was done by then: a turn that was not
    reached fails.
    ``batch`` is the number of episodes that are decoded together; it changes no result, only memory and speed.
    ``strict_messages``: a message with an action that cannot be run is refused whole (``refused_whole``).
    ``tag_synthesised``: a synthesised task has ``TAG`` in its system message.
    """

    max_new_tokens: int = Field(48, ge=1)
    max_tokens: int = Field(512, ge=2)
    max_actions: int = Field(8, ge=1)
    max_steps: int | None = Field(None, ge=1)
    batch: int = Field(128, ge=1)
    strict_messages: bool = False
    tag_synthesised: bool = False


def limits_of(settings: TrainingSettings) -> EpisodeLimits:
    """Return the limits of a round's episodes."""
    return EpisodeLimits(
        max_new_tokens=settings.max_new_tokens,
        max_tokens=settings.max_tokens,
        max_actions=settings.max_actions,
        strict_messages=settings.strict_messages,
        max_steps=settings.max_episode_steps,
        tag_synthesised=settings.tag_synthesised,
    )


class EpisodeRequest(Record):
    """One episode to play: equal requests to an equal policy give equal episodes."""

    task: Task
    seed: int

    @classmethod
    def of_rollout(cls, task: Task, run_seed: int, step: int, sample: int) -> EpisodeRequest:
        """Return the episode of a training step, seeded by hash: neither order nor batch composition matters."""
        return cls(task=task, seed=derive_seed(run_seed, "rollout", task.id, step, sample))


class EpisodeResult(Record):
    """One episode that was played.

    ``prompt_ids`` is everything up to the agent's first message, turns that the reference played included.
    ``completion_ids`` is everything after it; ``logprobs`` (nats, of logits divided by the sampling
    temperature) and ``mask`` go with it. Where ``mask`` is 0 the token is the environment's and its log-probability is
    0. ``outcome`` is None exactly when ``infrastructure_error`` is set; the completion then ends where the environment
    failed, and is empty when it failed before the first action. It is empty, too, where the history leaves no room
    under ``max_tokens``: that is a failure, and the prompt is cut to that room. The prompt is never empty.
    """

    task: Task
    turns: tuple[TrajectoryTurn, ...]
    outcome: Outcome | None
    infrastructure_error: str | None
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]

    @property
    def sampled_tokens(self) -> int:
        """Return the number of tokens that the policy sampled."""
        return sum(self.mask)


@dataclass(frozen=True)
class TokenRow:
    """One episode as the trainer takes it: ids after the prompt, their log-probabilities (nats) and their mask.

    ``mask`` is 1 on the ids that the policy writes.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]

    @property
    def length(self) -> int:
        """Return the number of ids, prompt included."""
        return len(self.prompt_ids) + len(self.completion_ids)

    def cut_to(self, most: int | None) -> TokenRow:
        """Return the row with the first ``most`` ids after the prompt alone; None: the whole row.

        Ids that are left out would change no loss of the others: a causal model does not see them.
        """
        if most is None or len(self.completion_ids) <= most:
            return self
        return replace(
            self,
            completion_ids=self.completion_ids[:most],
            logprobs=self.logprobs[:most],
            mask=self.mask[:most],
        )


def run_episodes(
    policy: Policy,
    sampler: Sampler,
    environment: Environment,
    requests: Sequence[EpisodeRequest],
    limits: EpisodeLimits,
    temperature: float,
    over: Callable[[bool], None] = lambda success: None,
) -> tuple[EpisodeResult, ...]:
    """Play every request and return the results in their order; ``temperature`` 0 is greedy.

    ``sampler`` samples from ``policy``, whose rendering the episodes use. ``over`` is called when an episode ends, with
    whether it succeeded; it is closed then. An EnvironmentFault becomes the ``infrastructure_error`` of its own
    episode. Raises InputError for a task that the environment cannot open, for one whose first user turn leaves no room
    under ``max_tokens``, for a ``max_tokens`` beyond the model's last position.
    """
    positions = policy.positions
    if positions is not None and limits.max_tokens > positions:
        raise InputError(
            f"max_tokens is {limits.max_tokens} and {policy.path} has {positions} positions: lower max_tokens"
        )
    rollouts = [EpisodeRollout(policy.rendering, environment, request, limits, over) for request in requests]
    try:
        sampler.run(rollouts, temperature=temperature, concurrency=limits.batch)
    finally:
        for rollout in rollouts:
            rollout.close()
    return tuple(rollout.result() for rollout in rollouts)


def play_references(
    policy: Policy, environment: Environment, tasks: Sequence[Task], limits: EpisodeLimits
) -> tuple[EpisodeResult, ...]:
    """Play the references of ``tasks`` as episodes, one message per call, under the same limits as a rollout.

    Played turns are in the prompt there, too: the episode has the reference of the agent's turns alone.

    The environment executes what the policy's format reads from the ids, so that a reference which the format or the
    limits cannot hold shows in the outcome. ``mask`` is 1 on the ids that the policy would have to sample;
    log-probabilities are 0. Raises InputError for a format that cannot be written, and like ``run_episodes``.
    """
    results = []
    for task in tasks:
        rollout = EpisodeRollout(policy.rendering, environment, EpisodeRequest(task=task, seed=0), limits)
        try:
            rollout.play_reference()
        finally:
            rollout.close()
        results.append(rollout.result())
    return tuple(results)


def in_order(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> Iterator[ToolCall]:
    """Yield the calls with every list of documented choices in the order of the documentation.

    Explorers draw such lists in any order; references in one order are easier to learn from.
    """
    choices = {(tool.name, parameter.name): parameter.choices for tool in tools for parameter in tool.parameters}
    for call in calls:
        arguments = dict(call.arguments)
        for name, value in arguments.items():
            documented = choices.get((call.name, name), ())
            if isinstance(value, list) and all(item in documented for item in value):
                arguments[name] = sorted(value, key=documented.index)
        yield call.model_copy(update={"arguments": arguments})


def token_row(result: EpisodeResult, filler: int) -> TokenRow:
    """Return the tokens of one result; after an infrastructure error all of them are masked."""
    prompt_ids = list(result.prompt_ids)
    if not result.completion_ids:
        # TRL needs at least one token per row.
        return TokenRow(prompt_ids, [filler], [0.0], [0])
    # Without a reward a rollout has no advantage and is no part of the baseline; the mask keeps the KL term off it.
    mask = [0] * len(result.mask) if result.infrastructure_error is not None else list(result.mask)
    return TokenRow(prompt_ids, list(result.completion_ids), list(result.logprobs), mask)


def refused_whole(actions: Sequence[Action], offered: Collection[str]) -> Sequence[Action]:
    """Return the actions of a message, each as a malformed call if one of them cannot be run.

    That is one that is malformed, or that calls a tool which is not on offer. SEAL's released code refuses such
    messages with all of their calls; officially each call is answered for itself, a withheld tool's too.
    """
    unknown = [one.name for one in actions if isinstance(one, ToolCall) and one.name not in offered]
    if not unknown and not any(isinstance(one, MalformedCall) for one in actions):
        return actions
    why = f"the tool {unknown[0][:100]!r} is not on offer" if unknown else "another call of the message is malformed"
    return tuple(
        one
        if isinstance(one, MalformedCall)
        else MalformedCall(text=one.model_dump_json(), reason=f"{why}: no call of the message was run")
        for one in actions
    )


def _closing(calls: Sequence[object]) -> EndTurn:
    return EndTurn() if calls else EndTurn(text=ASKS_BACK)


@dataclass(slots=True)
class _Turn:
    """The user turn in progress."""

    opened: UserTurn
    steps: list[Step]
    ended: bool = False
    stop_reason: StopReason | None = None


class EpisodeRollout(EpisodeDriver):
    """One episode: opened by the first ``observe``, closed when it is over.

    ``observe`` and ``act`` raise what ``run_episodes`` raises for one task. Close it where it may not be over.
    """

    def __init__(
        self,
        rendering: Rendering,
        environment: Environment,
        request: EpisodeRequest,
        limits: EpisodeLimits,
        over: Callable[[bool], None] = lambda success: None,
    ) -> None:
        self._over = over
        self.seed = request.seed
        self._task = request.task
        self._environment = environment
        self._limits = limits
        self._dialogue: Dialogue = rendering.begin()
        self.stop_ids = self._dialogue.stop_ids
        self._course = self._play()
        self._begun = False
        self._next: TokenPrompt | None = None
        self._messages = 0
        self._turns: list[_Turn] = []
        self._prompt: list[int] = []
        self._completion: list[int] = []
        self._logprobs: list[float] = []
        self._mask: list[int] = []
        self._outcome: Outcome | None = None
        self._fault: str | None = None

    def observe(self) -> TokenPrompt | None:
        """Return the first prompt, or the answer to the last message; None when the episode is over."""
        if not self._begun:
            self._begun = True
            self._next = next(self._course, None)
        return self._next

    def act(self, message: Sampled) -> None:
        """Execute one message."""
        so_far = len(self._prompt) + len(self._completion)
        if message.context != so_far:
            raise AssertionError(f"the sampler read {message.context} tokens, the episode has {so_far}")
        self._append(message.ids, message.logprobs, 1)
        self._messages += 1
        try:
            self._next = self._course.send(message)
        except StopIteration:
            self._next = None

    def close(self) -> None:
        """Release the episode. Idempotent."""
        self._course.close()

    def play_reference(self) -> None:
        """Write the reference, whatever is answered; a message longer than its room is cut off like a sampled one."""
        names = sorted({call.name for calls in self._task.reference for call in calls})
        tools = self._environment.tools(names)
        self.observe()
        for calls in self._task.reference[self._task.played :]:
            actions: list[ToolCall | EndTurn] = [*in_order(calls, tools), _closing(calls)]
            for action in actions:
                prompt = self.observe()
                if prompt is None:
                    return
                try:
                    written = self._dialogue.demonstrate(action)
                except Unwritable:  # a reference that the format cannot hold fails, and is left out like others
                    return
                ids = written[: prompt.max_new_tokens]
                self.act(Sampled(ids, [0.0] * len(ids), len(self._prompt) + len(self._completion)))

    def result(self) -> EpisodeResult:
        """Return what happened."""
        return EpisodeResult(
            task=self._task,
            turns=tuple(
                TrajectoryTurn(
                    text=turn.opened.text,
                    guidelines=turn.opened.guidelines,
                    steps=tuple(turn.steps),
                    ended=turn.ended,
                    stop_reason=turn.stop_reason,
                )
                for turn in self._turns
            ),
            outcome=self._outcome,
            infrastructure_error=self._fault,
            prompt_ids=tuple(self._prompt),
            completion_ids=tuple(self._completion),
            logprobs=tuple(self._logprobs),
            mask=tuple(self._mask),
        )

    def _play(self) -> Generator[TokenPrompt, Sampled, None]:
        """Yield what the policy reads, get what it writes, and note the outcome or the environment's fault."""
        try:
            # Closed at once when it is over: episodes that wait to be opened may need what this one holds.
            with closing(self._environment.open(self._task)) as episode:
                self._outcome = yield from self._in(episode)
        except EnvironmentFault as fault:
            self._outcome, self._fault = None, f"{type(fault).__name__}: {fault}"
            if self._turns:
                self._turns[-1].stop_reason = StopReason.FAULT
            if not self._prompt:
                self._prompt = self._first(UserTurn(index=0, text=self._task.turns[0], tools=self._task.tools))
        self._over(self._outcome is not None and self._outcome.success)

    def _in(self, episode: Episode) -> Generator[TokenPrompt, Sampled, Outcome]:
        """Play the turns that the reference plays, then each message, until there is none any more."""
        played, turn = open_for_agent(episode, self._task)
        self._prompt = suffix = self._first(played[0].opened if played else turn)
        if self._room(0) < 1:
            raise InputError(
                f"the prompt of task {self._task.id} takes {len(self._prompt)} tokens and leaves none to sample: raise "
                f"max_tokens ({self._limits.max_tokens})"
            )
        for place, one in enumerate(played):
            self._give(one, played[place + 1].opened if place + 1 < len(played) else turn)
        self._turns.append(_Turn(turn, []))
        if self._room(0) < 1:
            return self._without_room(episode)
        while True:
            message = yield TokenPrompt(suffix, self._room(0))
            read = self._dialogue.parse(message.ids)
            answer: Sequence[Observation] | UserTurn | None
            if isinstance(read, EndTurn):
                self._turns[-1].ended, self._turns[-1].stop_reason = True, StopReason.END_OF_TURN
                answer = episode.end_turn()
            else:
                answer = self._execute(episode, read)
            if answer is None:
                return episode.outcome()
            suffix = self._rendered(answer)
            if (limit := self._limit_reached(message, suffix)) is not None:
                self._turns[-1].stop_reason = limit
                return episode.outcome()
            self._append(suffix, [0.0] * len(suffix), 0)

    def _first(self, turn: UserTurn) -> list[int]:
        if self._limits.tag_synthesised and self._task.origin in SYNTHESISED:
            turn = turn.model_copy(update={"note": "\n\n".join(filter(None, (turn.note, TAG)))})
        return self._dialogue.first(turn, self._environment.tools(turn.tools))

    def _give(self, played: GivenTurn, following: UserTurn) -> None:
        """Append a turn that the reference played, and the user turn after it, to the prompt."""
        steps = [Step(action=call, observation=observation) for call, observation in played.steps]
        self._turns.append(_Turn(played.opened, steps, ended=True, stop_reason=StopReason.PLAYED))
        for call, observation in played.steps:
            self._prompt += self._written(call)
            self._prompt += self._dialogue.observe([observation])
        self._prompt += self._written(_closing(played.steps))
        self._prompt += self._dialogue.next_turn(following, self._environment.tools(following.tools))

    def _written(self, action: ToolCall | EndTurn) -> list[int]:
        """Return a message of the history; the dialogue reads it, as it does every message before an answer."""
        try:
            ids = self._dialogue.demonstrate(action)
            read = self._dialogue.parse(ids)
            if isinstance(read, EndTurn) == isinstance(action, EndTurn) and (
                isinstance(read, EndTurn) or len(read) == 1
            ):
                return ids
        except Unwritable:
            pass
        raise InputError(
            f"task {self._task.id}: the policy's format cannot hold a call of a turn that its reference plays: "
            "leave the task out"
        )

    def _without_room(self, episode: Episode) -> Outcome:
        """End an episode whose history leaves no room for a message: a failure, whatever the outcome of no action."""
        self._turns[-1].stop_reason = StopReason.EPISODE_TOKENS
        # Nothing is learnt from it, and a trainer must not compute on more tokens than an episode may have.
        del self._prompt[self._limits.max_tokens - 1 :]
        outcome = episode.outcome()
        lost = {"success": False, "failure": StopReason.EPISODE_TOKENS.value, "failed_turn": self._task.played}
        return outcome.model_copy(update=lost) if outcome.success else outcome

    def _rendered(self, answer: Sequence[Observation] | UserTurn) -> list[int]:
        """Return the ids of observations, or of a user turn, which begins here."""
        if not isinstance(answer, UserTurn):
            return self._dialogue.observe(answer)
        self._turns.append(_Turn(answer, []))
        return self._dialogue.next_turn(answer, self._environment.tools(answer.tools))

    def _execute(self, episode: Episode, actions: Sequence[Action]) -> Sequence[Observation] | None:
        """Execute the message's actions in order; None when the turn's actions are used up before the last one."""
        turn = self._turns[-1]
        observations = []
        if self._limits.strict_messages:
            actions = refused_whole(actions, turn.opened.tools)
        for action in actions:
            if len(turn.steps) >= self._limits.max_actions:
                turn.stop_reason = StopReason.ACTIONS
                return None
            observation = episode.step(action)
            turn.steps.append(Step(action=action, observation=observation))
            observations.append(observation)
        return observations

    def _limit_reached(self, message: Sampled, suffix: Sequence[int]) -> StopReason | None:
        """Return the limit that leaves no further message after ``message`` and its answer, if any."""
        if self._limits.max_steps is not None and self._messages >= self._limits.max_steps:
            return StopReason.EPISODE_STEPS
        if self._room(len(suffix)) >= 1:
            return None
        cut = message.ids[-1] not in self.stop_ids and len(message.ids) == self._limits.max_new_tokens
        return StopReason.MESSAGE_TOKENS if cut else StopReason.EPISODE_TOKENS

    def _room(self, suffix: int) -> int:
        """Return the tokens that the next message may have after ``suffix`` more."""
        used = len(self._prompt) + len(self._completion) + suffix
        return min(self._limits.max_new_tokens, self._limits.max_tokens - used)

    def _append(self, ids: list[int], logprobs: list[float], mask: int) -> None:
        self._completion += ids
        self._logprobs += logprobs
        self._mask += [mask] * len(ids)
