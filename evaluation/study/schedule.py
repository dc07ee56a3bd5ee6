"""Runs and scores arms and seeds of a study in parallel, each by the project's own commands.

Those are planned that have no result of the same recipe. The figures of a finished run are read from its records.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from environments.base import EnvironmentFault, InputError, Record, TaskSpec
from environments.checkout import ROOT
from environments.command import MISTAKE, NOTHING, ending_signals, say
from environments.registry import unpublishable
from environments.settings import EnvironmentSettings
from environments.verification.canonical import call_sequence
from evaluation.outcomes import ScoreChange, TaskOutcome
from evaluation.settings import LOOKUP, ScoringSettings
from evaluation.study.recipe import FIRST_SEED, SEED, Mode, Tree
from evaluation.study.study import ArmHeader, ArmMeasured, ArmResult, IterationFigures, Place, Study, current_result
from evaluation.test_access import current_commit
from memory.files import read_whole, write_atomically
from memory.jsonl import dump_line, dump_yaml, read_jsonl, write_json
from memory.processes import ChildFailure, exclusive, reason_in, run_child
from memory.records import Interaction, Trajectory
from memory.run import RunDirectory, read_existing, read_json, write_jsonl
from memory.tasks import TaskSettings, load_tasks, tasks_at
from training.grpo.record import RoundRecord
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

    @property
    def name(self) -> str:
        """What lines of progress and failures begin with."""
        return f"{self.arm}, seed {self.seed}"


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

    def scoring(self, settings: Tree) -> tuple[ScoringSettings, ...]:
        """Return how the final policy of a run with ``settings`` is scored, on the device and servers of the run.

        One command scores all sets, or one each where an environment does not serve several.
        """
        names, policy = self.study.recipe.set_names(self.mode), settings.get("policy") or {}
        section = settings.get("environment")
        stated = {
            **self.study.recipe.limits,
            "device": policy.get("device", "auto"),
            "dtype": policy.get("dtype", "float32"),
            **{key: policy.get(key) for key in RenderingOptions.model_fields},
            "sampling": settings.get("sampling") or IN_PROCESS,
            "environment": self.study.environment,
            "options": EnvironmentSettings.model_validate(section).for_evaluation if isinstance(section, dict) else {},
            "access_log": self.place.access_log if self.mode == "test" else None,
        }
        commands = (names,) if self.study.benchmark.several_sets else tuple((name,) for name in names)
        return tuple(ScoringSettings.model_validate(stated | {"evaluation_set": sets}) for sets in commands)


def make_plan(study: Study, mode: Mode, place: Place, names: Sequence[str] | None, seeds: Sequence[int] | None) -> Plan:
    """Return the arms in the recipe's order, each with its seeds, without those that have a result.

    ``names`` and ``seeds`` select. Raises InputError for an unknown arm, a seed of the other mode, a seed beyond an
    arm's number of seeds in the study, and an arm that takes its admissions from one with neither a result nor a plan.
    """
    for name in names or ():
        study.recipe.arm(name)
    chosen = [arm for arm in study.recipe.arms if names is None or arm.name in names]
    first = FIRST_SEED[mode]
    for seed in seeds or ():
        if mode == "dev" and seed < first:
            raise InputError(f"--seeds {seed}: development takes seeds from {first} on, lower ones test")
        if mode == "test" and not any(seed in range(arm.seeds) for arm in chosen):
            raise InputError(f"--seeds {seed}: no chosen arm has this seed in the recipe: choose from 0 on")
    jobs: list[Planned] = []
    for arm in chosen:
        own, source = range(first, first + arm.seeds), arm.match_admissions
        # Development may take any seed from 100 on: settings are tried there.
        for seed in own if seeds is None else [one for one in seeds if mode == "dev" or one in own]:
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


def check_settings(plan: Plan) -> None:
    """Check the settings of all planned arms before the first one runs. Raises InputError."""
    for job in plan.jobs:
        arm = plan.study.recipe.arm(job.arm)
        if arm.match_admissions is None:
            refuse_other_settings(plan.place.run(job.arm, job.seed), plan.study.settings_of(arm, job.seed, None))
        path = plan.study.policy_of(arm, job.seed)
        if SEED in plan.study.stated_policy(arm) and not Path(path).is_dir():
            raise InputError(
                f"{job.name}: the policy {path} is not there: make one for each seed, for example with "
                f"python -m training.warm_start --seed {job.seed} --out {path}"
            )
    files = []
    for name, seeds in plan.seeds().items():
        arm = plan.study.recipe.arm(name)
        if not arm.untrained:
            settings = plan.study.settings_of(arm, seeds[0], [1] * plan.study.iterations(arm))
            files.append(plan.place.work / "recipes" / f"{name}.yaml")
            write_atomically(files[-1], [dump_yaml(settings).encode()])
    if not files:
        return
    log = plan.place.work / "check.log"
    log.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "graph.check_recipe", *map(str, files)]
    if asyncio.run(run_child(argv, log_path=log, deadline=300, accept=(0, MISTAKE))) == MISTAKE:
        raise InputError(reason_in(log))


def refuse_other_settings(folder: Path, settings: Tree) -> None:
    """Raise InputError where ``folder`` holds an earlier attempt with settings other than ``settings``."""
    recipe = folder / RECIPE_FILE
    if recipe.exists() and read_whole(recipe) != dump_yaml(settings).encode():
        raise InputError(f"{folder} holds a run with other settings: move or remove it, or name another --work")


def run_jobs(plan: Plan, at_once: int, keep_runs: bool) -> list[str]:
    """Run every planned arm and seed in order, ``at_once`` in parallel; return one sentence per failure.

    Raises InputError when another study uses the same folder. Ends its children and exits with 129, 130 or 143 on
    SIGHUP, SIGINT or SIGTERM.
    """
    with exclusive(plan.place.work / "study.lock", str(plan.place.work)):
        return asyncio.run(_run_jobs(plan, at_once, keep_runs))


async def _run_jobs(plan: Plan, at_once: int, keep_runs: bool) -> list[str]:
    """Start, wherever one is done, the first job of the plan that depends on no unfinished one."""
    waiting, finished, failures = list(plan.jobs), set[tuple[str, int]](), list[str]()
    running: dict[asyncio.Task[str], Planned] = {}
    received: list[signal.Signals] = []
    commit = current_commit(ROOT)

    def stop(number: signal.Signals) -> None:
        received.append(number)
        for task in running:
            task.cancel()

    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    while waiting or running:
        ready = [job for job in waiting if job.after is None or (job.after, job.seed) in finished]
        for job in ready[: at_once - len(running)]:
            waiting.remove(job)
            running[asyncio.create_task(_Job(plan, job, commit, keep_runs).attempt())] = job
        done, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if received:
            await asyncio.wait((*done, *others))  # each ends its child
            say(f"stopped by {received[0].name}: the same command goes on")
            raise SystemExit(128 + received[0])
        for task in done:
            job = running.pop(task)
            finished.add((job.arm, job.seed))
            failures += [failure] if (failure := task.result()) else []
    return failures


class _Job(NamedTuple):
    """One arm and seed in progress."""

    plan: Plan
    planned: Planned
    commit: str | None
    keep_run: bool

    @property
    def folder(self) -> Path:
        return self.plan.place.run(self.planned.arm, self.planned.seed)

    async def attempt(self) -> str:
        """Run and score; return a sentence where that failed, else ""."""
        try:
            await self._run()
        except (ChildFailure, InputError, EnvironmentFault) as failure:
            say(f"{self.planned.name}: failed")
            return f"{self.planned.name}: {failure}"
        return ""

    async def _run(self) -> None:
        study, mode, place, seed = self.plan.study, self.plan.mode, self.plan.place, self.planned.seed
        arm = study.recipe.arm(self.planned.arm)
        admissions = None
        if arm.match_admissions is not None:
            source = current_result(study, mode, place, study.recipe.arm(arm.match_admissions), seed)
            if source is None:
                raise InputError(f"the run of {arm.match_admissions} whose admissions it matches failed")
            admissions = source.header.admissions
        if self.planned.after and current_result(study, mode, place, arm, seed) is not None:
            return
        settings = study.settings_of(arm, seed, admissions)
        refuse_other_settings(self.folder, settings)
        write_atomically(self.folder / RECIPE_FILE, [dump_yaml(settings).encode()])
        say(f"{self.planned.name}: started")
        started = time.perf_counter()
        run = None if arm.untrained else await self._trained(study.iterations(arm))
        outcomes = await self._attempts(settings, study.policy_of(arm, seed) if run is None else str(run.policy), run)
        header = ArmHeader(
            **(await asyncio.to_thread(run.figures) if run else {}),
            arm=arm.name,
            seed=seed,
            recipe=study.run_hash(arm, seed, mode, admissions),
            study=study.sha256,
            initial_policy=study.initial_policy(arm, seed),
            tasks_left_out=run.keep_tasks(place.tasks(arm.name, seed)) if run else "",
            measured=ArmMeasured(wall_seconds=round(time.perf_counter() - started, 1), commit=self.commit),
        )
        ArmResult(header=header, outcomes=tuple(outcomes)).write(place.result(arm.name, seed))
        say(f"{self.planned.name}: done in {header.measured.wall_seconds:.0f} s")
        if header.tasks_left_out:
            say(f"{self.planned.name}: its tasks are not kept: {header.tasks_left_out}")
        if not self.keep_run:
            shutil.rmtree(self.folder)

    async def _trained(self, iterations: int) -> FinishedRun:
        run = self.folder / "run"
        resume = ["--resume"] if RunDirectory(run).settings_path.exists() else []
        options = ["--recipe", str(self.folder / RECIPE_FILE), "--run", str(run), "--json", *resume]
        await self._child("graph.run_iteration", *options)
        return await asyncio.to_thread(FinishedRun, run, iterations)

    async def _attempts(self, settings: Tree, policy: str, run: FinishedRun | None) -> list[TaskOutcome]:
        """Return the attempts of the policy, and those of the lookup over the run's tasks where the study wants it."""
        outcomes: list[TaskOutcome] = []
        for number, scoring in enumerate(self.plan.scoring(settings)):
            outcomes += await self._scored(scoring, f"policy-scoring-{number}", "--model", policy)
            if self.plan.study.recipe.lookup and run is not None:
                alone = scoring.model_copy(update={"sampling": IN_PROCESS})  # no model is sampled from
                train = ("--model", LOOKUP, "--train", str(run.learnable(self.folder)))
                outcomes += await self._scored(alone, f"{LOOKUP}-scoring-{number}", *train)
        return outcomes

    async def _scored(self, scoring: ScoringSettings, name: str, *options: str) -> list[TaskOutcome]:
        settings, outcomes = self.folder / f"{name}.json", self.folder / f"{name}.jsonl"
        write_json(settings, scoring)
        outcomes.unlink(missing_ok=True)  # of an arm that was stopped before its result
        await self._child("evaluation.run", "--settings", str(settings), "--output", str(outcomes), "--json", *options)
        return read_jsonl(outcomes, TaskOutcome)

    async def _child(self, module: str, *options: str) -> None:
        """Run one of the project's commands, its output in the arm's log. Raises InputError for its exit status 2."""
        log = self.folder / "arm.log"
        start = log.stat().st_size if log.exists() else 0
        argv, deadline = [sys.executable, "-m", module, *options], self.plan.study.recipe.deadline
        accept = (0, MISTAKE, NOTHING)
        if await run_child(argv, log_path=log, deadline=deadline, accept=accept, env=ONE_THREAD) == MISTAKE:
            raise InputError(f"{module}: {reason_in(log, start)}")


class _Summary(BaseModel):
    """The part of an iteration's summary.json that a study reads."""

    admitted: int
    refused: dict[str, int]
    signals: dict[str, int]
    evaluation: ScoreChange | None
    seconds: dict[str, float]
    labels: tuple[str, ...]


class FinishedRun:
    """A run whose iterations are all done, and the figures that a study takes from it."""

    def __init__(self, root: Path, iterations: int) -> None:
        """Open the run. Raises InputError when ``root`` is not a run, or one of its files is missing or corrupt."""
        self._run = RunDirectory.open(root)
        self._tasks = load_tasks(self._run)
        self._initial = tasks_at(self._tasks, 0)
        self._summaries = [read_json(self._run.iteration(i).summary, _Summary) for i in range(iterations)]
        self._rounds = [read_json(self._run.iteration(i).round, RoundRecord) for i in range(iterations)]

    @property
    def policy(self) -> Path:
        """The folder of the last round's checkpoint."""
        return self._run.root / self._rounds[-1].policy

    def learnable(self, folder: Path) -> Path:
        """Write a file of the tasks that the policy could learn from to ``folder``: D_t of the last round.

        It is D_0 where no other is used (``TaskSettings.uses_evolved``). No round follows the last iteration's tasks.
        """
        last = self._rounds[-1]
        of_last = tasks_at(self._tasks, last.iteration)
        file = folder / "learnable.jsonl"
        write_jsonl(file, of_last if self._run.section("tasks", TaskSettings).uses_evolved else self._initial)
        return file

    def keep_tasks(self, path: Path) -> str:
        """Replace ``path`` with D_0 and all that was admitted, compressed; return why not, "" where it did.

        They are not kept where they must not be published; a file of an earlier result is removed then. Equal tasks,
        equal bytes.
        """
        reason = unpublishable(self._run.section("environment", EnvironmentSettings).benchmark, self._tasks)
        if reason is None:
            write_atomically(path, [gzip.compress("".join(map(dump_line, self._tasks)).encode(), mtime=0)])
            return ""
        path.unlink(missing_ok=True)
        return reason

    def figures(self) -> dict[str, Any]:
        """Return what the header of the arm's result takes from the run, see ``ArmHeader``."""
        environment = self._run.section("environment", EnvironmentSettings).open()
        return {
            "initial_tasks": hashlib.sha256("".join(map(dump_line, self._initial)).encode()).hexdigest(),
            "labels": tuple(dict.fromkeys(label for summary in self._summaries for label in summary.labels)),
            "functions": len({tool for start in environment.starts() for tool in start.tools}),
            "initial_functions": _by_function(self._initial),
            "iterations": tuple(self._figures(i) for i in range(len(self._rounds))),
        }

    def _figures(self, iteration: int) -> IterationFigures:
        summary, done, folder = self._summaries[iteration], self._rounds[iteration], self._run.iteration(iteration)
        played = read_jsonl(folder.trajectories, Trajectory)
        explored = read_existing(folder.interactions, Interaction)
        explored += read_existing(self._run.seed.interactions, Interaction) if iteration == 0 else []
        drawn = {one.task_id for one in played}
        measured = {f"stage {name}": seconds for name, seconds in summary.seconds.items()}
        measured |= {f"round {name}": seconds for name, seconds in done.measured.model_dump().items()}
        return IterationFigures(
            iteration=iteration,
            steps=done.last_step,
            dev_before=summary.evaluation.before.success if summary.evaluation else None,
            dev_after=summary.evaluation.after.success if summary.evaluation else None,
            signals=summary.signals,
            drafts=summary.admitted + sum(summary.refused.values()),
            admitted=summary.admitted,
            refused=summary.refused,
            rollouts=len(played),
            rollout_calls=sum(len(one.calls()) for one in played),
            exploration_calls=sum(len(one.observation.calls) for one in explored),
            supervised_tokens=0 if done.expert is None else done.expert.tokens,
            processed_tokens=0 if done.expert is None else done.expert.processed,
            mixed_groups=done.mixed_groups,
            trained_functions=_by_function(task for task in self._tasks if task.id in drawn),
            admitted_functions=_by_function(task for task in self._tasks if task.admitted_at == iteration),
            measured={name: round(seconds, 2) for name, seconds in measured.items()},
        )


def _by_function(tasks: Iterable[TaskSpec]) -> dict[str, int]:
    counted = Counter(name for task in tasks for name in set(call_sequence(task)))
    return dict(sorted(counted.items()))
