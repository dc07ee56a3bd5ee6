"""Every file and folder of a run: its name, its record type and what it holds; and the records of the graph alone.

Each class below is a folder, and each ``RunFile`` in it is a line of ``docs/run-directory.md``. On an
instance the same attribute is a path: ``run.iteration(3).drafts``. No other module spells one of these names.
"""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

from pydantic import Field

from environments.base import InputError, Record
from memory.records import SignalKind

SEED_STAGE = "seed"
"""The stage of D_0. A stage is a folder of the run, relative to the run directory."""

ITERATIONS = "iterations"
"""The folder of the iterations' folders."""

_ITERATION_STAGE = re.compile(ITERATIONS + r"/(\d{3,})")


_NAME = re.compile(r"[A-Za-z0-9_][\w@:+-.]{0,199}", re.ASCII)


def iteration_stage(iteration: int) -> str:
    """Return the stage of an iteration, counted from 0."""
    return f"{ITERATIONS}/{iteration:03d}"


def iteration_of(stage: str) -> int | None:
    """Return the iteration of a stage; None for the stage of D_0 and for a text that is not a stage."""
    found = _ITERATION_STAGE.fullmatch(stage)
    return int(found[1]) if found else None


class RunFile:
    """One file or folder of a run: a path on an instance of its folder, a line of the page on the class.

    Args:
        name: name in the folder; a folder's ends in "/". An ending alone (".jsonl") follows the attribute's name.
        record: dotted name of the record type (one per line in a ``.jsonl`` file, one in a ``.json`` file), or what the
            file holds in plain words.
        meaning: one sentence.
    """

    is_folder = False

    def __init__(self, name: str, record: str, meaning: str) -> None:
        self.name, self.record, self.meaning = name, record, meaning

    def __set_name__(self, owner: type, attribute: str) -> None:
        name = attribute.removesuffix("_path") + self.name if self.name[0] in "./" else self.name
        self.name, self.is_folder = name.removesuffix("/"), name.endswith("/")

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


def _inside(folder: Path, name: str) -> Path:
    """Return the path of what a record names in ``folder``. Raises InputError for a name that leads elsewhere."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r:.80} is the name of nothing in {folder}: the record that has it was changed")
    return folder / name


class BranchDirectory(Folder):
    """The folder of one branch, ``STAGE/branches/CONTEXT``. Only this branch writes it; ``update`` joins branches."""

    context = RunFile(".json", "memory.records.FailureContext", "What the branch explores.")
    interactions = RunFile(".jsonl", "memory.records.Interaction", "The explorer's actions and observations.")
    drafts = RunFile(".jsonl", "memory.records.Draft", "The tasks that the abstractor proposes.")
    validations = RunFile(
        "/",
        "memory.records.AgentValidation",
        "One file per draft that a validator carried out; a resumed node does not ask again.",
    )
    verdicts = RunFile(".jsonl", "memory.records.DraftVerification", "The verification result of each draft.")
    failure = RunFile(".json", "memory.run_files.Failure", "The cause, if the branch failed.")
    traceback = RunFile("failure.log", "text", "Its traceback, for people.")

    def validation(self, validation_id: str) -> Path:
        """Return the path of the validator's run with the id ``validation_id``, a hash of the draft."""
        return _inside(self.validations, f"{validation_id}.json")


class StageDirectory(Folder):
    """The folder of one stage: D_0 in ``seed/``, or one iteration."""

    known = RunFile(
        ".json",
        "memory.run_files.KnownTasks",
        "Fingerprints of the tasks that existed when the stage began; equal drafts are duplicates.",
    )
    contexts = RunFile(".jsonl", "memory.records.FailureContext", "The failure contexts of the stage.")
    branches = RunFile(
        "/",
        "memory.run_files.BranchDirectory",
        "One folder per branch, named by its context's id; removed from `seed/` once D_0 is made.",
    )
    interactions = RunFile(".jsonl", "memory.records.Interaction", "The interactions of all finished branches.")
    drafts = RunFile(".jsonl", "memory.records.Draft", "The drafts of all finished branches.")
    verdicts = RunFile(
        ".jsonl",
        "memory.records.DraftVerification",
        "Their verification results; duplicates across branches and drafts beyond the quota are refused.",
    )
    branch_failures = RunFile(".jsonl", "memory.run_files.Failure", "The failures of branches.")

    def branch(self, context_id: str) -> BranchDirectory:
        """Return the folder of the branch that explores the context ``context_id``."""
        return BranchDirectory(_inside(self.branches, context_id))


class EvaluationFiles(NamedTuple):
    """The three files of one evaluation of a run's policy, or of the lookup beside it."""

    score: Path
    outcomes: Path
    log: Path


class IterationDirectory(StageDirectory):
    """The folder of one iteration, ``iterations/NNN``: what every stage has, and the files of a round and its graph."""

    evaluation_settings = RunFile(
        ".json", "evaluation.settings.ScoringSettings", "Settings of the iteration's evaluations."
    )
    evaluation_before = RunFile(
        "panel_before.json",
        "evaluation.outcomes.Score",
        "Score before the round; a copy of the last iteration's score after its round.",
    )
    evaluation_before_outcomes = RunFile(
        "panel_before.jsonl", "evaluation.outcomes.TaskOutcome", "Its outcomes by task; iteration 0 only."
    )
    evaluation_before_log = RunFile("panel_before.log", "text", "Output of its process.")
    trajectories = RunFile(
        ".jsonl", "memory.records.Trajectory", "The rollouts of the round, appended after each step."
    )
    expert = RunFile(".json", "training.grpo.record.ExpertRecord", "The expert step, with `training.expert`.")
    seal = RunFile(
        ".jsonl",
        "training.seal.seal.SealStep",
        "SEAL's state after each step; the next one continues from the last line.",
    )
    metrics = RunFile(
        ".jsonl", "training.grpo.record.StepMetrics", "The metrics of each step, the trainer's own among them."
    )
    round = RunFile(".json", "training.grpo.record.RoundRecord", "The finished round, with its policy's folder.")
    played_elsewhere = RunFile(
        "played/",
        "training.elsewhere.rollouts.Played",
        "The rollouts of a round that verl trains, by process; `trajectories.jsonl` has those of whole groups.",
    )
    job = RunFile("/", "files of verl", "verl's draws, agent loop and checkpoint of a round; expendable after it.")
    engine_log = RunFile("engine.log", "text", "Output of verl.")
    training_log = RunFile("training.log", "text", "Output of the round's process.")
    evaluation_after = RunFile(
        "panel_after.json", "evaluation.outcomes.Score", "Score of the policy that the round made."
    )
    evaluation_after_outcomes = RunFile("panel_after.jsonl", "evaluation.outcomes.TaskOutcome", "Its outcomes by task.")
    evaluation_after_log = RunFile("panel_after.log", "text", "Output of its process.")
    lookup = RunFile(
        ".json", "evaluation.outcomes.Score", "Score of the lookup over the round's tasks, without a model."
    )
    lookup_outcomes = RunFile("lookup.jsonl", "evaluation.outcomes.TaskOutcome", "Its outcomes by task.")
    lookup_log = RunFile("lookup.log", "text", "Output of its process.")
    signals = RunFile(".jsonl", "memory.records.Signal", "Every signal of weakness in the round, chosen or not.")
    scores = RunFile(
        ".jsonl", "training.signals.GroupScore", "Scores of each group and their mean; later rounds compare with them."
    )
    patterns = RunFile(
        ".jsonl", "training.signals.PatternCount", "Action patterns and their counts, which later rounds add to theirs."
    )
    extraction = RunFile(
        ".json", "memory.run_files.ExtractionRecord", "Signals counted by kind, and the ids of those chosen."
    )
    reflections = RunFile(
        "/",
        "memory.records.FailureContext",
        "One `SIGNAL.json` per reflected signal; a resumed node does not ask again.",
    )
    reflection_failures = RunFile(".jsonl", "memory.run_files.Failure", "The reflections that failed.")
    judgements = RunFile(
        ".jsonl", "memory.failures.DeduplicationResult", "Whether the failure memory knew each context."
    )
    evolution = RunFile(".json", "memory.run_files.Evolution", "The graph's result; it is done once this exists.")
    seconds = RunFile(".json", "memory.run_files.StageSeconds", "Seconds of wall-clock time per completed stage.")
    summary = RunFile(".json", "graph.report.summary.Summary", "The iteration's summary; it is done once this exists.")

    def reflection(self, signal_id: str) -> Path:
        """Return the path of the context that was reflected from the signal ``signal_id``."""
        return _inside(self.reflections, f"{signal_id}.json")

    def evaluation(self, what: Literal["before", "after", "lookup"]) -> EvaluationFiles:
        """Return the files of the evaluation before or after the round, or of the lookup."""
        if what == "lookup":
            return EvaluationFiles(self.lookup, self.lookup_outcomes, self.lookup_log)
        if what == "before":
            return EvaluationFiles(self.evaluation_before, self.evaluation_before_outcomes, self.evaluation_before_log)
        return EvaluationFiles(self.evaluation_after, self.evaluation_after_outcomes, self.evaluation_after_log)


class PolicyDirectory(Folder):
    """The folder of a policy that this project wrote: ``policy/checkpoint-STEP``, or one outside of a run.

    Weights, tokenizer and the trainer's state are the library's files and are not listed.
    """

    card = RunFile(
        "coevolve.json", "training.rollout.policy.PolicyCard", "The rendering that the policy was trained with."
    )
    mark = RunFile(
        "round_checkpoint.json",
        "training.grpo.checkpoints.RoundCheckpoint",
        "Marks a complete checkpoint; written last.",
    )


class KnownTasks(Record):
    """Fingerprints of the tasks that existed when a stage began; an equal draft is a duplicate."""

    fingerprints: tuple[str, ...]


class Failure(Record):
    """One reflection or one branch that gave up.

    ``id`` is the signal's or the context's, ``node`` where it failed, ``cause`` the class of the error.
    """

    id: str
    node: str
    cause: str
    detail: str


class ExtractionRecord(Record):
    """The signals of a round in numbers, by kind, and the ids of the chosen ones.

    ``signal_tasks``: tasks with a signal of the kind. ``marked``: trajectories that carry a signal.
    ``repeated``: further signals of a task and kind that has one already. ``left_out``: beyond the
    limit of contexts. ``pattern_occurrences`` and ``different_patterns`` count the run's action patterns;
    trajectories with an ``infrastructure_error`` were not read. ``functions``: different functions that references of
    D_t call, of the ``functions_offered`` that its tasks offer.
    """

    signals: dict[SignalKind, int]
    signal_tasks: dict[SignalKind, int]
    marked: int
    chosen: tuple[str, ...]
    repeated: dict[SignalKind, int]
    left_out: dict[SignalKind, int]
    pattern_occurrences: int
    different_patterns: int
    infrastructure_errors: int
    functions: int
    functions_offered: int


class Evolution(Record):
    """The result of the graph for one round's trajectories, beside the ``ExtractionRecord`` of its signals.

    ``new`` and ``known``: contexts by what the failure memory says. ``refused``: drafts by reason. ``failures``:
    reflections and branches that gave up, by cause. ``stopped``: the key of the budget that was spent by then, None
    while there is some left. ``shortfall``: tasks that a quota (``tasks.admissions``) lacks; None, and not written,
    without a quota.
    """

    iteration: int
    new: int
    known: int
    drafts: int
    admitted: tuple[str, ...]
    refused: dict[str, int]
    failures: dict[str, int]
    stopped: str | None = None
    shortfall: int | None = Field(None, exclude_if=lambda lacks: lacks is None)


class StageSeconds(Record):
    """Wall seconds of each stage of an iteration; for a killed stage, those of its last attempt."""

    seconds: dict[str, float] = {}


class Fork(Record):
    """The run that a copy was made of, the thread that it is for, and the iteration whose graph works in it.

    ``edits`` are the fields of contexts and drafts that were changed in it, by id; not written without any.
    """

    of: str
    thread: str
    iteration: int
    edits: dict[str, dict[str, Any]] = Field({}, exclude_if=operator.not_)
