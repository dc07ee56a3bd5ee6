"""The content of a run that can be exported: its tasks with their lineage, the trajectories of finished rounds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from environments.base import Environment, EnvironmentFault, InputError, TaskSpec
from environments.benchmark import AnyBenchmark
from environments.registry import benchmark_of, unpublishable
from environments.verification.decontamination import HeldOut
from graph.assembly import held_out_of
from graph.export.conversations import TaskMessages, task_messages
from graph.report.digest import result_of
from graph.report.lineage import History
from graph.settings import RunSettings, changed
from memory.records import Task, Trajectory
from memory.run import RunDirectory, read_json
from training.grpo.record import RoundRecord
from training.rendering.tool_calls import tool_schema


def refuse_unpublishable(settings: RunSettings, tasks: Sequence[TaskSpec] = ()) -> None:
    """Raise InputError, one sentence, where the environment's content must not be published.

    The environment of each task counts too, whatever the run's settings call theirs.
    """
    reason = unpublishable(settings.environment.benchmark, tasks)
    if reason is not None:
        raise InputError(f"this run cannot be exported: {reason}")


class RunContent:
    """The records of a run, read once, with the environment that documents its tools.

    ``iterations`` are those whose round is finished. Making one raises InputError for a run without one, for damaged
    records, for an environment that cannot be opened, and like ``refuse_unpublishable``.
    """

    def __init__(self, run: RunDirectory, settings: RunSettings) -> None:
        self.run = run
        self.settings = settings
        refuse_unpublishable(settings)
        self.history = History.read(run)
        self.tasks: tuple[Task, ...] = tuple(self.history.tasks.values())
        refuse_unpublishable(settings, self.tasks)
        self.iterations = tuple(n for n in self.history.iterations if run.iteration(n).round.exists())
        if not self.iterations:
            raise InputError(f"{run.root} has no finished round: there is nothing to export yet")

    @cached_property
    def environment(self) -> Environment:
        """The environment, opened here whatever hosts the run played on."""
        return self.settings.environment.open()

    @property
    def benchmark(self) -> AnyBenchmark:
        """The benchmark of the environment."""
        return benchmark_of(self.environment)

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the rollouts of finished rounds, in their order.

        Raises InputError that names the file and the place of a damaged one.
        """
        found = [one for one in self.history.rollouts.values() if one.iteration in self.iterations]
        for one in self.history.trajectories(found):
            error = one.infrastructure_error
            shown = None if error is None else self.benchmark.published_error(error)
            yield one.model_copy(update={"infrastructure_error": shown})

    def records(self) -> list[RoundRecord]:
        """Return the record of each finished round."""
        return [read_json(self.run.iteration(n).round, RoundRecord) for n in self.iterations]

    def tools(self, task_id: str) -> list[dict[str, Any]]:
        """Return OpenAI function schemas of the tools that a task offers in any of its turns.

        Raises InputError for a task that the run does not have.
        """
        task = self.history.tasks.get(task_id)
        if task is None:
            raise InputError(f"{self.run.tasks_path} does not have the task {task_id} of a rollout: restore it")
        withheld = (name for names in task.withheld.values() for name in names)
        return [tool_schema(tool) for tool in self.environment.tools(tuple(dict.fromkeys((*task.tools, *withheld))))]

    @cached_property
    def held_out(self) -> HeldOut:
        """What the environment holds out, joined with the run's own held-out file where that is still there."""
        return held_out_of(self.environment, self.settings.evaluation.tasks if self.held_out_file else None)

    @property
    def held_out_file(self) -> str | None:
        """The name of the run's own held-out file, None where it has none or it is gone."""
        path = self.settings.evaluation.tasks
        return None if path is None or not Path(path).is_file() else Path(path).name

    def messages(self, task: Task) -> TaskMessages:
        """Return a task as messages. Raises InputError for one whose reference cannot be carried out."""
        try:
            return task_messages(self.environment, task)
        except (InputError, EnvironmentFault) as error:
            raise InputError(f"the reference of task {task.id} cannot be carried out ({error}): remove it") from error

    def contaminated(self) -> list[str]:
        """Return the ids of tasks that equal a held-out one. Raises InputError for one that cannot be compared."""
        from environments.verification.canonical import canonical

        held_out = self.held_out
        found = []
        for task in self.tasks:
            try:
                equal = held_out.match(task, canonical(self.environment, task)) is not None
            except (InputError, EnvironmentFault, RecursionError) as error:
                raise InputError(
                    f"task {task.id} cannot be compared with the held-out sets ({error}): remove it"
                ) from error
            found += [task.id] if equal else []
        return found

    def verification_counts(self) -> Counter[str]:
        """Count the drafts of the whole run, D_0 included, by ``accepted`` or the reason of their refusal."""
        outcomes = (outcome for chain in self.history.chains.values() for outcome in chain.outcomes)
        return Counter(result_of(one.verification) for one in outcomes)


def stated_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that are not their defaults, by dotted key, without paths and addresses of machines."""
    return {key: _without_places(value) for key, (value, _) in changed(settings).items()}


def _without_places(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    if isinstance(value, str) and "://" in value:
        return "(an address)"
    if isinstance(value, str) and (Path(value).is_absolute() or value.startswith(("~", ".."))):
        return Path(value).name
    return value


def checked_json(value: object, run: RunDirectory, record_id: str) -> str:
    """Return ``value`` as JSON text that every parser and UTF-8 take.

    Raises InputError that names the record for a number that is not finite, and for half of a surrogate pair.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:
        raise InputError(
            f"{run.root}: {record_id} holds what no JSON file can ({str(error)[:200]}): correct or remove it"
        ) from None
    return text
