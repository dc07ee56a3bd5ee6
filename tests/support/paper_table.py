"""What a model says to the chat roles in the tests of the papers' recipes: replies in the papers' formats.

Reflections have all fields of CoEvolve's figure 11, drafts the three calls of figure 12 and more. Equal prompts get
equal replies. Without a weakness (D_0) the values are those of ``NUMBER``, around one those of one of ``OTHERS``: the
tests' policies can know all of them. One draft in two leaves out what its calls need, and has to be refused.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

from environments.base import ToolCall
from support.chat_table import DOORS
from support.faulty_server import Answer, ChatRequest

NUMBER = 7
OTHERS = (8, 9)
CAUSES = ("stopped_early", "missing_call", "wrong_argument", "unmet_precondition")
Arguments = dict[str, Any]

FIGURE_11 = {
    "summary": "The agent was to do several things of one kind. It did some of them and stopped.",
    "failure_cause": "It took the first call for the whole request.",
    "instability_pattern": "It goes right where the first message holds all calls.",
    "focus_pattern": ["several calls for one request"],
    "exploration_objectives": ["find out which calls belong together", "do the same with other values"],
    "do_not_repeat": ["ending the turn before the last call"],
}

_DONE = re.compile(r"^\[\d+\] run \d+: ", re.MULTILINE)
_CALLED = re.compile(r"^\[(\d+)\] run (\d+): <action>(\w+)\(.*</action> -> ok", re.MULTILINE)
_WEAKNESS = re.compile(r"<weakness>.*?</weakness>", re.DOTALL)
_FIRST_TOOL = re.compile(r"^Tools:\n([\w.]+):", re.MULTILINE)


def reply(request: ChatRequest) -> Answer:
    """The table's reply."""
    answers = {
        "Reflection": _reflection,
        "NextCall": _next_call,
        "ProposedTasks": _proposed_tasks,
        "ProposedPrograms": _proposed_programs,
    }
    return answers[request.schema](request.prompt)


def files(number: int) -> list[ToolCall]:
    """Three things that need each other in no way, and may be done twice."""
    return [
        ToolCall(name="mkdir", arguments={"dir_name": f"box{number}"}),
        ToolCall(name="mkdir", arguments={"dir_name": f"pen{number}"}),
        ToolCall(name="touch", arguments={"file_name": f"note{number}.txt"}),
    ]


def car(number: int) -> list[ToolCall]:
    return [
        ToolCall(name="fillFuelTank", arguments={"fuelAmount": number / 100}),
        ToolCall(name="lockDoors", arguments={"unlock": False, "door": DOORS}),
        ToolCall(name="setHeadlights", arguments={"mode": "on"}),
    ]


def wording(calls: list[ToolCall]) -> str:
    """What a user says who wants ``files`` or ``car``."""
    if calls[0].name == "mkdir":
        first, second, note = (next(iter(call.arguments.values())) for call in calls)
        return f'Make the folders "{first}" and "{second}", and put an empty file "{note}" beside them.'
    return f"Add {calls[0].arguments['fuelAmount']} gallons to the tank, lock all the doors, set the headlights to on."


def note_request(number: int) -> str:
    return f'Create a note titled "Shelf {number}" with the content "oak" in Simple Note.'


def note_program(number: int) -> str:
    return f"{SIGN_IN}\n{_create(number)}\napis.supervisor.complete_task()"


SIGN_IN = """profile = apis.supervisor.show_profile()
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
token = apis.simple_note.login(username=profile["email"], password=passwords["simple_note"])["access_token"]"""


def _create(number: int) -> str:
    return f'apis.simple_note.create_note(title="Shelf {number}", content="oak", access_token=token)'


def _number(prompt: str) -> int:
    weakness = _WEAKNESS.search(prompt)
    return NUMBER if weakness is None else OTHERS[zlib.crc32(weakness.group().encode()) % len(OTHERS)]


def _reflection(prompt: str) -> Arguments:
    tool = _FIRST_TOOL.search(prompt)
    assert tool is not None, prompt[:500]
    known = next((name for name in ("mkdir", "fillFuelTank") if f"\n{name}: " in prompt), tool.group(1))
    drawn = zlib.crc32(prompt.encode())
    cause = CAUSES[drawn % len(CAUSES)]  # contexts of different causes are never taken for one
    how = f"The attempt {drawn} ended before everything was done."
    place = {"turn": 1, "action": 1, "cause": cause, "tool": known, "how": how, "explore": [known]}
    return {**FIGURE_11, **place}


def _script(prompt: str) -> list[ToolCall]:
    """What the explorer does in a round; a call that fails and a tool that does not exist are among it."""
    number = _number(prompt)
    if "\npython: " in prompt:
        return [ToolCall(name="python", arguments={"code": code}) for code in (SIGN_IN, "1 / 0", _create(number))]
    strange = ToolCall(name="self_destruct")
    if "\nmkdir: " in prompt:
        first, *rest = files(number)
        return [first, ToolCall(name="cat", arguments={"file_name": "nowhere.txt"}), strange, *rest]
    if "\nfillFuelTank: " in prompt:
        first, *rest = car(number)
        return [first, ToolCall(name="startEngine", arguments={"ignitionMode": "START"}), strange, *rest]
    return []


def _next_call(prompt: str) -> Arguments:
    script, done = _script(prompt), len(_DONE.findall(prompt))
    call = script[done] if done < len(script) else ToolCall(name="")
    return {"purpose": "see what it does", "tool": call.name, "arguments": call.arguments}


def _proposed_tasks(prompt: str) -> Arguments:
    calls = files(_number(prompt)) if "\nmkdir: " in prompt else car(_number(prompt))
    succeeded = [int(place) for place, run, tool in _CALLED.findall(prompt) if run == "0"]
    queries = (wording(calls), "Do the usual things here.")
    return {"tasks": [{"turns": [{"query": query, "calls": succeeded}]} for query in queries]}


def _proposed_programs(prompt: str) -> Arguments:
    number = _number(prompt)
    requests = (note_request(number), "Create the usual note in Simple Note.")
    return {"tasks": [{"request": request, "code": note_program(number)} for request in requests]}
