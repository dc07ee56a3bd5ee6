"""Many episodes at once, token in, token out: what was sampled, what the environment did with it, and the verdict.

An episode may also be a task's reference, said in the policy's own format: its ids go the way of sampled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from environments.base import (
    Action,
    Environment,
    EnvironmentFault,
    Episode,
    InputError,
    Outcome,
    Record,
    ToolCall,
    UserTurn,
    at_once,
)
from memory.records import Step, Task, TrajectoryTurn
from training.embedded.demonstrations import in_order
from training.rendering.base import Dialogue, EndTurn, Prompt, Sampled
from training.rollout.policy import Policy


class EpisodeLimits(Record):
    """Where an episode is cut off.

    ``max_new_tokens`` of one message: a longer one is a malformed call, counted and answered. ``max_tokens`` of the
    episode, prompt and observations included, and ``max_actions`` of one user turn end the episode where they are
    reached, in the middle of a message with several actions too. After the last allowed action the policy may still
    end its turn, as in the official rule. ``batch`` is how many episodes are decoded together; it changes no result,
    only memory and speed.
    """

    max_new_tokens: int = Field(48, ge=1)
    max_tokens: int = Field(512, ge=2)
    max_actions: int = Field(8, ge=1)
    batch: int = Field(128, ge=1)


class EpisodeRequest(Record):
    """One attempt to make: equal requests to an equal policy give equal episodes."""

    task: Task
    seed: int


class EpisodeResult(Record):
    """One attempt made.

    ``completion_ids`` is everything after the first prompt; ``logprobs`` (nats, of logits divided by the sampling
    temperature) and ``mask`` go with it, and where ``mask`` is 0 the token is the environment's and its log-probability
    is 0. ``outcome`` is None exactly when ``infrastructure_error`` is set; the completion then ends where the
    environment failed, and is empty when it failed before the first action. The prompt is never empty.

    ``turn_begins`` are the places in the completion at which the turns begin: of each turn what the policy says in it
    and what it is answered, of the later ones first the user's words.
    """

    task: Task
    turns: tuple[TrajectoryTurn, ...]
    outcome: Outcome | None
    infrastructure_error: str | None
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    turn_begins: tuple[int, ...]

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)


def run_episodes(
    policy: Policy,
    environment: Environment,
    requests: Sequence[EpisodeRequest],
    limits: EpisodeLimits,
    temperature: float,
    over: Callable[[bool], None] = lambda success: None,
) -> tuple[EpisodeResult, ...]:
    """Attempt every request and return the results in their order; ``temperature`` 0 is greedy.

    ``over`` is told of each episode that is over whether it succeeded, in the order in which they end.

    No more episodes are open at a time than the environment can have, and each is closed when it is over. An
    EnvironmentFault becomes the ``infrastructure_error`` of its own episode. Raises InputError for a task that the
    environment cannot open, for one whose prompt leaves no room under ``max_tokens``, and for a ``max_tokens`` beyond
    the model's last position.
    """
    from training.rollout.in_process import Sampler

    positions = policy.positions
    if positions is not None and limits.max_tokens > positions:
        raise InputError(
            f"max_tokens is {limits.max_tokens} and {policy.path} has {positions} positions: lower max_tokens"
        )
    attempts = [_Attempt(policy, environment, request, limits, over) for request in requests]
    try:
        Sampler(policy.model, temperature, rows=_rows(environment, limits)).run(attempts)
    finally:
        for attempt in attempts:
            attempt.close()
    return tuple(attempt.result() for attempt in attempts)


def play_references(
    policy: Policy, environment: Environment, tasks: Sequence[Task], limits: EpisodeLimits
) -> tuple[EpisodeResult, ...]:
    """The references of ``tasks`` as episodes, each call a message of its own, under the same limits as a rollout.

    What is executed is what the policy's format makes of the ids, so that a reference which the format or the limits
    cannot hold shows in the outcome. ``mask`` is 1 on the ids that the policy would have to sample; log-probabilities
    are 0, because nothing was. An EnvironmentFault becomes the ``infrastructure_error`` of its own episode. Raises
    InputError for a format that cannot be written, and like ``run_episodes``.
    """
    results = []
    for task in tasks:
        attempt = _Attempt(policy, environment, EpisodeRequest(task=task, seed=0), limits)
        try:
            attempt.recite()
        finally:
            attempt.close()
        results.append(attempt.result())
    return tuple(results)


def _rows(environment: Environment, limits: EpisodeLimits) -> int:
    """How many episodes are played at a time."""
    most = at_once(environment)
    return limits.batch if most is None else min(limits.batch, most)


@dataclass(slots=True)
class _Turn:
    """The user turn in progress."""

    opened: UserTurn
    steps: list[Step]
    begins: int
    ended: bool = False


class _Attempt:
    """One episode as a sampler sees it (training.rendering.base.Speaker)."""

    def __init__(
        self,
        policy: Policy,
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
        self._dialogue: Dialogue = policy.rendering.begin()
        self.stop_ids = self._dialogue.stop_ids
        self._episode: Episode | None = None
        self._turns: list[_Turn] = []
        self._prompt: list[int] = []
        self._completion: list[int] = []
        self._logprobs: list[float] = []
        self._mask: list[int] = []
        self._outcome: Outcome | None = None
        self._fault: str | None = None

    def begin(self) -> Prompt | None:
        """Open the episode and render its first prompt."""
        try:
            self._episode = self._environment.open(self._task)
            turn = self._episode.start()
        except EnvironmentFault as fault:
            self._fail(fault)
            turn = UserTurn(index=0, text=self._task.turns[0], tools=self._task.tools)
        self._prompt = self._dialogue.first(turn, self._environment.tools(turn.tools))
        if self._fault is not None:
            return None
        self._turns.append(_Turn(turn, [], begins=0))
        room = self._room(0)
        if room < 1:
            raise InputError(
                f"the prompt of task {self._task.id} takes {len(self._prompt)} tokens and leaves none to sample: raise "
                f"max_tokens ({self._limits.max_tokens})"
            )
        return Prompt(self._prompt, room)

    def reply(self, sampled: Sampled) -> Prompt | None:
        """Act on one sampled message; the environment's answer, or None when the episode is over."""
        so_far = len(self._prompt) + len(self._completion)
        if sampled.context != so_far:
            raise AssertionError(f"the sampler read {sampled.context} tokens, the episode has {so_far}")
        self._append(sampled.ids, sampled.logprobs, 1)
        said = self._dialogue.parse(sampled.ids)
        try:
            suffix = self._end_turn() if isinstance(said, EndTurn) else self._act(said)
            if suffix is None or self._room(len(suffix)) < 1:
                self._outcome = self._live().outcome()
                self.close()  # others wait for what it holds
                self._over(self._outcome.success)
                return None
        except EnvironmentFault as fault:
            self._fail(fault)
            return None
        self._append(suffix, [0.0] * len(suffix), 0)
        return Prompt(suffix, self._room(0))

    def recite(self) -> None:
        """Say the reference, whatever is answered; a message that is longer than its room is cut off like any."""
        names = sorted({call.name for calls in self._task.reference for call in calls})
        tools = self._environment.tools(names)
        prompt = self.begin()
        for calls in self._task.reference:
            actions: list[ToolCall | EndTurn] = [*in_order(calls, tools), EndTurn()]
            for action in actions:
                if prompt is None:
                    return
                ids = self._dialogue.demonstrate(action)[: prompt.max_new_tokens]
                context = len(self._prompt) + len(self._completion)
                prompt = self.reply(Sampled(ids, [0.0] * len(ids), context))

    def result(self) -> EpisodeResult:
        """What happened."""
        return EpisodeResult(
            task=self._task,
            turns=tuple(
                TrajectoryTurn(
                    text=turn.opened.text,
                    guidelines=turn.opened.guidelines,
                    steps=tuple(turn.steps),
                    ended=turn.ended,
                )
                for turn in self._turns
            ),
            outcome=self._outcome,
            infrastructure_error=self._fault,
            prompt_ids=tuple(self._prompt),
            completion_ids=tuple(self._completion),
            logprobs=tuple(self._logprobs),
            mask=tuple(self._mask),
            turn_begins=tuple(turn.begins for turn in self._turns),
        )

    def close(self) -> None:
        """Release the episode."""
        if self._episode is not None:
            self._episode.close()

    def _act(self, actions: Sequence[Action]) -> list[int] | None:
        """Execute the message's actions in order; None when the turn's actions are used up before the last one."""
        turn = self._turns[-1]
        observations = []
        for action in actions:
            if len(turn.steps) >= self._limits.max_actions:
                return None
            observation = self._live().step(action)
            turn.steps.append(Step(action=action, observation=observation))
            observations.append(observation)
        return self._dialogue.observe(observations)

    def _end_turn(self) -> list[int] | None:
        self._turns[-1].ended = True
        following: UserTurn | None = self._live().end_turn()
        if following is None:
            return None
        self._turns.append(_Turn(following, [], begins=len(self._completion)))
        return self._dialogue.next_turn(following, self._environment.tools(following.tools))

    def _room(self, suffix: int) -> int:
        """Tokens that the next message may take after ``suffix`` more."""
        used = len(self._prompt) + len(self._completion) + suffix
        return min(self._limits.max_new_tokens, self._limits.max_tokens - used)

    def _append(self, ids: list[int], logprobs: list[float], mask: int) -> None:
        self._completion += ids
        self._logprobs += logprobs
        self._mask += [mask] * len(ids)

    def _fail(self, fault: EnvironmentFault) -> None:
        self._fault = f"{type(fault).__name__}: {fault}"
        self.close()
        self._over(False)

    def _live(self) -> Episode:
        if self._episode is None:
            raise RuntimeError("the attempt has not begun")
        return self._episode
