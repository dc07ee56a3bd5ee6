"""The evaluation command on the real evaluation sets: what it prints, writes and refuses."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run_here

from environments.base import InputError
from environments.bfcl.benchmark import BENCHMARK
from environments.metrics import CALL_METRICS, mixed, pass_at, success
from environments.registry import open_named
from evaluation.attempts import evaluate
from evaluation.outcomes import TaskOutcome, paired_change, score, score_strata
from evaluation.sets import open_set
from evaluation.settings import EvaluationSettings, ScoringSettings, check_evaluation
from evaluation.test_access import Access
from memory.run import read_jsonl, write_jsonl

STARTER = "recipes/starter"


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return run_here("evaluation.run", "--environment", "bfcl", *options)


def outcome(task_id: str, **fields: object) -> TaskOutcome:
    given = {"group": "g", "cluster": task_id, "split": "dev", "success": False} | fields
    return TaskOutcome(task_id=task_id, **given)


@pytest.mark.slow
def test_an_evaluation_set_is_scored_and_its_outcomes_are_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "outcomes.jsonl"
    done = command(
        "--evaluation-set", "templated-dev", "--model", STARTER, "--limit", "12", "--output", str(path), "--json"
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    outcomes = read_jsonl(path, TaskOutcome)
    (found,) = report["scores"]
    assert found["n"] == len(outcomes) == 12
    assert found["successes"] == sum(one.success for one in outcomes)
    assert found["interval"][0] <= found["metrics"]["success"] <= found["interval"][1]
    assert any("argument references" in note for note in report["notes"])
    assert any("first 12" in note for note in report["notes"])
    assert {one.task_id for one in outcomes} == {item.task.id for item in open_set("templated-dev", 12)}
    assert all(one.failure for one in outcomes if not one.success)
    assert all(sum(one.stop_reasons.values()) >= 1 for one in outcomes)
    assert sum(report["stop_reasons"].values()) == sum(sum(one.stop_reasons.values()) for one in outcomes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "one of the two"),
        (("--evaluation-set", "templated-dev", "--tasks", "some.jsonl"), "one of the two"),
        (("--tasks", "no.jsonl"), "no.jsonl"),
        (("--evaluation-set", "nowhere"), "templated-dev"),
        (("--evaluation-set", "templated-dev", "--model", "no/such/folder"), "no/such/folder"),
        (("--tasks", "recipes/quickstart.yaml"), "recipes/quickstart.yaml"),
        (("--evaluation-set", "templated-dev", "--environment", "environments.example:depot"), "--tasks FILE"),
        (("--evaluation-set", "templated-dev", "--model", "lookup"), "--train FILE goes with --model lookup"),
        (("--evaluation-set", "templated-dev", "--train", "no.jsonl"), "--train FILE goes with --model lookup"),
        (("--evaluation-set", "templated-dev", "--model", "lookup", "--train", "no.jsonl"), "no.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence(options: tuple[str, ...], says: str) -> None:
    done = command(*options)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ("elsewhere", "module:callable"),
        ("no_such_module:shop", "no_such_module"),
        ("environments.example:shop", "'shop'"),
        ("environments.example:depot", "is of bfcl, not of depot"),
    ],
)
def test_tasks_want_the_environment_that_they_are_of(tmp_path: Path, environment: str, says: str) -> None:
    path = tmp_path / "tasks.jsonl"
    write_jsonl(path, [item.task for item in open_set("templated-dev", 2)])
    done = command("--tasks", str(path), "--environment", environment)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line


@pytest.mark.slow
def test_a_file_of_tasks_is_scored_and_said_to_be_no_evaluation_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    items = open_set("templated-dev", 8)
    write_jsonl(path, [item.task for item in items])
    by_file = command("--tasks", str(path), "--model", STARTER, "--json")
    by_name = command("--evaluation-set", "templated-dev", "--model", STARTER, "--limit", "8", "--json")
    (mine,), (evaluation_set,) = (json.loads(done.stdout)["scores"] for done in (by_file, by_name))
    assert mine == evaluation_set | {"group": "mine.jsonl"}, "tasks of a file share start states as those of a set do"
    assert any("not a held-out evaluation set" in note for note in json.loads(by_file.stdout)["notes"])


def test_categories_hold_no_reserved_index() -> None:
    items = BENCHMARK.open_evaluation_set("all@all")
    assert len(items) == 4 * 180
    assert {item.strata["category"] for item in items} == {"base", "miss_func", "miss_param", "long_context"}
    indices = {int(item.cluster) for item in items}
    assert not indices & {*range(40, 50), *range(90, 100)}
    assert {item.strata["split"] for item in BENCHMARK.open_evaluation_set("base@test")} == {"test"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "tasks", "first"),
    [
        ("base@dev", 17, ["base-11", "base-12"]),
        ("miss_func@test", 118, ["miss_func-15", "miss_func-16"]),
        ("all@seal-test", 400, ["base-15", "miss_func-15", "miss_param-15", "long_context-15", "base-16"]),
        ("base@all", 180, ["base-0", "base-1"]),
    ],
)
def test_official_categories_are_evaluation_sets_by_split(
    name: str, tasks: int, first: list[str], tmp_path: Path
) -> None:
    described, log = BENCHMARK.evaluation_set(name), tmp_path / "log.jsonl"
    assert (described.tasks, described.held_out) == (tasks, name != "base@dev")
    if described.held_out:
        with pytest.raises(InputError, match="add --access-log"):
            open_set(name, len(first))
    items = open_set(name, len(first), log if described.held_out else None, model="m")
    assert [item.task.id for item in items] == first
    assert {item.group for item in items} == {name}
    assert items[0].strata == {"category": first[0].rpartition("-")[0], "split": items[0].task.split}
    assert log.exists() == described.held_out
    if described.held_out:
        (access,) = read_jsonl(log, Access)
        assert (access.panels, access.tasks) == ({name: described.sha256}, len(first))
    if name in ("base@dev", "all@seal-test"):
        assert len({one.id for one in BENCHMARK.open_evaluation_set(name)}) == tasks, "nothing left out"
    assert BENCHMARK.evaluation_set("base@test").sha256 != BENCHMARK.evaluation_set("base@all").sha256


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("base", "no evaluation set is called 'base' in bfcl: choose one of templated-dev"),
        ("base@test", "base@test is held out, and a run would score on it again and again"),
        ("all@all", "held out"),
        ("base@train", "no evaluation set is called 'base@train'"),
        ("test_normal", "no evaluation set is called 'test_normal'"),
        ("base@dev", ""),
    ],
)
def test_a_set_that_a_run_cannot_score_is_refused_before_anything_is_paid(name: str, says: str) -> None:
    settings, environment = EvaluationSettings(set=name), open_named("bfcl")
    if not says:
        check_evaluation(settings, environment)
        return
    with pytest.raises(InputError, match=says):
        check_evaluation(settings, environment)


def test_a_set_whose_files_are_missing_is_refused_before_anything_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise InputError(f"--evaluation-set {name}: the world has no such tasks: get them")

    monkeypatch.setattr(BENCHMARK, "evaluation_set", missing)
    with pytest.raises(InputError, match=r"^evaluation\.set: the world has no such tasks: get them"):
        check_evaluation(EvaluationSettings(set="templated-dev"), open_named("bfcl"))


def test_an_infrastructure_error_counts_in_no_rate() -> None:
    outcomes = [outcome("a", success=True), outcome("b"), outcome("c", infrastructure_error="the worker died")]
    found = score("g", outcomes)
    assert (found.n, found.successes, found.success, found.infrastructure_errors) == (2, 1, 0.5, 1)


def test_strata_are_scored_by_value() -> None:
    outcomes = [outcome("a", success=True, strata={"length": "1"}), outcome("b", strata={"length": "2"})]
    assert [(s.group, s.n, s.success) for s in score_strata(outcomes)] == [("length=1", 1, 1.0), ("length=2", 1, 0.0)]


def test_success_is_told_by_call_shape() -> None:
    tasks = {"a": ("lock",), "b": ("lock",), "c": ("lock",), "d": ("lock", "start"), "e": ("start",)}
    outcomes = [outcome(name, shape=shape, success=name in "abc") for name, shape in tasks.items()]
    found = score("g", outcomes)
    assert (found.success, found.macro, found.shapes) == (0.6, pytest.approx(1 / 3), 3)
    assert found.shared_interval[0] <= found.interval[0] < found.interval[1] <= found.shared_interval[1]
    assert found.macro_interval[0] <= found.macro <= found.macro_interval[1]
    unknown = score("g", [outcome("a", success=True), outcome("b")])
    assert (unknown.macro, unknown.macro_interval, unknown.shapes) == (None, None, 0)


CALL = st.tuples(st.sampled_from(["lock", "start"]), st.sampled_from("ab"))
TRIED = st.lists(
    st.tuples(st.booleans(), st.lists(CALL, max_size=3), st.lists(CALL, max_size=3)), min_size=2, max_size=9
)


def with_calls(tried: list) -> list[TaskOutcome]:
    fields = [{"success": solved, "calls_made": made, "calls_wanted": wanted} for solved, made, wanted in tried]
    return [outcome(str(n), shape=tuple(f for f, _ in one["calls_wanted"]), **one) for n, one in enumerate(fields)]


@given(TRIED)
def test_every_metric_has_an_interval_around_it(tried: list) -> None:
    outcomes = with_calls(tried)
    found = score("g", outcomes, {**CALL_METRICS, "again": success})
    assert found.intervals.get("again") == found.shared_interval, "one method for all"
    for name, (low, high) in found.intervals.items():
        assert 0.0 <= low <= found.metrics[name] + 1e-9
        assert found.metrics[name] - 1e-9 <= high <= 1.0
        change = paired_change(outcomes, outcomes, ({**CALL_METRICS, "again": success})[name])
        assert change.before == change.after
        assert change.interval == (0.0, 0.0), "nothing differs, task by task"
    assert (outcomes[0].calls_wanted == ()) <= ("abstention" in found.metrics)


def test_the_interval_of_a_metric_is_of_the_tasks_that_count_in_it() -> None:
    tried = [(False, [("a", "1")], []), (True, [], []), (True, [], []), (True, [("f", "1")], [("f", "1")])]
    few, many = (with_calls(tried[:3] + tried[3:] * more) for more in (1, 9))
    assert score("g", few, CALL_METRICS).metrics["abstention"] == pytest.approx(2 / 3)
    ends = [score("g", one, CALL_METRICS).intervals["abstention"] for one in (few, many)]
    assert ends[0] == ends[1]
    better = with_calls([(True, [], []), *tried[1:]])
    change = paired_change(few, better, CALL_METRICS["abstention"])
    assert (change.before, change.after) == (pytest.approx(2 / 3), 1.0)
    assert change.interval[0] < 1 / 3 < change.interval[1]
    assert paired_change(few[3:], better[3:], CALL_METRICS["abstention"]) is None, "no task counts in it"


def test_samples_of_a_task_are_one_task_of_the_score() -> None:
    tasks = {"a": (1, 1), "b": (1, 0), "c": (0, 0), "d": (0, 0)}
    outcomes = [outcome(t, success=bool(s), sample=n, shape=(t,)) for t, of in tasks.items() for n, s in enumerate(of)]
    found = score("g", outcomes, {"pass@2": pass_at(2), "mixed": mixed})
    assert (found.n, found.successes) == (8, 3)
    assert found.metrics == {"success": 3 / 8, "pass@2": 0.5, "mixed": 0.25}
    alone = score("g", [one for one in outcomes if one.sample == 0])
    repeated = score(
        "g", [one.model_copy(update={"sample": n}) for one in outcomes if not one.sample for n in range(9)]
    )
    assert repeated.widest == pytest.approx(alone.widest), "the same attempt nine times is no more certain"
    assert repeated.interval == pytest.approx(alone.interval)


def test_samples_differ_and_are_equal_again() -> None:
    """With a real policy and the real simulators."""
    items = open_set("templated-dev", 2)
    settings = ScoringSettings(model=STARTER, samples=2, temperature=3.0, max_episode_steps=2)
    once, again = (evaluate(items, open_named("bfcl"), settings, BENCHMARK.limits)[0] for _ in range(2))
    assert once == again
    assert [(one.task_id, one.sample) for one in once] == [(item.task.id, n) for item in items for n in range(2)]
    assert len({one.model_copy(update={"sample": 0}).model_dump_json() for one in once}) > len(items), "samples differ"


@pytest.mark.parametrize(("free", "rows"), [(0, 1), (3 * 10**6, 3), (10**12, 5)])
def test_as_many_episodes_are_decoded_together_as_half_of_the_free_memory_holds(
    free: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.rollout.in_process import InProcessSampler

    together = []

    def run(sampler: object, drivers: list, *, temperature: float, concurrency: int) -> None:
        together.append((len(drivers), concurrency))
        decode(sampler, drivers, temperature=temperature, concurrency=concurrency)

    decode = InProcessSampler.run
    monkeypatch.setattr(InProcessSampler, "run", run)
    monkeypatch.setattr("training.device_memory.free_bytes", lambda device: free * 2)
    monkeypatch.setattr("training.plan.sampled_row_bytes", lambda shape, tokens, width: 10**6)
    items = open_set("templated-dev", 5)
    outcomes = evaluate(items, open_named("bfcl"), ScoringSettings(model=STARTER), BENCHMARK.limits).outcomes
    assert max(count for count, _ in together) == rows
    assert sum(count for count, _ in together) == len(outcomes) == 5
