"""D_0: unguided exploration through the same branch, and tasks that a user brings along."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.changed_tasks import changed
from support.made_run import CAR, ENVIRONMENT, FILES, first_tasks, services_of, settings_for
from typer.testing import CliRunner, Result

import graph.run.initial_tasks
from agents.roles import unguided_context
from agents.scripted.explorer import UnguidedExplorer
from environments.base import Environment, EnvironmentFault, InputError
from environments.benchmark import ExplorationHints
from environments.bfcl.benchmark import BENCHMARK
from environments.bfcl.evaluation_sets import load_set
from environments.verification.canonical import fingerprint
from environments.verification.decontamination import held_out_fingerprints
from environments.verification.verify import verify
from graph.run.initial_tasks import verify_given
from graph.run.stages import make_tasks
from graph.run_iteration import open_run
from graph.seed_tasks import app
from memory.jsonl import dump_line
from memory.records import Draft, DraftVerification, FailureContext, Interaction, Task
from memory.run import RunDirectory, read_jsonl, write_jsonl
from memory.tasks import load_tasks

pytestmark = pytest.mark.slow

COUNT = 40
GIVEN = ("--set", "tasks.initial_count=100", "--set")
"""What goes before tasks.initial=FILE, because the small recipe asks for another number of tasks."""


def seed(folder: Path, *options: str | Path) -> Result:
    settings_for(folder)
    return CliRunner().invoke(app, ["--recipe", str(folder / "recipe.yaml"), *map(str, options)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    folder = tmp_path_factory.mktemp("seeds")
    result = seed(folder, "--output", folder / "d0.jsonl", "--count", str(COUNT))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{COUNT} tasks (")
    return read_jsonl(folder / "d0.jsonl", Task)


def test_seeds_are_verified_distinct_and_of_the_training_split(made: list[Task]) -> None:
    assert len(made) == COUNT
    assert len({fingerprint(task) for task in made}) == COUNT
    assert all(task.origin == "seed" and task.admitted_at is None and task.split == "train" for task in made)
    for task in made:
        assert verify(task, ENVIRONMENT, (), held_out_fingerprints("bfcl")).accepted


def test_few_seeds_spread_over_the_start_states(made: list[Task]) -> None:
    assert {task.classes for task in made} == {(FILES,), (CAR,)}
    states = {json.dumps(task.initial_state) for task in made}
    assert len(states) >= len({json.dumps(start.initial_state) for start in ENVIRONMENT.starts()}) - 2


def test_seeds_do_not_depend_on_how_branches_are_scheduled(
    made: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seed(tmp_path / "as it is", "--run", tmp_path / "few", "--count", str(COUNT)).exit_code == 0
    monkeypatch.setattr(graph.run.initial_tasks, "BRANCHES_AT_ONCE", 7)
    assert seed(tmp_path / "many at once", "--run", tmp_path / "many", "--count", str(COUNT)).exit_code == 0
    few, many = (
        {path.name: path.read_text().splitlines() for path in (tmp_path / run / "seed").iterdir()}
        for run in ("few", "many")
    )
    for name in sorted(few | many):  # what a branch wrote tells more than the tasks that came of it
        assert few.get(name) == many.get(name), name
    for run in ("few", "many"):
        assert sorted(made, key=lambda task: task.id) == list(load_tasks(RunDirectory.open(tmp_path / run))), run


def test_another_seed_makes_other_tasks(made: list[Task], tmp_path: Path) -> None:
    assert seed(tmp_path, "--output", tmp_path / "d0.jsonl", "--count", "10", "--seed", "4").exit_code == 0
    others = {fingerprint(task) for task in read_jsonl(tmp_path / "d0.jsonl", Task)}
    assert len(others - {fingerprint(task) for task in made}) > 5


def test_a_seeded_run_keeps_the_records_behind_its_tasks_and_can_go_on(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert seed(tmp_path, "--run", root, "--count", "5").exit_code == 0
    run = RunDirectory.open(root)
    drafts = {draft.id for draft in read_jsonl(root / "seed" / "drafts.jsonl", Draft)}
    contexts = {context.id for context in read_jsonl(root / "seed" / "contexts.jsonl", FailureContext)}
    assert all(task.parents[0] in drafts and task.parents[1] in contexts for task in load_tasks(run))
    assert read_jsonl(root / "seed" / "interactions.jsonl", Interaction)
    verifications = read_jsonl(root / "seed" / "verdicts.jsonl", DraftVerification)
    assert {verification.draft_id for verification in verifications} == drafts
    assert not (root / "seed" / "branches").exists()
    again = open_run(root, None, [], None, resume=True)
    assert (again.directory.root, again.settings.tasks.initial_count, again.resumed) == (root, 5, True)
    run.seed.branch("left-by-a-kill").root.mkdir(parents=True)
    asyncio.run(make_tasks(again))
    assert not run.seed.branches.exists()


def test_exploration_that_finds_nothing_more_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.run.initial_tasks, "BARREN_CHUNKS", 1)
    monkeypatch.setattr(type(BENCHMARK), "exploration", ExplorationHints(seed_chunk=1))
    monkeypatch.setattr(graph.run.initial_tasks, "unguided_context", _always_the_first)
    result = seed(tmp_path, "--output", tmp_path / "d0.jsonl", "--count", "1000")
    assert result.exit_code == 2
    assert "of 1000 tasks and no more after 2 contexts" in result.stderr


def test_contexts_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explored = UnguidedExplorer.explore_now

    def failing(
        self: UnguidedExplorer, context: FailureContext, environment: Environment, seed: int
    ) -> tuple[Interaction, ...]:
        if context == unguided_context(ENVIRONMENT.starts()[1], 1):
            raise EnvironmentFault("the engine is gone")
        return explored(self, context, environment, seed)

    monkeypatch.setattr(UnguidedExplorer, "explore_now", failing)
    result = seed(tmp_path, "--run", tmp_path / "run", "--count", "5")
    assert result.exit_code == 0
    assert "D_0: 1 of 5 contexts failed (1 EnvironmentFault), it was made without them; the last: " in result.stderr
    assert "the engine is gone" in (tmp_path / "run" / "seed" / "branch_failures.jsonl").read_text()


BROKEN = '''
from typing import Annotated
from environments.python_class.environment import PythonEnvironment


class Shelf:
    def __init__(self, books: list[str]) -> None:
        self.books = books

    def take(self, label: Annotated[str, "label of the book"]) -> str:
        """Take a book."""
        return {}[label]


def shelf() -> PythonEnvironment:
    return PythonEnvironment("shelf", Shelf, [{"books": ["a"]}])
'''


def test_a_bug_in_a_users_tool_stops_at_once_and_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "broken_shelf.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    explored, begun = UnguidedExplorer.explore_now, []

    def counting(self: UnguidedExplorer, context: FailureContext, *others: Any) -> tuple[Interaction, ...]:
        begun.append(context.id)
        return explored(self, context, *others)

    monkeypatch.setattr(UnguidedExplorer, "explore_now", counting)
    own = ("--set", "environment={name: 'broken_shelf:shelf'}")
    result = seed(tmp_path, "--run", tmp_path / "run", "--count", "5", *own)
    assert result.exit_code == 2
    line = 1 + BROKEN.splitlines().index("        return {}[label]")
    told = result.stderr.splitlines()[-1]
    assert told.startswith("error: Shelf.take failed (KeyError: ")
    assert f" at broken_shelf.py:{line}: a tool raises ToolRefused" in told
    assert len(begun) <= 2 * graph.run.initial_tasks.BRANCHES_AT_ONCE, "no retries, and no further branch"
    assert not (tmp_path / "run").exists()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def _always_the_first(start: object, position: int) -> FailureContext:
    first = ENVIRONMENT.starts()[0]
    return FailureContext(
        id="context-0000000000000000",
        environment="bfcl",
        classes=first.classes,
        initial_state=first.initial_state,
        tools=first.tools,
    )


def given_file(path: Path) -> None:
    """Two good tasks, one of them without an id, and seven lines that are to be refused."""
    good, other, third, *_ = first_tasks()
    bare = json.loads(dump_line(other))
    for key in ("id", "origin", "parents", "admitted_at"):
        del bare[key]
    invented = json.loads(dump_line(good)) | {"id": "a", "reference": [[{"name": "makeFolder", "arguments": {}}]]}
    held_out = json.loads(dump_line(third)) | {"id": "b", "split": "test"}
    elsewhere = json.loads(dump_line(third)) | {"id": "c", "environment": "appworld"}
    again = json.loads(dump_line(good)) | {"id": "d"}
    unsaid = json.loads(dump_line(good).replace("reports", "papers")) | {"id": "e", "turns": ["make one new directory"]}
    unknown = json.loads(dump_line(good)) | {"id": "f", "extra": 1}
    lines = [json.loads(dump_line(good)), bare, invented, held_out, elsewhere, again, unsaid, unknown]
    path.write_text("\n".join([*map(json.dumps, lines), "{", ""]))


def test_a_users_tasks_are_verified_or_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    given_file(path)
    result = seed(tmp_path, "--run", tmp_path / "run", *GIVEN, f"tasks.initial={path}")
    assert result.exit_code == 0, result.stderr
    tasks = load_tasks(RunDirectory.open(tmp_path / "run"))
    good, other, *_ = first_tasks()
    assert {fingerprint(task) for task in tasks} == {fingerprint(good), fingerprint(other)}
    assert all(task.origin == "given" and task.admitted_at is None for task in tasks)
    told = [line for line in result.stderr.splitlines() if line.startswith(f"{path}:")]
    expected = ["unknown_tool", "split", "environment", "duplicate", "ungrounded_argument", "extra", "no JSON"]
    assert [line.split(": ")[0] for line in told] == [f"{path}:{number}" for number in range(3, 10)]
    for line, reason in zip(told, expected, strict=True):
        assert reason in line


def test_when_no_task_is_accepted_the_command_fails(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("{}\n")
    result = seed(tmp_path, "--run", tmp_path / "run", *GIVEN, f"tasks.initial={path}")
    assert result.exit_code == 2
    assert f"{path}:1: " in result.stderr
    assert "none of the 1 tasks" in result.stderr.splitlines()[-1]
    assert seed(tmp_path, "--run", tmp_path / "run", "--count", "3").exit_code == 0


def test_held_out_tasks_in_disguise_are_refused_by_name(tmp_path: Path) -> None:
    rng, given = random.Random(0), []
    for member in load_set("templated-dev"):
        kind = rng.choice(("unused_key", "unused_part", "unused_file", "default_written"))
        if len(given) < 12 and (task := changed(member.spec, (kind,), rng)):
            given.append(Task(id=f"mine-{len(given)}", origin="given", **dict(task)))
    write_jsonl(tmp_path / "mine.jsonl", given)
    result = seed(tmp_path, "--run", tmp_path / "run", *GIVEN, f"tasks.initial={tmp_path / 'mine.jsonl'}")
    assert result.exit_code == 2
    assert result.stderr.count(": sealed: ") == 12
    assert f"12 are held out ({', '.join(task.id for task in given)})" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


async def test_a_held_out_task_is_refused_as_sealed(tmp_path: Path) -> None:
    good, *_ = first_tasks()
    path = tmp_path / "mine.jsonl"
    path.write_text(dump_line(good))
    run = RunDirectory.create(tmp_path / "run", settings_for(tmp_path))
    services = dataclasses.replace(services_of(run), held_out=frozenset({fingerprint(good)}))
    told: list[str] = []
    with pytest.raises(InputError):
        await verify_given(path, services, told.append)
    assert told[0].startswith(f"{path}:1: sealed")
