"""What a model says to the chat roles in the tests of the graph: good and bad replies, by schema and prompt alone.

Equal prompts get equal replies, so that what a run makes does not depend on the order in which it asks.
"""

from __future__ import annotations

import ast
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

from support.faulty_server import Answer, ChatRequest, Fault, FaultyServer

KEY = "sk-made-up-and-very-secret"
ROLES = ("reflector", "explorer", "abstractor")
Arguments = dict[str, Any]

DOORS = ["driver", "passenger", "rear_left", "rear_right"]
NUMBERED = re.compile(r"^\[(\d+)\] run (\d+): <action>(.*)</action> -> (\w+)", re.MULTILINE)
LEFT = re.compile(r"(\d+) actions are left")
WEAKNESS = re.compile(r"<weakness>.*?</weakness>", re.DOTALL)
EXPLORATION = re.compile(r"of exploration (\w+),")
FUEL = re.compile(r"Add ([\d.]+) gallons")
BOX = re.compile(r'"(box\d+)"')
NOTE = re.compile(r'"(note\d+\.txt)"')


def answer(schema: str, prompt: str) -> Arguments:
    """The arguments of a reply in ``schema`` to the user message ``prompt``."""
    roles: dict[str, Callable[[str], Arguments]] = {
        "Reflection": _reflection,
        "NextCall": _next_call,
        "ProposedTasks": _proposed_tasks,
        "NextAction": _carried_out,
        "RunJudgement": _judgement,
    }
    return roles[schema](prompt)


def _is_car(prompt: str) -> bool:
    return "fillFuelTank:" in prompt


def _number(prompt: str) -> int:
    """From 1 to 900, another one for another weakness or unguided exploration."""
    weakness = WEAKNESS.search(prompt) or EXPLORATION.search(prompt)
    return zlib.crc32((weakness.group() if weakness else prompt).encode()) % 900 + 1


def _reflection(prompt: str) -> Arguments:
    tool = "fillFuelTank" if _is_car(prompt) else "mkdir"
    return {
        "turn": 1,
        "action": 1,
        "cause": "wrong_argument",
        "tool": tool,
        "how": "The value was another one.",
        "summary": "The agent used another value than the one asked for.",
        "failure_cause": "It was not taken from the request.",
        "explore": [tool],
    }


def script(prompt: str) -> list[tuple[str, Arguments]]:
    """What the explorer does in every round; the second call of the car fails, the fourth tool does not exist."""
    number = _number(prompt)
    if _is_car(prompt):
        return [
            ("fillFuelTank", {"fuelAmount": number / 100}),
            ("startEngine", {"ignitionMode": "START"}),
            ("lockDoors", {"unlock": False, "door": DOORS}),
            ("self_destruct", {}),
            ("displayCarStatus", {"option": "fuel"}),
        ]
    return [
        ("mkdir", {"dir_name": f"box{number}"}),
        ("cat", {"file_name": "nowhere.txt"}),
        ("touch", {"file_name": f"note{number}.txt"}),
        ("self_destruct", {}),
        ("ls", {}),
    ]


def _next_call(prompt: str) -> Arguments:
    steps = script(prompt)
    left = LEFT.search(prompt)
    assert left is not None
    done = sum(1 for run in NUMBERED.findall(prompt) if run[1] == _this_round(prompt))
    tool, arguments = steps[done] if done < len(steps) else ("", {})
    return {"purpose": "see what it does", "tool": tool, "arguments": arguments}


def _this_round(prompt: str) -> str:
    found = re.search(r"This is round (\d+) of", prompt)
    assert found is not None
    return str(int(found.group(1)) - 1)


def _proposed_tasks(prompt: str) -> Arguments:
    """Of what ran well: an easy task, one of two turns, and one whose request leaves out the value that it needs."""
    ran: dict[tuple[str, str], tuple[int, str]] = {}
    for place, run, action, status in NUMBERED.findall(prompt):
        tool, _, arguments = action.partition("(")
        if status == "ok":
            ran.setdefault((run, tool), (int(place), arguments))
    first, second = ("fillFuelTank", "lockDoors") if _is_car(prompt) else ("mkdir", "touch")
    tasks = []
    for (run, tool), (place, arguments) in ran.items():
        if tool != first:
            continue
        one = f"Make the folder {_value(arguments)}."
        if _is_car(prompt):
            one = f"Add {_value(arguments)} gallons to the tank."
        tasks.append(_task((one, [place])))
        later = ran.get((run, second))
        if later is not None and later[0] > place:
            two = "Lock all the doors." if _is_car(prompt) else f"Put an empty file {_value(later[1])} beside it."
            tasks.append(_task((one, [place]), (two, [later[0]])))
        tasks.append(_task(("Do the first thing that is needed.", [place])))
        break
    return {"tasks": tasks}


def _value(arguments: str) -> str:
    """The first value of ``name=value, ...)``, texts in double quotes."""
    found = re.match(r"\w+=('[^']*'|[\d.]+)", arguments)
    assert found is not None, arguments
    return found.group(1).replace("'", '"')


def _task(*turns: tuple[str, list[int]]) -> Arguments:
    return {"turns": [{"query": query, "calls": calls} for query, calls in turns]}


def _carried_out(prompt: str) -> Arguments:
    """The next call of the solution; of folders with an even number none."""
    history, _, solution = prompt.partition("The solution of this turn:")
    calls = re.findall(r"<action>(.*)</action>", solution)
    done = history.split("<user>")[-1].count("<action>")
    box = BOX.search(history)
    if done >= len(calls) or (box is not None and int(box.group(1)[3:]) % 2 == 0):
        return {"tool": "", "arguments": {}}
    call = ast.parse(calls[done], mode="eval").body
    assert isinstance(call, ast.Call)
    arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return {"tool": ast.unparse(call.func), "arguments": arguments}


def _judgement(prompt: str) -> Arguments:
    """A run with an action is judged to have completed the task."""
    did = prompt.partition("What the agent did:")[2]
    return {"reason": "The calls were made." if "<action>" in did else "No call.", "success": "<action>" in did}


def reply(request: ChatRequest) -> Answer:
    """The table's reply; of the reflections one is refused and one is prose until the repair turn."""
    if request.schema == "Reflection":
        if "The agent solved this task before" in request.prompt and "mkdir:" in request.prompt:
            return Fault.REFUSAL
        if "Some attempts at this task succeed" in request.prompt and not request.repairs:
            return "I would say that it went wrong."
    if request.schema == "ProposedTasks" and not request.repairs and request.draw("bad") < 0.5:
        return {"tasks": [{"turns": [{"query": "Do what never ran.", "calls": [99]}]}]}
    return answer(request.schema, request.prompt)


def settings_of(server: FaultyServer, roles: tuple[str, ...] = ROLES, **options: object) -> list[str]:
    """Overrides that make the roles chat roles at the server."""
    chat = {"model": "table", "base_url": server.url, **options}
    kinds = [f"roles.{role}={{kind: chat}}" for role in roles]
    return [f"roles.chat={json.dumps(chat)}", *kinds, "roles.exploration.drafts_per_context=3"]
