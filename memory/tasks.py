"""The evolving task set: membership in D_t, drafts that become tasks, their admission, and success by function.

A task of three calls fails as a whole where one of them is wrong, so its score does not say which function the policy
lacks. ``success_by_function`` (ours) counts each call of a reference by itself: it was made when the rollout made an
equal call in the same user turn and that call did not fail. A rollout that succeeds has made all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from environments.base import Environment, InputError, TaskSpec, ToolCall, ToolSpec
from environments.settings import Section, requires
from environments.verification.canonical import fingerprint
from environments.verification.programs import functions_of, program_parameters
from environments.verification.verify import Refusal
from memory.files import read_lines, write_atomically
from memory.jsonl import complaint, dump_line, parse_json, read_jsonl, record_id
from memory.records import Draft, DraftVerification, FailureContext, Task, Trajectory
from memory.run import RunDirectory

OFFICIAL = "official"
"""The value of ``tasks.initial`` that is not a file."""


class TaskSettings(Section):
    """The making of D_0 and the drawing of tasks from D_t."""

    initial: str | None = Field(
        None,
        description="source of D_0: a JSONL file of tasks, or official, the benchmark's own training tasks; null: "
        "unguided exploration",
    )
    official: Literal["tasks", "turns", "both"] = Field(
        "tasks",
        description="whole tasks; each user turn as a task, behind the reference's turns before it; or both (ours)",
        json_schema_extra=requires({"initial": OFFICIAL}),
    )
    initial_count: int = Field(
        100, ge=1, le=1_000_000, description="tasks of D_0 (paper: 100)", json_schema_extra=requires({"initial": None})
    )
    evolved_share: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="share of a step's tasks that are evolved ones, the newest first; 0: none, nor in an expert "
        "step; null: tasks are drawn from D_t as a whole (shares are ours)",
    )
    repeats: int = Field(
        1,
        ge=1,
        le=100_000,
        description="times that a round draws each of its tasks, at different steps, so that a small round can "
        "show forgetting (ours)",
    )
    admissions: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] | None = Field(
        None,
        description="tasks that each iteration admits, one number per iteration, drawn from those accepted; null: "
        "all (ours)",
    )

    @property
    def uses_evolved(self) -> bool:
        """Return whether evolved tasks are drawn, and so learnt from: with ``evolved_share`` 0 there is D_0 alone."""
        return self.evolved_share != 0.0


def load_tasks(run: RunDirectory) -> tuple[Task, ...]:
    """Return every task of the run in the order of its file; none before D_0 was made.

    The file is parsed again only when it changed since this process read or wrote it. Raises InputError naming file and
    line for a corrupt line, and for an id that occurs twice.
    """
    if not run.tasks_path.exists():
        return ()
    found = run.tasks_path.stat()
    return _parsed(run.tasks_path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=1)  # the stages of an iteration read one set: 0.3 s at 10,000 tasks
def _parsed(path: Path, stamp: tuple[int, int, int]) -> tuple[Task, ...]:
    tasks = tuple(read_jsonl(path, Task))
    lines: dict[str, int] = {}
    for number, task in enumerate(tasks, start=1):
        if task.id in lines:
            raise InputError(f"{path}, line {number}: task {task.id} is in line {lines[task.id]} already")
        lines[task.id] = number
    return tasks


def tasks_at(tasks: Iterable[Task], iteration: int) -> tuple[Task, ...]:
    """Return D_t for t = ``iteration``: the tasks of D_0 and those admitted by iterations before t."""
    return tuple(task for task in tasks if task.admitted_at is None or task.admitted_at < iteration)


def admit(run: RunDirectory, tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Append ``tasks``, sorted by id, and return the whole set; the file is replaced atomically.

    An existing task is not added again, so that an interrupted update can be repeated. Raises InputError for one with
    another content.
    """
    before = load_tasks(run)
    present = {task.id: task for task in before}
    added: dict[str, Task] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        known = present.get(task.id) or added.get(task.id)
        if known is None:
            added[task.id] = task
        elif dump_line(known) != dump_line(task):
            raise InputError(f"{run.tasks_path}: task {task.id} is there with another content: start a new run")
    if not added and run.tasks_path.exists():
        return before
    lines = [dump_line(task).encode() for task in added.values()]
    written = [line for _, line in read_lines(run.tasks_path)] if run.tasks_path.exists() else []
    if written and not written[-1].endswith(b"\n"):
        written.append(b"\n")
    write_atomically(run.tasks_path, [*written, *lines])
    return load_tasks(run)


def read_given(path: Path) -> list[tuple[int, Task | str]]:
    """Return the tasks of a user's file (``tasks.initial``): line number, and the task or the line's error.

    Lines hold the keys of tasks.jsonl, of which ``id``, ``origin``, ``parents`` and ``admitted_at`` may be missing.
    ``origin`` becomes "given" and ``admitted_at`` None whatever they hold, because the tasks belong to D_0. A missing
    id becomes a hash of the task's content. Blank lines are skipped. Raises InputError when the file cannot be read.
    """
    read: list[tuple[int, Task | str]] = []
    first_lines: dict[str, int] = {}
    try:
        for number, line in read_lines(path):
            if not line.strip():
                continue
            task = _given_task(line)
            if isinstance(task, Task) and (first := first_lines.setdefault(task.id, number)) != number:
                task = f"task {task.id} is in line {first} already"
            read.append((number, task))
    except (OSError, InputError) as error:
        raise InputError(f"tasks.initial: {error}") from None
    return read


def _given_task(line: bytes) -> Task | str:
    try:
        values = parse_json(line)
    except ValueError as error:
        return f"no JSON: {error}"
    if not isinstance(values, dict):
        return "not a JSON object: write one task with its keys"
    try:
        spec = TaskSpec.model_validate({key: values[key] for key in values if key in TaskSpec.model_fields})
        values.setdefault("id", record_id("task", "given", spec.model_dump(mode="json")))
        return Task.model_validate(values | {"origin": "given", "admitted_at": None})
    except ValidationError as error:
        return complaint(error)


def refused(verification: DraftVerification, reason: Refusal, detail: str) -> DraftVerification:
    """Return the result of an accepted draft as that of a refused one."""
    return verification.model_copy(update={"accepted": False, "reason": reason.value, "detail": detail})


def refuse_repeated(
    drafts: Sequence[Draft], verifications: Iterable[DraftVerification], known: Iterable[str] = ()
) -> list[DraftVerification]:
    """Return the drafts' results in their order, refusing each accepted one that equals an earlier one or is ``known``.

    Branches verify concurrently: each knows the tasks that existed before, but not its siblings' drafts. ``known`` are
    fingerprints.
    """
    seen = dict.fromkeys(known, "")
    resolved, of_draft = [], {one.draft_id: one for one in verifications}
    for draft in drafts:
        verification = of_draft[draft.id]
        if verification.accepted and (first := seen.setdefault(fingerprint(draft), draft.id)) != draft.id:
            detail = f"Draft {first} is the same task." if first else "This task exists already."
            verification = refused(verification, Refusal.DUPLICATE, detail)
        resolved.append(verification)
    return resolved


def admitted_task(
    draft: Draft, context: FailureContext, origin: Literal["seed", "evolved"], iteration: int | None
) -> Task:
    """Return the task that an accepted draft becomes.

    Its parents are draft, context, signal, trajectory and task; the last three only where the context comes from a
    signal.
    """
    lineage = (draft.id, context.id, context.signal_id, context.trajectory_id, context.task_id)
    return Task(
        **{name: getattr(draft, name) for name in TaskSpec.model_fields},
        id=record_id("task", draft.id),
        origin=origin,
        parents=tuple(parent for parent in lineage if parent),
        admitted_at=iteration,
    )


UNKNOWN = 0.5
"""Success that is assumed of a function that no rollout was asked for."""

_FADING = 0.5
"""Weight of a round against the round after it: the policy changes."""


def success_by_function(
    rounds: Sequence[Iterable[Trajectory]], tasks: Mapping[str, Task], tools: Iterable[ToolSpec]
) -> dict[str, float]:
    """Return the estimated share of each function's calls that the policy makes in its own turns, in (0, 1).

    It is (made + 1) / (asked + 2), where ``rounds``, the oldest first, count half as much as the round after them; a
    function that was never asked for is not in it. ``tasks`` has the tasks of the trajectories by id.
    Trajectories with an infrastructure error are left out. In programs the functions that are called count.
    """
    programs = program_parameters(tools)
    made: defaultdict[str, float] = defaultdict(float)
    asked: defaultdict[str, float] = defaultdict(float)
    for age, trajectories in enumerate(reversed(rounds)):
        weight = _FADING**age
        for one in trajectories:
            if one.infrastructure_error is not None:
                continue
            task = tasks[one.task_id]
            for turn, calls in enumerate(task.reference[task.played :], start=task.played):
                left = _succeeded(one, turn)
                for call in calls:
                    hit = one.success or call in left
                    if call in left:
                        left.remove(call)
                    for name in functions_of(call, programs.get(call.name)):
                        asked[name] += weight
                        made[name] += weight * hit
    return {name: (made[name] + 1) / (count + 2) for name, count in asked.items()}


def success_in(
    run: RunDirectory, rounds: Iterable[int], tasks: Iterable[Task], environment: Environment
) -> dict[str, float]:
    """Return ``success_by_function`` of these rounds of a run, ascending; ``tasks`` holds those that they played."""
    known = {task.id: task for task in tasks}
    played = [read_jsonl(run.iteration(number).trajectories, Trajectory) for number in rounds]
    return success_by_function(played, known, tools_of(known.values(), environment))


def tools_of(tasks: Iterable[Task], environment: Environment) -> Sequence[ToolSpec]:
    """Return the documentation of every tool that one of ``tasks`` offers."""
    return environment.tools(sorted({name for task in tasks for name in task.tools}))


def _succeeded(trajectory: Trajectory, turn: int) -> list[ToolCall]:
    """Return the calls of a user turn that did not fail; none for a turn that was not reached."""
    steps = trajectory.turns[turn].steps if turn < len(trajectory.turns) else ()
    return [call for step in steps if not step.observation.failed for call in step.observation.calls]
