"""The recipe of a study: what all arms share, what each arm changes, and which evaluation sets they are scored on."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from environments.base import InputError, Record
from environments.benchmark import AnyBenchmark
from environments.checkout import INITIAL_POLICY, shipped_policy
from environments.registry import DEFAULT, named_benchmark
from environments.settings import EnvironmentSettings
from evaluation.sets import held_out, set_hash
from evaluation.settings import LOOKUP, AttemptSettings
from evaluation.study.claims import MOST, Gate, Hypothesis, Strict, check_gates, check_hypotheses
from memory.jsonl import complaint
from memory.strict_yaml import changes_given, put, read_recipe
from training.settings import RenderingOptions

BASELINE = "grpo"
"""The arm that all others are compared with."""

SEED = "{seed}"
"""In ``policy.path``: the number of the seed, where each seed starts from a policy of its own."""

Mode = Literal["dev", "test"]
FIRST_SEED: dict[Mode, int] = {"dev": 100, "test": 0}
"""Development takes seeds from 100 on, the study seeds below that."""

_FROZEN = ("seed", "iterations", "environment", "policy", "training", "evaluation", "deadlines")
_FROZEN_TASKS = ("tasks.initial", "tasks.initial_count")
_FREE = ("training.seal",)  # the exception: what an arm adds to plain GRPO
_DECIDES_D0 = ("environment", *_FROZEN_TASKS)

Tree = dict[str, Any]


class Arm(Strict):
    """One way to train. ``overrides`` are dotted keys of a run's recipe on top of what all arms share."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="part of file names")
    description: str = Field(min_length=1, description="one line of the report")
    seeds: int = Field(3, ge=1, le=100, description="seeds of the study; development names its own")
    overrides: dict[str, JsonValue] = Field({}, description="settings of this arm alone, by dotted key")
    match_admissions: str | None = Field(
        None, description="admit as many tasks in each iteration as this arm's run of the same seed did"
    )
    untrained: bool = Field(
        False,
        description="score the policy that arms start from, or with overrides of policy another one; nothing is run",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ignored = any(key.partition(".")[0] != "policy" for key in self.overrides)
        if self.untrained and (ignored or self.match_admissions):
            raise ValueError(
                f"'{self.name}' is untrained and would ignore match_admissions and all overrides but those of policy: "
                "remove them"
            )
        if self.match_admissions and "tasks.admissions" in self.overrides:
            raise ValueError(f"'{self.name}' gives tasks.admissions and match_admissions: leave one out")
        return self


class SetsBySplit(Strict):
    """The evaluation sets that final policies are scored on, in development and in the study itself."""

    dev: tuple[str, ...] = Field(min_length=1)
    test: tuple[str, ...] = Field(min_length=1)


class StudyRecipe(Strict):
    """The whole of recipes/study-world.yaml."""

    base: Path = Field(description="recipe file that holds the settings of a run")
    settings: dict[str, JsonValue] = Field({}, description="settings on top of it that all arms share, by dotted key")
    sets: SetsBySplit
    scoring: AttemptSettings = Field(
        AttemptSettings(), description="limits of the attempts that are scored; null: the benchmark's (ours)"
    )
    deadline: float = Field(
        1800.0, gt=0, le=365 * 24 * 3600.0, description="wall seconds of one arm and seed before it is ended"
    )
    varies: tuple[str, ...] = Field(
        (),
        description="keys that arms may override though all arms share them otherwise, such as policy.path, "
        "tasks.initial_count, training.steps, iterations, environment (ours)",
    )
    compare: tuple[tuple[str, str], ...] = Field(
        (), description="further paired differences: an arm and the one it is compared with"
    )
    hypotheses: tuple[Hypothesis, ...] = Field(
        (),
        max_length=MOST,
        description="differences that are expected, with their size, written down before a test set is opened: tested "
        "together, with a correction for their number, and compared as in compare (ours)",
    )
    score: Literal["shapes", "tasks"] = Field(
        "shapes",
        description="main score of hypotheses; shapes: the mean over call shapes where they are known; tasks: the "
        "share of tasks that succeed (ours)",
    )
    gates: tuple[Gate, ...] = Field(
        (),
        description="demands on the records without which the comparisons mean nothing: a report of which one fails "
        "begins with that (ours)",
    )
    lookup: bool = Field(
        False,
        description="answer the sets by the nearest clause of the tasks that each trained arm could learn from: "
        "a row beside each arm's (ours)",
    )
    arms: tuple[Arm, ...] = Field(min_length=1, description="in order of worth: the first are run first")

    @property
    def limits(self) -> dict[str, JsonValue]:
        """The limits of attempts that the recipe states."""
        return self.scoring.model_dump(exclude_defaults=True)

    @model_validator(mode="after")
    def _arms_share(self) -> Self:
        if "seed" in self.varies:
            raise ValueError("'varies' names seed, which each run has of its own: remove it")
        for key in self.varies:
            if not _is_shared(key):
                raise ValueError(f"'varies' names {key}, which arms may override anyway: remove it")
        for arm in self.arms:
            for key in () if arm.untrained else arm.overrides:
                if _is_shared(key) and not self._varies(key):
                    raise ValueError(
                        f"'{arm.name}' overrides {key}, which all arms share: move it to settings, or name it in "
                        "'varies' where the study is about it"
                    )
        return self

    def _varies(self, key: str) -> bool:
        return any(key == one or key.startswith(f"{one}.") for one in self.varies)

    @model_validator(mode="after")
    def _arms_fit(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two arms are called '{twice[0]}': rename one")
        if LOOKUP in names:
            raise ValueError(f"an arm is called '{LOOKUP}', as the baseline is: rename it")
        if BASELINE not in names:
            raise ValueError(f"no arm is called '{BASELINE}', the one that others are compared with: add it")
        trained = {arm.name: arm for arm in self.arms if not arm.untrained}
        for arm in self.arms:
            other = arm.match_admissions
            if other is not None and (other not in trained or trained[other].match_admissions or other == arm.name):
                raise ValueError(f"'{arm.name}' matches the admissions of '{other}', which has none of its own")
            if other is not None and trained[other].seeds < arm.seeds:
                raise ValueError(f"'{arm.name}' has more seeds than '{other}', whose admissions it matches")
        if unknown := [name for pair in self.compare for name in pair if name not in names]:
            raise ValueError(f"compare names '{unknown[0]}', which is not an arm: choose from {', '.join(names)}")
        untrained = [arm.name for arm in self.arms if arm.untrained]
        check_hypotheses(self.hypotheses, {arm.name: arm.seeds for arm in self.arms}, untrained, self.lookup)
        check_gates(self.gates, names, untrained)
        return self

    @property
    def compared(self) -> tuple[tuple[str, str], ...]:
        """All pairs that are compared, each once: those of ``compare``, then those of hypotheses."""
        expected = ((one.arm, one.against) for one in self.hypotheses if one.against != LOOKUP)
        return tuple(dict.fromkeys((*self.compare, *expected)))

    def arm(self, name: str) -> Arm:
        """Return the arm of that name. Raises InputError for an unknown one."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise InputError(f"no arm is called {name!r}: choose from {', '.join(arm.name for arm in self.arms)}")

    def set_names(self, mode: Mode) -> tuple[str, ...]:
        """Return the evaluation sets that a mode scores on."""
        return self.sets.dev if mode == "dev" else self.sets.test


def _is_shared(key: str) -> bool:
    """Return whether all arms of a study have this setting in common, unless it ``varies``."""
    return (key.partition(".")[0] in _FROZEN or key in _FROZEN_TASKS) and not key.startswith(_FREE)


class Study(Record):
    """A study's recipe with the base recipe's settings and the hashes of initial policies and evaluation sets.

    ``changes`` are settings that come after those of every arm, by dotted key (--set). ``policies`` has the hashes of
    the initial policies by path; one whose path names the seed has none, as it is made for the study.
    """

    recipe: StudyRecipe
    shared: dict[str, JsonValue]
    changes: dict[str, JsonValue] = {}
    sha256: str
    policies: dict[str, str]
    set_hashes: dict[str, str]

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
        found = self.settings_of(arm, 0, None).get("iterations")
        if not isinstance(found, int):
            raise InputError(f"{self.recipe.base}: state 'iterations' there or in the study's settings")
        return found

    def start_of(self, arm: Arm) -> str:
        """Return what the arm changes of the settings that decide D_0: arms with equal ones have equal tasks."""
        own = {key: value for key, value in arm.overrides.items() if key.startswith(_DECIDES_D0)}
        return json.dumps(own, sort_keys=True) if own else ""

    def policy_of(self, arm: Arm, seed: int) -> str:
        """Return the policy that the arm starts from with this seed, or scores."""
        return _policy(self.settings_of(arm, seed, None))

    def initial_policy(self, arm: Arm, seed: int) -> str:
        """Return the hash of the policy that a seed starts from where each has its own, else ""."""
        return _policy_hash(self.policy_of(arm, seed)) if SEED in self.stated_policy(arm) else ""

    def stated_policy(self, arm: Arm) -> str:
        """Return the policy as the recipe states it, for every seed."""
        return _policy(self._stated(arm))

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
        settings = self.settings_of(arm, seed, None if arm.untrained else admissions)
        run: Tree | None = (_how_scored(settings) or None) if arm.untrained else settings
        names = self.recipe.set_names(mode)
        scored: JsonValue = [[name, self.set_hashes[name]] for name in names]
        looked = self.recipe.lookup and not arm.untrained
        policy = self.stated_policy(arm)
        return _sha256([run, self.policies.get(policy, policy), scored, self.recipe.limits, looked])


def read_study(path: Path, changes: Mapping[str, JsonValue] | None = None) -> tuple[StudyRecipe, Tree]:
    """Return the study at ``path`` as it is stated, and its file's content; no other file is looked at.

    ``changes`` of the file's own limits of scoring, by dotted key. Raises InputError that names the file and the key.
    """
    tree = read_recipe(path)
    if "base" not in tree:
        raise InputError(f"{path}: not a study's recipe, which names as base the recipe of a run")
    for key, value in (changes or {}).items():
        _put(tree, key, value)
    try:
        return StudyRecipe.model_validate_json(json.dumps(tree, default=str), strict=True), tree
    except ValidationError as error:
        raise InputError(f"{path}: {complaint(error).replace('Value error, ', '')}") from None


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read the study at ``path``; files that it names are looked up from the working directory, as in recipes.

    ``overrides`` are settings on top of every arm's (``dotted.key=value``, or ``@FILE``), part of the study's hashes;
    those of ``scoring`` are the study's own limits of attempts.

    What ships with the project, recipes and initial policies, is found from any working directory.

    Raises InputError that names the file and the key.
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
        policies={},
        set_hashes={},
    )
    stated = dict.fromkeys(map(study.stated_policy, recipe.arms))
    policies = {name: _policy_hash(name) for name in stated if SEED not in name}
    try:
        set_hashes = {name: sha256 for mode in FIRST_SEED for name, sha256 in _checked_sets(study, mode)}
        _check_matching(study)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return study.model_copy(update={"policies": policies, "set_hashes": set_hashes})


def _checked_sets(study: Study, mode: Mode) -> Iterator[tuple[str, str]]:
    """Yield each set of a mode with its hash. Raises InputError for an unknown one and for one of the other split."""
    for name in study.recipe.set_names(mode):
        if held_out(name, study.benchmark) != (mode == "test"):
            raise InputError(f"the evaluation set {name} is not of the split {mode}: move it to the other list")
        yield name, set_hash(name, study.benchmark)


def _check_matching(study: Study) -> None:
    """Raise InputError where an arm matches the admissions of one with another number of iterations."""
    for arm in study.recipe.arms:
        if arm.match_admissions is not None:
            other = study.recipe.arm(arm.match_admissions)
            if study.iterations(arm) != study.iterations(other):
                raise InputError(f"'{arm.name}' matches the admissions of '{other.name}', of other iterations")


def environment_options(settings: Tree) -> dict[str, JsonValue]:
    """Return the options of a run's environment that its evaluations need."""
    section = settings.get("environment")
    return EnvironmentSettings.model_validate(section).for_evaluation if isinstance(section, dict) else {}


def _how_scored(settings: Tree) -> Tree:
    """Return what a recipe states of how a policy is scored, beside the policy itself."""
    policy = settings.get("policy") or {}
    return {key: policy[key] for key in (*RenderingOptions.model_fields, "dtype") if policy.get(key) is not None}


def _policy(settings: Tree) -> str:
    policy = settings.get("policy")
    return str(policy.get("path", INITIAL_POLICY)) if isinstance(policy, dict) else INITIAL_POLICY


def _policy_hash(name: str) -> str:
    return _content_hash(shipped_policy(name) or Path(name))


def _put(tree: Tree, key: str, value: JsonValue) -> None:
    put(tree, key.split("."), value, key)


def _content_hash(folder: Path) -> str:
    """Hash the files of a folder by name and content; a model of a hub has its id."""
    if not folder.is_dir():
        return str(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return _sha256([[str(f.relative_to(folder)), _file_hash(f)] for f in files])


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:  # in pieces: a shard of a real model's weights has gigabytes
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(content: JsonValue) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
