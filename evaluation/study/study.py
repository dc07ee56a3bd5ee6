"""A study: its recipe with the settings of every run, the hashes of what decides outcomes, and the results so far.

A result is of one arm and seed: a header with its figures by iteration, then one line per task outcome. Results are
gzip files, raw/ARM-SEED.jsonl.gz. Beside them tasks/ARM-SEED.jsonl.gz has the tasks that the arm made and learnt from,
so that what depends on them (a lookup, an overlap with an evaluation set) can be computed again; not where the
benchmark forbids to publish them.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from environments.base import InputError, Record
from environments.benchmark import AnyBenchmark
from environments.checkout import INITIAL_POLICY, shipped_policy
from environments.registry import DEFAULT, named_benchmark
from evaluation.outcomes import TaskOutcome
from evaluation.sets import held_out, set_hash
from evaluation.study.recipe import FIRST_SEED, SEED, Arm, Mode, StudyRecipe, Tree, read_study
from evaluation.test_access import ACCESS_LOG_FILE
from memory.files import keep, read_packed, sha256_of, write_atomically
from memory.jsonl import changes_given, complaint, dump_line, put, read_recipe
from training.settings import RenderingOptions

Row = TypeVar("Row", bound=Record)
SUFFIX = ".jsonl.gz"
_DECIDES_D0 = ("environment", "tasks.initial", "tasks.initial_count")


class Study(Record):
    """A study's recipe with the base recipe's settings and the hashes of initial policies and evaluation sets.

    ``changes`` are settings that come after those of every arm, by dotted key (--set). ``policies`` has the hashes of
    the initial policies by path; one whose path names the seed has none, as it is made for the study.
    """

    recipe: StudyRecipe
    shared: dict[str, JsonValue]
    changes: dict[str, JsonValue] = {}
    sha256: str
    policies: dict[str, str] = {}
    set_hashes: dict[str, str] = {}

    def settings_of(self, arm: Arm, seed: int, admissions: Sequence[int] | None) -> Tree:
        """Return all settings of one run, as a recipe has them. ``admissions`` are those that the arm matches."""
        tree = self._stated(arm)
        if arm.match_admissions is not None:
            _put(tree, "tasks.admissions", list(admissions or ()))
        if SEED in (path := _policy(tree)):
            _put(tree, "policy.path", path.replace(SEED, str(seed)))
        return tree | {"seed": seed}

    def _stated(self, arm: Arm) -> Tree:
        """Return what the recipes state for every seed of an arm."""
        tree: Tree = copy.deepcopy(self.shared)
        for key, value in (*arm.overrides.items(), *self.changes.items()):
            _put(tree, key, value)
        return tree

    def iterations(self, arm: Arm) -> int:
        """Return the iterations of an arm's runs. Raises InputError when no recipe states them."""
        found = self._stated(arm).get("iterations")
        if not isinstance(found, int):
            raise InputError(f"{self.recipe.base}: state 'iterations' there or in the study's settings")
        return found

    def start_of(self, arm: Arm) -> str:
        """Return what the arm changes of the settings that decide D_0: arms with equal ones have equal tasks."""
        own = {key: value for key, value in arm.overrides.items() if key.startswith(_DECIDES_D0)}
        return json.dumps(own, sort_keys=True) if own else ""

    def policy_of(self, arm: Arm, seed: int) -> str:
        """Return the policy that the arm starts from with this seed, or scores."""
        return self.stated_policy(arm).replace(SEED, str(seed))

    def stated_policy(self, arm: Arm) -> str:
        """Return the policy as the recipe states it, for every seed."""
        return _policy(self._stated(arm))

    def initial_policy(self, arm: Arm, seed: int) -> str:
        """Return the hash of the policy that a seed starts from where each has its own, else ""."""
        return _policy_hash(self.policy_of(arm, seed)) if SEED in self.stated_policy(arm) else ""

    @property
    def environment(self) -> str:
        """The name of the environment whose evaluation sets are scored."""
        section = self.shared.get("environment")
        return str(section.get("name", DEFAULT)) if isinstance(section, dict) else DEFAULT

    @property
    def benchmark(self) -> AnyBenchmark:
        """The benchmark of the evaluation sets. Raises InputError for one that does not exist."""
        return named_benchmark(self.environment)

    def run_hash(self, arm: Arm, seed: int, mode: Mode, admissions: Sequence[int] | None) -> str:
        """Return the SHA-256 of everything stated that decides the outcomes of one arm and seed."""
        settings, scored_by = self.settings_of(arm, seed, admissions), (*RenderingOptions.model_fields, "dtype")
        policy = settings.get("policy") or {}
        how = {key: policy[key] for key in scored_by if policy.get(key) is not None}
        run = (how or None) if arm.untrained else settings
        scored: JsonValue = [[name, self.set_hashes[name]] for name in self.recipe.set_names(mode)]
        looked, path = self.recipe.lookup and not arm.untrained, self.stated_policy(arm)
        return _sha256([run, self.policies.get(path, path), scored, self.recipe.limits, looked])


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read the study at ``path``; files that it names are looked up from the working directory, as in recipes.

    ``overrides`` are settings on top of every arm's (``dotted.key=value``, or ``@FILE``), part of the study's hashes;
    those of ``scoring`` are the study's own limits of attempts. What ships with the project, recipes and initial
    policies, is found from any working directory. Raises InputError that names the file and the key.
    """
    given: dict[str, JsonValue] = {".".join(one.keys): one.value for one in changes_given(overrides)}
    scoring = {key: value for key, value in given.items() if key.startswith("scoring.")}
    changes = {key: value for key, value in given.items() if key not in scoring}
    recipe, tree = read_study(path, scoring)
    shared = read_recipe(recipe.base)
    for key, value in recipe.settings.items():
        _put(shared, key, value)
    study = Study(
        recipe=recipe,
        shared=shared,
        changes=changes,
        sha256=_sha256([tree, shared, *([changes] if changes else [])]),
    )
    stated = dict.fromkeys(map(study.stated_policy, recipe.arms))
    policies = {name: _policy_hash(name) for name in stated if SEED not in name}
    try:
        set_hashes = dict(_checked_sets(study))
        for arm in recipe.arms:
            other = None if arm.match_admissions is None else recipe.arm(arm.match_admissions)
            if other is not None and study.iterations(arm) != study.iterations(other):
                raise InputError(f"'{arm.name}' matches the admissions of '{other.name}', of other iterations")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return study.model_copy(update={"policies": policies, "set_hashes": set_hashes})


def _checked_sets(study: Study) -> Iterator[tuple[str, str]]:
    """Yield each set of a study with its hash. Raises InputError for an unknown one and for one of the other split."""
    for mode in FIRST_SEED:
        for name in study.recipe.set_names(mode):
            if held_out(name, study.benchmark) != (mode == "test"):
                raise InputError(f"the evaluation set {name} is not of the split {mode}: move it to the other list")
            yield name, set_hash(name, study.benchmark)


def _policy(settings: Tree) -> str:
    policy = settings.get("policy")
    return str(policy.get("path", INITIAL_POLICY)) if isinstance(policy, dict) else INITIAL_POLICY


def _policy_hash(name: str) -> str:
    """Hash the files of a policy's folder by name and content; a model of a hub has its id."""
    folder = shipped_policy(name) or Path(name)
    if not folder.is_dir():
        return str(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _sha256([[str(path.relative_to(folder)), sha256_of(path)] for path in files])


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _put(tree: Tree, key: str, value: JsonValue) -> None:
    put(tree, key.split("."), value, key)


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

    def model_post_init(self, _: object) -> None:
        for folder in (self.output, self.work):
            keep(folder)

    @property
    def access_log(self) -> Path:
        """The test access log."""
        return self.output / ACCESS_LOG_FILE

    def run(self, arm: str, seed: int) -> Path:
        """Return the folder in which an arm and seed run."""
        return self.work / f"{arm}-{seed}"

    def result(self, arm: str, seed: int) -> Path:
        """Return the file of one finished arm and seed, there or to be written."""
        return self.output / "raw" / f"{arm}-{seed}{SUFFIX}"

    def tasks(self, arm: str, seed: int) -> Path:
        """Return the file of the tasks that belong to a result."""
        return self.output / "tasks" / f"{arm}-{seed}{SUFFIX}"

    def seeds(self, arm: str) -> list[int]:
        """Return the seeds of which there is a result of the arm, in order."""
        files = (self.output / "raw").glob(f"{arm}-*{SUFFIX}")
        numbers = (path.name.removeprefix(f"{arm}-").removesuffix(SUFFIX) for path in files)
        return sorted(int(number) for number in numbers if number.isdecimal())


def read_header(path: Path) -> ArmHeader:
    """Read the header of one finished arm and seed. Raises InputError like ``read_result``."""
    return _header(path, read_packed(path))


def read_result(path: Path) -> ArmResult:
    """Read one finished arm and seed. Raises InputError that names the file, the line and the key that is wrong."""
    lines = read_packed(path)
    header = _header(path, lines)
    return ArmResult(header=header, outcomes=tuple(_parsed(path, *line, TaskOutcome) for line in lines))


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


def _header(path: Path, lines: Iterator[tuple[int, bytes]]) -> ArmHeader:
    for number, line in lines:
        return _parsed(path, number, line, ArmHeader)
    raise InputError(f"{path} is empty: remove it, and the study makes it again")


def _parsed(path: Path, number: int, line: bytes, model: type[Row]) -> Row:
    try:
        return model.model_validate_json(line)
    except ValidationError as error:
        raise InputError(f"{path}, line {number}: {complaint(error)}: remove the file, it is made again") from None
