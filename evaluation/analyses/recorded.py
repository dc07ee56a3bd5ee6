"""Reads what the analyses need: iterations of a run, attempts of an evaluation, tasks, and target tasks.

A study's result files (``ARM-SEED.jsonl.gz``) are read too: a study removes its runs unless it is asked to keep them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from environments.base import InputError, Record
from evaluation.call_shapes import Shape
from evaluation.outcomes import Score, TaskOutcome
from memory.jsonl import complaint, read_json, read_jsonl, read_lines
from memory.records import Task
from memory.run import RunDirectory
from memory.tasks import load_tasks
from training.grpo.record import RoundRecord

if TYPE_CHECKING:
    from evaluation.sets import Item

COMPRESSED = ".gz"
NO_MODEL = "none: texts and lengths of the tasks alone"
"""The model that the test access log names where an analysis opens a held-out set."""


class RecordedIteration(Record):
    """One iteration of a run in numbers.

    ``step``: optimizer steps by its end. ``seconds``: wall seconds by stage, empty where none were recorded. ``before``
    and ``after``: success on the set that the run scores, None without one. ``signals``: found, by kind. ``drafts``
    were proposed and ``admitted`` of them joined the task set.
    """

    iteration: int
    step: int
    seconds: dict[str, float]
    before: float | None
    after: float | None
    signals: dict[str, int]
    drafts: int
    admitted: int


class EvaluatedTask(Record):
    """One attempt at one task: ``evaluated`` is False where an infrastructure error ended it.

    ``group`` is the evaluation set or category. Tasks of a ``cluster`` share a start state. ``shape`` is empty where
    the functions that the reference calls are unknown.
    """

    group: str
    task: str
    cluster: str
    shape: Shape = ()
    success: bool
    evaluated: bool


class _Evolution(BaseModel):
    signals: dict[str, int]
    drafts: int
    admitted: tuple[str, ...]


class _Seconds(BaseModel):
    seconds: dict[str, float] = {}


class _StudyIteration(BaseModel):
    iteration: int
    steps: int
    dev_before: float | None
    dev_after: float | None
    signals: dict[str, int]
    drafts: int
    admitted: int
    measured: dict[str, float]


class _StudyHeader(BaseModel):
    arm: str
    iterations: tuple[_StudyIteration, ...]


class _StudyOutcome(BaseModel):
    panel: str
    task: str
    cluster: str
    success: bool
    infrastructure_error: str | None = None


def read_iterations(path: Path) -> tuple[RecordedIteration, ...]:
    """Return the finished iterations of a run, or of one arm and seed of a study.

    Raises InputError for anything else, and where no iteration is finished.
    """
    found = _of_run(RunDirectory.open(path)) if path.is_dir() else _of_study(path)
    if not found:
        raise InputError(f"{path} has no finished iteration: name a run that has one")
    return found


def _of_run(run: RunDirectory) -> tuple[RecordedIteration, ...]:
    found: list[RecordedIteration] = []
    while (folder := run.iteration(len(found))).evolution.exists() and folder.round.exists():
        evolution = read_json(folder.evolution, _Evolution)
        found.append(
            RecordedIteration(
                iteration=len(found),
                step=read_json(folder.round, RoundRecord).last_step,
                seconds=read_json(folder.seconds, _Seconds).seconds if folder.seconds.exists() else {},
                before=_success(folder.evaluation_before),
                after=_success(folder.evaluation_after),
                signals=evolution.signals,
                drafts=evolution.drafts,
                admitted=len(evolution.admitted),
            )
        )
    return tuple(found)


def _success(path: Path) -> float | None:
    return read_json(path, Score).success if path.exists() else None


def _of_study(path: Path) -> tuple[RecordedIteration, ...]:
    lines = _text_lines(path)
    try:
        header = _StudyHeader.model_validate_json(lines[0] if lines else b"")
    except ValidationError:
        raise InputError(f"{path} is neither a run's folder nor a result of a study: name one") from None
    return tuple(
        RecordedIteration(
            iteration=one.iteration,
            step=one.steps,
            seconds={name.removeprefix("stage "): s for name, s in one.measured.items() if name.startswith("stage ")},
            before=one.dev_before,
            after=one.dev_after,
            signals=one.signals,
            drafts=one.drafts,
            admitted=one.admitted,
        )
        for one in header.iterations
    )


def read_attempts(path: Path) -> tuple[EvaluatedTask, ...]:
    """Return the attempts in a file that ``evaluation.run --output`` or a study wrote, in its order.

    Raises InputError that names the file and the line for any other content.
    """
    found = []
    for number, line in enumerate(_text_lines(path), start=1):
        one = _attempt(line)
        if isinstance(one, str) and not (number == 1 and _is_header(line)):
            raise InputError(f"{path}, line {number}: {one}")
        if isinstance(one, EvaluatedTask):
            found.append(one)
    if not found:
        raise InputError(f"{path} holds no outcome: name a file that coevolve evaluate --output wrote")
    return tuple(found)


def _attempt(line: bytes) -> EvaluatedTask | str:
    try:
        ours = TaskOutcome.model_validate_json(line)
    except ValidationError as first:
        try:
            studied = _StudyOutcome.model_validate_json(line)
        except ValidationError:
            return complaint(first)
        return EvaluatedTask(
            group=studied.panel,
            task=studied.task,
            cluster=studied.cluster,
            success=studied.success,
            evaluated=studied.infrastructure_error is None,
        )
    return EvaluatedTask(
        group=ours.group,
        task=ours.task_id,
        cluster=ours.cluster,
        shape=ours.shape,
        success=ours.success,
        evaluated=ours.infrastructure_error is None,
    )


def _is_header(line: bytes) -> bool:
    try:
        _StudyHeader.model_validate_json(line)
    except ValidationError:
        return False
    return True


def _text_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, compressed or not. Raises InputError where it cannot be read."""
    try:
        if path.suffix != COMPRESSED:
            return [line for _, line in read_lines(path)]
        return gzip.decompress(path.read_bytes()).splitlines()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path} is not a whole gzip file: name another file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): name another file") from None


def read_tasks(path: Path, origin: str | None = None) -> tuple[Task, ...]:
    """Return the tasks of a run, or of a file in the form of its task set; those of ``origin`` only if given.

    Raises InputError for anything else, and where no such task is there.
    """
    tasks = load_tasks(RunDirectory.open(path)) if path.is_dir() else tuple(read_jsonl(path, Task))
    chosen = tuple(task for task in tasks if origin in (None, task.origin))
    if not chosen:
        known = ", ".join(sorted({task.origin for task in tasks}))
        raise InputError(f"{path} has no task of origin {origin}: it has {known}" if known else f"{path} has no task")
    return chosen


class TargetChoice(Record):
    """Which tasks a training set is compared with: sets or a category of a benchmark, or a file.

    ``access_log`` is the test access log that a held-out set needs; where the benchmark says so, the access is added.
    """

    environment: str
    evaluation_set: tuple[str, ...] = ()
    category: str | None = None
    split: str = "all"
    tasks: Path | None = None
    limit: int | None = None
    access_log: Path | None = None

    @property
    def given(self) -> bool:
        """Return whether anything is named."""
        return bool(self.evaluation_set) or self.category is not None or self.tasks is not None


def open_targets(choice: TargetChoice) -> tuple[Item, ...]:
    """Return the target tasks. Raises InputError where nothing or too much is named, and for what cannot be opened.

    A held-out set opens as for a score (``evaluation.sets.open_set``): texts that are compared have been read.
    """
    from environments.registry import named_benchmark
    from evaluation.sets import ALL, held_out, open_category, open_set, open_tasks

    if bool(choice.evaluation_set) + (choice.category is not None) + (choice.tasks is not None) != 1:
        raise InputError("give either --evaluation-set NAME or --category NAME or --targets FILE, one of the three")
    if choice.split != ALL and choice.category is None:
        raise InputError("--split goes with --category: leave it out")
    if choice.tasks is not None:
        return _some(open_tasks(choice.tasks, choice.limit), str(choice.tasks))
    benchmark = named_benchmark(choice.environment)
    if choice.access_log is not None and not any(held_out(name, benchmark) for name in choice.evaluation_set):
        raise InputError("--access-log is for held-out evaluation sets, and none is named: leave it out")
    if choice.category is not None:
        found = open_category(choice.category, choice.split, choice.limit, benchmark=benchmark)
        return _some(found, f"--category {choice.category} --split {choice.split}")
    return _some(
        [
            item
            for name in dict.fromkeys(choice.evaluation_set)
            for item in open_set(name, choice.limit, choice.access_log, model=NO_MODEL, benchmark=benchmark)
        ],
        f"--evaluation-set {', '.join(choice.evaluation_set)}",
    )


def _some(items: Sequence[Item], of: str) -> tuple[Item, ...]:
    if not items:
        raise InputError(f"{of} holds no task: name another one")
    return tuple(items)


def one_line(record: BaseModel) -> str:
    """Return one line of JSON."""
    return json.dumps(record.model_dump(mode="json"), allow_nan=False)
