"""Chat roles where programs are the actions: exploring, drafting, solving and verification in the synthetic world."""

from __future__ import annotations

import pytest

from agents.chat.abstractor import ChatAbstractor, ProgramAbstractor
from agents.chat.acting import ChatExplorer, ChatValidator
from agents.chat.transcript import MAX_OBSERVATION, MAX_WHOLE, acting_tools, attempt_text, interactions_text
from agents.settings import ExplorationSettings
from agents.spending import RoleRefused
from environments.appworld.benchmark import BENCHMARK
from environments.appworld.client import AppWorldEngine
from environments.appworld.environment import AppWorldEnvironment
from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec
from environments.settings import VerificationSettings
from environments.verification.verify import verify
from memory.records import FailureContext, Interaction

EVERYDAY = BENCHMARK.everyday_groups
SETTINGS = ExplorationSettings(rounds=1, steps=6, max_reference_calls=6, order="easy_first")
SIGN_IN = """
profile = apis.supervisor.show_profile()
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
token = apis.simple_note.login(username=profile["email"], password=passwords["simple_note"])["access_token"]
"""
CREATE = 'apis.simple_note.create_note(title="Shelf", content="oak", access_token=token)'
FIND = """
found = apis.simple_note.search_notes(query="Home Wifi", access_token=token)
note_id = next(note["note_id"] for note in found if note["title"] == "Home Wifi")
note = apis.simple_note.show_note(note_id=note_id, access_token=token)
"""
COMPLETE = "apis.supervisor.complete_task()"
NOTE = {
    "request": 'Create a note titled "Shelf" with the content "oak" in Simple Note.',
    "code": f"# sign in\n{SIGN_IN}\n{CREATE}\n{COMPLETE}",
}
LINES = {
    "request": 'How many lines does my note "Home Wifi" in Simple Note have?',
    "code": f"{SIGN_IN}{FIND}apis.supervisor.complete_task(answer=len(note['content'].splitlines()))",
}
PYTHON = ToolSpec(
    name="python",
    group="python",
    description="Runs code.",
    parameters=(Parameter(name="code", type="code", description="", required=True),),
)


def run(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


@pytest.fixture(scope="module")
def appworld(engine: AppWorldEngine) -> AppWorldEnvironment:
    return AppWorldEnvironment(engine=engine)


@pytest.fixture
def context(appworld, make_context) -> FailureContext:
    """A context at a start of the training split, with all the tools that it has there."""
    return make_context(next(start for start in appworld.starts() if start.id == "made01_1"), "simple_note.create_note")


async def test_a_whole_chain_from_exploring_to_accepted_tasks(table, say, appworld, context) -> None:
    def acts(code: str):
        return say("NextCall", tool="python", arguments={"code": code}, purpose="see")

    fake, model = table(
        acts("print(apis.api_docs.show_api_descriptions(app_name='simple_note'))"),
        acts("apis.simple_note.create_note(title='Shelf')"),
        acts(SIGN_IN),
        acts(CREATE),
        acts(f"{FIND}\nprint(note)"),
        say("NextCall", tool="", purpose="done"),
    )
    seen = await ChatExplorer(model, SETTINGS).explore(context, appworld, 0)
    assert [one.observation.status.value for one in seen] == ["ok", "error", "ok", "ok", "ok"]
    assert [one.changed for one in seen] == [False, False, False, True, False]
    assert [call.name for call in seen[3].observation.calls] == ["simple_note.create_note"]
    prompts = [messages[1].content for messages in fake.sent]
    assert prompts[0].startswith("What is told to everybody who acts in the environment:\nYou work for Alma Arnold")
    assert "python: Run a block of Python code" in prompts[0]
    assert "simple_note.create_note: " not in prompts[0]  # documentation of 100 APIs is looked up, not shown
    assert len(seen[0].observation.text) > MAX_OBSERVATION
    assert seen[0].observation.text in prompts[-1]
    assert f"<action>python:\n{CREATE}\n</action>" in prompts[-1]

    fake, model = table(say("ProposedPrograms", tasks=[NOTE, LINES]))
    drafts = await ChatAbstractor(model, SETTINGS).abstract(context, seen, appworld, 0)
    assert prompts[0].partition("Tools:")[0] in fake.prompts()
    assert [draft.turns[0] for draft in drafts] == [NOTE["request"], LINES["request"]]
    assert [draft.tools for draft in drafts] == [("python",), ("python",)]
    assert [draft.difficulty for draft in drafts] == ["easy", "medium"]
    assert [len(draft.reference[0]) for draft in drafts] == [5, 6]
    assert drafts[0].reference[0][3] == run(
        "apis.simple_note.create_note(title='Shelf', content='oak', access_token=token)"
    )
    assert drafts[0].parents == tuple(one.id for one in (seen[2], seen[3]))
    for draft in drafts:
        result = verify(draft, appworld, (), (), VerificationSettings())
        assert result.accepted, result


async def test_a_validator_acts_by_programs_and_reads_the_preface(table, say, appworld, context) -> None:
    def acts(code: str):
        return say("NextAction", tool="python", arguments={"code": code})

    _, writer = table(say("ProposedPrograms", tasks=[NOTE]))
    (draft,) = await ProgramAbstractor(writer, SETTINGS, PYTHON, EVERYDAY).abstract(context, (), "")
    judged = say("RunJudgement", success=True, reason="It made the note.")
    ends = acts(f"{CREATE}\n{COMPLETE}"), say("NextAction", tool=""), judged
    fake, model = table(acts(f"{SIGN_IN}print(token)"), *ends)
    assert (await ChatValidator(model, actions=3).validate(draft, appworld, 0)).success
    assert "You work for Alma Arnold" in fake.sent[0][1].content
    assert f"<user>{NOTE['request']}</user>" in fake.sent[0][1].content
    assert f"<action>python:\n{CREATE}\n{COMPLETE}\n</action>" in fake.sent[2][1].content


@pytest.fixture
def somewhere() -> FailureContext:
    return FailureContext(
        id="context-1", environment="appworld", classes=("python",), initial_state={}, tools=("python",), tool="python"
    )


def interaction(number: int, action: ToolCall, *calls: str, text: str = "told") -> Interaction:
    observation = Observation(
        text=text, status=ObservationStatus.OK, calls=tuple(ToolCall(name=name) for name in calls)
    )
    return Interaction(
        id=f"interaction-{number}",
        context_id="context-1",
        run=0,
        position=number,
        action=action,
        observation=observation,
        changed=False,
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"request": " "}, "an empty request"),
        ({"code": "x = ("}, "cannot be read: line 1 is no Python"),
        ({"code": "# nothing"}, "calls no API"),
        ({"code": "print(apis)"}, "calls no API"),
        ({"code": f"{SIGN_IN}{FIND}{COMPLETE}\nprint(1)"}, "has 7 statements, not 1 to 6"),
    ],
)
async def test_a_program_must_be_one(table, say, somewhere, changes: dict, told: str) -> None:
    fake, model = table(say("ProposedPrograms", tasks=[NOTE | changes]), say("ProposedPrograms", tasks=[NOTE]))
    (draft,) = await ProgramAbstractor(model, SETTINGS, PYTHON, EVERYDAY).abstract(somewhere, (), "")
    assert draft.turns == (NOTE["request"],)
    assert told in fake.sent[1][-1].content
    assert "has 1 to 6 statements" in fake.sent[0][1].content
    assert draft.measured.calls == 2


async def test_only_usable_programs_become_drafts_and_none_is_a_refusal(table, say, somewhere) -> None:
    broken = NOTE | {"code": "x = ("}
    _, model = table(*[say("ProposedPrograms", tasks=[broken, NOTE, NOTE, NOTE, NOTE])] * 2)
    drafts = await ProgramAbstractor(model, SETTINGS, PYTHON, EVERYDAY).abstract(somewhere, (), "")
    assert len(drafts) == SETTINGS.drafts_per_context
    assert len({draft.id for draft in drafts}) == len(drafts)
    for tasks in ([broken], []):
        _, model = table(*[say("ProposedPrograms", tasks=tasks)] * 2)
        with pytest.raises(RoleRefused, match=r"no Python|no task in it"):
            await ProgramAbstractor(model, SETTINGS, PYTHON, EVERYDAY).abstract(somewhere, (), "")


@pytest.mark.parametrize(
    ("code", "grade"),
    [
        (f"x = apis.simple_note.login()\n{CREATE}\n{COMPLETE}", "easy"),
        (f"{FIND}\n{CREATE}", "medium"),
        ("x = apis.phone.login()\napis.simple_note.login()", "hard"),
    ],
)
async def test_difficulty_is_computed_from_the_tools_that_the_code_calls(table, say, somewhere, code, grade) -> None:
    _, model = table(say("ProposedPrograms", tasks=[NOTE | {"code": code}]))
    (draft,) = await ProgramAbstractor(model, SETTINGS, PYTHON, EVERYDAY).abstract(somewhere, (), "")
    assert draft.difficulty == grade


async def test_a_draft_descends_from_what_called_its_tools(table, say, somewhere) -> None:
    seen = [interaction(0, run("a"), "phone.login"), interaction(1, run("b"), "simple_note.create_note")]
    for interactions, parents in ((seen, ("interaction-1",)), (seen[:1], ("interaction-0",))):
        _, model = table(say("ProposedPrograms", tasks=[NOTE]))
        (draft,) = await ProgramAbstractor(model, SETTINGS, PYTHON, EVERYDAY).abstract(somewhere, interactions, "")
        assert draft.parents == parents


def test_the_newest_answers_to_programs_are_shown_whole() -> None:
    long = "x" * (MAX_WHOLE // 2)
    seen = [interaction(n, run("print(1)\nprint(2)"), text=f"{n}{long}") for n in range(3)]
    shown = interactions_text(seen, PYTHON)
    assert f"<observation>2{long}</observation>" in shown
    assert "<observation>0xx" in shown
    assert len(shown) < 2 * len(long)
    assert "<action>python:\nprint(1)\nprint(2)\n</action>" in shown
    assert "print(1)\\nprint(2)" in interactions_text(seen)
    assert len(interactions_text(seen)) < 3 * (MAX_OBSERVATION + 200)
    assert attempt_text([(seen[0].action, seen[0].observation)], PYTHON).endswith(f"{long}</observation>")


def test_who_acts_is_shown_the_tool_that_runs_programs_alone() -> None:
    other = ToolSpec(name="simple_note.login", group="simple_note", description="Signs in.")
    assert acting_tools((other, PYTHON)) == (PYTHON,)
    assert acting_tools((other,)) == (other,)
