"""The rehearsal of a recipe: its sizes, its list, its refusals, and the whole of it on a tiny policy."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from support.chat_models import save_model
from support.chat_table import KEY, answer
from support.faulty_server import FaultyServer
from support.served_model import QWEN3_4B
from typer.testing import CliRunner

import graph.check_recipe
import training.warm_start
from agents.settings import ROLES
from agents.spending import Request
from environments.base import InputError
from graph.fit import forecast
from graph.rehearsal import chain
from graph.rehearsal.chain import asked_rows, rehearse, table
from graph.rehearsal.toy import (
    ASKED,
    CALLS,
    COURSES,
    MOST,
    Machine,
    machine_at_hand,
    options,
    teach,
    toy,
    weights_left_out,
)
from graph.settings import RunSettings, dotted, load_recipe
from memory.jsonl import write_jsonl
from memory.processes import ChildFailure
from memory.records import KINDS, Measured
from training.plan import shipped_config
from training.settings import LaunchSettings, TrainingSettings
from training.start_rows import StartSettings

LITERAL = Path("recipes/papers/literal-bfcl.yaml")
NODE = "@recipes/machines/node-8x80gb.yaml"
MACHINES = {
    "bare": Machine(silent="no key"),
    "asked": Machine(),
    "one": Machine(gpus=1, vllm=True),
    "node": Machine(gpus=8, vllm=True),
}
SIZES = {*MOST, *ASKED, "training.tasks_per_step", "training.micro_batch", "training.expert.tokens"}
SIZES |= {"training.expert.passes", "roles.budget.calls", "signals.rare_percent"}


def recipes() -> list[Path]:
    files = [
        *ROOT.glob("recipes/*.yaml"),
        *ROOT.glob("recipes/seal-bfcl/*.yaml"),
        *ROOT.glob("recipes/papers/lit*.yaml"),
    ]
    return sorted(one.relative_to(ROOT) for one in files if "\nbase:" not in f"\n{one.read_text()}")


def shrunk(recipe: Path, machine: Machine, *overrides: str) -> tuple[RunSettings, dict[str, Any], dict[str, str]]:
    changes, rows = toy(load_recipe(recipe, overrides), machine)
    return load_recipe(recipe, [*overrides, *options(changes)]), changes, rows


@pytest.mark.parametrize("role", ROLES)
def test_a_role_of_a_chat_model_alone_is_planned_and_rehearsed(role: str) -> None:
    given = [f"roles.{role}={{kind: chat, model: m}}", "roles.concurrency=2", "verification.mode=agent"]
    if role != "validator":
        given[-1] = "tasks.evolved_share=1.0"
    recipe = ROOT / "recipes" / "quickstart.yaml"
    settings = load_recipe(recipe, given)
    assert forecast(settings).requests > 0
    made, _, rows = shrunk(recipe, MACHINES["bare"], *given)
    assert made.roles.by_chat() == {}
    assert rows[f"chat model: {role}"] == "no key"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("recipe", recipes(), ids=str)
def test_every_recipe_has_toy_sizes_on_every_machine(recipe: Path, machine: str) -> None:
    """They are settings that load, no larger than the recipe's; what else differs has a row with its reason."""
    for over in ((), (NODE,), ("@recipes/machines/gpu-24gb.yaml",)):
        settings, changes, rows = shrunk(recipe, MACHINES[machine], *over)
        now, before = dotted(settings), dotted(load_recipe(recipe, over))
        unused = () if settings.evaluation.scored is not None else ("evaluation.",)
        unused += () if settings.tasks.initial is None else ("tasks.initial_count",)
        for key, most in MOST.items():
            assert now[key] is None or now[key] <= most or key.startswith(unused), key
            assert before[key] is None or now[key] is None or now[key] <= before[key], key
        others = {key for key in changes if key not in {*SIZES, "policy.device"}}
        assert not others or len(rows) > (MACHINES[machine].gpus == 0), others


def test_what_is_rehearsed_stays_as_it_is_where_the_machine_has_it() -> None:
    settings, changes, rows = shrunk(LITERAL, MACHINES["node"], NODE)
    assert set(changes) <= SIZES
    assert rows == {}
    stated = load_recipe(LITERAL, [NODE])
    for section in ("policy", "sampling", "verification", "memory", "environment"):
        assert getattr(settings, section) == getattr(stated, section)
    assert settings.training.launch == stated.training.launch
    assert settings.training.loss == stated.training.loss
    assert settings.roles.by_chat().keys() == {"reflector", "explorer", "abstractor", "validator"}


def test_two_iterations_with_a_chat_model_stay_within_ten_requests() -> None:
    """One reflection, the explorer's calls, one abstraction, and the validator's for each draft, of each iteration."""
    settings, _, _ = shrunk(LITERAL, MACHINES["asked"])
    exploration = settings.roles.exploration
    explored = exploration.rounds * exploration.steps
    validated = exploration.drafts_per_context * settings.roles.validator_actions
    assert settings.signals.contexts_per_iteration == 1
    assert settings.iterations * (1 + explored + 1 + validated) <= CALLS
    assert settings.roles.budget.calls == CALLS


@pytest.mark.parametrize(
    ("machine", "key", "value", "what", "why"),
    [
        ("bare", "policy.device", "cpu", "a GPU", "this machine has none"),
        ("bare", "sampling.engine", "in_process", "vLLM servers", "run make vllm"),
        ("bare", "training.launch.processes", 2, "4 processes that train", "2 trained: this machine has no GPUs"),
        ("bare", "training.launch.fsdp", False, "weights divided by FSDP2", "without GPUs"),
        ("bare", "roles.explorer.kind", "scripted", "chat model: reflector, explorer, abstractor, validator", "no key"),
        (
            "bare",
            "verification.mode",
            "deterministic",
            "chat model: reflector, explorer, abstractor, validator",
            "no key",
        ),
        ("one", "training.launch", None, "4 processes that train", "this machine has one GPU"),
    ],
)
def test_what_the_machine_lacks_has_a_row_with_its_reason(
    machine: str, key: str, value: Any, what: str, why: str
) -> None:
    settings, _, rows = shrunk(LITERAL, MACHINES[machine], NODE)
    assert dotted(settings)[key] == value
    assert why in rows[what]


@given(
    processes=st.integers(1, 8),
    updates=st.integers(1, 4),
    groups=st.integers(1, 20),
    rollouts=st.integers(2, 16),
    gpus=st.sampled_from([0, 1, 2, 8]),
    data=st.data(),
)
def test_batches_fill_each_update_of_each_process(
    processes: int, updates: int, groups: int, rollouts: int, gpus: int, data: st.DataObject
) -> None:
    """Whatever the recipe's are: the settings that come out are valid, and none is larger."""
    tasks = processes * updates * groups
    size = tasks * rollouts // (processes * updates)
    micro_batch = data.draw(st.sampled_from([None, *(n for n in range(1, size + 1) if size % n == 0)]))
    training = TrainingSettings(
        tasks_per_step=tasks,
        rollouts_per_task=rollouts,
        updates_per_step=updates,
        micro_batch=micro_batch,
        launch=LaunchSettings(processes=processes) if processes > 1 else None,
    )
    changes, _ = toy(RunSettings(training=training), Machine(gpus=gpus))
    plain = json.loads(training.model_dump_json())
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if section == "training":
            inner, _, last = name.rpartition(".")
            (plain[inner] if inner else plain)[last] = value
    made = TrainingSettings.model_validate_json(json.dumps(plain))
    assert made.tasks_per_step <= tasks
    assert made.processes <= processes
    assert (made.micro_batch is None) == (micro_batch is None)
    if made.micro_batch is not None and micro_batch is not None:
        assert math.gcd(made.micro_batch, micro_batch) == made.micro_batch


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_stand_in_learns_with_the_recipes_environment_and_prompts(
    thinking: bool | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    courses: list[StartSettings] = []

    def learn(model: str, files: list[Path], out: Path, settings: Any, name: str, *, options: Any) -> None:
        assert (model, files, name, options["wordings"]) == (str(tmp_path), [tmp_path / "d0.jsonl"], "bfcl", "human")
        courses.append(settings)
        out.mkdir()
        (out / "model.safetensors").write_text(f"after {len(courses)}")

    monkeypatch.setattr(training.warm_start, "warm_start", learn)
    given = [f"policy.thinking={json.dumps(thinking)}", "policy.tools_shown=5", "policy.documentation=null"]
    teach(tmp_path, tmp_path / "d0.jsonl", load_recipe(Path("recipes/lm-gpu.yaml"), given))
    assert (tmp_path / "model.safetensors").read_text() == f"after {len(COURSES)}"
    assert {one.thinking for one in courses} == {thinking}
    assert (courses[0].tools_shown, courses[0].documentation) == (1, "lines"), "short prompts"
    assert (courses[-1].tools_shown, courses[-1].documentation) == (5, None), "the recipe's, else as the card says"


def test_the_list_has_what_was_exercised_and_the_reason_of_the_rest() -> None:
    said = table({"GRPO": "2 rounds"}, {"a GPU": "this machine has none"})
    assert said.splitlines() == [
        "exercised",
        "  GRPO: 2 rounds",
        "not exercised",
        "  a GPU: this machine has none",
    ]


def test_rows_of_chat_roles_are_their_requests(tmp_path: Path) -> None:
    one = {"subject": "s", "iteration": 0, "measured": Measured(calls=1, prompt_tokens=90, completion_tokens=10)}
    requests = [
        Request(role="reflector", outcome="answered", **one),
        Request(role="explorer", outcome="failed", faults=("HTTP 503",), **one),
    ]
    write_jsonl(tmp_path / "spending.jsonl", requests)
    rows = asked_rows(tmp_path / "spending.jsonl", load_recipe(LITERAL))
    found = {what: (how, reason) for what, how, reason in rows}
    assert found["chat model: reflector"] == ("1 of 1 answered, 100 tokens", "")
    assert found["chat model: explorer"][1] == "no reply could be used: HTTP 503"
    assert found["chat model: abstractor"][1] == "nothing came to it"


def test_a_missing_key_silences_the_chat_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COEVOLVE_KEYS", raising=False)
    assert "you bound no key" in machine_at_hand(load_recipe(LITERAL)).silent
    assert machine_at_hand(load_recipe(Path("recipes/quickstart.yaml"))).silent == ""


def test_more_than_one_recipe_is_refused() -> None:
    done = CliRunner().invoke(graph.check_recipe.app, ["recipes/lm.yaml", "recipes/quickstart.yaml", "--rehearse"])
    assert done.exit_code == 2
    assert done.stderr == "error: --rehearse runs one recipe: name one\n"


def test_a_wrong_recipe_is_refused_before_a_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    done = CliRunner().invoke(graph.check_recipe.app, ["recipes/lm.yaml", "--rehearse", "--set", "training.stepz=3"])
    assert done.exit_code == 2
    assert "unknown key 'training.stepz'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("status", "cause"), [(1, "the disk burns"), (None, "it took too long")])
def test_a_broken_step_is_one_sentence_with_its_cause_and_the_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None, cause: str
) -> None:
    async def child(argv: list[str], *, log_path: Path, **_: Any) -> int:
        log_path.write_text("step 1\nerror: the disk burns\n")
        if "graph.run_iteration" in argv:
            raise ChildFailure("it ended", status, "")
        return 0

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(chain, "run_child", child)
    done = CliRunner().invoke(graph.check_recipe.app, ["recipes/quickstart.yaml", "--rehearse"])
    assert done.exit_code == 2
    (folder,) = tmp_path.iterdir()
    *_, first, second, last = done.stderr.splitlines()
    assert (first, second) == ("step 1", "error: the disk burns"), "the end of the log"
    assert last == f"error: recipes/quickstart.yaml: the step 'loop' broke: {cause}: see {folder}/loop.log"


def test_the_policys_weights_are_left_out_where_they_are_too_large_or_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps(QWEN3_4B))
    (tmp_path / "large" / "model.safetensors").touch()

    def why(*overrides: str) -> str:
        return weights_left_out(load_recipe(LITERAL, ["policy.device=cpu", *overrides]), tmp_path)

    assert why() == "they are not in the hub's cache (hf download)"
    assert "4.0 billion parameters" in why(f"policy.path={tmp_path / 'large'}")
    assert weights_left_out(load_recipe(Path("recipes/quickstart.yaml")), tmp_path) == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    assert "TMPDIR names another" in weights_left_out(load_recipe(Path("recipes/quickstart.yaml")), tmp_path)


@pytest.mark.process
def test_the_child_of_that_module_is_killed_once_the_file_is_there(tmp_path: Path) -> None:
    code = "import time; time.sleep(60)"
    killed, other = (subprocess.Popen([sys.executable, "-c", code, name]) for name in ("graph.x", "graph.y"))

    async def begin() -> None:
        task = asyncio.create_task(chain._kill_once(tmp_path / "file", "graph.x"))
        await asyncio.sleep(0.05)
        assert killed.poll() is None
        (tmp_path / "file").touch()
        await asyncio.wait_for(task, 20)

    try:
        asyncio.run(begin())
        assert killed.wait(20) == chain.KILLED
        assert other.poll() is None
        assert psutil.Process(other.pid).is_running()
    finally:
        for one in (killed, other):
            one.kill()
            one.wait()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["starter", "qwen3"])
def test_the_whole_chain_on_a_tiny_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """The real commands, one of them killed and resumed; nothing is left behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "there"))
    (tmp_path / "there").mkdir()
    given = ["policy.device=cpu"]
    if name == "qwen3":  # without weights: a stand-in that learns a few tasks takes their place
        config = save_model(tmp_path / "policy", "qwen3") / "config.json"
        large = {
            **(shipped_config("Qwen/Qwen3-0.6B") or {}),
            "vocab_size": json.loads(config.read_text())["vocab_size"],
        }
        config.write_text(json.dumps(large))
        config.with_name("model.safetensors").unlink()
        given += [f"policy.path={config.parent}", "policy.documentation=lines", "policy.tools_shown=5"]
        given += ["training.max_tokens=8192"]
    exercised, left_out = asyncio.run(rehearse(Path("recipes/quickstart.yaml"), given))
    assert exercised["a kill in the second round, and --resume"].startswith("SIGKILL after step 3")
    assert exercised["GRPO"] == "2 rounds, 4 steps, 64 rollouts"
    check = "the check of the recipe itself, as coevolve check makes it"
    if name == "starter":
        assert exercised[check] == "passed"
    else:
        assert "holds no weights" in left_out[check]
        assert exercised["tasks that are solved"] == "it has learnt the references of 4 short tasks, which are D_0"
        assert "groups of both results" in exercised["a success signal"]
    assert "expert step" in exercised
    assert "scoring on templated-dev" in exercised
    assert left_out["a GPU"] == "this machine has none"
    # Which of them so short a run has depends on the arithmetic of the processor.
    counts = {kind: exercised.get(f"signals of {kind}") for kind in ("forgetting", "boundary", "rare")}
    assert any(counts.values())
    for kind, count in counts.items():
        assert int(count) > 0 if count else left_out[f"signals of {kind}"] == KINDS[kind].absent
    assert re.match(r"[1-9]\d* new ones", exercised["reflection, contexts"])
    assert "exploration, abstraction, verification" in exercised
    assert not [*(tmp_path / "there").glob("rehearsal-*")]
    assert "resume" in capfd.readouterr().err


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.process
def test_the_papers_loop_asks_a_chat_model_ten_times_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP, with a table of replies: the literal recipe on the embedded policy."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    given = ["policy.path=recipes/starter", "policy.dtype=float32", "training.max_tokens=512"]
    given += ["environment.options.classes=[GorillaFileSystem, VehicleControlAPI]"]
    with FaultyServer(lambda asked: answer(asked.schema, asked.prompt)) as server:
        monkeypatch.setenv("DASHSCOPE_API_KEY", KEY)
        monkeypatch.setenv("COEVOLVE_KEYS", f"{server.url}=DASHSCOPE_API_KEY")
        exercised, left_out = asyncio.run(rehearse(LITERAL, [*given, f"roles.chat.base_url={server.url}"]))
        assert 0 < len(server.requests) <= CALLS
    for role in ("explorer", "abstractor"):
        assert " answered, " in exercised[f"chat model: {role}"]
    assert "scoring bfcl on templated-dev" in exercised, "the recipe scores nothing itself"
    assert left_out["D_0 by the chat model"] == "10 requests are kept for contexts"
    assert "policy.device: cuda" in left_out["the check of the recipe itself, as coevolve check makes it"]


@pytest.mark.slow
@pytest.mark.process
def test_a_step_that_is_refused_raises_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the command itself: a file of tasks that is gone between the check and the run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError, match=r"broke: nowhere\.jsonl does not exist"):
        asyncio.run(rehearse(Path("recipes/quickstart.yaml"), ["evaluation={set: null, tasks: nowhere.jsonl}"]))
