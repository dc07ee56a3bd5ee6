"""The splits of AppWorld's own data, in whose layout the synthetic world is put: from make appworld to TGC and SGC."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support import ROOT
from support.commands import run_here, run_process
from support.faulty_server import KEY, FaultyServer
from support.official_layout import SCENARIOS, ids_of, lay_out, made_id
from support.served_policy import player

from environments.appworld.installation import WORLD, Installation, official_task
from environments.appworld.layout import SPLITS, counted, missing, read_ids
from environments.base import InputError
from evaluation.outcomes import TaskOutcome
from evaluation.test_access import Access
from graph.run_iteration import NOTHING
from memory.jsonl import read_jsonl
from memory.records import Task


def build(python: Path, world: Path) -> subprocess.CompletedProcess[str]:
    """What ``make appworld DATA=download`` does after the download."""
    module = "environments.appworld.synthetic_world.build"
    command = [python, "-W", "ignore", "-m", module, "--world", world, "--blind-only"]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def official(installation: Installation) -> Iterator[Installation]:
    """Below the checkout: agents' code gets a /tmp of its own, so that no world can be in it."""
    if not installation.task_ids("train")[0].startswith("made"):
        pytest.skip("the world is no made one: unset COEVOLVE_APPWORLD")
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build", prefix="official-") as folder:
        world = lay_out(installation, Path(folder) / "world")
        done = build(world.python, world.world)
        assert done.returncode == 0, done.stderr
        assert "train 6, dev 3, test_normal 6, test_challenge 3 (the benchmark's: 90, 57, 168, 417)" in done.stdout
        yield world


@pytest.fixture
def named(official: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """The world as the user names it."""
    monkeypatch.setenv(WORLD, str(official.world))
    return official


def listed(data: Path, lines: str) -> Path:
    (data / "datasets").mkdir(parents=True)
    (data / "datasets" / "train.txt").write_text(lines)
    return data


@pytest.mark.parametrize(
    ("lines", "ids"),
    [
        ("", ()),
        ("a_1\na_2\n", ("a_1", "a_2")),
        ("a_1:hard\r\n\n  a_2 : easy\n", ("a_1", "a_2")),
    ],
)
def test_ids_are_read_as_the_package_reads_them(tmp_path: Path, lines: str, ids: tuple[str, ...]) -> None:
    assert read_ids(listed(tmp_path, lines), "train") == ids
    assert read_ids(tmp_path, "dev") == ()


def test_the_benchmarks_numbers_of_tasks_are_said_where_others_are_found(tmp_path: Path) -> None:
    data = listed(tmp_path, "")
    assert counted(data).endswith("(the benchmark's: 90, 57, 168, 417)")
    for split, count in SPLITS.items():
        (data / "datasets" / f"{split}.txt").write_text("\n".join(f"a_{n}" for n in range(count)))
    assert counted(data) == "train 90, dev 57, test_normal 168, test_challenge 417"


@pytest.mark.appworld
@pytest.mark.parametrize("split", list(SCENARIOS))
@pytest.mark.parametrize(
    "name", ["specs.json", "dbs", "ground_truth/evaluation.py", "ground_truth/compiled_solution.py"]
)
def test_a_missing_file_is_one_sentence(official: Installation, tmp_path: Path, split: str, name: str) -> None:
    data = tmp_path / "full" / "data"
    shutil.copytree(official.full / "data", data)
    assert all(missing(data, one) is None for one in SPLITS)
    last = ids_of(split)[-1]
    path = data / "tasks" / last / name
    if not path.exists():
        assert split.startswith("test_")
        assert name.endswith("solution.py")
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    broken = Installation(python=official.python, world=tmp_path)
    with pytest.raises(InputError, match=f"tasks/{last}/{name} is missing: .*make appworld DATA=download"):
        broken.require_split(split)
    done = build(official.python, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: --world ")
    assert said.endswith(f"is not whole, tasks/{last}/{name} is missing: remove full/data in it and download it again")
    assert not broken.blind.exists()


@pytest.mark.appworld
def test_a_missing_split_is_one_sentence(
    official: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = tmp_path / "world"
    shutil.copytree(official.world, world)
    monkeypatch.setenv(WORLD, str(world))
    options = ("--environment", "appworld", "--model", "recipes/starter", "--limit", "1")
    asked = (*options, "--evaluation-set", "test_challenge", "--access-log", str(tmp_path / "log.jsonl"))
    (world / "full" / "data" / "datasets" / "test_challenge.txt").unlink()
    done = run_here("evaluation.run", *asked)
    assert done.returncode == 2
    assert "has no such tasks: get the benchmark's data with make appworld DATA=download" in done.stderr
    shutil.rmtree(world / "blind")
    done = run_here("evaluation.run", *options, "--evaluation-set", "dev")
    assert done.returncode == 2
    assert "blind/data/tasks is missing" in done.stderr
    assert "make appworld DATA=download" in done.stderr
    done = build(official.python, tmp_path / "nowhere")
    assert done.returncode == 2
    assert "has no full/data" in done.stderr
    assert not (tmp_path / "log.jsonl").exists()


@pytest.mark.appworld
@pytest.mark.process
@pytest.mark.slow
def test_both_test_sets_are_scored_by_official_ids_with_the_benchmarks_metrics(
    named: Installation, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but one variant are solved: the figures are those that the package's own command prints for such outcomes."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    log = tmp_path / "access.jsonl"
    for name, unsolved, tgc, sgc in (
        ("test_normal", "fac291d_2", 83.3, 50.0),
        ("test_challenge", "", 100.0, 100.0),
    ):
        scripts, ids = {}, ids_of(name)
        for task_id in ids:
            data = installation.full / "data" / "tasks" / made_id(task_id)
            code = (data / "ground_truth" / "compiled_solution.py").read_text()
            said = "print(1)" if task_id == unsolved else f"{code}\nsolution(apis, None)"
            scripts[json.loads((data / "specs.json").read_text())["instruction"]] = [[[f"```python\n{said}\n```"]]]
        outcomes = tmp_path / f"{name}.jsonl"
        with FaultyServer(player(scripts)) as server:
            model = ("--model", "openai:m", "--base-url", server.url)
            to = ("--access-log", str(log), "--output", str(outcomes), "--json")
            done = run_here("evaluation.run", "--environment", "appworld", "--evaluation-set", name, *model, *to)
        assert done.returncode == 0, done.stderr
        written = read_jsonl(outcomes, TaskOutcome)
        assert [(one.task_id, one.success) for one in written] == [(one, one != unsolved) for one in ids]
        metrics = json.loads(done.stdout)["scores"][0]["metrics"]
        assert (metrics["tgc"], metrics["sgc"]) == (tgc, sgc)
    assert [(*one.panels, one.tasks) for one in read_jsonl(log, Access)] == [
        ("test_normal", 6),
        ("test_challenge", 3),
    ]


SETTINGS = """
iterations: 1
policy: {path: POLICY}
environment: {name: appworld}
tasks: {initial: official}
training: {steps: 1, tasks_per_step: 2, rollouts_per_task: 2, max_new_tokens: 8, max_tokens: 8192, max_actions: 2}
signals: {contexts_per_iteration: 1}
roles: {exploration: {rounds: 1, steps: 12, max_reference_calls: 8}}
verification: {max_calls: 8}
evaluation: {set: dev, max_new_tokens: 8, max_tokens: 8192}
"""


@pytest.mark.appworld
@pytest.mark.long
def test_a_run_on_the_official_splits(named: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D_0 and evolved tasks are of train, the score is dev's, and a test set is not for a run."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "training")
    from support.chat_models import save_model

    policy = save_model(tmp_path / "policy", "qwen2_5")
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(SETTINGS.replace("POLICY", str(policy)))
    given = ("--recipe", str(recipe), "--run", str(run))
    refused = run_process("graph.run_iteration", *given, "--set", "evaluation.set=test_normal")
    assert refused.returncode == 2
    assert "test_normal" in refused.stderr
    assert not run.exists()
    done = run_process("graph.run_iteration", *given, timeout=900)
    assert done.returncode == NOTHING, done.stdout + done.stderr  # a random model solves no task
    tasks = read_jsonl(run / "tasks.jsonl", Task)
    assert {one.id for one in tasks if one.origin == "official"} == set(ids_of("train"))
    assert {one.initial_state["appworld"]["task"] for one in tasks} <= set(ids_of("train"))
    assert "dev, n=3; 0 of 0 drafts admitted to 6 tasks" in done.stderr
    explored = tmp_path / "explored.jsonl"
    options = ("--set", "tasks.initial=null", "--count", "2", "--output", str(explored))
    done = run_process("graph.seed_tasks", "--recipe", str(recipe), *options, timeout=900)
    assert done.returncode == 0, done.stderr
    for one in read_jsonl(explored, Task):
        assert one.initial_state["appworld"]["task"] in ids_of("train")


@pytest.mark.appworld
def test_a_solution_is_the_one_that_the_package_verifies_with(official: Installation) -> None:
    first = ids_of("train")[0]
    (call,) = official_task(official, first, "train").reference[0]
    compiled = official.full / "data" / "tasks" / first / "ground_truth" / "compiled_solution.py"
    assert str(call.arguments["code"]).startswith(compiled.read_text())
