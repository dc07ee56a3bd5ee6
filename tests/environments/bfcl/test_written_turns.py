"""Tests of the turns that people wrote: what the local roles may learn from."""

from __future__ import annotations

from environments.bfcl.official import load_category
from environments.bfcl.written_turns import single_turns
from environments.registry import benchmark_of, open_named


def test_no_development_or_test_task_is_learnt_from() -> None:
    environment = open_named("bfcl", None)
    turns = benchmark_of(environment).written_turns(environment)
    human = [turn for turn in turns if turn.source == "turns"]
    taught = {" ".join(turn.words.split()) for turn in turns}
    kept = {
        " ".join(text.split())
        for task in load_category("base", ("dev", "test", "reserved"), equality_test=True)
        for text in task.spec.turns
    }
    assert len(human) == 167
    assert not taught & kept
    assert all(len(turn.answers) == len(turn.calls) and all(turn.answers) for turn in human)
    assert {call.name for turn in human for call in turn.calls} == {tool.name for turn in human for tool in turn.tools}
    later = next(turn for turn in human if turn.done)
    assert later.done[0][1], "an earlier call with its answer"


def test_questions_of_held_out_functions_teach_nothing() -> None:
    turns = single_turns()
    held = {call.name for turn in turns if turn.held_out for call in turn.calls}
    taught = {call.name for turn in turns if not turn.held_out for call in turn.calls}
    assert (len(turns), sum(turn.held_out for turn in turns)) == (2112, 271)
    assert 0.05 < len(held - taught) / len(held | taught) < 0.15
    names = [tool.name for turn in turns for tool in (*turn.tools, *turn.others)]
    assert all(name.isidentifier() for name in names)


def test_an_answer_is_the_first_accepted_value_of_each_argument() -> None:
    question = next(
        turn for turn in single_turns() if "roots of a quadratic equation with coefficients a=1" in turn.words
    )
    assert [call.name for call in question.calls] == ["algebra_quadratic_roots"]
    assert question.calls[0].arguments == {"a": 1, "b": -3, "c": 2}
    assert question.tools[0].parameters[0].required
    left_out = [call for turn in single_turns() for call in turn.calls if "" in call.arguments.values()]
    assert not left_out, "an argument that may be left out is"
