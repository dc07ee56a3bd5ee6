"""Runs and scores arms and seeds of a study in parallel, each by the project's own commands.

Those are planned that have no result of the same recipe.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from environments.base import EnvironmentFault, InputError, Record
from environments.checkout import ROOT
from environments.command import MISTAKE, NOTHING
from environments.terminal import say
from evaluation.outcomes import TaskOutcome
from evaluation.settings import LOOKUP, ScoringSettings
from evaluation.study.arm import FinishedRun
from evaluation.study.recipe import FIRST_SEED, SEED, Arm, Mode, Study, Tree, environment_options
from evaluation.study.records import ArmHeader, ArmMeasured, ArmResult, Place, current_result, tasks_path
from evaluation.test_access import current_commit
from memory.jsonl import read_jsonl, write_atomically, write_json
from memory.processes import ChildFailure, exclusive, reason_in, run_child
from memory.run import RunDirectory
from memory.strict_yaml import dump_yaml
from training.settings import IN_PROCESS, RenderingOptions

RECIPE_FILE = "recipe.yaml"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of the commands of an arm: arms share the cores."""


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


def run_jobs(plan: Plan, at_once: int, keep_runs: bool) -> list[str]:
    """Run every planned arm and seed in order, ``at_once`` in parallel; return one sentence per failure.

    Raises InputError when another study uses the same folder. Ends its children and exits with 130 or 143 on SIGINT or
    SIGTERM.
    """
    with exclusive(plan.place.work / "study.lock", str(plan.place.work)):
        return asyncio.run(_Schedule(plan, at_once, keep_runs).run())


def check_settings(plan: Plan) -> None:
    """Check the settings of all planned arms before the first one runs. Raises InputError."""
    for job in plan.jobs:
        path = plan.study.policy_of(plan.study.recipe.arm(job.arm), job.seed)
        if SEED in plan.study.stated_policy(plan.study.recipe.arm(job.arm)) and not Path(path).is_dir():
            raise InputError(
                f"{job.arm}, seed {job.seed}: the policy {path} is not there: make one for each seed, for example with "
                f"python -m training.warm_start --seed {job.seed} --out {path}"
            )
    files = []
    for name in dict.fromkeys(job.arm for job in plan.jobs):
        arm = plan.study.recipe.arm(name)
        if not arm.untrained:
            admissions = [1] * plan.study.iterations(arm)
            files.append(plan.place.work / "recipes" / f"{name}.yaml")
            settings = plan.study.settings_of(arm, plan.seeds()[name][0], admissions)
            write_atomically(files[-1], [dump_yaml(settings).encode()])
    if not files:
        return
    log = plan.place.work / "check.log"
    log.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "graph.check_recipe", *map(str, files)]
    if asyncio.run(run_child(argv, log_path=log, deadline=300, accept=(0, MISTAKE))) == MISTAKE:
        raise InputError(reason_in(log))


class _Schedule:
    """The jobs of one plan in progress."""

    def __init__(self, plan: Plan, at_once: int, keep_runs: bool) -> None:
        self._plan = plan
        self._study: Study = plan.study
        self._keep = keep_runs
        self._at_once = at_once
        self._waiting = list(plan.jobs)
        self._done: set[tuple[str, int]] = set()
        self._progress = asyncio.Condition()
        self._failures: list[str] = []
        self._commit = current_commit(ROOT)

    async def run(self) -> list[str]:
        workers = [asyncio.create_task(self._worker()) for _ in range(self._at_once)]
        work = asyncio.gather(*workers)
        received: list[signal.Signals] = []

        def stop(number: signal.Signals) -> None:
            received.append(number)
            work.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        try:
            await work
        except asyncio.CancelledError:
            if not received:
                raise
            await asyncio.wait(workers)  # each ends its child; gather reports the first alone
            say(f"stopped by {received[0].name}: the same command goes on")
            raise SystemExit(128 + received[0]) from None
        return self._failures

    async def _worker(self) -> None:
        """Run one job after the other: always the first of the plan that depends on no unfinished one."""
        while True:
            async with self._progress:
                while (job := self._ready()) is None:
                    if not self._waiting:
                        return
                    await self._progress.wait()
                self._waiting.remove(job)
            await self._job(job)
            async with self._progress:
                self._done.add((job.arm, job.seed))
                self._progress.notify_all()

    def _ready(self) -> Planned | None:
        return next((job for job in self._waiting if job.after is None or (job.after, job.seed) in self._done), None)

    async def _job(self, job: Planned) -> None:
        try:
            await self._run(job)
        except (ChildFailure, InputError, EnvironmentFault) as failure:
            self._failures.append(f"{job.arm}, seed {job.seed}: {failure}")
            say(f"{job.arm}, seed {job.seed}: failed")

    async def _run(self, planned: Planned) -> None:
        study, place, mode = self._study, self._plan.place, self._plan.mode
        arm = study.recipe.arm(planned.arm)
        admissions = None
        if arm.match_admissions is not None:
            source = current_result(study, mode, place, study.recipe.arm(arm.match_admissions), planned.seed)
            if source is None:
                raise InputError(f"the run of {arm.match_admissions} whose admissions it matches failed")
            admissions = source.header.admissions
        if planned.after and current_result(study, mode, place, arm, planned.seed) is not None:
            return
        settings = study.settings_of(arm, planned.seed, admissions)
        folder = place.folder(planned.arm, planned.seed)
        _prepare(folder, settings)
        say(f"{arm.name}, seed {planned.seed}: started")
        started = time.perf_counter()
        run = None if arm.untrained else await self._trained(arm, folder)
        policy = study.policy_of(arm, planned.seed) if run is None else str(run.policy)
        outcomes = await self._attempts(folder, settings, policy, run)
        path = place.result(planned.arm, planned.seed)
        header = ArmHeader(
            **(await asyncio.to_thread(run.figures) if run else {}),
            arm=arm.name,
            seed=planned.seed,
            recipe=study.run_hash(arm, planned.seed, mode, admissions),
            study=study.sha256,
            initial_policy=study.initial_policy(arm, planned.seed),
            tasks_left_out=run.keep_tasks(tasks_path(path)) if run else "",
            measured=ArmMeasured(wall_seconds=round(time.perf_counter() - started, 1), commit=self._commit),
        )
        ArmResult(header=header, outcomes=tuple(outcomes)).write(path)
        say(f"{arm.name}, seed {planned.seed}: done in {header.measured.wall_seconds:.0f} s")
        if header.tasks_left_out:
            say(f"{arm.name}, seed {planned.seed}: its tasks are not kept: {header.tasks_left_out}")
        if not self._keep:
            shutil.rmtree(folder)

    async def _trained(self, arm: Arm, folder: Path) -> FinishedRun:
        options = ["--recipe", str(folder / RECIPE_FILE), "--run", str(folder / "run"), "--json"]
        resume = ["--resume"] if RunDirectory(folder / "run").settings_path.exists() else []
        await self._child(folder, ["graph.run_iteration", *options, *resume])
        return await asyncio.to_thread(FinishedRun, folder / "run", self._study.iterations(arm))

    async def _attempts(self, folder: Path, settings: Tree, policy: str, run: FinishedRun | None) -> list[TaskOutcome]:
        """Return the attempts of the policy, and those of the lookup over the run's tasks where the study wants it."""
        outcomes: list[TaskOutcome] = []
        for number, scoring in enumerate(self._scoring(settings)):
            file = folder / f"scoring-{number}.json"
            write_json(file, scoring)
            outcomes += await self._scored(file, policy)
            if self._study.recipe.lookup and run is not None:
                alone = folder / f"scoring-{number}-alone.json"
                write_json(alone, scoring.model_copy(update={"sampling": IN_PROCESS}))  # no model is sampled from
                outcomes += await self._scored(alone, LOOKUP, run.learnable(folder))
        return outcomes

    async def _scored(self, file: Path, policy: str, train: Path | None = None) -> list[TaskOutcome]:
        """Score the policy by the settings in ``file``, or the lookup over the tasks of ``train``."""
        outcomes = file.with_name(f"{LOOKUP if train else 'policy'}-{file.stem}.jsonl")
        options = ["--settings", str(file), "--model", policy, "--output", str(outcomes), "--json"]
        options += [] if train is None else ["--train", str(train)]
        outcomes.unlink(missing_ok=True)  # of an arm that was stopped before its result
        await self._child(file.parent, ["evaluation.run", *options])
        return read_jsonl(outcomes, TaskOutcome)

    async def _child(self, folder: Path, command: list[str]) -> None:
        """Run one of the project's commands, its output in the arm's log. Raises InputError for its exit status 2."""
        log = folder / "arm.log"
        start = log.stat().st_size if log.exists() else 0
        argv, deadline = [sys.executable, "-m", *command], self._study.recipe.deadline
        accept = (0, MISTAKE, NOTHING)
        if await run_child(argv, log_path=log, deadline=deadline, accept=accept, env=ONE_THREAD) == MISTAKE:
            raise InputError(f"{command[0]}: {reason_in(log, start)}")

    def _scoring(self, settings: Tree) -> tuple[ScoringSettings, ...]:
        """Return how final policies are scored: as the study says, on the device and servers of its runs.

        One command scores all sets, or one each where an environment does not serve several.
        """
        names, policy = self._study.recipe.set_names(self._plan.mode), settings.get("policy") or {}
        stated = {
            **self._study.recipe.limits,
            "device": policy.get("device", "auto"),
            "dtype": policy.get("dtype", "float32"),
            **{key: policy.get(key) for key in RenderingOptions.model_fields},
            "sampling": settings.get("sampling") or IN_PROCESS,
            "environment": self._study.environment,
            "options": environment_options(settings),
            "access_log": self._plan.place.access_log if self._plan.mode == "test" else None,
        }
        commands = (names,) if self._study.benchmark.several_sets else tuple((name,) for name in names)
        return tuple(ScoringSettings.model_validate(stated | {"evaluation_set": sets}) for sets in commands)


def _prepare(folder: Path, settings: Tree) -> None:
    """Make the work folder with recipe.yaml; remove the files of an earlier attempt with other settings."""
    path, text = folder / RECIPE_FILE, dump_yaml(settings).encode()
    if folder.exists() and not (path.is_file() and path.read_bytes() == text):
        shutil.rmtree(folder)
    write_atomically(path, [text])
