"""The cost of one iteration by stage, from the ledger of the chat roles and the records."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from pydantic import Field

from agents.spending import Request, added, read_requests
from environments.base import Record
from memory.records import Interaction, Measured, Trajectory
from memory.run import RunDirectory, read_existing, read_json
from training.grpo.record import ExpertRecord

SEED = "seed"
STAGES = {
    "reflector": "reflect",
    "explorer": "explore",
    "abstractor": "abstract",
    "validator": "validate",
}


class StageCost(Record):
    """The cost of one stage's requests, refused and failed ones included.

    ``requests``: questions asked, each with its retries and its repair; ``refused`` of them got no usable reply.
    ``calls``: HTTP requests. ``seconds``: waiting, summed over concurrent requests. ``money``: in the currency of the
    settings' prices.
    """

    requests: int = 0
    refused: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    money: float = 0.0


class Cost(Record):
    """The cost of an iteration.

    Model calls, their tokens and money are those of chat roles. ``environment_calls`` are those of rollouts, off-policy
    demonstrations and exploration (not of verification and evaluation). ``sampled_tokens`` are those of rollouts,
    ``supervised_tokens`` those that the expert step learnt from, each time that it did. ``stages`` splits the chat
    roles' cost: seed (D_0, in the first iteration), reflect, explore, abstract, validate.
    """

    model_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0
    environment_calls: int = 0
    sampled_tokens: int = 0
    supervised_tokens: int = Field(0, exclude_if=operator.not_)
    stages: dict[str, StageCost] = {}

    def words(self) -> str:
        """Return the figures above zero in one line."""
        counts = {
            "model calls": str(self.model_calls),
            "model tokens": f"{self.prompt_tokens} + {self.completion_tokens}",
            "environment calls": str(self.environment_calls),
            "sampled tokens": str(self.sampled_tokens),
            "supervised tokens": str(self.supervised_tokens),
        }
        words = [f"{count} {name}" for name, count in counts.items() if count not in ("0", "0 + 0")]
        return ", ".join([*words, *([f"money {self.money:.4f}"] if self.money else [])])


def cost_of(run: RunDirectory, iteration: int) -> Cost:
    """Return the cost of an iteration; the first one's includes D_0's."""
    requests = [
        request
        for request in read_requests(run.spending_path)
        if request.iteration == iteration or (request.iteration is None and iteration == 0)
    ]
    stages = {SEED: _sum([one for one in requests if one.iteration is None])}
    for role, stage in STAGES.items():
        stages[stage] = _sum([one for one in requests if one.role == role and one.iteration is not None])
    whole = _sum(requests)
    folder = run.iteration(iteration)
    stages_of_it = [folder, run.seed] if iteration == 0 else [folder]
    interactions = [one for stage in stages_of_it for one in read_existing(stage.interactions, Interaction)]
    trajectories = read_existing(folder.trajectories, Trajectory)
    return Cost(
        model_calls=whole.calls,
        **whole.model_dump(include={"prompt_tokens", "completion_tokens", "money"}),
        environment_calls=sum(len(one.observation.calls) for one in interactions)
        + sum(len(one.calls()) for one in trajectories),
        sampled_tokens=sum(one.sampled_tokens for one in trajectories),
        supervised_tokens=read_json(folder.expert, ExpertRecord).tokens if folder.expert.exists() else 0,
        stages={stage: spent for stage, spent in stages.items() if spent.requests},
    )


def _sum(requests: Sequence[Request]) -> StageCost:
    spent = reduce(added, (request.measured for request in requests), Measured())
    refused = sum(request.outcome != "answered" for request in requests)
    rounded = spent.model_dump() | {"seconds": round(spent.seconds, 3), "money": round(spent.money, 9)}
    return StageCost(requests=len(requests), refused=refused, **rounded)
