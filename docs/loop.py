"""CoEvolve on one page: an agent and its tasks evolve together, in one process, without a run directory or a graph.

    python docs/loop.py

Every step is a function of the product; what `coevolve evolve` adds is around them: the LangGraph graph, records,
resumption, TRL, scores on held-out tasks. The policy has 0.6 M parameters, and rules stand in for the LLM that
reflects, explores and abstracts. Sections and equations are those of CoEvolve (arXiv 2604.15840). Numbers on stdout are
those of the tasks that are trained on, and say nothing about others.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.utils.rnn import pad_sequence

from agents.roles import unguided_context
from agents.scripted.abstractor import TemplateAbstractor
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.scripted.reflector import RuleReflector
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.base import Environment
from environments.registry import benchmark_of, open_named
from environments.verification.canonical import fingerprint
from environments.verification.verify import verify
from memory.failures import MemorySettings, indexed
from memory.jsonl import derive_seed, record_id
from memory.records import Evidence, FailureContext, Interaction, Task, Trajectory
from memory.tasks import admitted_task
from training.grpo.advantages import group_advantages, per_group, reward_of
from training.grpo.loss import Clip, grpo_loss
from training.rollout.episodes import EpisodeRequest, EpisodeResult, TokenRow, limits_of, run_episodes, token_row
from training.rollout.in_process import InProcessSampler
from training.rollout.policy import Policy, load_policy
from training.settings import TrainingSettings
from training.signals import GroupScore, PatternCount, SignalSettings, choose, extract

SEED = 0
ITERATIONS = 2  # T: evolutions of the task set
TASKS = 40  # |D_0|
TRAINING = TrainingSettings(steps=3, tasks_per_step=8, rollouts_per_task=8)  # F, prompts of a step, K
SIGNALS = SignalSettings(contexts_per_iteration=12)
EXPLORATION = ExplorationSettings(rounds=2, steps=8, drafts_per_context=3)  # R, S, drafts


def main() -> None:
    """Run T iterations: a round of GRPO on D_t, signals of what went wrong in it, new tasks around them, D_{t+1}."""
    environment = open_named("bfcl", {"classes": ["GorillaFileSystem", "VehicleControlAPI"]})
    policy = load_policy("recipes/starter", "cpu")
    initial = copy.deepcopy(policy.model)  # pi_ref of the KL term: the policy that the run began with
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=TRAINING.learning_rate)
    tasks = first_tasks(environment)
    print(f"D_0: {len(tasks)} tasks from unguided exploration; one of them: {tasks[0].turns[0]!r}")
    scores: dict[str, list[GroupScore]] = defaultdict(list)
    patterns: list[PatternCount] = []
    explored: list[FailureContext] = []
    for iteration in range(ITERATIONS):
        played: list[Trajectory] = []
        for step in range(1 + iteration * TRAINING.steps, 1 + (iteration + 1) * TRAINING.steps):
            drawn = random.Random(derive_seed(SEED, "draw", step)).sample(tasks, TRAINING.tasks_per_step)
            results, trajectories = rollouts(policy, environment, drawn, iteration, step)
            loss = update(policy, initial, optimizer, results, trajectories)
            played += trajectories
            mean = sum(one.success for one in trajectories) / len(trajectories)
            print(f"step {step}: {mean:.0%} of {len(trajectories)} rollouts succeed, loss {loss:+.4f}")
        evidence = weaknesses(played, tasks, scores, patterns, iteration)
        contexts = new_contexts(reflections(evidence, environment), explored)
        fresh = [task for context in contexts for task in new_tasks(context, environment, tasks, iteration)]
        explored += contexts
        tasks += unrepeated(fresh)
        print(
            f"iteration {iteration}: {len(evidence)} weaknesses, {len(contexts)} new ones, D_t has {len(tasks)} tasks"
        )
        if fresh:
            cause = next(one for one in contexts if one.id in fresh[0].parents)
            print(f"  {cause.kind}: {cause.how}\n  became {fresh[0].turns[0]!r}")


def first_tasks(environment: Environment) -> list[Task]:
    """Make D_0: explore start states without an aim, abstract drafts, keep those that verify (section 3)."""
    explorer, made = UnguidedExplorer(EXPLORATION), list[Task]()
    for position, start in enumerate(cycle(environment.starts())):
        context = unguided_context(start, position)
        interactions = explorer.explore_now(context, environment, derive_seed(SEED, "seed", position))
        made += verified(context, interactions, environment, made, None)
        if len(made) >= TASKS:
            return made[:TASKS]
    raise AssertionError("start states come again and again")


def rollouts(
    policy: Policy, environment: Environment, tasks: Sequence[Task], iteration: int, step: int
) -> tuple[Sequence[EpisodeResult], list[Trajectory]]:
    """Sample K rollouts of each task from pi_old, and reward each: 1 for success by the official rule, else 0."""
    pairs = [(task, sample) for task in tasks for sample in range(TRAINING.rollouts_per_task)]
    requests = [EpisodeRequest.of_rollout(task, SEED, step, sample) for task, sample in pairs]
    sampler, limits = InProcessSampler(policy.model), limits_of(TRAINING)
    results = run_episodes(policy, sampler, environment, requests, limits, TRAINING.temperature)
    return results, [
        Trajectory(
            id=record_id("traj", task.id, step, sample, SEED),
            task_id=task.id,
            iteration=iteration,
            step=step,
            sample=sample,
            turns=result.turns,
            outcome=result.outcome,
            reward=reward_of(result.outcome, result.turns, task, TRAINING),
            infrastructure_error=result.infrastructure_error,
        )
        for result, (task, sample) in zip(results, pairs, strict=True)
    ]


def update(
    policy: Policy,
    initial: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    results: Sequence[EpisodeResult],
    trajectories: Sequence[Trajectory],
) -> float:
    """Make one update of GRPO (Eq. 1): advantages within a task's group, clipped ratios, a KL term (the k3 estimate).

    A_i = (R_i - mean(R)) / (std(R) + 1e-4), with the mean over a group's tokens and over groups. pi is pi_old before a
    step's only update: the ratio is 1, and its gradient that of log pi.
    """
    rows = [token_row(result, filler=0) for result in results]
    mask = pad_sequence([torch.tensor(row.mask, dtype=torch.float32) for row in rows], batch_first=True)
    rewards = torch.tensor([torch.nan if one.reward is None else one.reward for one in trajectories])
    sampled, k = mask.sum(dim=1), TRAINING.rollouts_per_task
    advantages = group_advantages(rewards, k) * per_group(sampled, sampled.sum(), k)
    logps = log_probabilities(policy.model, rows)
    with torch.no_grad():
        reference = log_probabilities(initial, rows)
    clip = Clip(TRAINING.clip_low, TRAINING.clip_high)
    figures = grpo_loss(logps, logps.detach(), reference, advantages, mask, clip=clip, kl=TRAINING.kl)
    optimizer.zero_grad()
    figures.loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), TRAINING.max_grad_norm)
    optimizer.step()
    return float(figures.loss.detach())


def log_probabilities(model: torch.nn.Module, rows: Sequence[TokenRow]) -> torch.Tensor:
    """Return the log-probabilities in nats of what follows each row's prompt, (rows, tokens), padded with 0."""
    found = []
    for row in rows:
        ids = torch.tensor(row.prompt_ids + row.completion_ids)
        logits = model(input_ids=ids[None]).logits[0, len(row.prompt_ids) - 1 : -1] / TRAINING.temperature
        found.append(torch.log_softmax(logits.float(), dim=-1).gather(1, ids[len(row.prompt_ids) :, None])[:, 0])
    return pad_sequence(found, batch_first=True)


def weaknesses(
    played: Sequence[Trajectory],
    tasks: Sequence[Task],
    scores: dict[str, list[GroupScore]],
    patterns: list[PatternCount],
    iteration: int,
) -> list[Evidence]:
    """Find signals (section 3.1): forgetting, boundary, rare. Each comes with its task and its rollouts."""
    found = extract(played, scores, SIGNALS, iteration, patterns)
    for score in found.scores:
        scores[score.task_id].append(score)
    patterns += found.patterns
    by_id, shown = {task.id: task for task in tasks}, {one.id: one for one in played}
    return [
        Evidence(
            signal=signal,
            task=by_id[signal.task_id],
            trajectory=shown[signal.trajectory_id],
            counterpart=shown.get(signal.counterpart_id),
        )
        for signal in choose(found.signals, SIGNALS, derive_seed(SEED, iteration, "choose")).chosen
    ]


def reflections(evidence: Sequence[Evidence], environment: Environment) -> Iterator[FailureContext]:
    """Reflect on each weakness (section 3.2): where, how and why, and what to explore around it."""
    for one in evidence:
        try:
            yield asyncio.run(RuleReflector().reflect(one, environment))
        except RoleRefused:  # the evidence gives no context
            continue


def new_contexts(contexts: Iterator[FailureContext], explored: Sequence[FailureContext]) -> list[FailureContext]:
    """Leave out weaknesses that were explored before (ours): a memory in Chroma, by signature, then by cosine."""
    found = [context for context in contexts if context.comparable]
    with TemporaryDirectory() as folder, indexed(Path(folder) / "failures", MemorySettings(), explored) as memory:
        results = memory.compare(found)
    return [context for context, result in zip(found, results, strict=True) if result.status == "new"]


def new_tasks(context: FailureContext, environment: Environment, tasks: Sequence[Task], iteration: int) -> list[Task]:
    """Explore the real environment around a weakness for R rounds of S steps; abstract, verify (sections 3.2, 3.3)."""
    interactions = GuidedExplorer(EXPLORATION).explore_now(context, environment, derive_seed(SEED, context.id))
    return verified(context, interactions, environment, tasks, iteration)


def verified(
    context: FailureContext,
    interactions: Sequence[Interaction],
    environment: Environment,
    tasks: Sequence[Task],
    iteration: int | None,
) -> list[Task]:
    """Abstract drafts: a path reduced to the calls that carry it, and its user turns. Keep those that verify.

    A draft's reference must replay to equal results and state, need every call, and answer what its words ask for; a
    copy of a task, or of a held-out one, is refused.
    """
    seen = tuple(dict.fromkeys(one.observation.text for one in interactions))
    known, held_out = {fingerprint(task) for task in tasks}, benchmark_of(environment).held_out()
    try:
        drafts = TemplateAbstractor(EXPLORATION).abstract_now(
            context, interactions, environment, derive_seed(SEED, context.id, "abstract")
        )
    except RoleRefused:  # nothing of it can be put into words
        return []
    accepted = [draft for draft in drafts if verify(draft, environment, known, held_out, observed=seen).accepted]
    return [admitted_task(draft, context, "seed" if iteration is None else "evolved", iteration) for draft in accepted]


def unrepeated(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks, the first of equal ones: D_{t+1} is D_t and these."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(fingerprint(task), task)
    return list(first.values())


if __name__ == "__main__":
    main()
