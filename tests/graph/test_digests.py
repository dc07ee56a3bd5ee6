"""Digests: plain text, bounded in lines and length, whatever models wrote and people edited."""

from __future__ import annotations

from typing import Any

import pytest

from environments.base import TaskSpec, ToolCall
from graph.report.digest import (
    BRANCHES,
    LINE,
    LINES,
    ended,
    joined,
    kind_words,
    lines,
    named_weakness,
    of_abstract,
    of_branch,
    of_extract,
    of_failure,
    of_reflect,
    of_verify,
)
from memory.records import (
    Cause,
    Draft,
    DraftVerification,
    FailureContext,
    Signal,
    SignalKind,
    Task,
    Unsignalled,
)
from memory.run_files import ExtractionRecord, Failure
from training.signals import SignalSettings

HOSTILE = "a\x1b[31m\u202e\ud800\x00\nb" + "c" * 1_000_000


def hostile_draft(name: str = "draft-1") -> Draft:
    call = ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE})
    return Draft(
        id=name,
        context_id="context-1",
        environment="x",
        split="train",
        classes=(),
        turns=(HOSTILE,),
        initial_state={},
        tools=(),
        reference=((call,),),
    )


def is_plain(line: str) -> bool:
    return len(line) <= LINE and line.isprintable() and bool(line.encode())


def test_hostile_text_is_plain_and_short() -> None:
    draft = hostile_draft()
    verification = DraftVerification(
        draft_id="draft-1", context_id="context-1", accepted=False, reason="sealed", detail=HOSTILE
    )
    failure = Failure(id="context-1", node="explore", cause="RoleRefused", detail=HOSTILE)
    told = [
        *of_abstract([draft]),
        *of_verify([draft], [verification]),
        of_failure(HOSTILE, failure),
    ]
    assert len(told) == 5
    assert all(map(is_plain, told))


def test_a_long_weakness_does_not_hide_what_verification_said() -> None:
    refused = [
        DraftVerification(draft_id=f"draft-{n}", context_id="context-1", accepted=not reason, reason=reason)
        for n, reason in enumerate((None, "ungrounded_argument", "ungrounded_argument", "superfluous_call"))
    ]
    result = "1 of 4 drafts accepted, refused: 2 ungrounded_argument, 1 superfluous_call"
    name = "boundary 6/8 on 'show the log with \"0.0\" and adjust the cabin air to ...': wrong argument of a tool"
    told = of_branch(name, refused)
    assert told.endswith(f"...: {result}")
    assert is_plain(told)
    assert of_branch("short", refused[:1]) == "short: 1 of 1 draft accepted"
    assert is_plain(of_branch(HOSTILE, [one.model_copy(update={"reason": HOSTILE}) for one in refused]))


def test_a_digest_has_few_lines_and_counts_the_others() -> None:
    told = of_abstract([hostile_draft(f"draft-{number}") for number in range(50)])
    assert len(told) == LINES
    assert (told[0], told[-1]) == ("50 drafts", "and 46 more")
    assert lines(["a"] * LINES) == ["a"] * LINES


def test_a_weakness_is_named_by_its_kind_its_numbers_its_task_and_its_cause() -> None:
    context = FailureContext(
        id="context-1",
        environment="x",
        kind=SignalKind.BOUNDARY,
        cause=Cause.WRONG_CALL,
        tool="du",
        classes=("Files",),
        initial_state={},
        tools=(),
    )
    signal = Signal(id="signal-1", kind=SignalKind.BOUNDARY, iteration=0, task_id="t", trajectory_id="r", group=(5, 8))
    task = Task(**hostile_draft().model_dump(include={*TaskSpec.model_fields}), id="t", origin="seed")
    task = task.model_copy(update={"turns": ("erase the log",)})
    assert named_weakness(context, signal, task) == "boundary 5/8 on 'erase the log': wrong call of du"
    assert named_weakness(context) == "boundary: wrong call of du"
    forgetting = signal.model_copy(update={"kind": SignalKind.FORGETTING, "recent": (3, 4)})
    forgotten = context.model_copy(update={"kind": SignalKind.FORGETTING})
    assert named_weakness(forgotten, forgetting) == "forgetting after 3/4: wrong call of du"


def test_a_context_from_coverage_is_named_by_its_tools() -> None:
    fields: dict[str, Any] = {"environment": "x", "classes": ("Files",), "initial_state": {}, "tools": ("cd", "du")}
    pair = FailureContext(
        id="c", kind=Unsignalled.COVERAGE, tool="cd", why="No task.", focus_pattern=("cd", "du"), **fields
    )
    assert named_weakness(pair) == "coverage: cd then du"
    assert of_reflect(["a", "b", "c"], [], 2, 1)[0] == "2 contexts of 2 signals, 0 gave up; 1 context without a signal"


def test_only_what_a_run_looks_for_is_explained() -> None:
    assert list(kind_words(SignalSettings())) == list(SignalKind)
    assert list(kind_words(SignalSettings(contexts="coverage"))) == [*SignalKind, "coverage"]


def test_the_digest_of_extract_accounts_for_every_signal() -> None:
    record = ExtractionRecord(
        signals={SignalKind.BOUNDARY: 8, SignalKind.RARE: 1},
        signal_tasks={SignalKind.BOUNDARY: 2, SignalKind.RARE: 1},
        marked=8,
        chosen=("signal-1",),
        repeated={SignalKind.BOUNDARY: 6},
        left_out={SignalKind.BOUNDARY: 1, SignalKind.RARE: 1},
        pattern_occurrences=0,
        different_patterns=0,
        infrastructure_errors=0,
        functions=0,
        functions_offered=0,
    )
    told = of_extract("run", record, [], [], {})
    assert told[1] == (
        "signals: 8 boundary, 1 rare; 1 chosen, 2 beyond the limit, 6 more of a task and kind that has one"
    )


@pytest.mark.parametrize("odd", [None, 5, "text", ["a"], {"extract": 7}, {"extract": {"a": 1}}])
def test_a_digest_that_people_edited_into_something_else_counts_as_none(odd: Any) -> None:
    assert joined(odd, {"update": ["done"]}) == {"update": ["done"]}
    assert joined({"update": ["done"]}, odd) == {"update": ["done"]}
    assert ended(odd if not isinstance(odd, list) else None, ["done"]) == ["done"]


def test_a_node_that_runs_again_replaces_its_lines_and_branches_are_added() -> None:
    assert joined({"extract": ["1"], "reflect": ["2"]}, {"reflect": ["3"]}) == {"extract": ["1"], "reflect": ["3"]}
    many = ended(["a"] * BRANCHES, ["b"])
    assert (len(many), many[-1]) == (BRANCHES, "and more: see digest.update")
    assert ended(many, ["c"]) == many
