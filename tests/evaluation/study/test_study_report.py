"""Reports from results made by hand: paired differences, budgets, and what is partial or outdated."""

import gzip
import os
import re
from pathlib import Path

import pytest
import yaml
from support import ROOT
from support.made_results import RECIPE, figures, made_study, result

from environments.base import InputError
from environments.metrics import CALL_METRICS
from environments.registry import named_benchmark
from evaluation.sets import open_set
from evaluation.study.findings import cell, difference
from evaluation.study.recipe import SetsBySplit
from evaluation.study.report import write_report
from evaluation.study.schedule import check_settings, make_plan, refuse_other_settings
from evaluation.study.study import Place, load_study, read_result
from evaluation.study.summary import BUDGETS, summarise, unequal_budgets
from evaluation.test_access import Access, log_access, now
from graph.settings import load_recipe
from memory.files import LONGEST
from memory.jsonl import append_jsonl

YES, NO = True, False


@pytest.fixture
def study(tmp_path):
    return made_study(tmp_path)


@pytest.fixture
def place(tmp_path):
    return Place(output=tmp_path / "out", work=tmp_path / "work")


def land(place, *results):
    for one in results:
        one.write(place.result(one.header.arm, one.header.seed))


def test_success_and_paired_difference_by_hand(study):
    base = {seed: result(study, "grpo", seed, [YES, NO, NO, NO]) for seed in (100, 101)}
    arm = {100: result(study, "full", 100, [YES, YES, NO, NO]), 101: result(study, "full", 101, [YES] * 4)}
    found = cell(arm, "templated-dev")
    assert found.success.by_seed == {100: 0.5, 101: 1.0}
    assert (found.success.mean, found.tasks, found.clusters, found.extra_calls) == (0.75, 4, 2, 1.0)
    versus = difference(arm, base, "templated-dev").success
    assert versus.by_seed == {100: 0.25, 101: 0.75}
    assert versus.mean == 0.5
    assert versus.interval[0] <= 0.5 <= versus.interval[1]
    assert versus.t_interval == (pytest.approx(0.5 - 12.7062 * 0.25), pytest.approx(0.5 + 12.7062 * 0.25))


def test_only_seeds_of_both_arms_are_paired_and_one_seed_has_no_interval(study):
    base = {seed: result(study, "grpo", seed, [NO, NO]) for seed in (100, 101)}
    versus = difference({101: result(study, "full", 101, [YES, NO])}, base, "templated-dev").success
    assert versus.by_seed == {101: 0.5}
    assert versus.interval is versus.t_interval is None
    assert difference({102: result(study, "full", 102, [YES, NO])}, base, "templated-dev") is None
    assert cell(base, "longer-dev") is None


def test_an_infrastructure_error_leaves_the_task_out_of_both_arms(study):
    ours, theirs = result(study, "full", 100, [YES, YES]), result(study, "grpo", 100, [YES, NO])
    broken = theirs.outcomes[0].model_copy(update={"success": False, "infrastructure_error": "the worker died"})
    theirs = theirs.model_copy(update={"outcomes": (broken, theirs.outcomes[1])})
    assert difference({100: ours}, {100: theirs}, "templated-dev").success.mean == 1.0
    found = cell({100: theirs}, "templated-dev")
    assert (found.success.mean, found.infrastructure_errors, found.extra_calls) == (0.0, 1, None)


def test_a_whole_report(study, place):
    for seed in (100, 101, 102):
        land(place, result(study, "grpo", seed, [YES, NO, NO, NO]), result(study, "full", seed, [YES, YES, NO, NO]))
    land(place, result(study, "random", 100, [YES, NO, NO, YES]), result(study, "starter", 100, [NO] * 4))
    table = write_report(study, "dev", place)
    summary = summarise(study, "dev", place)
    assert list(summary.cells) == ["grpo", "full", "random", "starter"]
    full = summary.cells["full"]["templated-dev"].differences
    assert full["grpo"].success.by_seed == {100: 0.25, 101: 0.25, 102: 0.25}
    assert full["random"].success.by_seed == {100: 0.0}
    assert summary.cells["grpo"]["templated-dev"].differences == {}
    assert (summary.missing, summary.openings) == (("random-101",), ())
    assert unequal_budgets(summary.arms, "grpo") == []
    arm = summary.arms["full"]
    assert arm.evolution_share == 0.25
    assert [count(arm.trained[0]) for count in BUDGETS.values()] == [16, 20, 100, 0, 0]
    assert arm.successes == [pytest.approx(one) for one in (0.2, 0.3, 0.4)]
    assert (arm.in_training, arm.in_tasks, arm.acceptance) == (0.5, 0.5, pytest.approx(0.7))
    assert "| full | 20.0 30.0 40.0 | 5 5 | 3 3 | 70.0 | 50.0 | 50.0 | 25.0 |" in table
    for told in ("**Partial**", "100: +25.0, 101: +25.0", "scripted roles", "prove nothing"):
        assert told in table
    assert table == (place.output / "development.md").read_text()
    assert write_report(study, "dev", place) == table


def test_tokens_that_were_learnt_from_are_a_budget_where_there_are_any(study, place):
    learnt = result(study, "full", 100, [YES, NO])
    figures = [one.model_copy(update={"supervised_tokens": 40}) for one in learnt.header.iterations]
    header = learnt.header.model_copy(update={"iterations": tuple(figures)})
    land(place, result(study, "grpo", 100, [NO, NO]))
    assert "supervised tokens" not in write_report(study, "dev", place)
    land(place, learnt.model_copy(update={"header": header}))
    assert "supervised tokens" in write_report(study, "dev", place)
    header = "| arm | what it is | seeds | rollouts | optimizer steps | environment calls | supervised tokens |"
    table = write_report(study, "dev", place)
    assert header in table
    assert "| full | loop | 1 of 3 | 16 | 20 | 100 | 80 |" in table
    assert "| grpo | plain | 1 of 3 | 16 | 20 | 100 | 0 |" in table


def test_a_report_of_nothing_says_so(study, place):
    assert "9 arms and seeds of the recipe are not there yet" in write_report(study, "dev", place)
    summary = summarise(study, "dev", place)
    assert (summary.cells, len(summary.missing)) == ({}, 9)


def test_results_of_the_other_mode_or_another_recipe_stay_out(study, place):
    land(place, result(study, "grpo", 100, [YES, NO]), result(study, "full", 100, [YES, YES], recipe="0" * 64))
    land(place, result(study, "full", 3, [YES, YES]))
    summary = summarise(study, "dev", place)
    assert list(summary.cells) == ["grpo"]
    assert summary.outdated == ("full-100",)
    assert summarise(study, "test", place).cells == {}


def test_unequal_starts_are_no_comparison(study, place):
    land(place, result(study, "grpo", 100, [NO]), result(study, "full", 100, [YES], initial_tasks="another"))
    with pytest.raises(InputError, match=r"seed 100.*full.*grpo"):
        summarise(study, "dev", place)


def test_unequal_budgets_are_told(study, place):
    fewer = (figures(0, success=0.3, rollouts=6, calls=45), figures(1, success=0.4))
    labels = ("scripted roles", "a quota")
    other = result(study, "full", 100, [YES], iterations=fewer, labels=labels)
    land(place, result(study, "grpo", 100, [NO]), other)
    arms = summarise(study, "dev", place).arms
    assert unequal_budgets(arms, "grpo") == ["full, seed 100: 14 rollouts, grpo has 16"]
    table = write_report(study, "dev", place)
    for told in ("14 rollouts", "\n- scripted roles\n", "\n- full: a quota\n"):
        assert told in table


def test_an_arm_that_matches_another_follows_its_admissions(study, place):
    land(place, result(study, "full", 100, [YES]), result(study, "random", 100, [YES]))
    plan = make_plan(study, "dev", place, ["random"], [100])
    assert plan.jobs == ()
    more = (figures(0, success=0.3, admitted=4), figures(1, success=0.4))
    land(place, result(study, "full", 100, [YES], iterations=more))
    (job,) = make_plan(study, "dev", place, ["random"], [100]).jobs
    assert (job.arm, job.seed, job.after) == ("random", 100, None)
    arm = study.recipe.arm("random")
    settings = study.settings_of(arm, 100, (4, 3))
    assert settings["tasks"]["admissions"] == [4, 3]
    assert settings["signals"]["contexts"] == "random"
    assert settings["seed"] == 100


def test_a_plan_is_in_order_and_refuses_what_cannot_be(study, place):
    plan = make_plan(study, "dev", place, None, None)
    assert [(job.arm, job.seed) for job in plan.jobs][:4] == [
        ("grpo", 100), ("grpo", 101), ("grpo", 102), ("full", 100),
    ]  # fmt: skip
    assert {job.after for job in plan.jobs if job.arm == "random"} == {"full"}
    assert make_plan(study, "test", place, None, [2]).seeds() == {"grpo": (2,), "full": (2,)}
    for mode, names, seeds, told in (
        ("dev", ["random"], [100], "run full first"),
        ("dev", ["nothing"], None, "grpo, full"),
        ("dev", None, [3], "from 100 on"),
        ("test", None, [100], "no chosen arm"),
    ):
        with pytest.raises(InputError, match=told):
            make_plan(study, mode, place, names, seeds)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("evolved_share: 0.0", "evolved_share: 0.0, training.steps: 3", "training.steps, which all arms share"),
        ("evolved_share: 0.0", "evolved_share: 0.0, tasks.initial_count: 3", "all arms share"),
        ("name: grpo", "name: plain", "no arm is called 'grpo'"),
        ("name: full", "name: grpo", "two arms are called 'grpo'"),
        ("name: full", "name: full/loop", "pattern"),
        ("match_admissions: full", "match_admissions: random", "'random'"),
        ("match_admissions: full", "match_admissions: starter", "'starter'"),
        ("seeds: 2", "seeds: 4", "more seeds than 'full'"),
        ("untrained: true", "untrained: true, overrides: {memory.deduplicate: false}", "would ignore"),
        ("[[full, random]]", "[[full, other]]", "'other', which is not an arm"),
        ("dev: [templated-dev]", "dev: [templated-test]", "not of the split dev"),
        ("dev: [templated-dev]", "dev: [base@test]", "base@test is not of the split dev"),
        ("test: [templated-test]", "test: [base@dev]", "base@dev is not of the split test"),
        ("compare:", "settings: {environment: {name: nobody}}\ncompare:", "'nobody' is not an environment"),
        ("dev: [templated-dev]", "dev: [dev]", "no such set in bfcl"),
        ("compare:", "varies: [seed]\ncompare:", "'varies' names seed"),
        ("compare:", "varies: [signals.window]\ncompare:", "'varies' names signals.window, which arms may override"),
        ("evolved_share: 0.0", "evolved_share: 0.0, policy: {path: x}", "policy, which all arms share"),
        ("dev: [templated-dev]", "dev: [nowhere]", "no such set"),
        ("description: loop", "description: loop, describe: loop", "describe"),
        ("compare:", "limits: 3\ncompare:", "limits"),
        ("seeds: 1,", "seeds: 1, seeds: 2,", "occurs twice"),
        ("BASE", "nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_a_wrong_recipe_is_one_sentence(tmp_path, old, new, told):
    assert old in RECIPE
    with pytest.raises(InputError, match=told) as caught:
        made_study(tmp_path, RECIPE.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_what_says_nothing_about_the_outcome_leaves_the_hash(tmp_path):
    study = made_study(tmp_path)
    arm = study.recipe.arm("full")
    before = study.run_hash(arm, 100, "dev", None)
    other = made_study(
        tmp_path, RECIPE.replace("description: loop", "description: the loop").replace("[[full, random]]", "[]")
    )
    assert other.run_hash(other.recipe.arm("full"), 100, "dev", None) == before
    for old, new in (
        ("description: loop", "description: loop, overrides: {memory.deduplicate: false}"),
        ("compare", "scoring: {limit: 3}\ncompare"),
    ):
        other = made_study(tmp_path, RECIPE.replace(old, new, 1))
        assert other.run_hash(other.recipe.arm("full"), 100, "dev", None) != before
    assert study.run_hash(arm, 101, "dev", None) != before != study.run_hash(arm, 100, "test", None)


def test_a_corrupt_result_is_named(study, place):
    path = place.result("grpo", 100)
    land(place, result(study, "grpo", 100, [YES, NO]))
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text + b'{"group": "templated-dev"}\n'))
    with pytest.raises(InputError, match=r"grpo-100\.jsonl\.gz, line 4"):
        read_result(path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(InputError, match="is empty"):
        read_result(path)


def test_what_a_person_says_of_the_results_stands_above_the_tables(tmp_path):
    study = made_study(tmp_path)
    place = Place(output=tmp_path / "out", work=tmp_path / "work")
    place.output.mkdir()
    (place.output / "reading.md").write_text("Mostly one function.\n")
    lines = write_report(study, "test", place).splitlines()
    assert lines[2] == "Mostly one function."
    assert "Mostly" not in write_report(study, "dev", place)


def test_equal_results_are_equal_files_and_half_a_file_is_told(study, place):
    path = place.result("grpo", 100)
    land(place, result(study, "grpo", 100, [YES, NO]))
    first = path.read_bytes()
    land(place, result(study, "grpo", 100, [YES, NO]))
    assert path.read_bytes() == first
    path.write_bytes(first[:-9])
    with pytest.raises(InputError, match=r"grpo-100\.jsonl\.gz is not a whole gzip file"):
        read_result(path)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "zero", "bomb"])
def test_no_file_of_a_study_leads_elsewhere_or_has_no_end(tmp_path, study, place, kind):
    secret = tmp_path / "secret"
    made = result(study, "grpo", 100, [YES, NO])
    made.write(secret)
    before = secret.read_bytes()
    for path, act in (
        (place.result("grpo", 100), lambda: summarise(study, "dev", place)),
        (place.output / "reading.md", lambda: write_report(study, "test", place)),
        (place.access_log, lambda: write_report(study, "test", place)),
        (place.access_log, lambda: log_access(place.access_log, Access(date=now(), commit=None, panels={}))),
        (place.run("grpo", 100) / "recipe.yaml", lambda: refuse_other_settings(place.run("grpo", 100), {})),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "bomb":
            path.write_bytes(gzip.compress(b"\n" * (LONGEST + 1)) if path.suffix == ".gz" else b"\xff" * 2**18)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"link": secret, "folder": tmp_path, "zero": "/dev/zero"}[kind])
        with pytest.raises(
            InputError, match=re.escape(path.name) if kind != "bomb" else "recipe|grpo|reading|openings"
        ):
            act()
        path.unlink()
    assert secret.read_bytes() == before
    made.write(place.result("grpo", 100))
    assert read_result(place.result("grpo", 100)) == made


VARIED = RECIPE.replace(
    "compare:", "varies: [policy.path, tasks.initial_count, iterations, environment]\ncompare:"
).replace("description: loop, seeds: 3", "description: loop, seeds: 3, overrides: {OWN}")
DEPOTS = "support.tiny_benchmark:BENCHMARK"


def varied(folder, own):
    return made_study(folder, VARIED.replace("OWN", own).replace(", match_admissions: full", ""))


def test_arms_change_what_the_recipe_says_that_it_varies(tmp_path):
    plain = varied(tmp_path, "tasks.initial_count: 100")
    other = varied(tmp_path, "tasks.initial_count: 50, iterations: 4, policy.path: recipes/starter-seal")
    full = other.recipe.arm("full")
    assert (other.iterations(full), other.iterations(other.recipe.arm("grpo"))) == (4, 2)
    assert other.settings_of(full, 7, None) == {
        "iterations": 4, "policy": {"path": "recipes/starter-seal"}, "tasks": {"initial_count": 50}, "seed": 7,
    }  # fmt: skip
    assert other.policy_of(full, 100) == "recipes/starter-seal"
    assert other.policies["recipes/starter-seal"] != other.policies["recipes/starter"]
    hashes = {
        arm: {study.run_hash(study.recipe.arm(arm), 100, "dev", None) for study in (plain, other)}
        for arm in ("grpo", "full", "starter")
    }
    assert [len(hashes[arm]) for arm in ("grpo", "full", "starter")] == [1, 2, 1], "the others' results stay theirs"
    with pytest.raises(InputError, match="of other iterations"):
        made_study(tmp_path, VARIED.replace("OWN", "iterations: 3"))


def test_each_seed_starts_from_a_policy_of_its_own_where_the_path_names_it(tmp_path, place):
    text = RECIPE.replace("arms:", f"settings: {{policy.path: '{tmp_path}/start-{{seed}}'}}\narms:")
    study = made_study(tmp_path, text)
    full, starter = study.recipe.arm("full"), study.recipe.arm("starter")
    assert study.settings_of(full, 101, None)["policy"] == {"path": f"{tmp_path}/start-101"}
    assert study.policy_of(starter, 100) == f"{tmp_path}/start-100"
    assert len({study.run_hash(full, seed, "dev", None) for seed in (100, 101)}) == 2
    plan = make_plan(study, "dev", place, ("full",), (101,))
    with pytest.raises(InputError, match=r"full, seed 101: the policy .*start-101 is not there: make one for each"):
        check_settings(plan)
    before = study.run_hash(full, 101, "dev", None)
    (tmp_path / "start-101").mkdir()
    (tmp_path / "start-101" / "config.json").write_text("{}")
    assert study.run_hash(full, 101, "dev", None) == before, "results are reported where the policies are not"
    hashes = {study.initial_policy(full, seed) for seed in (100, 101)}
    assert len(hashes) == 2
    assert made_study(tmp_path).initial_policy(full, 100) == ""
    land(place, *(result(study, arm, 100, [YES], initial_policy=arm) for arm in ("grpo", "full")))
    with pytest.raises(InputError, match="seed 100: full and grpo began with different policies"):
        summarise(study, "dev", place)


def test_only_arms_with_equal_settings_of_d0_must_begin_with_equal_tasks(tmp_path, place):
    study = varied(tmp_path, "tasks.initial_count: 50")
    land(place, result(study, "grpo", 100, [NO]), result(study, "full", 100, [YES], initial_tasks="another D_0"))
    assert set(summarise(study, "dev", place).cells) == {"grpo", "full"}
    land(place, result(study, "random", 100, [YES], initial_tasks="a third one"))
    with pytest.raises(InputError, match="random"):
        summarise(study, "dev", place)


def test_an_untrained_arm_scores_another_policy(tmp_path):
    def hashed(overrides):
        text = RECIPE.replace("untrained: true", f"untrained: true, overrides: {{{overrides}}}")
        study = made_study(tmp_path, text)
        starter = study.recipe.arm("starter")
        return study.policy_of(starter, 100), study.run_hash(starter, 100, "dev", None)

    plain, other = hashed(""), hashed("policy.path: 'another/model'")
    assert (plain[0], other[0]) == ("recipes/starter", "another/model")
    thinking = hashed("policy.path: 'another/model', policy.thinking: true")
    assert len({plain[1], other[1], thinking[1]}) == 3


def of_depots(folder, more=""):
    chosen = f"environment: {{name: '{DEPOTS}'}}, policy.thinking: false, policy.tools_shown: 4"
    sets = f"sets: {{dev: [dev], test: [test]}}\nsettings: {{{chosen}}}"
    return made_study(folder, RECIPE.replace("sets: {dev: [templated-dev], test: [templated-test]}", sets + more))


def test_sets_of_a_benchmark_are_scored_by_its_own_metrics(tmp_path, place):
    study = of_depots(tmp_path)
    for seed, solved in ((100, [YES, YES, YES, NO]), (101, [NO, NO, YES, YES])):
        made = result(study, "full", seed, solved)
        outcomes = [one.model_copy(update={"group": "dev", "reference_calls": None}) for one in made.outcomes]
        if seed == 101:
            outcomes[0] = outcomes[0].model_copy(update={"infrastructure_error": "the endpoint failed"})
        land(place, made.model_copy(update={"outcomes": tuple(outcomes)}))
    found = summarise(study, "dev", place).cells["full"]["dev"]
    assert found.metrics["whole_depots"].by_seed == {100: 0.5, 101: 0.5}
    assert found.extra_calls is None
    assert (found.success.by_seed, found.infrastructure_errors) == ({100: 0.75, 101: 2 / 3}, 1)
    assert "| whole_depots |" in write_report(study, "dev", place)


def test_metrics_of_calls_have_intervals_and_paired_differences(tmp_path):
    study, sets = made_study(tmp_path), "templated-dev"
    wanted = (("f", "a"),)

    def arm(name: str, right: int) -> dict:
        results = {}
        for seed in (100, 101):
            made = result(study, name, seed, [False] * 6)
            outcomes = [
                one.model_copy(update={"calls_made": wanted if n < right else (("f", "b"),), "calls_wanted": wanted})
                for n, one in enumerate(made.outcomes)
            ]
            results[seed] = made.model_copy(update={"outcomes": tuple(outcomes)})
        return results

    found = cell(arm("full", 3), sets, CALL_METRICS)
    assert {name: one.mean for name, one in found.metrics.items()} == {
        "call_f1": 0.5,
        "name_f1": 1.0,
        "first_function": 1.0,
    }
    low, high = found.metrics["call_f1"].interval
    assert low < 0.5 < high
    change = difference(arm("full", 3), arm("grpo", 1), sets, CALL_METRICS).metrics["call_f1"]
    assert (change.mean, change.by_seed) == (
        pytest.approx(1 / 3),
        {100: pytest.approx(1 / 3), 101: pytest.approx(1 / 3)},
    )
    assert change.interval[0] < 1 / 3 < change.interval[1]


@pytest.mark.process
@pytest.mark.parametrize("several", [True, False])
def test_one_command_scores_the_sets_that_one_environment_serves(tmp_path, place, monkeypatch, several):
    plain, study = of_depots(tmp_path), of_depots(tmp_path, "\nscoring: {max_new_tokens: 70, limit: 3}")
    hashes = {one.run_hash(one.recipe.arm("starter"), 100, "dev", None) for one in (plain, study)}
    assert len(hashes) == 2, "limits decide outcomes"
    monkeypatch.setattr(type(study.benchmark), "several_sets", several)
    twice = study.model_copy(
        update={"recipe": study.recipe.model_copy(update={"sets": SetsBySplit(dev=("dev", "dev"), test=("test",))})}
    )
    for mode, expected in (("dev", [("dev", "dev")] if several else [("dev",), ("dev",)]), ("test", [("test",)])):
        plan = make_plan(twice, mode, place, None, None)
        found = plan.scoring(twice.settings_of(twice.recipe.arm("grpo"), 100, None))
        assert [one.evaluation_set for one in found] == expected
        for one in found:
            assert (one.max_new_tokens, one.limit, one.thinking, one.tools_shown) == (70, 3, False, 4)
            assert one.environment == DEPOTS
            assert one.access_log == (place.access_log if mode == "test" else None)


@pytest.mark.process
def test_final_policies_are_sampled_by_the_servers_of_the_runs(tmp_path, place):
    plain = of_depots(tmp_path)
    servers = {"engine": "vllm_server", "servers": ["http://127.0.0.1:8000"]}
    study = plain.model_copy(update={"changes": {"sampling": servers}})
    plan = make_plan(study, "dev", place, None, None)
    (scoring,) = plan.scoring(study.settings_of(study.recipe.arm("grpo"), 100, None))
    assert scoring.sampling.model_dump(include={"engine", "servers"}) == {
        **servers,
        "servers": ("http://127.0.0.1:8000",),
    }


def test_a_study_opens_sets_of_a_ledger_by_its_own_log(tmp_path):
    """Where a user's command adds a line, a study's command finds the one that the study wrote."""
    log, benchmark = tmp_path / "openings.jsonl", named_benchmark(DEPOTS)
    sha256 = benchmark.evaluation_set("test").sha256
    access = Access(date="d", commit="c", recipe="r", panels={"test": "other"}, seeds={})
    append_jsonl(log, [access])
    with pytest.raises(InputError, match="no test access log has an access to it"):
        open_set("test", 1, log, benchmark=benchmark)
    append_jsonl(log, [access.model_copy(update={"panels": {"test": sha256}})])
    before = log.read_text()
    assert len(open_set("test", 1, log, benchmark=benchmark)) == 1
    assert log.read_text() == before


def test_arms_over_f_train_as_many_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shipped = load_study(Path("recipes/papers/coevolve-bfcl.yaml"))
    assert shipped.recipe.deadline > 7 * 24 * 3600
    steps = set()
    for arm in (one for one in shipped.recipe.arms if not (one.untrained or one.match_admissions)):
        (tmp_path / f"{arm.name}.yaml").write_text(yaml.safe_dump(shipped.settings_of(arm, 0, None)))
        settings = load_recipe(tmp_path / f"{arm.name}.yaml")
        assert settings.training.steps * settings.iterations == 120, arm.name
        steps.add(settings.training.steps)
    assert steps == {2, 5, 10, 20, 40}


SHAPES = (("ls",), ("ls",), ("ls", "cd"), ("mkdir",))


def test_the_mean_over_call_shapes_counts_each_once_and_resamples_seeds(study):
    arm = {seed: result(study, "full", seed, [YES, YES, NO, seed == 100], SHAPES) for seed in (100, 101, 102)}
    base = {seed: result(study, "grpo", seed, [YES, NO, NO, NO], SHAPES) for seed in (100, 101, 102)}
    found = cell(arm, "templated-dev").macro
    assert found.by_seed == pytest.approx({100: 2 / 3, 101: 1 / 3, 102: 1 / 3})
    assert found.interval[0] <= found.mean <= found.interval[1]
    macro = difference(arm, base, "templated-dev").macro
    assert macro.by_seed == pytest.approx({100: 2 / 3 - 1 / 6, 101: 1 / 6, 102: 1 / 6})
    assert macro.interval[0] <= macro.mean <= macro.interval[1]
    unknown = cell({seed: result(study, "full", seed, [YES, NO]) for seed in (100, 101)}, "templated-dev")
    assert unknown.macro is None
    assert unknown.success.interval is not None


def test_a_report_with_call_shapes_and_lookup_has_their_tables_and_rows(study, place):
    for seed in (100, 101, 102):
        full = result(study, "full", seed, [YES, YES, NO, NO], SHAPES)
        looked = tuple(one.model_copy(update={"baseline": "lookup", "success": YES}) for one in full.outcomes)
        land(
            place,
            result(study, "grpo", seed, [YES, NO, NO, NO], SHAPES),
            full.model_copy(update={"outcomes": (*full.outcomes, *looked)}),
        )
    table = write_report(study, "dev", place)
    cells = {name: one["templated-dev"] for name, one in summarise(study, "dev", place).cells.items()}
    assert list(cells) == ["grpo", "full", "full (lookup)"]
    assert (cells["full"].success.mean, cells["full (lookup)"].success.mean) == (0.5, 1.0)
    assert cells["full"].differences["full (lookup)"].success.mean == -0.5
    assert "minus grpo, by shape" in table


def test_a_study_with_lookup_is_another_one_and_one_without_is_the_recorded(tmp_path):
    plain, looked = made_study(tmp_path), made_study(tmp_path, RECIPE + "lookup: true\n")
    for arm in plain.recipe.arms:
        same = plain.run_hash(arm, 100, "dev", (3, 3)) == looked.run_hash(arm, 100, "dev", (3, 3))
        assert same == arm.untrained


def test_shares_of_signals_are_printed_beside_the_papers(study, place):
    marked = figures(0, success=0.3).model_copy(update={"signals": {"forgetting": 1, "boundary": 4, "rare": 15}})
    land(place, result(study, "grpo", 100, [NO] * 4, iterations=(marked, marked)))
    land(place, result(study, "grpo", 101, [NO] * 4), result(study, "full", 100, [NO] * 4, iterations=()))
    lines = write_report(study, "dev", place).splitlines()
    # Two rounds of seed 100 with 1, 4 and 15, two of seed 101 with 1, 4 and 0: 4, 16 and 30 of 50.
    assert "| grpo | 50 | 8.0 | 32.0 | 60.0 |" in lines
    assert "| CoEvolve's figure 4, first benchmark |  | 29.8 | 51.4 | 18.8 |" in lines
    assert "| CoEvolve's figure 4, second benchmark |  | 29.9 | 45.5 | 24.6 |" in lines
    assert sum(line.startswith("| full | 5") for line in lines) == 0, "an arm without a round has no row"
