"""The result of one arm and seed: a header with its figures by iteration, then one line per task outcome.

What a report says of an arm beside its success (budgets, curves over rounds, coverage, costs) is computed from headers.
Results are gzip files, raw/ARM-SEED.jsonl.gz. Beside them tasks/ARM-SEED.jsonl.gz has the tasks that the arm made and
learnt from, so that what depends on them (a lookup, an overlap with an evaluation set) can be computed again; not where
the benchmark forbids to publish them.
"""

from __future__ import annotations

import gzip
import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeVar

from pydantic import ConfigDict, Field, ValidationError

from environments.base import InputError, Record
from evaluation.outcomes import TaskOutcome
from evaluation.study.recipe import Arm, Mode, Study
from evaluation.test_access import ACCESS_LOG_FILE
from memory.jsonl import complaint, dump_line, write_atomically

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
    initial_tasks: str | None = None
    labels: tuple[str, ...] = ()
    functions: int = 0
    initial_functions: dict[str, int] = {}
    iterations: tuple[IterationFigures, ...] = ()
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


class Place(Record):
    """The folders of a study: ``output`` is kept with the repository, ``work`` holds the runs in progress."""

    output: Path
    work: Path

    @property
    def access_log(self) -> Path:
        """The test access log."""
        return self.output / ACCESS_LOG_FILE

    def result(self, arm: str, seed: int) -> Path:
        """Return the file of one finished arm and seed, there or to be written."""
        return self.raw / f"{arm}-{seed}{SUFFIX}"

    @property
    def raw(self) -> Path:
        """The folder of the results."""
        return self.output / "raw"

    def folder(self, arm: str, seed: int) -> Path:
        """Return the work folder of one arm and seed."""
        return self.work / f"{arm}-{seed}"


def tasks_path(result: Path) -> Path:
    """Return the file of the tasks that belong to a result: of the same name, in tasks/ beside raw/."""
    return result.parent.parent / "tasks" / result.name


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


def current_result(study: Study, mode: Mode, place: Place, arm: Arm, seed: int) -> ArmResult | None:
    """Return the result of an arm and seed if it exists and is of the study's recipe as it is now, else None.

    Raises InputError for a corrupt file.
    """
    path = place.result(arm.name, seed)
    if not path.exists():
        return None
    admissions = None
    if arm.match_admissions is not None:
        source = current_result(study, mode, place, study.recipe.arm(arm.match_admissions), seed)
        if source is None:
            return None
        admissions = source.header.admissions
    current = read_header(path).recipe == study.run_hash(arm, seed, mode, admissions)
    return read_result(path) if current else None


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


EQUAL: Mapping[str, Callable[[ArmHeader], int]] = {
    "rollouts": lambda header: sum(one.rollouts for one in header.iterations),
    "optimizer steps": lambda header: header.iterations[-1].steps,
}
"""What all arms should spend alike."""

BUDGETS: Mapping[str, Callable[[ArmHeader], int]] = {
    **EQUAL,
    "environment calls": lambda header: sum(one.environment_calls for one in header.iterations),
    "supervised tokens": lambda header: sum(one.supervised_tokens for one in header.iterations),
    "through the model": lambda header: sum(one.processed_tokens for one in header.iterations),
}
"""The costs of one arm and seed. Environment calls: rollouts and exploration. Supervised tokens: written tokens that
expert steps learnt from; through the model: all those that they processed."""


class ArmFacts(NamedTuple):
    """The figures of an arm, from the headers of its results in order of seed; ``planned`` seeds are in the recipe."""

    description: str
    planned: int
    headers: tuple[ArmHeader, ...]

    @property
    def trained(self) -> list[ArmHeader]:
        """The headers of runs; none of an arm that is scored alone."""
        return [one for one in self.headers if one.iterations]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the runs, each once."""
        return tuple(dict.fromkeys(label for one in self.headers for label in one.labels))

    @property
    def rounds(self) -> list[tuple[IterationFigures, ...]]:
        """The figures by seed of each iteration that all seeds have."""
        return list(zip(*(one.iterations for one in self.trained), strict=False))

    @property
    def successes(self) -> list[float | None]:
        """Success on the set that runs score themselves, at the start and after each round; None without one."""
        start = _mean(one.iterations[0].dev_before for one in self.trained)
        return [start, *(_mean(one.dev_after for one in each) for each in self.rounds)]

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that verification accepted, the mean over rounds; None without drafts."""
        return _mean(_mean(one.acceptance for one in each) for each in self.rounds)

    @property
    def marks(self) -> Counter[str]:
        """Marks on trajectories by kind, in all rounds of all seeds."""
        counted: Counter[str] = Counter()
        for one in (one for header in self.trained for one in header.iterations):
            counted.update(one.signals)
        return counted

    @property
    def in_tasks(self) -> float:
        """Share of the environment's functions that the references of D_T call, the last set of tasks."""
        return self._covered(
            lambda header, rounds: [set(header.initial_functions), *_admitted(header.iterations[:rounds])]
        )

    @property
    def in_training(self) -> float:
        """Share of the functions that were in what rounds drew, and in what their expert steps learnt from."""

        def functions(header: ArmHeader, rounds: int) -> list[set[str]]:
            done = header.iterations[:rounds]
            joined = [set(header.initial_functions), *_admitted(header.iterations)]
            learnt = [new for one, new in zip(done, joined, strict=False) if one.supervised_tokens]
            return [set(one.trained_functions) for one in done] + learnt

        return self._covered(functions)

    def _covered(self, functions: Callable[[ArmHeader, int], list[set[str]]]) -> float:
        rounds = len(self.rounds)
        named = ((len(set().union(*functions(one, rounds))), one.functions) for one in self.trained)
        return fmean(names / of if of else 0.0 for names, of in named)

    @property
    def evolution_share(self) -> float | None:
        """Seconds of the graph over those of rollouts, optimisation and graph.

        Without process starts, evaluation and D_0; None where nothing was measured.
        """
        measured = [one.measured for header in self.trained for one in header.iterations]
        graph = sum(one.get("stage evolve", 0.0) for one in measured)
        others = sum(one.get(f"round {name}", 0.0) for one in measured for name in ("rollouts", "optimisation"))
        return graph / (graph + others) if graph + others else None


def unequal_budgets(arms: Mapping[str, ArmFacts], baseline: str) -> list[str]:
    """Return one sentence per arm and seed whose rollouts or optimizer steps are not the baseline's."""
    bases = {one.seed: one for one in arms[baseline].trained} if baseline in arms else {}
    return [
        f"{name}, seed {own.seed}: {count(own)} {words}, {baseline} has {count(bases[own.seed])}"
        for name, facts in arms.items()
        for own in facts.trained
        for words, count in EQUAL.items()
        if own.seed in bases and count(own) != count(bases[own.seed])
    ]


def _admitted(iterations: Iterable[IterationFigures]) -> list[set[str]]:
    return [set(one.admitted_functions) for one in iterations]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
