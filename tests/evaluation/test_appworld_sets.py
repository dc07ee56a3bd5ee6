"""AppWorld's evaluation sets: who opens them, what an access leaves behind, and the benchmark's figures of scores."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from environments.appworld import benchmark
from environments.appworld.benchmark import BENCHMARK, UNTOLD
from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.evaluation_sets import METRICS, OfficialSet, SetEnvironment
from environments.appworld.installation import Installation
from environments.appworld.records import Start
from environments.base import InputError, TaskSpec
from environments.registry import find_benchmark
from evaluation.attempts import limits_for
from evaluation.outcomes import Report, TaskOutcome, print_report, score, score_strata
from evaluation.sets import Item, open_set, select, written
from evaluation.settings import ScoringSettings
from evaluation.test_access import Access
from memory.jsonl import read_jsonl

MODEL = "recipes/starter"
SPLITS = {"train": ("a_1",), "dev": ("b_1", "b_2"), "test_normal": ("c_1", "c_2", "d_1"), "test_challenge": ()}
SAID = "Tell nobody of the heron."


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A world on disk that no engine has to run: ids, instructions, and what metadata say of dev alone."""
    made = Installation(python=tmp_path / "python", world=tmp_path / "world")
    for split, ids in SPLITS.items():
        made.data_set(split).parent.mkdir(parents=True, exist_ok=True)
        made.data_set(split).write_text("\n".join(ids))
        for task_id in ids:
            for root in (made.full, made.blind):
                folder = root / "data" / "tasks" / task_id
                folder.mkdir(parents=True)
                (folder / "specs.json").write_text(json.dumps({"instruction": SAID}))
                (folder / "dbs").mkdir()
            truth = made.full / "data" / "tasks" / task_id / "ground_truth"
            truth.mkdir()
            for name in ("answer", "private_data", "public_data", "test_data", "required_apps"):
                (truth / f"{name}.json").write_text("[]")
            for name in ("evaluation", "compiled_solution"):
                (truth / f"{name}.py").write_text("")
            stated = {"difficulty": 2, "num_api_calls": 7, "mode": "full"} if split == "dev" else {}
            (truth / "metadata.json").write_text(json.dumps(stated))
    monkeypatch.setattr(benchmark, "find_installation", lambda: made)
    return made


def items_of(name: str, limit: int | None, ledger: Path | None, model: str) -> tuple[Item, ...]:
    """As the command selects them."""
    chosen = {"environment": "appworld", "model": model, "evaluation_set": (name,)}
    return select(ScoringSettings(**chosen, limit=limit, access_log=ledger)).items


def test_dev_opens_without_a_ledger_and_states_what_the_world_states(world: Installation) -> None:
    first, _ = items_of("dev", None, None, MODEL)
    assert (first.task.id, first.group, first.cluster) == ("b_1", "dev", "b")
    assert (first.strata, first.reference_calls) == ({"difficulty": "2"}, 7)
    assert (first.task.turns, first.task.reference, first.task.tools) == ((SAID,), ((),), ("python",))
    assert first.task.initial_state == Start(task="b_1", official=True).initial_state()


@pytest.mark.process
def test_each_access_to_a_test_split_is_logged(world: Installation, tmp_path: Path) -> None:
    ledger = tmp_path / "new" / "openings.jsonl"
    items = items_of("test_normal", None, ledger, MODEL)
    assert [(item.task.id, item.reference_calls, item.strata) for item in items] == [
        (task_id, None, {}) for task_id in SPLITS["test_normal"]
    ]
    open_set("test_normal", 2, ledger, model="some/model", benchmark=BENCHMARK)
    first, second = read_jsonl(ledger, Access)
    assert (first.tasks, first.model) == (3, MODEL)
    assert (second.tasks, second.model) == (2, "some/model")
    sha256 = hashlib.sha256(b"c_1\nc_2\nd_1").hexdigest()
    assert first.panels == second.panels == {"test_normal": sha256}
    assert SAID not in ledger.read_text()


@pytest.mark.parametrize(
    ("name", "ledger", "model", "says"),
    [
        ("test_normal", None, MODEL, "add --access-log FILE"),
        ("test_challenge", None, MODEL, "add --access-log FILE"),
        ("test_challenge", "l.jsonl", MODEL, "has no such tasks"),
        ("dev", "l.jsonl", MODEL, "none is named"),
        ("train", None, MODEL, "choose one of dev, test_normal, test_challenge"),
        ("templated-dev", None, MODEL, "no such set in appworld"),
        ("test_normal", "l.jsonl", "no/such/folder", "no/such/folder"),
        ("test_normal", "", MODEL, "is a folder"),
    ],
)
def test_what_is_refused_is_not_noted(world, tmp_path, name, ledger, model, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        items_of(name, None, None if ledger is None else tmp_path / ledger, model)
    assert not (tmp_path / "l.jsonl").exists()


def test_a_ledger_of_something_else_is_left_as_it_is(world: Installation, tmp_path: Path) -> None:
    other = tmp_path / "tasks.jsonl"
    other.write_text('{"id": "x"}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl"):
        items_of("test_normal", None, other, MODEL)
    assert other.read_text() == '{"id": "x"}\n'


def official(task_id: str) -> TaskSpec:
    return TaskSpec(
        environment="appworld",
        split="train",
        classes=("python",),
        turns=(SAID,),
        initial_state=Start(task=task_id, official=True).initial_state(),
        tools=("python",),
        reference=((),),
    )


def test_only_a_evaluation_set_opens_the_worlds_of_a_test_split(world: Installation) -> None:
    """Whatever a task says of itself: the split that a world is of decides."""
    opened: list[str] = []

    def engine() -> SimpleNamespace:
        def remember(task_id: str, instruction: str | None = None) -> None:
            opened.append(task_id)

        return SimpleNamespace(installation=world, api_docs={}, open=remember)

    world.full.joinpath("data", "api_docs").mkdir()
    everybody, test_set = (
        AppWorldEnvironment(engine=engine()),
        OfficialSet(name="test_normal", ids=SPLITS["test_normal"]),
    )
    theirs = SetEnvironment(test_set, engine=engine())
    everybody._reads = theirs._reads = frozenset()
    for task_id in SPLITS["test_normal"]:
        for task in (
            official(task_id),
            official(task_id).model_copy(update={"initial_state": Start(task=task_id).initial_state()}),
        ):
            with pytest.raises(InputError, match=f"'{task_id}' is not open here"):
                everybody.open(task)
        theirs.open(official(task_id))
    for task_id in (*SPLITS["train"], *SPLITS["dev"]):
        everybody.open(official(task_id))
        with pytest.raises(InputError, match=f"'{task_id}' is not open here"):
            theirs.open(official(task_id))
    assert opened == ["c_1", "c_2", "d_1", "a_1", "b_1", "b_2"]
    for split in ("test_normal", "test_challenge"):
        with pytest.raises(InputError, match="not open here"):
            world.task_ids(split)


@pytest.mark.parametrize(
    ("environment", "rendering", "positions", "given", "limits"),
    [
        ("appworld", "chat_template", None, None, (30, 2048, 32768)),
        ("appworld", "chat_template", 16384, None, (30, 2048, 16384)),
        ("appworld", "compact", 1024, None, (30, 48, 1024)),
        ("appworld", "chat_template", None, 4096, (30, 2048, 4096)),
        ("bfcl", "chat_template", 32768, None, (20, 1024, 24576)),
        ("bfcl", "compact", 1024, None, (20, 48, 512)),
    ],
)
def test_limits_that_nobody_gives_follow_the_benchmark(environment, rendering, positions, given, limits) -> None:  # type: ignore[no-untyped-def]
    budget = find_benchmark(environment).limits
    policy = SimpleNamespace(rendering=SimpleNamespace(name=rendering), positions=positions)
    found = limits_for(policy, ScoringSettings(model=MODEL, max_tokens=given), budget)
    assert (found.max_actions, found.max_new_tokens, found.max_tokens) == limits


def test_what_is_printed_has_the_goals_of_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [attempted("a_1", True), attempted("a_2", True), attempted("b_1")]
    scores = (score("dev", outcomes, METRICS),)
    report = Report(environment="appworld", model="m", rendering="r", scores=scores, mean=0.6, seconds=1.0)
    print_report(report, score_strata(outcomes, METRICS))
    rows = {line.split("│")[1].strip(): line for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["dev"].split("│")[-3:-1]] == ["66.7", "50.0"]
    assert [cell.strip() for cell in rows["difficulty=b"].split("│")[-3:-1]] == ["0.0", "0.0"]
    print_report(report.model_copy(update={"scores": (score("dev", outcomes),)}), ())
    assert "tgc" not in capsys.readouterr().out


def attempted(task_id: str, success: bool = False, cause: str | None = None) -> TaskOutcome:
    return TaskOutcome(
        task_id=task_id,
        group="dev",
        cluster=task_id.partition("_")[0],
        split="dev",
        strata={"difficulty": task_id[0]},
        success=success,
        infrastructure_error=cause,
    )


def test_goals_stand_beside_the_success_and_its_interval() -> None:
    """What ``appworld evaluate`` printed for two scenarios, one solved wholly and one in two of three variants."""
    outcomes = [attempted(f"{s}_{v}", (s, v) != ("b", 2)) for s in "ab" for v in (1, 2, 3)]
    found = score("dev", outcomes, METRICS)
    assert (found.metrics, found.clusters) == ({"success": 5 / 6, "tgc": 83.3, "sgc": 50.0}, 2)
    assert found.model_copy(update={"metrics": {"success": 5 / 6}, "intervals": {}}) == score("dev", outcomes)
    low, high = found.shared_interval
    assert found.intervals["tgc"] == (round(100 * low, 1), round(100 * high, 1)), "of the same tasks and method"
    assert found.intervals["sgc"][0] < 50.0 < found.intervals["sgc"][1]
    strata = score_strata(outcomes, METRICS)
    assert [(one.group, one.metrics["tgc"], one.metrics["sgc"]) for one in strata] == [
        ("difficulty=a", 100.0, 100.0),
        ("difficulty=b", 66.7, 0.0),
    ]
    assert json.loads(score("dev", [attempted("a_1")], METRICS).model_dump_json())["metrics"]["tgc"] == 0.0


def test_what_could_not_be_evaluated_is_in_no_figure() -> None:
    outcomes = [attempted("a_1", True), attempted("a_2", cause="dead"), attempted("b_1", True), attempted("c_1")]
    found = score("dev", outcomes, METRICS)
    assert (found.n, found.infrastructure_errors) == (3, 1)
    assert (found.metrics["tgc"], found.metrics["sgc"]) == (66.7, 50.0)
    assert score("dev", [attempted("a_1", cause="dead")], METRICS).metrics == {"success": 0.0}
    part = [attempted("a_1", True), attempted("a_2", cause="dead")]
    assert score("dev", part, METRICS).metrics == {"success": 1.0, "tgc": 100.0}, "no scenario could be evaluated"


def test_the_words_of_a_fault_are_not_written() -> None:
    fault = attempted("a_1", cause=f"evaluate failed: {SAID}; the end of its log:\n{SAID}")
    ended = attempted("a_1", True)
    hidden, kept = written([fault, ended], BENCHMARK)
    assert hidden.infrastructure_error == UNTOLD
    assert SAID not in hidden.model_dump_json()
    assert kept == ended
    assert written([fault], find_benchmark("bfcl")) == (fault,)
