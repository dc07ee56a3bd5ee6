"""The result of one arm and seed: a header with its figures by iteration, then one line per task outcome.

Results are gzip files, raw/ARM-SEED.jsonl.gz. Beside them tasks/ARM-SEED.jsonl.gz has the tasks that the arm made and
learnt from, so that what depends on them (a lookup, an overlap with an evaluation set) can be computed again; not where
the benchmark forbids to publish them.
"""

from __future__ import annotations

import gzip
import operator
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, Field, ValidationError

from environments.base import InputError, Record
from environments.benchmark import AnyBenchmark
from environments.registry import unpublishable
from evaluation.outcomes import TaskOutcome
from memory.jsonl import complaint, dump_line, write_atomically
from memory.records import Task

Row = TypeVar("Row", bound=Record)
SUFFIX = ".jsonl.gz"


class ResultRecord(Record):
    """A part of a result. Keys that it does not have are left out: the published results have further figures."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class IterationFigures(ResultRecord):
    """One iteration in numbers.

    ``steps``: optimizer steps by its end. ``dev_before`` and ``dev_after``: success on the evaluation set that the run
    itself scores, None without one. ``drafts`` were proposed, of which ``refused`` by reason and ``admitted`` to
    D_{t+1}. Environment calls are those of rollouts and of exploration (D_0's in the first iteration).
    ``supervised_tokens``: written tokens that the round's expert step learnt from, passes counted; its replays of
    references are not among the environment calls. ``processed_tokens``: those that went through the model for it.
    ``trained_functions`` and ``admitted_functions``: tasks by function that their reference calls, of those that the
    round drew and of those admitted. ``measured``: wall seconds by stage, of the iteration and of its round.
    """

    iteration: int
    steps: int
    dev_before: float | None
    dev_after: float | None
    signals: dict[str, int]
    drafts: int
    admitted: int
    refused: dict[str, int]
    rollouts: int
    rollout_calls: int
    exploration_calls: int
    supervised_tokens: int = Field(default=0, exclude_if=operator.not_)
    processed_tokens: int = Field(default=0, exclude_if=operator.not_)
    mixed_groups: float
    trained_functions: dict[str, int]
    admitted_functions: dict[str, int]
    measured: dict[str, float]

    @property
    def environment_calls(self) -> int:
        """The calls of rollouts and exploration together."""
        return self.rollout_calls + self.exploration_calls

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that verification accepted, over quota or not; None without drafts."""
        passed = self.admitted + self.refused.get("over_quota", 0)
        return passed / self.drafts if self.drafts else None


class ArmMeasured(ResultRecord):
    """Fields that differ between equal runs: wall seconds of run and scoring, and the code's commit.

    A run that was stopped and resumed has the seconds of the last attempt only.
    """

    wall_seconds: float
    commit: str | None


class ArmHeader(ResultRecord):
    """The first line of a result.

    ``recipe`` is the hash of everything stated that decides the outcomes, ``study`` of the study's recipe with its
    base. ``initial_policy`` is the hash of the policy that the seed starts from, written where each has its own.
    ``initial_tasks`` is the hash of D_0, None for an arm that is not trained. ``functions``: the number that
    tasks can call. ``tasks_left_out`` says why the arm's tasks are not kept beside the result; empty, and not written,
    where they are, and where no run made any.
    """

    arm: str
    seed: int
    recipe: str
    study: str
    initial_policy: str = Field(default="", exclude_if=operator.not_)
    initial_tasks: str | None
    labels: tuple[str, ...]
    functions: int
    initial_functions: dict[str, int]
    iterations: tuple[IterationFigures, ...]
    tasks_left_out: str = Field(default="", exclude_if=operator.not_)
    measured: ArmMeasured

    @property
    def admissions(self) -> tuple[int, ...]:
        """The number of tasks that each iteration admitted."""
        return tuple(figures.admitted for figures in self.iterations)


class ArmResult(Record):
    """The whole of one result file; the groups of outcomes are the evaluation sets, by their names in the recipe."""

    header: ArmHeader
    outcomes: tuple[TaskOutcome, ...]

    def of(self, baseline: str) -> ArmResult | None:
        """Return the result with the attempts of ``baseline`` ("" for the policy) alone; None where it has none."""
        chosen = tuple(one for one in self.outcomes if one.baseline == baseline)
        return self.model_copy(update={"outcomes": chosen}) if chosen else None

    def write(self, path: Path) -> None:
        """Replace the file, whole or not at all. Equal results, equal bytes."""
        text = b"".join(dump_line(record).encode() for record in (self.header, *self.outcomes))
        # Without the time of day in its header, which differs between equal files.
        write_atomically(path, [gzip.compress(text, mtime=0)])


def result_path(folder: Path, arm: str, seed: int) -> Path:
    """Return the file of one result in ``folder``."""
    return folder / f"{arm}-{seed}{SUFFIX}"


def tasks_path(result: Path) -> Path:
    """Return the file of the tasks that belong to a result: of the same name, in tasks/ beside raw/."""
    return result.parent.parent / "tasks" / result.name


def keep_tasks(path: Path, tasks: Sequence[Task], environment: AnyBenchmark) -> str:
    """Replace the file with the tasks, a line each, compressed; return why they are not kept, "" where they are.

    They are not where they must not be published; a file of an earlier result is removed then. Equal tasks, equal
    bytes.
    """
    reason = unpublishable(environment, tasks)
    if reason is None:
        write_atomically(path, [gzip.compress(b"".join(dump_line(task).encode() for task in tasks), mtime=0)])
        return ""
    path.unlink(missing_ok=True)
    return reason


def result_seeds(folder: Path, arm: str) -> list[int]:
    """Return the seeds of which ``folder`` has a result of the arm, in order."""
    numbers = (path.name.removeprefix(f"{arm}-").removesuffix(SUFFIX) for path in folder.glob(f"{arm}-*{SUFFIX}"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def read_header(path: Path) -> ArmHeader:
    """Read the header of one finished arm and seed. Raises InputError like ``read_result``."""
    return _parsed(path, 1, _lines(path)[0], ArmHeader)


def read_result(path: Path) -> ArmResult:
    """Read one finished arm and seed. Raises InputError that names the file, the line and the key that is wrong."""
    lines = _lines(path)
    outcomes = [_parsed(path, number, line, TaskOutcome) for number, line in enumerate(lines[1:], start=2)]
    return ArmResult(header=_parsed(path, 1, lines[0], ArmHeader), outcomes=tuple(outcomes))


def _lines(path: Path) -> list[bytes]:
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{path} is not a whole gzip file: remove it, and the study makes it again") from None
    if not lines:
        raise InputError(f"{path} is empty: remove it, and the study makes it again")
    return lines


def _parsed(path: Path, number: int, line: bytes, model: type[Row]) -> Row:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise InputError(f"{path}, line {number}: {complaint(error)}: remove the file, it is made again") from None
