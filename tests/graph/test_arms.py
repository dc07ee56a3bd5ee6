"""The arms of a study, each once through the graph on trajectories that a script acted out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from support.made_run import ENVIRONMENT, first_tasks, make_run, records, rollouts, run_graph, services_of, settings_for
from typer.testing import CliRunner

from graph.nodes.new_tasks import join
from graph.report.summary import Summary, arm_labels, summarise
from graph.seed_tasks import app
from graph.settings import load_recipe
from graph.state import IterationState
from memory.failures import DeduplicationResult
from memory.records import (
    Draft,
    DraftVerification,
    FailureContext,
    Interaction,
    SignalKind,
    Task,
    Trajectory,
    Unsignalled,
)
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from memory.run_files import Evolution, ExtractionRecord
from memory.tasks import load_tasks
from training.seal.diagnosis import TurnLabel

pytestmark = pytest.mark.slow

ROUNDS_AND_STEPS = 2 * 6  # of made_run's recipe


def evolved(tmp_path: Path, *overrides: str) -> RunDirectory:
    run = make_run(tmp_path / "run", *overrides)
    run_graph(run)
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The full loop, which tests compare an arm with and leave as it is."""
    return evolved(tmp_path_factory.mktemp("plain"))


def rows(run: RunDirectory, name: str, model: type, iteration: int = 0) -> list:
    return read_jsonl(run.iteration(iteration) / name, model)


def evolution_of(run: RunDirectory) -> Evolution:
    return read_json(run.iteration(0) / "evolution.json", Evolution)


def summary_of(run: RunDirectory) -> Summary:
    return summarise(run, load_recipe(run.settings_path), 0)


def admitted(run: RunDirectory) -> list[Task]:
    return [task for task in load_tasks(run) if task.origin == "evolved"]


def test_the_full_loop_has_no_label_and_writes_no_new_file(plain: RunDirectory) -> None:
    assert summary_of(plain).labels == ("scripted roles",)
    assert "shortfall" not in json.loads((plain.iteration(0) / "evolution.json").read_text())


def test_kinds_that_are_not_listed_are_read_and_not_followed_up(tmp_path: Path) -> None:
    run = evolved(tmp_path, "signals.kinds=[forgetting, rare]")
    contexts = rows(run, "contexts.jsonl", FailureContext)
    assert {context.kind for context in contexts} == {SignalKind.FORGETTING, SignalKind.RARE}
    assert len(contexts) == 6
    assert read_json(run.iteration(0).extraction, ExtractionRecord).signals[SignalKind.BOUNDARY] > 0
    assert summary_of(run).labels == ("scripted roles", "without boundary signals")


def test_random_contexts_go_the_way_of_guided_ones(tmp_path: Path) -> None:
    run = evolved(tmp_path, "signals.contexts=random")
    contexts, evolution = rows(run, "contexts.jsonl", FailureContext), evolution_of(run)
    assert len(contexts) == evolution.new + evolution.known == 6
    assert {context.kind for context in contexts} == {Unsignalled.RANDOM}
    found = read_json(run.iteration(0).extraction, ExtractionRecord).signals
    assert all(found[kind] > 0 for kind in SignalKind), "signals are told whoever makes the contexts"
    assert read_json(run.iteration(0) / "extraction.json", ExtractionRecord).chosen == ()
    assert len(rows(run, "interactions.jsonl", Interaction)) == evolution.new * ROUNDS_AND_STEPS
    for task in admitted(run):
        draft, context, trajectory, source = task.parents
        assert [p.partition("-")[0] for p in (draft, context, trajectory, source)] == [
            "draft",
            "context",
            "trajectory",
            "task",
        ]
    assert admitted(run)
    assert summary_of(run).labels == ("scripted roles", "random contexts")
    write_jsonl(run.iteration(1) / "trajectories.jsonl", rollouts(first_tasks(), 1))
    run_graph(run, 1)
    compared = rows(run, "judgements.jsonl", DeduplicationResult, 1)
    before = {one.context_id for one in rows(run, "judgements.jsonl", DeduplicationResult)}
    assert len(compared) == 6
    assert before.isdisjoint(one.context_id for one in compared)
    assert any(one.nearest in before for one in compared), "a later round remembers them"


def test_unguided_exploration_makes_as_many_calls_from_start_states(tmp_path: Path) -> None:
    run = evolved(tmp_path, "signals.contexts=unguided", "signals.contexts_per_iteration=8")
    contexts = rows(run, "contexts.jsonl", FailureContext)
    assert {context.kind for context in contexts} == {Unsignalled.UNGUIDED}
    assert {context.iteration for context in contexts} == {0}
    calls = len(rows(run, "interactions.jsonl", Interaction))
    assert 8 * ROUNDS_AND_STEPS <= calls < 8 * ROUNDS_AND_STEPS + 14
    states = [start.initial_state for start in ENVIRONMENT.starts()]
    assert all(context.initial_state in states and not context.setup for context in contexts)
    assert {one.status for one in rows(run, "judgements.jsonl", DeduplicationResult)} == {"new"}
    assert not run.failures_path.exists() or not list(run.failures_path.iterdir())
    assert admitted(run)
    assert summary_of(run).labels == ("scripted roles", "unguided exploration")
    write_jsonl(run.iteration(1) / "trajectories.jsonl", rollouts(first_tasks(), 1))
    run_graph(run, 1)
    later = rows(run, "contexts.jsonl", FailureContext, 1)
    assert len(later) == len(contexts)
    assert {one.id for one in later}.isdisjoint(one.id for one in contexts)
    assert [one.initial_state for one in later] != [one.initial_state for one in contexts]


def test_coverage_explores_what_no_task_calls(tmp_path: Path) -> None:
    run = evolved(tmp_path, "signals.contexts=coverage")
    contexts, evolution = rows(run, "contexts.jsonl", FailureContext), evolution_of(run)
    called = {call.name for task in first_tasks() for turn in task.reference for call in turn}
    assert {context.kind for context in contexts} == {Unsignalled.COVERAGE}
    assert len({context.tool for context in contexts} - called) == len(contexts) == evolution.new == 6
    assert read_json(run.iteration(0) / "extraction.json", ExtractionRecord).chosen == ()
    assert len(rows(run, "interactions.jsonl", Interaction)) == 6 * ROUNDS_AND_STEPS, "the budget of guided contexts"
    assert not run.failures_path.exists() or not list(run.failures_path.iterdir())
    for task in admitted(run):
        assert [parent.partition("-")[0] for parent in task.parents] == ["draft", "context"]
    offered = {name for task in first_tasks() for name in task.tools}
    summary = summary_of(run)
    assert summary.labels == ("scripted roles", "contexts by coverage of the tasks alone")
    assert (summary.functions, summary.functions_offered) == (len(called), len(offered))
    reached = {call.name for task in admitted(run) for turn in task.reference for call in turn}
    assert reached & {context.tool for context in contexts}
    write_jsonl(run.iteration(1) / "trajectories.jsonl", rollouts(first_tasks(), 1))
    run_graph(run, 1)
    later = rows(run, "contexts.jsonl", FailureContext, 1)
    assert {one.tool for one in later}.isdisjoint(called | reached | {one.tool for one in contexts})
    found = read_json(run.iteration(1) / "extraction.json", ExtractionRecord)
    assert found.functions == len(called | reached)


def test_contexts_by_need_look_at_what_rollouts_failed_at(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "signals.contexts=coverage", "signals.coverage_by=need")
    played = read_jsonl(run.iteration(0).trajectories, Trajectory)
    failed = [one.model_copy(update={"turns": ()}) for one in played if not one.success]
    write_jsonl(run.iteration(0).trajectories, failed)
    run_graph(run)
    contexts = rows(run, "contexts.jsonl", FailureContext)
    assert {context.kind for context in contexts} == {Unsignalled.COVERAGE}
    lost = {one.task_id for one in failed}
    asked = {call.name for task in first_tasks() if task.id in lost for turn in task.reference for call in turn}
    failing = {context.tool for context in contexts if "Rollouts make about" in context.why}
    assert failing
    assert failing <= asked
    assert summary_of(run).labels == ("scripted roles", "contexts by need")


def test_compositions_join_what_is_new_with_the_set_and_are_verified_too(tmp_path: Path) -> None:
    plain = evolved(tmp_path / "plain", "roles.exploration.max_reference_calls=4")
    run = evolved(tmp_path / "more", "roles.exploration.max_reference_calls=4", "roles.exploration.compositions=3")
    before = {draft.id: draft for draft in rows(plain, "drafts.jsonl", Draft)}
    drafts = {draft.id: draft for draft in rows(run, "drafts.jsonl", Draft)}
    composed = [draft for name, draft in drafts.items() if name not in before]
    assert before.items() <= drafts.items()
    assert composed
    assert max(Counter(draft.context_id for draft in composed).values()) == 3
    for draft in composed:
        mine, other = draft.parents
        assert drafts[mine].context_id == draft.context_id
        assert other in {task.id for task in first_tasks()}
    taken = {draft.id for draft in composed} & {parent for task in admitted(run) for parent in task.parents}
    refused = {one.draft_id for one in rows(run, "verdicts.jsonl", DraftVerification) if not one.accepted}
    assert taken
    assert taken.isdisjoint(refused)
    assert taken | refused >= {draft.id for draft in composed}


def test_without_deduplication_every_context_is_new(plain: RunDirectory, tmp_path: Path) -> None:
    run = evolved(tmp_path, "memory.deduplicate=false")
    assert evolution_of(plain).known > 0
    assert (evolution_of(run).new, evolution_of(run).known) == (6, 0)
    assert rows(run, "contexts.jsonl", FailureContext) == rows(plain, "contexts.jsonl", FailureContext)
    assert summary_of(run).labels == ("scripted roles", "without deduplication")


def test_a_quota_admits_exactly_so_many(tmp_path: Path) -> None:
    run = evolved(tmp_path, "tasks.admissions=[3, 0]")
    evolution = evolution_of(run)
    assert (len(evolution.admitted), evolution.shortfall, len(admitted(run))) == (3, 0, 3)
    assert evolution.refused["over_quota"] == evolution.drafts - 3
    by_draft = rows(run, "verdicts.jsonl", DraftVerification)
    assert sum(one.accepted for one in by_draft) == 3
    assert summary_of(run).labels == ("scripted roles", "tasks admitted by a quota")


def test_a_quota_that_is_not_met_is_told(tmp_path: Path) -> None:
    run = evolved(tmp_path, "tasks.admissions=[1000, 0]")
    evolution = evolution_of(run)
    assert evolution.admitted
    assert evolution.shortfall == 1000 - len(evolution.admitted)
    assert "over_quota" not in evolution.refused
    assert summary_of(run).labels[-1] == f"iteration 0: {evolution.shortfall} tasks short of its quota"


def test_with_verification_off_what_it_would_refuse_is_admitted(tmp_path: Path) -> None:
    short = "verification.max_calls=1"
    assert evolution_of(evolved(tmp_path / "verified", short)).refused["too_long"] > 0
    run = evolved(tmp_path, short, "verification.enabled=false")
    evolution = evolution_of(run)
    assert set(evolution.refused) <= {"duplicate", "empty_reference"}
    assert len(evolution.admitted) + sum(evolution.refused.values()) == evolution.drafts
    assert any(sum(map(len, task.reference)) > 1 for task in admitted(run))
    assert summary_of(run).labels == ("scripted roles", "verification off")


def test_the_tasks_that_a_run_begins_with_are_verified_and_sound_in_every_arm(tmp_path: Path) -> None:
    made = []
    for name, options in {
        "sound": (),
        "unverified": ("verification.enabled=false",),
    }.items():
        settings_for(tmp_path / name)
        output = tmp_path / name / "d0.jsonl"
        given = [word for option in options for word in ("--set", option)]
        asked = ["--recipe", str(tmp_path / name / "recipe.yaml"), "--output", str(output), "--count", "12", *given]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.stderr
        made.append(output.read_bytes())
    assert made[0] == made[1]


MIXED = (
    ("signals.contexts=random", "tasks.admissions=[5, 5]"),
    ("signals.contexts=coverage", "roles.exploration.compositions=2"),
)


@pytest.mark.parametrize("overrides", MIXED, ids=lambda overrides: overrides[0])
def test_equal_runs_of_an_arm_make_equal_records_and_update_can_be_repeated(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    run, again = evolved(tmp_path / "one", *overrides), evolved(tmp_path / "two", *overrides)
    before = records(run.root)
    assert records(again.root) == before
    new = tuple(one.context_id for one in rows(run, "judgements.jsonl", DeduplicationResult) if one.status == "new")
    join(services_of(run), IterationState(iteration=0, new=new))
    assert records(run.root) == before


def test_every_deviation_has_its_label() -> None:
    evolution = Evolution(iteration=2, new=0, known=0, drafts=0, admitted=(), refused={}, failures={}, shortfall=4)
    overrides = [
        "signals.kinds=[rare]",
        "memory.deduplicate=false",
        "iterations=1",
    ]
    overrides += ["verification={enabled: false}", "tasks.admissions=[4]"]
    quickstart = Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml"
    assert arm_labels(load_recipe(quickstart, overrides), evolution) == [
        "without forgetting and boundary signals",
        "without deduplication",
        "verification off",
        "tasks admitted by a quota",
        "iteration 2: 4 tasks short of its quota",
    ]


def test_seals_diagnosis_joins_the_contexts_and_tells_them_apart(plain: RunDirectory, tmp_path: Path) -> None:
    unlabelled = rows(plain, "contexts.jsonl", FailureContext)
    run = evolved(tmp_path / "seal", "training.seal={interface: null}")
    contexts = rows(run, "contexts.jsonl", FailureContext)
    assert [context.model_copy(update={"label": None}) for context in contexts] == unlabelled
    assert TurnLabel.STATE_MISMATCH in {context.label for context in contexts}
    for context, without in zip(contexts, unlabelled, strict=True):
        assert without.label is None
        assert "label" not in without.model_dump_json()
        if context.label is not None:
            assert context.signature() == f"{without.signature()}|{context.label}"
    assert summary_of(run).labels == ("scripted roles", "SEAL")


def test_shuffled_reflections_change_places_between_tasks_with_the_same_tools(
    plain: RunDirectory, tmp_path: Path
) -> None:
    runs = {"plain": plain, "mixed": evolved(tmp_path / "mixed", "signals.shuffled=true")}
    found = {name: {one.id: one for one in rows(run, "contexts.jsonl", FailureContext)} for name, run in runs.items()}
    assert found["plain"].keys() == found["mixed"].keys()
    moved = 0
    for name, before in found["plain"].items():
        after = found["mixed"][name]
        assert (after.task_id, after.tools, after.initial_state, after.kind, after.setup) == (
            before.task_id, before.tools, before.initial_state, before.kind, before.setup,
        )  # fmt: skip
        assert after.tool in after.tools
        assert set(after.explore) <= set(after.tools)
        moved += (after.how, after.facts) != (before.how, before.facts)
    for field in ("how", "why", "facts", "explore"):
        told = [Counter(str(getattr(one, field)) for one in each.values()) for each in found.values()]
        assert told[0] == told[1], "each reflection is used once"
    assert moved > len(found["plain"]) / 2
    assert [summary_of(run).labels.count("reflections shuffled") for run in runs.values()] == [0, 1]
