"""Verification of programs on the real engine: what is accepted is equal every time, and what is refused and why.

That whole good drafts are accepted is shown with the chat roles that write them (tests/agents/chat).
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from support.programs import LINES, LINES_TEXT, NOTE, NOTE_TEXT, SIGN_IN, program_draft, run

from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.episode import RESPONSE_MISMATCH, STATE_MISMATCH
from environments.base import TaskSpec
from environments.settings import VerificationSettings
from environments.verification.replay import replay, ungrounded
from environments.verification.verify import Refusal, verify

SETTINGS = VerificationSettings(max_calls=8)
LOOK = "print(apis.supervisor.show_profile(), apis.supervisor.show_account_passwords())"
EXTRA = 'apis.simple_note.create_note(title="Other", content="ash", access_token=token)'


@pytest.fixture(scope="module")
def environment(engine: AppWorldEngine) -> AppWorldEnvironment:
    return AppWorldEnvironment(engine=engine)


@pytest.mark.parametrize(("text", "code"), [(NOTE_TEXT, NOTE), (LINES_TEXT, LINES)], ids=["note", "question"])
def test_the_same_program_gives_equal_diffs_in_fresh_episodes(environment, text: str, code: str) -> None:  # type: ignore[no-untyped-def]
    draft = program_draft(text, code)
    first, *others = (replay(environment, draft) for _ in range(3))
    assert first.outcome.success
    assert not first.errors()
    assert first.end_states() != (first.initial,)
    assert others == [first, first]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (NOTE.replace('"oak"', '"ash"'), STATE_MISMATCH),
        ("apis.supervisor.complete_task()", STATE_MISMATCH),
        ("print(1)", STATE_MISMATCH),
        (NOTE.replace("apis.supervisor.complete", f"{EXTRA}\napis.supervisor.complete"), STATE_MISMATCH),
        (NOTE.replace("complete_task()", "complete_task(answer='done')"), RESPONSE_MISMATCH),
        (NOTE.replace("\napis.simple_note.create", "\nprint(profile)\napis.simple_note.create"), None),
    ],
    ids=["wrong", "nothing", "no-op", "collateral", "answered", "another way"],
)
def test_an_agents_program_is_evaluated_by_what_it_changed(environment, code: str, failure: str | None) -> None:  # type: ignore[no-untyped-def]
    outcome = replay(environment, program_draft(NOTE_TEXT, NOTE), ((run(code),),)).outcome
    assert (outcome.failure, outcome.success) == (failure, failure is None)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (LINES.replace("len(", "1 + len("), RESPONSE_MISMATCH),
        ("apis.supervisor.complete_task()", RESPONSE_MISMATCH),
        (LINES.replace("apis.supervisor.complete", f"{EXTRA}\napis.supervisor.complete"), STATE_MISMATCH),
        (LINES.replace("answer=", "answer=str(").replace("()))", "())))"), None),
    ],
    ids=["wrong", "nothing", "collateral", "as text"],
)
def test_an_agents_answer_is_evaluated_with_what_it_changed(environment, code: str, failure: str | None) -> None:  # type: ignore[no-untyped-def]
    outcome = replay(environment, program_draft(LINES_TEXT, LINES), ((run(code),),)).outcome
    assert (outcome.failure, outcome.success) == (failure, failure is None)


ACCOUNT = 'apis.simple_note.signup(first_name="Olga", last_name="Birk", email="o.birk@example.org", password="oak-9")'
ACCOUNT_TEXT = 'Make a Simple Note account for "Olga" "Birk" with "o.birk@example.org".'


@pytest.mark.parametrize(
    ("draft", "reason", "detail"),
    [
        (
            program_draft("Look at my profile.", "x = apis.supervisor.show_profile()"),
            Refusal.NO_EFFECT,
            "returns nothing informative",
        ),
        (program_draft("Be done.", "apis.supervisor.complete_task()"), Refusal.TRIVIAL_POLICY, "complete_task()"),
        (program_draft(NOTE_TEXT, f"print('oak')\n{NOTE}"), Refusal.SUPERFLUOUS_CALL, "Turn 1, call 1, python"),
        (
            program_draft(NOTE_TEXT, NOTE.replace('["simple_note"]', '["notes"]')),
            Refusal.ERROR_RESULT,
            "Turn 1, call 3",
        ),
        (program_draft(NOTE_TEXT, NOTE.replace("(title", "(name")), Refusal.ERROR_RESULT, "Turn 1, call 4"),
        (program_draft(NOTE_TEXT, "import os\n" + NOTE), Refusal.ERROR_RESULT, "not allowed: os"),
        (program_draft(ACCOUNT_TEXT, ACCOUNT), Refusal.UNGROUNDED_ARGUMENT, "'oak-9' in the code of python"),
        (program_draft(NOTE_TEXT, f"{NOTE}\nx = 1"), Refusal.ERROR_RESULT, "was marked complete"),
    ],
    ids=["idle", "no-op", "superfluous", "wrong key", "wrong parameter", "forbidden", "untold value", "after the end"],
)
def test_a_bad_program_is_refused_with_its_reason(environment, draft: TaskSpec, reason: Refusal, detail: str) -> None:  # type: ignore[no-untyped-def]
    result = verify(draft, environment, (), (), SETTINGS)
    assert result.reason is reason, result
    assert detail in result.detail


def test_what_only_the_preface_or_the_world_itself_tells_may_not_be_written_down(environment) -> None:  # type: ignore[no-untyped-def]
    draft = program_draft(NOTE_TEXT, NOTE)
    with closing(environment.open(draft)) as episode:
        preface = episode.start().preface
        email = json.loads(episode.step(run("print(apis.supervisor.show_profile())")).text)["email"]
        shown = json.loads(episode.step(run("print(apis.supervisor.show_account_passwords())")).text)
    password = next(entry["password"] for entry in shown if entry["account_name"] == "simple_note")
    assert email in preface
    for value, place in ((email, 'profile["email"]'), (password, 'passwords["simple_note"]')):
        known = program_draft(NOTE_TEXT, NOTE.replace(place, repr(value)))
        assert ungrounded(environment, known, replay(environment, known)) == (
            f"turn 1, call 3: {value!r} in the code of python",
        )
        told = known.model_copy(update={"turns": (f"{NOTE_TEXT} You need {value}.",)})
        assert ungrounded(environment, told, replay(environment, told)) == ()
        seen = program_draft(NOTE_TEXT, LOOK + NOTE.replace(place, repr(value)))
        assert ungrounded(environment, seen, replay(environment, seen)) == ()


def test_the_preface_says_whom_one_works_for_and_how_to_act(environment) -> None:  # type: ignore[no-untyped-def]
    by_code, by_name = program_draft(NOTE_TEXT, NOTE), program_draft(NOTE_TEXT, SIGN_IN)
    by_name = by_name.model_copy(update={"classes": ("supervisor",), "tools": ("supervisor.complete_task",)})
    said = []
    for draft in (by_code, by_name):
        with closing(
            environment.open(draft.model_copy(update={"turns": ("one", "two"), "reference": ((), ())}))
        ) as one:
            said.append(one.start().preface)
            assert one.end_turn().preface == ""
    assert said[0].startswith("You work for ")
    assert "```python" in said[0]
    assert "apis.supervisor.complete_task(answer=...)" in said[0]
    assert said[0].startswith(said[1])
    assert "python" not in said[1]
