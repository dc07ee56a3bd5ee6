"""The supervised start of any policy: equal budgets, orders, refusals, and the policy that it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bfcl_tasks import FILES, call
from support.chat_models import save_model
from support.late import Late
from support.made_policy import made_tasks, task
from typer.testing import CliRunner

from environments.base import InputError, ToolCall
from environments.bfcl.evaluation_sets import load_set
from memory.records import Measured, Task
from memory.run import read_json, write_jsonl
from training.start_rows import StartSettings, read_learnable
from training.warm_start import RECORD, StartRecord, app, draw, pools, warm_start

supervised = Late("training.supervised")
NAMES = (Path("first.jsonl"), Path("second.jsonl"))


def tasks_file(path: Path, tasks: Sequence[Task]) -> Path:
    write_jsonl(path, tasks)
    return path


@given(
    first=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    second=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    times=st.integers(1, 3),
    tokens=st.integers(1, 3000),
    seed=st.integers(0, 99),
)
def test_a_budget_stops_at_the_row_that_reaches_it_and_orders_hold_equal_rows(first, second, times, tokens, seed):
    lengths = (first, second)
    settings = StartSettings(tokens=tokens, passes=times, seed=seed)
    if tokens <= times * sum(first):
        with pytest.raises(InputError, match=rf"--tokens {tokens} are used before second\.jsonl"):
            draw(lengths, settings, NAMES)
        return
    ordered = draw(lengths, settings, NAMES)
    sizes = [lengths[file][place] for file, place in ordered]
    assert sum(sizes[:-1]) < tokens <= sum(sizes)
    assert [file for file, _ in ordered] == sorted(file for file, _ in ordered)
    assert [Counter(ordered)[0, place] for place in range(len(first))] == [times] * len(first)
    repeated = [Counter(ordered)[1, place] for place in range(len(second))]
    assert max(repeated) - min(repeated) <= 1
    mixed = draw(lengths, settings.model_copy(update={"order": "mixed"}), NAMES)
    assert Counter(mixed) == Counter(ordered)
    assert mixed == draw(lengths, settings.model_copy(update={"order": "mixed"}), NAMES)
    half = Counter(file for file, _ in mixed[: len(mixed) // 2])
    whole = Counter(file for file, _ in mixed)
    assert all(abs(half[file] - whole[file] / 2) <= 1 for file in (0, 1))


def test_without_a_budget_each_file_has_its_passes() -> None:
    drawn = draw(([5, 5], [7]), StartSettings(passes=2), NAMES)
    assert Counter(drawn) == {(0, 0): 2, (0, 1): 2, (1, 0): 2}
    assert drawn[4:] == [(1, 0)] * 2


def test_passes_of_the_file_that_fills_a_budget_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the only file is repeated until --tokens are used"):
        warm_start("recipes/starter", NAMES[:1], tmp_path / "out", StartSettings(passes=2, tokens=100))


def test_no_pool_holds_a_row_twice_nor_rows_of_two_files_in_the_given_order() -> None:
    drawn = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 0)]
    assert list(pools(drawn, "mixed")) == [[(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 0)]]
    assert list(pools(drawn, "given")) == [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(1, 0)]]
    assert list(pools([], "given")) == []


def turns_of(whole: Task) -> list[Task]:
    """The single turns of a task, each with the earlier turns before it."""
    until = [
        {"turns": whole.turns[: n + 1], "reference": whole.reference[: n + 1], "played": n}
        for n in range(len(whole.turns))
    ]
    return [
        whole.model_copy(update={"id": f"{whole.id}-turn-{n + 1}", "parents": (whole.id,), **cut})
        for n, cut in enumerate(until)
    ]


@pytest.mark.slow
def test_single_turns_are_left_out_where_the_whole_task_is_learnt_from() -> None:
    whole, other = (
        task((call("pwd"),), (call("ls", a=True),), group=FILES, seed=seed).model_copy(update={"origin": "official"})
        for seed in (1, 2)
    )
    evolved = made_tasks()[0].model_copy(update={"origin": "evolved", "parents": (whole.id,)})
    rest = [*turns_of(other), evolved]
    assert supervised.without_parts([*turns_of(whole), *rest]) == [*turns_of(whole), *rest]
    assert supervised.without_parts([*turns_of(whole), *rest, whole]) == [*rest, whole]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split": "dev"}, "line 2: task made-1 is of the dev split: give train only"),
        ({"origin": "panel"}, "line 2: task made-1 is held out"),
        ({"environment": "appworld"}, "line 2: task made-1 is of the environment 'appworld': name it with"),
    ],
)
def test_what_must_not_be_learnt_from_is_refused_by_line(tmp_path: Path, changes, sentence: str) -> None:
    one, two = made_tasks()[:2]
    file = tasks_file(tmp_path / "tasks.jsonl", [one, two.model_copy(update=changes)])
    with pytest.raises(InputError, match=sentence):
        read_learnable(file, "bfcl")
    with pytest.raises(InputError, match="holds no task"):
        read_learnable(tasks_file(tmp_path / "none.jsonl", []), "bfcl")


@pytest.mark.parametrize("disguise", [{}, {"unused": 1}])
def test_a_held_out_task_is_refused_before_the_model_is_loaded(tmp_path: Path, monkeypatch, disguise) -> None:
    monkeypatch.setattr("training.warm_start.load_policy", None)
    spec = load_set("templated-dev")[0].spec
    state = {**spec.initial_state, **disguise}
    mine = Task(id="mine", origin="given", **{**dict(spec), "split": "train", "initial_state": state})
    files = [tasks_file(tmp_path / name, some) for name, some in (("a", made_tasks()[:2]), ("b", [mine]))]
    with pytest.raises(InputError, match="b: task mine is held out"):
        warm_start("recipes/starter", files, tmp_path / "out", StartSettings())


def test_options_are_those_of_the_environment(tmp_path: Path, monkeypatch) -> None:
    seen = []

    def opened(name, options, **_):
        seen.append((name, options))
        raise InputError("seen")

    monkeypatch.setattr("training.warm_start.open_named", opened)
    file = tasks_file(tmp_path / "tasks.jsonl", made_tasks()[:1])
    given = ["--model", "recipes/starter", "--tasks", str(file), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*given, "--option", "classes=[MathAPI]", "--option", "max_steps=3"])
    assert done.exit_code == 2
    assert seen == [("bfcl", {"classes": ["MathAPI"], "max_steps": 3})]
    done = CliRunner().invoke(app, [*given, "--option", "classes"])
    assert done.exit_code == 2
    assert "--option classes: write it as key=value" in done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "qwen2_5", "qwen2_5", initializer_range=0.1)


def few_tools(calls: tuple[ToolCall, ...], seed: int) -> Task:
    return task(calls, group=FILES, seed=seed).model_copy(update={"tools": ("pwd", "ls")})


def written(record: StartRecord) -> StartRecord:
    return record.model_copy(update={"measured": Measured()})


@pytest.mark.slow
def test_equal_starts_make_equal_policies_and_arms_cost_equal_tokens(model: Path, tmp_path: Path) -> None:
    from training.rollout.episodes import EpisodeLimits, play_references
    from training.rollout.policy import PolicyCard, load_policy

    short = [few_tools((call("pwd"),), seed) for seed in range(3)]
    longer = [few_tools((call("pwd"),) * calls, seed=6 + calls) for calls in (2, 3)]
    longer[0] = longer[0].model_copy(update={"origin": "official"})
    files = [tasks_file(tmp_path / "first.jsonl", short), tasks_file(tmp_path / "second.jsonl", longer)]
    policy = load_policy(str(model), "cpu")
    played = play_references(policy, _environment(), [*short, *longer], EpisodeLimits(max_tokens=30000))
    sizes = [len(one.prompt_ids) + len(one.completion_ids) for one in played]
    budget = sum(sizes) + 1
    limit = {"max_tokens": max(sizes), "learning_rate": 1e-2}

    def start(name: str, **changes: object) -> StartRecord:
        said: list[str] = []
        settings = StartSettings(**{"tokens": budget, **limit, **changes})
        made = warm_start(str(model), files, tmp_path / name, settings, report=said.append)
        assert said[-1].startswith(
            f"update {made.updates} of {made.updates}: {made.tokens:,} of {made.tokens:,} tokens"
        )
        return made

    one = start("one")
    assert written(one) == written(start("again"))
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes()
    assert one == read_json(tmp_path / "one" / RECORD, StartRecord)
    assert budget <= one.tokens < budget + max(sizes)
    assert [(file.rows, file.left_out) for file in one.files] == [(3, 0), (3, 0)]
    assert 0 < one.written_tokens < one.tokens
    assert one.last_loss < one.first_loss
    mixed = start("mixed", order="mixed")
    assert (mixed.tokens, mixed.written_tokens, mixed.files) == (one.tokens, one.written_tokens, one.files)
    assert mixed.weights_sha256 != one.weights_sha256
    lower = start("bfloat16", dtype="bfloat16", documentation="lines", tools_shown=1)
    assert lower.weights_sha256 != one.weights_sha256
    assert sum(file.rows for file in lower.files) > sum(file.rows for file in one.files)
    again = load_policy(str(tmp_path / "bfloat16"), "cpu")
    assert again.card == PolicyCard(rendering="chat_template", documentation="lines", tools_shown=1)
    assert again.rendering.stop_ids == policy.rendering.stop_ids
    assert str(again.model.dtype) == "torch.float32"
    write_jsonl(files[0], [*turns_of(longer[0]), longer[0]])
    parts = start("parts", tokens=None)
    assert [(file.rows, file.parts, file.left_out) for file in parts.files] == [(1, 1, 0), (2, 0, 0)]
    write_jsonl(files[0], turns_of(longer[0]))
    with pytest.raises(
        InputError, match=r"first\.jsonl has nothing but single turns of tasks that are learnt from whole"
    ):
        start("nothing")
    write_jsonl(files[0], short)
    fewer = start("fewer", max_tokens=sizes[3], tokens=None)
    assert [(file.rows, file.left_out) for file in fewer.files] == [(3, 0), (1, 1)]
    with pytest.raises(InputError, match=r"second\.jsonl: none of 2 references succeeds within"):
        start("none", max_tokens=sizes[3] - 1)
    assert not (tmp_path / "none").exists()


def _environment():
    from environments.bfcl.benchmark import BFCLEnvironment

    return BFCLEnvironment()


@pytest.mark.slow
def test_the_command_learns_from_a_tiny_policy_too(tmp_path: Path) -> None:
    from training.rollout.policy import load_policy

    file = tasks_file(tmp_path / "tasks.jsonl", made_tasks()[:6])
    options = ["--model", "recipes/starter", "--tasks", str(file), "--out", str(tmp_path / "out"), "--passes", "2"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "0 references left out" in result.stdout
    assert "tokens/s, loss" in result.stderr
    assert load_policy(str(tmp_path / "out"), "cpu").card == load_policy("recipes/starter", "cpu").card
    assert CliRunner().invoke(app, options).exit_code == 2
