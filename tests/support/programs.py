"""Programs for the synthetic world, written by hand, and drafts made of them."""

from __future__ import annotations

from environments.appworld.records import Start
from environments.base import TaskSpec, ToolCall
from environments.verification.programs import blocks

SIGN_IN = """
profile = apis.supervisor.show_profile()
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
token = apis.simple_note.login(username=profile["email"], password=passwords["simple_note"])["access_token"]
"""
NOTE_TEXT = 'Create a note titled "Shelf" with the content "oak" in Simple Note.'
NOTE = (
    SIGN_IN
    + """
apis.simple_note.create_note(title="Shelf", content="oak", access_token=token)
apis.supervisor.complete_task()
"""
)
LINES_TEXT = 'How many lines does my note "Home Wifi" in Simple Note have?'
LINES = (
    SIGN_IN
    + """
found = apis.simple_note.search_notes(query="Home Wifi", access_token=token)
note_id = next(note["note_id"] for note in found if note["title"] == "Home Wifi")
note = apis.simple_note.show_note(note_id=note_id, access_token=token)
apis.supervisor.complete_task(answer=len(note["content"].splitlines()))
"""
)


def run(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


def program_draft(text: str, code: str) -> TaskSpec:
    """A draft as the chat abstractor makes it: one call a statement."""
    return TaskSpec(
        environment="appworld",
        split="train",
        classes=("python",),
        turns=(text,),
        initial_state=Start(task="made01_1").initial_state(),
        tools=("python",),
        reference=(tuple(map(run, blocks(code))),),
    )
