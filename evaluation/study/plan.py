"""Plans a study: the arms and seeds to run are those without a result of the same recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.base import InputError, Record
from evaluation.study.recipe import FIRST_SEED, Arm, Mode, Study
from evaluation.study.records import ArmResult, read_header, read_result, result_path
from evaluation.test_access import ACCESS_LOG_FILE


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
        return result_path(self.raw, arm, seed)

    @property
    def raw(self) -> Path:
        """The folder of the results."""
        return self.output / "raw"

    def folder(self, arm: str, seed: int) -> Path:
        """Return the work folder of one arm and seed."""
        return self.work / f"{arm}-{seed}"


class Planned(Record):
    """One arm and seed to run; ``after`` is the arm whose run of the seed must be finished first."""

    arm: str
    seed: int
    after: str | None


class Plan(Record):
    """The arms and seeds to run, in order."""

    study: Study
    mode: Mode
    place: Place
    jobs: tuple[Planned, ...]

    def seeds(self) -> dict[str, tuple[int, ...]]:
        """Return the seeds to run by arm."""
        names = dict.fromkeys(job.arm for job in self.jobs)
        return {name: tuple(job.seed for job in self.jobs if job.arm == name) for name in names}


def make_plan(study: Study, mode: Mode, place: Place, names: Sequence[str] | None, seeds: Sequence[int] | None) -> Plan:
    """Return the arms in the recipe's order, each with its seeds, without those that have a result.

    ``names`` and ``seeds`` select. Raises InputError for an unknown arm, a seed of the other mode, a seed beyond an
    arm's number of seeds in the study, and an arm that takes its admissions from one with neither a result nor a plan.
    """
    chosen = [arm for arm in study.recipe.arms if names is None or arm.name in names]
    for name in names or ():
        study.recipe.arm(name)
    _check_seeds(chosen, mode, seeds)
    jobs: list[Planned] = []
    for arm in chosen:
        for seed in _seeds_of(arm, mode, seeds):
            source = arm.match_admissions
            if source is not None and Planned(arm=source, seed=seed, after=None) in jobs:
                jobs.append(Planned(arm=arm.name, seed=seed, after=source))
            elif current_result(study, mode, place, arm, seed) is None:
                if source is not None and current_result(study, mode, place, study.recipe.arm(source), seed) is None:
                    raise InputError(
                        f"arm {arm.name} takes the numbers admitted from arm {source}, whose seed {seed} is not there: "
                        f"run {source} first or with it"
                    )
                jobs.append(Planned(arm=arm.name, seed=seed, after=None))
    return Plan(study=study, mode=mode, place=place, jobs=tuple(jobs))


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
    if read_header(path).recipe != study.run_hash(arm, seed, mode, admissions):
        return None
    return read_result(path)


def _seeds_of(arm: Arm, mode: Mode, seeds: Sequence[int] | None) -> list[int]:
    own = range(FIRST_SEED[mode], FIRST_SEED[mode] + arm.seeds)
    if seeds is None:
        return list(own)
    # Development may take any seed from 100 on: settings are tried there.
    return [seed for seed in seeds if mode == "dev" or seed in own]


def _check_seeds(arms: Sequence[Arm], mode: Mode, seeds: Sequence[int] | None) -> None:
    for seed in seeds or ():
        if mode == "dev" and seed < FIRST_SEED["dev"]:
            raise InputError(f"--seeds {seed}: development takes seeds from {FIRST_SEED['dev']} on, lower ones test")
        if mode == "test" and not any(seed in range(arm.seeds) for arm in arms):
            raise InputError(f"--seeds {seed}: no chosen arm has this seed in the recipe: choose from 0 on")
