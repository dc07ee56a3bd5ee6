"""verl's agent loop on this project's episodes: ids in, ids out, user turns included.

Runs in verl's processes, which import this project beside verl. verl makes an agent loop for every rollout; what they
share is opened once in a process. Episodes of a process take turns outside of the model's server: renderings and
environments need not bear several threads, and ``rollout.agent.num_workers`` processes play at a time.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from environments.base import Environment, EnvironmentFault, recorded
from memory.jsonl import derive_seed
from memory.records import Task
from memory.run import RunDirectory
from memory.tasks import load_tasks
from training.elsewhere.rollouts import RolloutWriter
from training.grpo.record import RoundSettings
from training.rendering.base import Rendering
from training.rollout.episodes import EpisodeRequest, EpisodeRollout, limits_of
from training.rollout.policy import load_rendering
from training.rollout.sampling import EngineFailure, Sampled

_ONE_AT_A_TIME = ThreadPoolExecutor(1)
_FIRST = {"min_global_steps"}
"""What a server says of its weights that is kept of the first message; of the others, the last counts."""


class _Opened(NamedTuple):
    """What the agent loops of a process share."""

    settings: RoundSettings
    environment: Environment
    tasks: dict[str, Task]
    rendering: Rendering
    recorder: RolloutWriter


@cache
def _opened(root: str, iteration: int, policy: str) -> _Opened:
    run = RunDirectory.open(Path(root))
    settings = run.settings(RoundSettings)
    _, _, rendering = load_rendering(policy, settings.policy)
    return _Opened(
        settings,
        recorded(settings.environment.open()),
        {task.id: task for task in load_tasks(run)},
        rendering,
        RolloutWriter(run.iteration(iteration).played_elsewhere, settings.training),
    )


class CoEvolveAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is not installed where types are checked
    """One rollout of the task of a row.

    ``run``, ``iteration`` and ``policy`` (whose format is used) come from the file that the job names.
    """

    def __init__(self, *args: Any, run: str, iteration: int, policy: str, **kwargs: Any) -> None:  # noqa: ANN401
        # The rendering makes the tokens: verl's own builder is not used, and that of a family refuses some policies.
        super().__init__(*args, **{**kwargs, "hf_model_type": None})
        self._opened = _opened(run, iteration, policy)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:  # noqa: ANN401
        """Play the row's task and record it.

        Raises EnvironmentFault for a rollout without an outcome or a sampled token: verl then trains on the rest of the
        group. A reward of 0 would train on the fault.
        """
        opened, loop = self._opened, asyncio.get_running_loop()
        draw, task = int(kwargs["extra_info"]["index"]), opened.tasks[kwargs["extra_info"]["task_id"]]
        request_id, seconds, versions = uuid4().hex, 0.0, dict[str, Any]()
        seed = derive_seed(opened.settings.seed, "rollout", task.id, draw, request_id)
        rollout = EpisodeRollout(
            opened.rendering,
            opened.environment,
            EpisodeRequest(task=task, seed=seed),
            limits_of(opened.settings.training),
        )
        ids: list[int] = []
        try:
            while (prompt := await loop.run_in_executor(_ONE_AT_A_TIME, rollout.observe)) is not None:
                ids += prompt.ids
                began = perf_counter()
                limits = {"max_tokens": prompt.max_new_tokens, "stop_token_ids": sorted(rollout.stop_ids)}
                said = await self.server_manager.generate(
                    request_id=request_id, prompt_ids=list(ids), sampling_params={**sampling_params, **limits}
                )
                seconds += perf_counter() - began
                versions = {**said.extra_fields, **{name: versions[name] for name in _FIRST & versions.keys()}}
                message = _sampled(list(said.token_ids), said.log_probs, len(ids), prompt.max_new_tokens, rollout)
                await loop.run_in_executor(_ONE_AT_A_TIME, rollout.act, message)
                ids += message.ids
        finally:
            rollout.close()
        result = rollout.result()
        kept = opened.recorder.keep(
            draw, task, result.turns, result.outcome, result.infrastructure_error, result.sampled_tokens
        )
        if result.infrastructure_error is not None or not result.sampled_tokens:
            raise EnvironmentFault(result.infrastructure_error or "the history leaves no room for a message")
        return AgentLoopOutput(
            prompt_ids=list(result.prompt_ids),
            response_ids=list(result.completion_ids),
            response_mask=list(result.mask),
            response_logprobs=list(result.logprobs),
            reward_score=kept.reward,
            num_turns=sum(len(turn.steps) + 1 for turn in result.turns),
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields={**versions, "turn_scores": [], "tool_rewards": [], "reward_extra_info": {}},
        )


def _sampled(ids: list[int], logprobs: list[float] | None, context: int, most: int, rollout: EpisodeRollout) -> Sampled:
    """Return a server's message. Raises EngineFailure for one that is cut short, or has no log-probabilities."""
    if not (ids and ids[-1] in rollout.stop_ids) and len(ids) != most:
        raise EngineFailure(f"the server gave up a message after {len(ids)} of {most} tokens")
    if logprobs is None or len(logprobs) != len(ids):
        raise EngineFailure("the server gave no log-probabilities: leave rollout.calculate_log_probs on")
    return Sampled(ids, list(logprobs), context)
