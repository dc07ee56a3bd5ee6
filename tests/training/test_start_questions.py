"""A benchmark's single-turn questions as rows of a supervised start."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bfcl_tasks import ENVIRONMENT
from support.chat_models import save_model

from environments.base import InputError, UserTurn
from environments.example import depot
from environments.registry import benchmark_of
from training.rendering.base import EndTurn
from training.rollout.policy import Policy, load_policy
from training.settings import RenderingOptions
from training.start_rows import QUESTIONS, StartSettings, question_rows
from training.warm_start import warm_start

FEW = StartSettings(questions=12, documentation="lines")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = save_model(tmp_path_factory.mktemp("model"), "qwen2_5")
    return load_policy(str(folder), "cpu", options=RenderingOptions(documentation="lines"))


def test_a_question_is_learnt_among_tools_of_others_and_reads_back_as_its_call(policy: Policy) -> None:
    rows, about = question_rows(policy, ENVIRONMENT, FEW, 4096)
    assert (about.file, about.tasks, about.left_out) == (QUESTIONS, 12, 12 - len(rows))
    assert len(rows) > 9
    turns = {one.words: one for one in benchmark_of(ENVIRONMENT).written_turns(ENVIRONMENT) if not one.answers[0]}
    for row in rows:
        prompt = policy.tokenizer.decode(row.prompt_ids)
        (turn,) = {id(one): one for words, one in turns.items() if words.strip() in prompt}.values()
        assert not turn.held_out
        assert row.mask == [1] * len(row.completion_ids)
        dialogue = policy.rendering.begin()
        dialogue.first(UserTurn(index=0, text=turn.words, tools=(turn.tools[0].name,)), turn.tools)
        read = dialogue.parse(row.completion_ids)
        assert not isinstance(read, EndTurn)
        assert read == turn.calls
        assert prompt.count(f"{turn.tools[0].name}(") >= 1


def test_equal_seeds_draw_equal_questions(policy: Policy) -> None:
    first = question_rows(policy, ENVIRONMENT, FEW, 4096)
    assert first == question_rows(policy, ENVIRONMENT, FEW, 4096)
    other = question_rows(policy, ENVIRONMENT, FEW.model_copy(update={"seed": 1}), 4096)
    assert other[1].sha256 != first[1].sha256


def test_more_than_there_are_and_a_policy_that_reads_none_are_refused(
    policy: Policy, starter: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"--questions: bfcl has \d+ of one call to learn from: give no more"):
        question_rows(policy, ENVIRONMENT, StartSettings(questions=100_000), 4096)
    with pytest.raises(InputError, match=r"--questions: .* has 0 of one call"):
        question_rows(policy, depot(), FEW, 4096)
    with pytest.raises(InputError, match="--questions: none is within 20 tokens"):
        question_rows(policy, ENVIRONMENT, FEW, 20)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(made_line())
    with pytest.raises(InputError, match=r"--questions: .* has no chat template, and reads no documentation"):
        warm_start(str(starter), [tasks], tmp_path / "out", StartSettings(questions=3), "bfcl")


def made_line() -> str:
    from support.bfcl_tasks import FILES, call
    from support.made_policy import task

    return task((call("mkdir", dir_name="box"),), group=FILES).model_dump_json() + "\n"
