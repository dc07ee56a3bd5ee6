"""The two sides of the comparison with TRL do the same work, and their figures become the right rows."""

from __future__ import annotations

import io
import json
import os

import pytest

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_DISABLE_TELEMETRY="1")

from benchmarks import grpo
from benchmarks.chat_policy import CLASS, TOOLS, chat_tasks, chat_tokenizer
from benchmarks.grpo import OURS, TRL, Figures
from environments.base import UserTurn
from environments.bfcl.benchmark import BFCLEnvironment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment() -> BFCLEnvironment:
    return BFCLEnvironment((CLASS,))


def test_the_references_of_the_tasks_succeed_and_single_calls_do_not(environment: BFCLEnvironment) -> None:
    for task in chat_tasks():
        results = []
        for calls in (task.reference[0], task.reference[0][:1]):
            episode = environment.open(task)
            episode.start()
            for call in calls:
                episode.step(call)
            episode.end_turn()
            results.append(episode.outcome().success)
        assert results == [True, False]
    assert len({task.turns for task in chat_tasks()}) == 8


def test_both_sides_read_the_same_prompt(environment: BFCLEnvironment) -> None:
    from training.rendering.chat_template import ChatTemplateRendering
    from training.rendering.tool_calls import tool_schema

    specs = environment.tools(TOOLS)
    schemas = [tool_schema(spec) for spec in specs]
    tokenizer = chat_tokenizer([json.dumps(schemas), *(task.model_dump_json() for task in chat_tasks())])
    for task in chat_tasks()[:2]:
        messages = [{"role": "user", "content": task.turns[0]}]
        trl = tokenizer.apply_chat_template([messages], tools=schemas, add_generation_prompt=True, return_dict=True)
        ours = ChatTemplateRendering(tokenizer).begin().first(UserTurn(index=0, text=task.turns[0], tools=TOOLS), specs)
        assert ours == trl["input_ids"][0]
        assert len(ours) < 1000


def figures(sampled: int, rollout: float, step: float) -> Figures:
    """CPU time is half of wall-clock time."""
    return Figures(
        rollouts=64,
        successes=32,
        sampled_tokens=sampled,
        prompt_tokens=6400,
        rollout_wall=rollout,
        rollout_cpu=rollout / 2,
        wall=step,
        cpu=step / 2,
    )


@pytest.mark.parametrize(("slow", "ratio", "met"), [(2.0, 0.5, True), (1.0, 1.0, False)])
def test_rows_of_rollouts_and_of_the_step(
    slow: float, ratio: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {OURS: (figures(400, 2.0, 4.0),) * 3, TRL: (figures(400, 2.0 * slow, 4.0 * slow),) * 3}
    monkeypatch.setattr(grpo, "_interleaved", lambda repeats, model: {side: taken[side][:repeats] for side in taken})
    rate, rate_cpu, step, step_cpu, rest = grpo.measure(3)
    assert (rate.ours, rate_cpu.ours) == (200.0, 400.0)
    assert rate.ratio == rate_cpu.ratio == pytest.approx(1 / ratio)
    assert (step.ours, step.other) == (4.0, 4.0 * slow)
    assert step.ratio == step_cpu.ratio == pytest.approx(ratio)
    assert {row.met for row in (rate, rate_cpu, step, step_cpu)} == {met}
    assert (rest.ours, rest.other, rest.repeats, rest.met) == (1.0, slow, 3, None)
    assert "prompts of 100 tokens" in step.note


def test_a_models_utilisation_is_its_arithmetic_without_rollouts_over_that_of_a_product() -> None:
    """6 x 1e6 parameters x 6,800 tokens in 2 s, of 1e12 operations a second."""
    measured = figures(400, 2.0, 4.0).model_copy(update={"parameters": 10**6, "products": 1e12})
    assert measured.utilisation == pytest.approx(6e6 * 6800 / 2 / 1e12)


def test_a_given_model_adds_the_row_of_its_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    one = figures(400, 2.0, 4.0).model_copy(update={"parameters": 10**6, "products": 1e12})
    asked = []
    monkeypatch.setattr(grpo, "_interleaved", lambda *given: asked.append(given) or {OURS: (one,), TRL: (one,)})
    *_, last = grpo.measure(1, "some/model")
    assert asked == [(1, "some/model")]
    assert last.ours == one.utilisation
    assert last.note == "some/model; matrix product 1 TFLOP/s"


def test_a_step_is_reported_where_the_next_one_begins() -> None:
    answers = io.StringIO()
    commands, parent = os.pipe()
    from benchmarks.grpo_side import Meter  # imports TRL

    meter = Meter(os.fdopen(commands), answers)
    os.write(parent, b"go\ngo\n")
    meter.turn()
    assert answers.getvalue() == ""
    with meter.rolling_out():
        meter.count([[1, 2, 3]], [[0, 1, 1]])
    meter.successes += 1
    meter.turn()
    first = Figures.model_validate_json(answers.getvalue())
    assert (first.rollouts, first.successes, first.prompt_tokens, first.sampled_tokens) == (1, 1, 3, 2)
    assert 0 < first.rollout_wall <= first.wall
    assert meter.rollouts == 0, "the next step is counted from nothing"


@pytest.mark.process
@pytest.mark.long
def test_both_sides_take_a_step_over_equal_prompts() -> None:
    """It raises where a side breaks off, or where prompts differ; a step alone is none that counts."""
    assert grpo._interleaved(repeats=0) == {OURS: (), TRL: ()}
