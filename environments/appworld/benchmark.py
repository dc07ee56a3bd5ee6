"""Define AppWorld as a benchmark: options, limits, evaluation sets, metrics (task and scenario goal completion)."""

from __future__ import annotations

from pydantic import Field

from environments.appworld.environment import MAX_STEPS, NAME, AppWorldEnvironment
from environments.appworld.evaluation_sets import (
    METRICS,
    SETS,
    SetEnvironment,
    held_out,
    read_set,
    set_tasks,
)
from environments.appworld.installation import find_installation, official_task
from environments.base import Environment
from environments.benchmark import (
    Benchmark,
    CompactCaps,
    EvaluationSet,
    EvaluationTask,
    ExplorationHints,
    Limits,
    OfficialTask,
    OfficialTasks,
    Options,
)

VERSION = "0.1.3.post1"
"""The package in the engine's environment (requirements.txt)."""
UNTOLD = "the environment failed; its words are on stderr alone"


class AppWorldOptions(Options):
    """Options of the environment."""

    max_steps: int = Field(
        MAX_STEPS, ge=1, le=10_000, description="actions in one user turn before it is cut off (official: 30)"
    )


class AppWorld(Benchmark[AppWorldOptions]):
    """AppWorld on its own engine. A test split opens for every command that names a test access log.

    Ids and scores may be published. The benchmark's licence forbids it for instructions and for answers of its apps.
    """

    name = NAME
    options_type = AppWorldOptions
    actions_option = "max_steps"
    # An open episode is a process of 70 MB, its answers are long, and a message is a block of code.
    limits = Limits(actions=MAX_STEPS, new_tokens=2048, tokens=32768, compact_tokens=2048, batch=8)
    # Verifying the drafts of one start state takes half a minute; references begin by signing in, so that they are as
    # long as guided ones. Answers name more values (nine accounts at once).
    exploration = ExplorationHints(
        seed_chunk=8,
        unguided_as_guided=True,
        compact=CompactCaps(references=24, references_per_observation=12, observation_chars=600, list_items=10),
    )
    evaluation_sets = {name: held_out(name) for name in SETS}
    several_sets = False
    metrics = METRICS
    scripted_roles = "agents.scripted.appworld"
    everyday_groups = frozenset({"supervisor", "api_docs"})
    data = f"appworld {VERSION}, with the world that the hashes of its sets identify (benchmark or synthetic)"
    verdict = "the checks of each official task, run by AppWorld's own evaluator"
    unpublishable = (
        "AppWorld's licence forbids to publish its tasks, and what derives from them, as plain text: keep them on "
        "machines that have AppWorld"
    )

    def open(self, options: AppWorldOptions) -> Environment:
        """Open the environment.

        Raises InputError when AppWorld is not installed, or agents' code cannot be sandboxed.
        """
        return AppWorldEnvironment(options.max_steps)

    def official_tasks(self, options: AppWorldOptions) -> OfficialTasks:
        """Return the tasks of the train split, with the benchmark's solutions as references."""
        installation = find_installation()
        installation.require_split("train")
        ids = installation.task_ids("train")
        tasks = tuple(OfficialTask(one, official_task(installation, one, "train")) for one in ids)
        return OfficialTasks(tasks=tasks, total=len(ids))

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe an evaluation set by its ids. Raises InputError where AppWorld or its tasks are not installed."""
        one = read_set(find_installation(), name)
        return EvaluationSet(name=name, held_out=self.evaluation_sets[name], sha256=one.sha256, tasks=len(one.ids))

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of an evaluation set, without references: test splits have none."""
        installation = find_installation()
        return set_tasks(installation, read_set(installation, name), limit)

    def evaluation_environment(self, options: AppWorldOptions, name: str | None) -> Environment:
        """Open the environment of one evaluation set's worlds, or for a file of tasks the training one."""
        if name is None:
            return self.open(options)
        one = read_set(find_installation(), name)
        return SetEnvironment(one, options.max_steps)

    def evaluation_notes(self, unevaluated: int) -> tuple[str, ...]:
        """Explain both metrics and their exclusions."""
        notes = ("TGC and SGC in percent, of tasks and of scenarios with every attempted variant solved",)
        if not unevaluated:
            return notes
        return (*notes, f"{unevaluated} attempts could not be evaluated: TGC leaves them out, SGC their scenarios")

    def published_error(self, error: str) -> str:
        """Return a text without the error's words: they quote a log, which may hold answers of apps."""
        return UNTOLD


BENCHMARK = AppWorld()
