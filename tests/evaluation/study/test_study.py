"""The study command on tiny runs: parallel children, skipping, resuming, partial reports, the guarded test sets."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT, made_run
from support.commands import run_here, run_process
from support.preloaded import alone
from typer.testing import CliRunner

from environments.base import InputError
from environments.registry import packaged
from evaluation.sets import held_out, open_set, set_hash
from evaluation.study.__main__ import app
from evaluation.study.schedule import FinishedRun, check_settings, make_plan
from evaluation.study.study import Place, load_study, read_header, read_result
from evaluation.test_access import ACCESS_LOG_FILE, Access, committed
from memory.jsonl import append_jsonl, read_existing
from memory.records import Task
from memory.run import read_jsonl
from memory.tasks import admit, load_tasks

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

BASE = """\
iterations: 1
policy: {path: recipes/starter}
tasks: {initial_count: 4}
training: {steps: 1, tasks_per_step: 2, rollouts_per_task: 2, learning_rate: 2.0e-4, kl: 0.04}
signals: {contexts_per_iteration: 2}
roles: {exploration: {rounds: 1, steps: 4}}
evaluation: {set: null}
"""
STUDY = """\
base: BASE
sets: {dev: [templated-dev], test: [templated-test]}
scoring: {limit: 4}
lookup: true
arms:
  - {name: grpo, description: plain, seeds: 2, overrides: {tasks.evolved_share: 0.0}}
  - {name: full, description: loop, seeds: 1, overrides: {signals.window: 5}}
  - {name: starter, description: start, seeds: 1, untrained: true}
"""


def made_recipe(folder: Path, text: str = STUDY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(BASE)
    (folder / "study.yaml").write_text(text.replace("BASE", str(folder / "base.yaml")))
    return folder / "study.yaml"


def command(recipe: Path, *options: str) -> list[str]:
    place = ["--output", str(recipe.parent / "out"), "--work", str(recipe.parent / "work")]
    return ["evaluation.study", str(recipe), *place, *options]


def study(recipe: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_process(*command(recipe, *options), timeout=240)


def study_here(recipe: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_here("evaluation.study.__main__", *command(recipe, *options)[1:])


def processes_below(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two arms, one with a second seed, that was stopped in the middle, then went on in three commands."""
    recipe = made_recipe(tmp_path_factory.mktemp("study"))
    with alone(), (recipe.parent / "stopped.txt").open("w") as said:
        first = subprocess.Popen(
            [sys.executable, "-m", *command(recipe, "--jobs", "2")], cwd=ROOT, stdout=said, stderr=said
        )
        end = time.monotonic() + 240
        while not (recipe.parent / "work" / "grpo-100" / "run" / "settings.yaml").exists():
            assert time.monotonic() < end
            assert first.poll() is None, (recipe.parent / "stopped.txt").read_text()
            time.sleep(0.05)
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 128 + signal.SIGTERM
    end = time.monotonic() + 5
    while processes_below(recipe.parent) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes_below(recipe.parent)
    partial = study(recipe, "--jobs", "2", "--seeds", "100", "--arms", "full,grpo")
    assert partial.returncode == 0, partial.stderr
    (recipe.parent / "partial.txt").write_text(partial.stdout)
    start = study(recipe, "--arms", "starter")
    assert start.returncode == 0, start.stderr
    whole = study(recipe, "--jobs", "2")
    assert whole.returncode == 0, whole.stderr
    assert "seed 101: done" in whole.stderr
    assert "starter" not in whole.stderr, "what is done is skipped"
    assert "full, seed 100" not in whole.stderr, "what is done is skipped"
    (recipe.parent / "whole.txt").write_text(whole.stdout)
    return recipe


@pytest.mark.long
def test_a_stopped_study_says_how_to_go_on_and_reports_what_there_is(finished: Path) -> None:
    stopped = (finished.parent / "stopped.txt").read_text()
    assert "stopped by SIGTERM: the same command goes on" in stopped
    assert "is closed" not in stopped, "a child was not waited for"
    partial = (finished.parent / "partial.txt").read_text()
    assert "**Partial**: 2 arms and seeds" in partial
    assert "not there: grpo-101, starter-100" in partial
    assert "| grpo | 1 |" in partial
    whole = (finished.parent / "whole.txt").read_text()
    assert "Partial" not in whole
    assert "| grpo | 2 |" in whole
    assert re.search(r"\| full \| 1 \|.*100: [+-]\d+\.\d", whole)
    for told in ("| full (lookup) | 1 |", "| grpo (lookup) | 2 |", "minus grpo, by shape"):
        assert told in whole
    assert "starter (lookup)" not in whole


@pytest.mark.parametrize(("share", "known"), [("0.0", 5), ("0.5", 6), ("null", 6)])
def test_the_lookup_of_an_arm_knows_no_task_that_the_arm_cannot_learn_from(
    tmp_path: Path, share: str, known: int
) -> None:
    """What the last iteration admits is in no round."""
    run = made_run.make_run(tmp_path / "run", f"tasks.evolved_share={share}")
    made_run.make_round(run, 1)
    first = load_tasks(run)[0]
    for iteration in (0, 1):
        made = {"id": f"evolved {iteration}", "origin": "evolved", "admitted_at": iteration}
        admit(run, [first.model_copy(update=made)])
        summary = {"admitted": 1, "refused": {}, "signals": {}}
        unused = {"evaluation": None, "seconds": {}, "labels": []}
        run.iteration(iteration).summary.write_text(json.dumps(summary | unused))
    file = FinishedRun(run.root, 2).learnable(tmp_path)
    assert len(read_jsonl(file, Task)) == known


def test_the_tasks_of_an_arm_are_kept_beside_its_result_where_they_may_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, so that a lookup can be scored again; none of a benchmark whose content stays where it is."""
    run = made_run.make_run(tmp_path / "run")
    kept = Place(output=tmp_path / "out", work=tmp_path).tasks("full", 100)
    assert kept == tmp_path / "out" / "tasks" / "full-100.jsonl.gz"
    assert FinishedRun(run.root, 0).keep_tasks(kept) == ""
    before = kept.read_bytes()
    plain = tmp_path / "tasks.jsonl"
    plain.write_bytes(gzip.decompress(before))
    assert tuple(read_jsonl(plain, Task)) == load_tasks(run)
    assert FinishedRun(run.root, 0).keep_tasks(kept) == ""
    assert kept.read_bytes() == before
    monkeypatch.setattr(type(packaged("bfcl")), "unpublishable", "its licence forbids it")
    kept.write_bytes(before)
    assert FinishedRun(run.root, 0).keep_tasks(kept) == "its licence forbids it"
    assert not kept.exists(), "of an earlier result"


@pytest.mark.long
def test_every_arm_and_seed_leaves_header_and_outcomes(finished: Path) -> None:
    results = [read_result(path) for path in sorted((finished.parent / "out" / "raw").iterdir())]
    assert [(one.header.arm, one.header.seed) for one in results] == [
        ("full", 100), ("grpo", 100), ("grpo", 101), ("starter", 100),
    ]  # fmt: skip
    panel = [item.task.id for item in open_set("templated-dev", 4)]
    for one in results:
        for baseline in ("", "lookup") if one.header.iterations else ("",):
            assert [outcome.task_id for outcome in one.of(baseline).outcomes] == panel
        assert one.header.iterations or one.of("lookup") is None
        assert all(outcome.reference_calls in (1, 2, 3) for outcome in one.outcomes)
    for one in results[:-1]:
        (figures,) = one.header.iterations
        assert (figures.rollouts, figures.steps) == (4, 1)
        assert figures.drafts == figures.admitted + sum(figures.refused.values())
        assert figures.exploration_calls > 0
        assert sum(figures.trained_functions.values()) > 0
        assert one.header.functions > 30
    starts = {(one.header.seed, one.header.initial_tasks) for one in results[:-1]}
    assert len(starts) == 2, "arms of a seed share D_0, seeds do not"
    report = (finished.parent / "out" / "development.md").read_text()
    assert "unequal budget" not in report
    assert "| full | 1 |" in report
    assert list((finished.parent / "work").glob("*-1*")) == [], "what is done needs no run directory any more"


@pytest.mark.long
def test_a_changed_arm_is_to_be_made_again_and_no_other(finished: Path) -> None:
    place = Place(output=finished.parent / "out", work=finished.parent / "work")
    before = finished.read_text()
    try:
        for old, new, again in (
            ("description: plain", "description: plainer", {}),
            ("signals.window: 5", "signals.window: 4", {"full": (100,)}),
            ("limit: 4", "limit: 3", {"grpo": (100, 101), "full": (100,), "starter": (100,)}),
        ):
            finished.write_text(before.replace(old, new))
            assert make_plan(load_study(finished), "dev", place, None, None).seeds() == again
    finally:
        finished.write_text(before)


@pytest.mark.long
def test_what_another_recipe_made_is_left_out_and_replaced(finished: Path) -> None:
    before = finished.read_text()
    raw = finished.parent / "out" / "raw"
    stamps = {path.name: path.stat().st_mtime_ns for path in raw.iterdir()}
    try:
        finished.write_text(before.replace("limit: 4", "limit: 3"))
        done = study(finished, "--arms", "starter", "--keep-runs")
        assert done.returncode == 0, done.stderr
    finally:
        finished.write_text(before)
    assert "of another recipe: grpo-100, grpo-101, full-100" in done.stdout
    assert {path.name for path in raw.iterdir() if path.stat().st_mtime_ns != stamps[path.name]} == {
        "starter-100.jsonl.gz"
    }
    assert len(read_result(raw / "starter-100.jsonl.gz").outcomes) == 3
    assert (finished.parent / "work" / "starter-100" / "policy-scoring-0.jsonl").exists()


VARIED = """\
base: BASE
settings: {environment.options: {classes: [GorillaFileSystem]}, policy.path: ONE}
scoring: {max_tokens: 3000, max_new_tokens: 8, max_actions: 1, limit: 2}
sets: {dev: [base@dev, miss_param@dev], test: [base@test]}
varies: [policy.path, tasks.initial_count, training.steps]
deadline: 259200
arms:
  - {name: grpo, description: plain, seeds: 1, overrides: {tasks.evolved_share: 0.0}}
  - name: other
    description: another policy, fewer tasks, more steps
    seeds: 1
    overrides: {policy.path: OTHER, tasks.initial_count: 3, training.steps: 2}
"""


@pytest.mark.long
def test_arms_over_policy_and_number_of_tasks_are_scored_on_official_categories(tmp_path: Path) -> None:
    """Tiny policies that can read the first two development tasks of a category."""
    from support.small_policy import make_reader

    for seed, name in enumerate(("ONE", "OTHER")):
        make_reader(tmp_path / name, ("GorillaFileSystem", "TwitterAPI"), seed)
    text = VARIED.replace("ONE", str(tmp_path / "ONE")).replace("OTHER", str(tmp_path / "OTHER"))
    recipe = made_recipe(tmp_path / "recipes", text)
    done = study_here(recipe, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    results = {arm: read_result(recipe.parent / "out" / "raw" / f"{arm}-100.jsonl.gz") for arm in ("grpo", "other")}
    official = [item.task.id for name in ("base@dev", "miss_param@dev") for item in open_set(name, 2)]
    for one in results.values():
        assert [outcome.task_id for outcome in one.outcomes] == official
        assert {outcome.group for outcome in one.outcomes} == {"base@dev", "miss_param@dev"}
        assert all(outcome.infrastructure_error is None for outcome in one.outcomes)
    assert {arm: one.header.iterations[0].steps for arm, one in results.items()} == {"grpo": 1, "other": 2}
    report = (recipe.parent / "out" / "development.md").read_text()
    assert all(f"**{name}** (2 tasks" in report for name in ("base@dev", "miss_param@dev"))
    assert "- unequal budget: other, seed 100: 2 optimizer steps" in report


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("signals.window", "signals.widow", "signals.widow"),
        ("signals.window: 5", "signals.window: 0", "window"),
        ("name: grpo", "name: plain", "no arm is called 'grpo'"),
    ],
)
def test_a_mistake_ends_the_study_before_anything_runs(tmp_path: Path, old: str, new: str, told: str) -> None:
    done = study_here(made_recipe(tmp_path, STUDY.replace(old, new)))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("options", "told"), [(("--seeds", "3"), "from 100"), (("--seeds", "x"), "0,2-4")])
def test_wrong_seeds_are_one_sentence(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = study_here(made_recipe(tmp_path), *options)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_run_with_other_settings_is_not_replaced(tmp_path: Path) -> None:
    recipe = made_recipe(tmp_path)
    kept = tmp_path / "work" / "grpo-100"
    kept.mkdir(parents=True)
    (kept / "recipe.yaml").write_text("iterations: 9\n")
    (kept / "policy").write_text("weights")
    done = study_here(recipe, "--arms", "grpo", "--seeds", "100")
    assert done.returncode == 2
    assert f"{kept} holds a run with other settings: move or remove it" in done.stderr
    assert sorted(path.name for path in kept.iterdir()) == ["policy", "recipe.yaml"]
    assert (kept / "recipe.yaml").read_text() == "iterations: 9\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--output", "--work"])
def test_a_file_in_the_place_of_a_folder_is_told_before_anything_runs(tmp_path: Path, option: str) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("precious")
    said = CliRunner().invoke(app, [str(made_recipe(tmp_path)), "--report", option, str(kept)])
    assert said.exit_code == 2
    assert f"error: {option} {kept} is a file: name a folder" in said.stderr
    assert kept.read_text() == "precious"


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    return made_recipe(tmp_path / "recipes")


def test_the_test_evaluation_set_opens_for_a_committed_recipe_only(repository: Path) -> None:
    for prepare in ("leave", "stage", "change"):
        if prepare == "stage":
            git(repository.parent, "add", ".")
        if prepare == "change":
            git(repository.parent, "commit", "--quiet", "-m", "recipe")
            repository.write_text(repository.read_text() + "# tuned a little\n")
        done = study_here(repository, "--split", "test")
        assert (done.returncode, done.stdout) == (2, ""), prepare
        assert "commit it" in done.stderr, prepare
        assert not (repository.parent / "out").exists(), "nothing was opened, nothing is noted"
        assert not (repository.parent / "work").exists()


def test_held_out_sets_open_for_settings_of_a_committed_file_only(repository: Path) -> None:
    git(repository.parent, "add", ".")
    git(repository.parent, "commit", "--quiet", "-m", "recipe")
    done = study_here(repository, "--split", "test", "--set", "training.steps=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--set training.steps=2: held-out sets open for committed files alone" in done.stderr
    machine = repository.parent / "machine.yaml"
    machine.write_text("training: {micro_batch: 1}\n")
    done = study_here(repository, "--split", "test", "--set", f"@{machine}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "machine.yaml" in done.stderr
    assert "commit it" in done.stderr
    assert not (repository.parent / "out").exists()


def test_settings_on_top_come_after_every_arms_and_belong_to_its_result(tmp_path: Path) -> None:
    path = made_recipe(tmp_path)
    plain, changed = load_study(path), load_study(path, ["signals.window=7", "iterations=2"])
    for name in ("grpo", "full"):
        arm = plain.recipe.arm(name)
        assert changed.settings_of(arm, 0, None)["signals"]["window"] == 7
        assert (plain.iterations(arm), changed.iterations(arm)) == (1, 2)
        assert plain.run_hash(arm, 0, "dev", None) != changed.run_hash(arm, 0, "dev", None)
    assert plain.sha256 != changed.sha256
    starter = plain.recipe.arm("starter")
    assert plain.run_hash(starter, 0, "dev", None) == changed.run_hash(starter, 0, "dev", None), "it is not trained"


def test_limits_of_scoring_are_the_studys_own_settings() -> None:
    path = Path("recipes/study-world.yaml")
    plain, changed = load_study(path), load_study(path, ["scoring.max_tokens=256", "iterations=2"])
    assert changed.recipe.scoring == plain.recipe.scoring.model_copy(update={"max_tokens": 256})
    arm = plain.recipe.arms[1]
    assert changed.settings_of(arm, 0, None) == plain.settings_of(arm, 0, None) | {"iterations": 2}
    assert changed.run_hash(arm, 0, "dev", None) != plain.run_hash(arm, 0, "dev", None)
    with pytest.raises(InputError, match=r"study-world.yaml: .*'?scoring\.?.*max_token"):
        load_study(path, ["scoring.max_token=256"])


def test_plan_runs_nothing_and_says_what_the_arms_need(tmp_path: Path) -> None:
    done = study(made_recipe(tmp_path), "--plan", "--arms", "grpo,full", "--seeds", "100-102", "--set", "iterations=4")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if " starter " in line] == ["grpo", "full"]
    assert done.stdout.count(" 16 ") == 2, "4 iterations of 1 step, 2 tasks and 2 rollouts"
    assert " 96 " in done.stdout, "three seeds of both"
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "work").exists()


def test_the_base_recipe_is_held_to_the_same(repository: Path) -> None:
    git(repository.parent, "add", ".")
    git(repository.parent, "commit", "--quiet", "-m", "recipe")
    base = repository.parent / "base.yaml"
    commit = committed([repository, base])
    assert re.fullmatch("[0-9a-f]{40}", commit)
    base.write_text(BASE.replace("steps: 1", "steps: 2"))
    with pytest.raises(InputError, match=r"base\.yaml differs"):
        committed([repository, base])


def test_git_must_have_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = made_recipe(tmp_path)
    with pytest.raises(InputError, match="in no git repository"):
        committed([recipe])
    git(tmp_path, "init", "--quiet")
    with pytest.raises(InputError, match="is not committed"):
        committed([recipe])
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match="install it"):
        committed([recipe])


RUNS = "echo ran >> {marker}; true"
ATTRIBUTES = "* filter=own diff=own merge=own text=auto"
PROGRAMS = [
    ("core.fsmonitor", "core.hooksPath", "core.pager", "core.editor", "core.sshCommand", "core.askPass"),
    ("diff.external", "diff.own.command", "diff.own.textconv", "filter.own.clean", "filter.own.process"),
    (
        "filter.own.smudge",
        "gpg.program",
        "credential.helper",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
    ),
    ("remote.origin.uploadpack", "alias.rev-parse", "alias.ls-files", "pager.rev-parse", "interactive.diffFilter"),
]


@pytest.mark.parametrize("keys", PROGRAMS)
@pytest.mark.parametrize("place", ["config", "included", "of the work tree"])
def test_no_program_of_another_repository_runs(tmp_path: Path, keys: tuple[str, ...], place: str) -> None:
    """git would start most of these only to say whether a file is as it was committed."""
    recipe = made_recipe(tmp_path / "recipes")
    (recipe.parent / ".gitattributes").write_text(ATTRIBUTES)
    git(recipe.parent, "init", "--quiet")
    git(recipe.parent, "add", ".")
    git(recipe.parent, "commit", "--quiet", "-m", "recipe")
    marker, own = tmp_path / "marker", recipe.parent / ".git"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{RUNS.format(marker=marker)}\n")
    program.chmod(0o755)
    hooks = own / "hooks"
    for name in ("post-index-change", "pre-commit", "reference-transaction", "post-checkout"):
        shutil.copy(program, hooks / name)
    sections = "".join(
        "[{}{}]\n  {} = {}\n".format(
            first, f' "{".".join(middle)}"' if middle else "", last, hooks if last == "hooksPath" else program
        )
        for key in keys
        for first, *middle, last in [key.split(".")]
    )
    promised = '[remote "origin"]\n  url = ext::{0}\n  promisor = true\n[extensions]\n  partialClone = origin\n'
    config = sections + promised.format(program)
    if place == "config":
        (own / "config").open("a").write(config)
    elif place == "included":
        (own / "more").write_text(config)
        (own / "config").open("a").write("[include]\n  path = more\n")
    else:
        (own / "config").open("a").write("[extensions]\n  worktreeConfig = true\n")
        (own / "config.worktree").write_text(config)
    os.utime(recipe)  # git looks at the content again
    assert re.fullmatch("[0-9a-f]{40}", committed([recipe]))
    recipe.write_text(recipe.read_text() + "# changed\n")
    with pytest.raises(InputError, match="differs from its commit"):
        committed([recipe])
    (other := recipe.with_name("other.yaml")).write_text("new: 1\n")
    with pytest.raises(InputError, match="is not committed"):
        committed([other])
    assert not marker.exists()


def test_a_linked_work_tree_and_packed_objects_are_read(repository: Path) -> None:
    git(repository.parent, "add", ".")
    git(repository.parent, "commit", "--quiet", "-m", "recipe")
    git(repository.parent, "gc", "--quiet")
    git(repository.parent, "worktree", "add", "--quiet", "--detach", str(repository.parents[1] / "linked"))
    (linked,) = (repository.parents[1] / "linked").rglob(repository.name)
    assert committed([repository]) == committed([linked])


def test_a_held_out_evaluation_set_needs_an_access_that_is_logged(tmp_path: Path) -> None:
    bfcl = packaged("bfcl")
    assert [held_out(name, bfcl) for name in ("templated-dev", "templated-test", "turns-test")] == [False, True, True]
    ledger = tmp_path / "openings.jsonl"
    for place in (None, ledger):
        with pytest.raises(InputError, match="held out"):
            open_set("templated-test", 1, place)
    opening = {"date": "2026-01-01T00:00:00+00:00", "commit": "c", "recipe": "r", "seeds": {"full": (0, 1)}}
    append_jsonl(ledger, [Access(panels={"templated-test": "of another set"}, **opening)])
    with pytest.raises(InputError, match="held out"):
        open_set("templated-test", 1, ledger)
    append_jsonl(ledger, [Access(panels={"templated-test": set_hash("templated-test", bfcl)}, **opening)])
    assert len(open_set("templated-test", 1, ledger)) == 1
    assert len(read_existing(ledger, Access)) == 2
    with pytest.raises(InputError, match="held out"):
        open_set("longer-test", 1, ledger)


def test_the_recipe_of_a_run_is_refused_as_what_it_is() -> None:
    with pytest.raises(InputError, match=r"quickstart\.yaml: not a study's recipe"):
        load_study(Path("recipes/quickstart.yaml"))


def test_the_shipped_recipe_of_the_world_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shipped = load_study(Path("recipes/study-world.yaml"))
    check_settings(make_plan(shipped, "dev", Place(output=tmp_path / "out", work=tmp_path / "work"), None, None))
    trained = {arm.name: arm for arm in shipped.recipe.arms if not arm.untrained}
    assert {arm.seeds for name, arm in trained.items() if name != "everything"} == {6}
    budgets = {
        arm.match_admissions for arm in trained.values() if shipped.settings_of(arm, 100, ())["tasks"]["evolved_share"]
    }
    assert budgets == {None, "ours"}, "every arm that learns from evolved tasks admits as many as ours"
    assert [name for name, arm in trained.items() if arm.match_admissions is None] == [
        *("grpo", "ours", "static", "everything", "seal", "seal-fixed-rho"),
    ]
    assert {one.arm for one in shipped.recipe.hypotheses} == {"ours", "signals"}
    assert shipped.recipe.lookup


def test_the_shipped_recipe_of_many_tasks_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shipped, other = load_study(Path("recipes/study-world-large.yaml")), load_study(Path("recipes/study-world.yaml"))
    check_settings(make_plan(shipped, "dev", Place(output=tmp_path / "out", work=tmp_path / "work"), None, None))
    assert shipped.set_hashes == other.set_hashes
    contexts = [study.shared.pop("signals")["contexts_per_iteration"] for study in (shipped, other)]
    assert contexts == [96, 16]
    assert shipped.shared == other.shared, "the number of contexts is the only setting that differs"
    for arm in shipped.recipe.arms:
        same = other.recipe.arm(arm.name)
        own = {key: value for key, value in arm.overrides.items() if key != "signals.contexts_per_iteration"}
        assert (own, arm.match_admissions) == (same.overrides, same.match_admissions), arm.name


def test_the_recorded_study_of_the_world_is_the_one_whose_test_sets_were_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study(Path("recipes/study-world.yaml"))
    log = read_existing(ROOT / "results" / "study-world" / ACCESS_LOG_FILE, Access)
    opened = {name: study.set_hashes[name] for name in study.recipe.sets.test}
    assert log
    assert all(one.panels == opened for one in log)
    headers = [read_header(file) for file in sorted((ROOT / "results" / "study-world" / "raw").iterdir())]
    assert {one.study for one in headers} == {one.recipe for one in log}
    assert len({one.recipe for one in log}) == 1
    assert {one.measured.commit for one in headers} <= {one.commit for one in log}
    for one in headers:
        assert any(one.seed in access.seeds.get(one.arm, ()) for access in log), (one.arm, one.seed)


def test_no_arm_of_the_world_s_study_gets_more_updates_or_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = load_study(Path("recipes/study-world.yaml"))
    own = ("evolved_share", "initial_count", "admissions")
    for arm in (one for one in study.recipe.arms if not one.untrained):
        settings = study.settings_of(arm, 0, ())
        training = {key: value for key, value in settings["training"].items() if key not in ("expert", "seal")}
        shared = {key: value for key, value in study.shared["training"].items() if key != "expert"}
        assert training == shared, arm.name
        assert settings["roles"] == study.shared["roles"], "one explorer, one draw of arguments"
        assert settings["signals"]["contexts_per_iteration"] == 16, arm.name
        tasks = {key: value for key, value in settings["tasks"].items() if key not in own}
        assert tasks == {key: value for key, value in study.shared["tasks"].items() if key not in own}, arm.name
    assert study.shared["roles"]["exploration"]["unguided"] == "same_rules"
