"""The summary of one iteration, a record and a line of JSON: its tasks, signals, scores, labels and cost by stage."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from functools import reduce

from pydantic import Field

from agents.chat.endpoint import model_of
from agents.settings import ROLES
from agents.spending import Request, added, read_requests
from environments.base import Record
from evaluation.outcomes import Score, ScoreChange
from graph.settings import RunSettings
from memory.records import Interaction, Measured, SignalKind, StopReason, Trajectory
from memory.run import IterationDirectory, PolicyDirectory, RunDirectory, read_existing, read_json, read_jsonl
from memory.run_files import Evolution, ExtractionRecord, StageSeconds
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import ExpertRecord, RoundRecord, RoundSeconds
from training.rollout.policy import PolicyCard
from training.seal.diagnosis import SealFigures
from training.signals import SignalSettings

PRIVATE = "not for publication: "
"""Begins the label of a run in a benchmark of the user's own that must not be published."""

SOURCES = {
    "random": "random contexts",
    "unguided": "unguided exploration",
    "coverage": "contexts by coverage of the tasks alone",
}
"""Labels of sources of contexts that look at no signal."""


def arm_labels(settings: RunSettings, evolution: Evolution) -> list[str]:
    """Return the labels that name a run's arm in a study.

    One for each deviation from the full loop in how tasks are made, and one for SEAL; none for the full loop.
    """
    signals, verification = settings.signals, settings.verification
    source = "contexts by need" if signals.coverage_by == "need" else SOURCES.get(signals.contexts, "")
    left_out = [kind for kind in SignalSettings().kinds if kind not in signals.kinds]
    mode = verification.mode if verification.enabled else "off"
    labels = (
        (signals.contexts in SOURCES, source),
        (left_out, f"without {' and '.join(left_out)} signals"),
        (signals.functions is not None, f"contexts of {len(signals.functions or ())} given functions and pairs"),
        (signals.shuffled, "reflections shuffled"),
        (settings.training.seal is not None, "SEAL"),
        (not settings.memory.deduplicate, "without deduplication"),
        (mode == "off", "verification off"),
        (mode == "agent", "drafts validated by an agent"),
        (mode == "both", "drafts verified by replays and by an agent"),
        (settings.tasks.admissions is not None, "tasks admitted by a quota"),
        (evolution.shortfall, f"iteration {evolution.iteration}: {evolution.shortfall} tasks short of its quota"),
    )
    return [label for holds, label in labels if holds]


STAGES = {"reflector": "reflect", "explorer": "explore", "abstractor": "abstract", "validator": "validate"}


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


class SealSummary(Record):
    """SEAL's figures of the round, and the round's seconds by stage."""

    figures: SealFigures
    measured: RoundSeconds


CAUSE = 300  # characters of a fault's cause
COMPACT_LABEL = "embedded policy with argument references ($k)"


class Contexts(Record):
    """Failure contexts: new to the memory, known to it, and signals that the budget left out."""

    new: int
    known: int
    left_out: int


class Summary(Record):
    """One iteration. ``tasks`` were trained on, ``admitted`` are added for the next one.

    ``signals``: by kind, one for each trajectory that carries it. ``signal_tasks``: tasks with a signal of the kind.
    ``marked``: trajectories that carry any.
    ``failed``: reflections and branches that gave up, by cause. ``labels``: the conditions that the figures hold for.
    ``stopped``: the key of the budget that was spent by the iteration's end, None while there is some left. ``seal``:
    SEAL's figures, None where it is off. ``without_success``: advice after a round in which no rollout succeeded; None
    for any other. ``faulted``: a sentence on the rollouts that the environment ended; None where there are none.
    ``stop_reasons``: user turns of the round's rollouts by why they stopped. ``evaluation``: the score on held-out
    tasks before and after the round, None where none are scored.
    ``functions``: how many different ones references of D_t call, of the ``functions_offered`` that its tasks offer.
    ``measured``: the round's seconds where an engine beside the trainer sampled,
    with its work; None for any other.
    """

    iteration: int
    tasks: int
    admitted: int
    refused: dict[str, int]
    signals: dict[SignalKind, int]
    signal_tasks: dict[SignalKind, int] = Field(default={}, exclude_if=operator.not_)
    marked: int | None = Field(default=None, exclude_if=lambda marked: marked is None)
    contexts: Contexts
    evaluation: ScoreChange | None
    seconds: dict[str, float]
    cost: Cost
    failed: dict[str, int] = {}
    labels: tuple[str, ...] = ()
    stopped: str | None = None
    seal: SealSummary | None = Field(default=None, exclude_if=operator.not_)
    without_success: str | None = Field(default=None, exclude_if=operator.not_)
    faulted: str | None = Field(default=None, exclude_if=operator.not_)
    stop_reasons: dict[StopReason, int] = Field(default={}, exclude_if=operator.not_)
    functions: int | None = Field(default=None, exclude_if=lambda functions: functions is None)
    functions_offered: int | None = Field(default=None, exclude_if=lambda functions: functions is None)
    measured: RoundSeconds | None = Field(default=None, exclude_if=operator.not_)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the sentences about the iteration that a user has to see."""
        return tuple(words for words in (self.without_success, self.faulted) if words)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what is said of the iteration once it is done: its success, its new tasks, and the warnings."""
        words = f"{self.admitted} of {self.drafts} drafts admitted to {self.tasks} tasks"
        scored = "" if self.evaluation is None else f"success {self.evaluation.words()}; "
        return (scored + words, *self.warnings)

    @property
    def drafts(self) -> int:
        """Return how many drafts were verified."""
        return self.admitted + sum(self.refused.values())

    @property
    def made_nothing(self) -> bool:
        """Return whether the iteration admitted no task and gave the policy nothing to learn from."""
        return self.admitted == 0 and self.without_success is not None


def summarise(run: RunDirectory, settings: RunSettings, iteration: int) -> Summary:
    """Return the summary of an iteration whose stages are all done, from the files that they wrote."""
    folder = run.iteration(iteration)
    evolution = read_json(folder.evolution, Evolution)
    record = read_json(folder.round, RoundRecord)
    found = read_json(folder.extraction, ExtractionRecord)
    return Summary(
        iteration=iteration,
        tasks=len(tasks_at(load_tasks(run), iteration)),
        admitted=len(evolution.admitted),
        refused=evolution.refused,
        signals={kind: found.signals.get(kind, 0) for kind in SignalKind},
        signal_tasks=found.signal_tasks,
        marked=found.marked,
        contexts=Contexts(new=evolution.new, known=evolution.known, left_out=sum(found.left_out.values())),
        evaluation=_score_change(folder, settings),
        # A stage that was killed right after it wrote its result is missing.
        seconds=read_json(folder.seconds, StageSeconds).seconds if folder.seconds.exists() else {},
        cost=cost_of(run, iteration),
        failed=evolution.failures,
        labels=(*_labels(run, record, settings), *arm_labels(settings, evolution)),
        stopped=evolution.stopped,
        seal=None if record.seal is None else SealSummary(figures=record.seal, measured=record.measured),
        without_success=_without_success(run, folder, settings) if record.success == 0 else None,
        faulted=_faulted(folder) if record.infrastructure_errors else None,
        stop_reasons=record.stop_reasons,
        functions=found.functions,
        functions_offered=found.functions_offered,
        measured=None if record.measured.engine is None else record.measured,
    )


def _faulted(folder: IterationDirectory) -> str:
    """Return a sentence: how many rollouts the environment ended, on how many tasks, and the commonest cause."""
    rollouts = read_jsonl(folder.trajectories, Trajectory)
    faults = [(one.task_id, one.infrastructure_error) for one in rollouts if one.infrastructure_error is not None]
    tasks = Counter(task for task, _ in faults)
    (often, times), (cause, alike) = tasks.most_common(1)[0], Counter(cause for _, cause in faults).most_common(1)[0]
    return (
        f"{len(faults)} of {len(rollouts)} rollouts, of {len(tasks)} tasks, ended in a fault of the environment and "
        f"count in no rate ({times} of them of {often}). Look into it where they recur: the commonest cause "
        f"({alike} times) is {' '.join(cause.split())[:CAUSE]}"
    )


def _without_success(run: RunDirectory, folder: IterationDirectory, settings: RunSettings) -> str:
    """Return advice about a round without any success, from what its rollouts have in common."""
    rollouts = [one for one in read_jsonl(folder.trajectories, Trajectory) if one.infrastructure_error is None]
    mute = sum(not one.calls() for one in rollouts)
    training = settings.training
    if 2 * mute > len(rollouts):
        advice = (
            "choose a policy that was trained to call these tools, or give its messages more room "
            f"(training.max_new_tokens is {training.max_new_tokens})"
        )
    else:
        advice = "start from a policy that solves some of the tasks, or give episodes more room "
        limits = {name: getattr(training, name) for name in ("max_tokens", "max_actions", "max_episode_steps")}
        advice += f"(training.{', '.join(f'{name} is {limit}' for name, limit in limits.items() if limit is not None)})"
    return (
        f"none of the {len(rollouts)} rollouts of this round succeeded ({mute} made no call that can be read), so that "
        f"the loop has nothing to work on. To change that, {advice}. What the policy did is in "
        f"{folder.trajectories.relative_to(run.root)}, for example in lines 1 and {len(rollouts)}"
    )


def _score_change(folder: IterationDirectory, settings: RunSettings) -> ScoreChange | None:
    if settings.evaluation.scored is None:
        return None
    before, after = (read_json(path, Score) for path in (folder.evaluation_before, folder.evaluation_after))
    return ScoreChange(before=before, after=after)


def _labels(run: RunDirectory, record: RoundRecord, settings: RunSettings) -> tuple[str, ...]:
    chat, local = settings.roles.by_chat(), settings.roles.by_local()
    environment, evaluation = settings.environment, settings.evaluation
    # A baseline's contexts are made without a reflector.
    asked = ("reflector",) if settings.signals.contexts == "signals" else ()
    scripted = [name for name in (*asked, "explorer", "abstractor") if name not in (*chat, *local)]
    models = sorted({model_of(role, name) for name, role in chat.items()})
    card = PolicyDirectory(run.root / record.policy).card
    compact = card.is_file() and read_json(card, PolicyCard).rendering == "compact"
    private = environment.benchmark.unpublishable if environment.is_own else None
    given = evaluation.scored is not None or any(environment.benchmark.evaluation_sets.values())
    cut = evaluation.limit is not None and evaluation.scored is not None
    labels = (
        (scripted, "scripted roles" + (f": {', '.join(scripted)}" if chat or local else "")),
        (local, f"roles of a language model on this machine: {', '.join(local)}"),
        (chat, f"chat roles on {', '.join(models)}"),
        (compact, COMPACT_LABEL),
        (environment.is_own, f"own environment {environment.name}"),
        (private is not None, f"{PRIVATE}{private}"),
        (environment.verification_label is not None, f"{environment.verification_label}"),
        (not given, "no task is held out"),
        (cut, f"evaluation set: its first {evaluation.limit} tasks only"),
    )
    return tuple(label for holds, label in labels if holds)


def cost_of(run: RunDirectory, iteration: int) -> Cost:
    """Return the cost of an iteration; the first one's includes D_0's."""
    numbers = (None, 0) if iteration == 0 else (iteration,)
    requests = [one for one in read_requests(run.spending_path) if one.iteration in numbers]
    stages = {"seed": _sum([one for one in requests if one.iteration is None])}
    later = [one for one in requests if one.iteration is not None]
    for role in ROLES:
        stages[STAGES.get(role, role)] = _sum([one for one in later if one.role == role])
    whole, folder = _sum(requests), run.iteration(iteration)
    folders = [folder, run.seed] if iteration == 0 else [folder]
    interactions = [one for stage in folders for one in read_existing(stage.interactions, Interaction)]
    trajectories = read_existing(folder.trajectories, Trajectory)
    explored = sum(len(one.observation.calls) for one in interactions)
    return Cost(
        model_calls=whole.calls,
        **whole.model_dump(include={"prompt_tokens", "completion_tokens", "money"}),
        environment_calls=explored + sum(len(one.calls()) for one in trajectories),
        sampled_tokens=sum(one.sampled_tokens for one in trajectories),
        supervised_tokens=read_json(folder.expert, ExpertRecord).tokens if folder.expert.exists() else 0,
        stages={stage: spent for stage, spent in stages.items() if spent.requests},
    )


def _sum(requests: Sequence[Request]) -> StageCost:
    spent = reduce(added, (request.measured for request in requests), Measured())
    refused = sum(request.outcome != "answered" for request in requests)
    rounded = spent.model_dump() | {"seconds": round(spent.seconds, 3), "money": round(spent.money, 9)}
    return StageCost(requests=len(requests), refused=refused, **rounded)
