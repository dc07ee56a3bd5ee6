"""Every file and folder of a run: its name, its record type, and who writes and reads it.

Each class below is a folder, and each ``RunFile`` in it is a row of the table in ``docs/run-directory.md``. On an
instance the same attribute is a path: ``run.iteration(3).drafts``. No other module spells one of these names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self, overload

SEED_STAGE = "seed"
"""The stage of D_0. A stage is a folder of the run, relative to the run directory."""

ITERATIONS = "iterations"
"""The folder of the iterations' folders."""

_ITERATION_STAGE = re.compile(ITERATIONS + r"/(\d{3,})")
_BRANCHES = "branches"
_REFLECTIONS = "reflections"
_VALIDATIONS = "validations"


def iteration_stage(iteration: int) -> str:
    """Return the stage of an iteration, counted from 0."""
    return f"{ITERATIONS}/{iteration:03d}"


def iteration_of(stage: str) -> int | None:
    """Return the iteration of a stage; None for the stage of D_0 and for a text that is not a stage."""
    found = _ITERATION_STAGE.fullmatch(stage)
    return int(found[1]) if found else None


class RunFile:
    """One file or folder of a run: a path on an instance of its folder, a row of the table on the class.

    Args:
        name: name in the folder; a folder's ends in "/".
        record: dotted name of the record type (one per line in a ``.jsonl`` file, one in a ``.json`` file), or what the
            file holds in plain words.
        written_by: dotted names of the modules that write it.
        read_by: dotted names of the modules that read it; empty for a file that only people read.
        meaning: one sentence.
    """

    def __init__(
        self,
        name: str,
        record: str,
        *,
        written_by: tuple[str, ...],
        read_by: tuple[str, ...] = (),
        meaning: str,
    ) -> None:
        self.name = name.removesuffix("/")
        self.is_folder = name.endswith("/")
        self.record = record
        self.written_by = written_by
        self.read_by = read_by
        self.meaning = meaning
        self.attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    @overload
    def __get__(self, folder: None, owner: type) -> Self: ...

    @overload
    def __get__(self, folder: Folder, owner: type) -> Path: ...

    def __get__(self, folder: Folder | None, owner: type) -> Self | Path:
        return self if folder is None else folder.root / self.name


@dataclass(frozen=True)
class Folder(os.PathLike[str]):
    """A folder of a run, at ``root``. It may not exist yet: the first file written into it makes it."""

    root: Path

    def __fspath__(self) -> str:
        return str(self.root)

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    @classmethod
    def files(cls) -> Iterator[RunFile]:
        """Yield the rows of the table, those of the base class first."""
        for base in reversed(cls.__mro__):
            yield from (value for value in vars(base).values() if isinstance(value, RunFile))


_NODES = "graph.nodes."
_EXTRACT, _REFLECT, _DEDUPLICATE = _NODES + "extract", _NODES + "reflect", _NODES + "deduplicate"
_EXPLORE, _ABSTRACT, _VERIFY, _UPDATE = (_NODES + name for name in ("explore", "abstract", "verify", "update"))
_INITIAL = "graph.run.initial_tasks"
_BRANCH = "graph.branches"
_FORKS = "graph.studio.forks"
_EDITS = "graph.studio.edits"
_RESUMPTION = "graph.resumption"
_STAGES = "graph.run.stages"
_LOOP = "graph.run.loop"
_ROUND = "training.grpo.round"
_SUMMARY, _CLOSING, _COSTS = "graph.report.summary", "graph.report.closing", "graph.report.costs"
_HISTORY = "graph.report.lineage"
_ARM = "evaluation.study.arm"
_EXPLORED = "memory.explored"
_MASTERY = "memory.mastery"
_ANALYSES = "evaluation.analyses.recorded"
_TRACKING = "graph.tracking.figures"


class BranchDirectory(Folder):
    """The folder of one branch, ``STAGE/branches/CONTEXT``. Only this branch writes it; ``update`` joins branches."""

    context = RunFile(
        "context.json",
        "memory.records.FailureContext",
        written_by=(_DEDUPLICATE, _INITIAL, _EDITS),
        read_by=(_EXPLORE, _ABSTRACT, _VERIFY, _UPDATE, _BRANCH),
        meaning="The failure context that the branch explores.",
    )
    interactions = RunFile(
        "interactions.jsonl",
        "memory.records.Interaction",
        written_by=(_EXPLORE,),
        read_by=(_ABSTRACT, _VERIFY, _UPDATE, _INITIAL),
        meaning="The explorer's actions and observations.",
    )
    drafts = RunFile(
        "drafts.jsonl",
        "memory.records.Draft",
        written_by=(_ABSTRACT, _EDITS),
        read_by=(_VERIFY, _UPDATE, _INITIAL, _EDITS),
        meaning="The tasks that the abstractor proposes.",
    )
    validations = RunFile(
        f"{_VALIDATIONS}/",
        "memory.records.AgentValidation",
        written_by=(_VERIFY,),
        read_by=(_VERIFY,),
        meaning="One file per draft that a validator carried out, so that a resumed node does not ask again.",
    )
    verdicts = RunFile(
        "verdicts.jsonl",
        "memory.records.DraftVerification",
        written_by=(_VERIFY,),
        read_by=(_UPDATE, _INITIAL, _FORKS),
        meaning="The verification result of each draft.",
    )
    failure = RunFile(
        "failure.json",
        "graph.records.Failure",
        written_by=(_BRANCH,),
        read_by=(_UPDATE, _INITIAL, _FORKS),
        meaning="The cause of a failed branch; exists only if the branch failed.",
    )
    traceback = RunFile(
        "failure.log", "text", written_by=(_BRANCH,), meaning="The traceback of a failed branch, for people."
    )

    def validation(self, validation_id: str) -> Path:
        """Return the path of the validator's run with the id ``validation_id``, a hash of the draft."""
        return self.validations / f"{validation_id}.json"


class StageDirectory(Folder):
    """The folder of one stage: D_0 in ``seed/``, or one iteration."""

    known = RunFile(
        "known.json",
        "graph.records.KnownTasks",
        written_by=(_EXTRACT, _INITIAL),
        read_by=(_VERIFY,),
        meaning="Fingerprints of the tasks that existed when the stage began; equal drafts are duplicates.",
    )
    contexts = RunFile(
        "contexts.jsonl",
        "memory.records.FailureContext",
        written_by=(_REFLECT, _INITIAL, _EDITS),
        read_by=(_DEDUPLICATE, _EXPLORED, _RESUMPTION, _FORKS, _HISTORY, _EDITS),
        meaning="The failure contexts of the stage.",
    )
    branches = RunFile(
        f"{_BRANCHES}/",
        "memory.run_files.BranchDirectory",
        written_by=(_DEDUPLICATE, _EXPLORE, _ABSTRACT, _VERIFY, _BRANCH, _INITIAL),
        read_by=(_UPDATE, _INITIAL),
        meaning="One folder per branch, named by its context's id; removed from `seed/` once D_0 is made.",
    )
    interactions = RunFile(
        "interactions.jsonl",
        "memory.records.Interaction",
        written_by=(_UPDATE, _INITIAL),
        read_by=(_COSTS, _ARM),
        meaning="The interactions of all finished branches.",
    )
    drafts = RunFile(
        "drafts.jsonl",
        "memory.records.Draft",
        written_by=(_UPDATE, _INITIAL),
        meaning="The drafts of all finished branches.",
    )
    verdicts = RunFile(
        "verdicts.jsonl",
        "memory.records.DraftVerification",
        written_by=(_UPDATE, _INITIAL),
        read_by=(_EXPLORED, _SUMMARY),
        meaning="Their verification results, with duplicates across branches and drafts beyond the quota refused.",
    )
    branch_failures = RunFile(
        "branch_failures.jsonl",
        "graph.records.Failure",
        written_by=(_UPDATE, _INITIAL),
        meaning="The failures of branches.",
    )

    def branch(self, context_id: str) -> BranchDirectory:
        """Return the folder of the branch that explores the context ``context_id``."""
        return BranchDirectory(self.branches / context_id)


class EvaluationFiles(NamedTuple):
    """The three files of one evaluation of a run's policy."""

    score: Path
    outcomes: Path
    log: Path


class IterationDirectory(StageDirectory):
    """The folder of one iteration, ``iterations/NNN``: what every stage has, and the files of a round and its graph."""

    evaluation_settings = RunFile(
        "evaluation_settings.json",
        "evaluation.settings.ScoringSettings",
        written_by=(_STAGES,),
        meaning="Settings that the iteration's evaluations were started with.",
    )
    evaluation_before = RunFile(
        "panel_before.json",
        "evaluation.outcomes.Score",
        written_by=(_STAGES,),
        read_by=(_STAGES, _SUMMARY, _ANALYSES),
        meaning="Score of the policy before the round; a copy of the last iteration's score after its round.",
    )
    evaluation_before_outcomes = RunFile(
        "panel_before.jsonl",
        "evaluation.outcomes.TaskOutcome",
        written_by=(_STAGES,),
        meaning="One outcome per task of the evaluation before the round; iteration 0 only.",
    )
    evaluation_before_log = RunFile(
        "panel_before.log", "text", written_by=(_STAGES,), meaning="Output of that evaluation's process."
    )
    trajectories = RunFile(
        "trajectories.jsonl",
        "memory.records.Trajectory",
        written_by=(_ROUND,),
        read_by=(_ROUND, _EXTRACT, _REFLECT, _SUMMARY, _COSTS, _ARM, _MASTERY),
        meaning="The rollouts of the round, appended after each step.",
    )
    expert = RunFile(
        "expert.json",
        "training.grpo.record.ExpertRecord",
        written_by=(_ROUND,),
        read_by=(_ROUND,),
        meaning="The expert step before the round's first step; written only with `training.expert`.",
    )
    seal = RunFile(
        "seal.jsonl",
        "training.seal.seal.SealStep",
        written_by=(_ROUND,),
        read_by=(_ROUND,),
        meaning="SEAL's state after each step; the next step, or the next round, continues from the last line.",
    )
    metrics = RunFile(
        "metrics.jsonl",
        "training.grpo.record.StepMetrics",
        written_by=(_ROUND,),
        read_by=(_ROUND, _TRACKING),
        meaning="The metrics of each step, the trainer's own among them, for experiment trackers.",
    )
    round = RunFile(
        "round.json",
        "training.grpo.record.RoundRecord",
        written_by=(_ROUND,),
        read_by=(_ROUND, _STAGES, _LOOP, _FORKS, _SUMMARY, _CLOSING, _ARM, _ANALYSES),
        meaning="The finished round of training, with its policy's folder.",
    )
    training_log = RunFile(
        "training.log",
        "text",
        written_by=(_STAGES,),
        read_by=(_LOOP,),
        meaning="Output of the process that trained the round.",
    )
    evaluation_after = RunFile(
        "panel_after.json",
        "evaluation.outcomes.Score",
        written_by=(_STAGES,),
        read_by=(_STAGES, _SUMMARY, _ANALYSES),
        meaning="Score of the policy that the round made.",
    )
    evaluation_after_outcomes = RunFile(
        "panel_after.jsonl",
        "evaluation.outcomes.TaskOutcome",
        written_by=(_STAGES,),
        meaning="One outcome per task of the evaluation after the round.",
    )
    evaluation_after_log = RunFile(
        "panel_after.log", "text", written_by=(_STAGES,), meaning="Output of that evaluation's process."
    )
    signals = RunFile(
        "signals.jsonl",
        "memory.records.Signal",
        written_by=(_EXTRACT,),
        read_by=(_REFLECT, _FORKS, _HISTORY, _BRANCH),
        meaning="Every signal of weakness in the round, chosen or not.",
    )
    scores = RunFile(
        "scores.jsonl",
        "training.signals.GroupScore",
        written_by=(_EXTRACT,),
        read_by=(_EXTRACT,),
        meaning="Scores of each group of rollouts and their mean; later rounds compare with them.",
    )
    patterns = RunFile(
        "patterns.jsonl",
        "training.signals.PatternCount",
        written_by=(_EXTRACT,),
        read_by=(_EXTRACT,),
        meaning="Action patterns of the round and their counts, which later rounds add to theirs.",
    )
    extraction = RunFile(
        "extraction.json",
        "graph.records.ExtractionRecord",
        written_by=(_EXTRACT,),
        read_by=(_UPDATE, _RESUMPTION),
        meaning="Signals counted by kind, and the ids of those chosen.",
    )
    reflections = RunFile(
        f"{_REFLECTIONS}/",
        "memory.records.FailureContext",
        written_by=(_REFLECT,),
        read_by=(_REFLECT,),
        meaning="One `SIGNAL.json` per reflected signal, so that a resumed node does not ask again.",
    )
    reflection_failures = RunFile(
        "reflection_failures.jsonl",
        "graph.records.Failure",
        written_by=(_REFLECT,),
        read_by=(_UPDATE,),
        meaning="The reflections that failed.",
    )
    judgements = RunFile(
        "judgements.jsonl",
        "memory.failures.DeduplicationResult",
        written_by=(_DEDUPLICATE,),
        read_by=(_UPDATE, _EXPLORED, _RESUMPTION),
        meaning="Whether the failure memory knew each context.",
    )
    evolution = RunFile(
        "evolution.json",
        "graph.records.Evolution",
        written_by=(_UPDATE,),
        read_by=(_STAGES, _RESUMPTION, _SUMMARY, _ANALYSES),
        meaning="The result of the graph; written last, so the graph is done once it exists.",
    )
    seconds = RunFile(
        "seconds.json",
        "graph.records.StageSeconds",
        written_by=(_STAGES,),
        read_by=(_STAGES, _SUMMARY, _ANALYSES),
        meaning="Seconds of wall-clock time per completed stage.",
    )
    summary = RunFile(
        "summary.json",
        "graph.report.summary.Summary",
        written_by=(_LOOP,),
        read_by=(_LOOP, _ARM),
        meaning="The iteration's summary; the iteration is done once it exists.",
    )

    def reflection(self, signal_id: str) -> Path:
        """Return the path of the context that was reflected from the signal ``signal_id``."""
        return self.reflections / f"{signal_id}.json"

    def evaluation(self, when: Literal["before", "after"]) -> EvaluationFiles:
        """Return the files of the evaluation before or after the round."""
        if when == "before":
            return EvaluationFiles(self.evaluation_before, self.evaluation_before_outcomes, self.evaluation_before_log)
        return EvaluationFiles(self.evaluation_after, self.evaluation_after_outcomes, self.evaluation_after_log)


class PolicyDirectory(Folder):
    """The folder of a policy that this project wrote: ``policy/checkpoint-STEP``, or one outside of a run.

    Weights, tokenizer and the trainer's state are the library's files and are not listed.
    """

    card = RunFile(
        "coevolve.json",
        "training.rollout.policy.PolicyCard",
        written_by=("training.rollout.policy", "training.grpo.checkpoints"),
        read_by=("training.rollout.policy", "training.preflight", _SUMMARY),
        meaning="The rendering that the policy was trained with.",
    )
    mark = RunFile(
        "round_checkpoint.json",
        "training.grpo.checkpoints.RoundCheckpoint",
        written_by=("training.grpo.checkpoints",),
        read_by=("training.grpo.checkpoints",),
        meaning="Marks a complete checkpoint; written last.",
    )
