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
ROUND = re.compile(r"This is round (\d+) of")
WEAKNESS = re.compile(r"<weakness>.*?</weakness>", re.DOTALL)
EXPLORATION = re.compile(r"of exploration (\w+),")
BOX = re.compile(r'"(box\d+)"')


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


def _call(action: str) -> tuple[str, Arguments]:
    """The tool and the arguments of a call as prompts write it."""
    call = ast.parse(action, mode="eval").body
    assert isinstance(call, ast.Call)
    return ast.unparse(call.func), {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}


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
    steps, this = script(prompt), ROUND.search(prompt)
    assert this is not None
    assert "actions are left" in prompt
    done = sum(int(run) + 1 == int(this[1]) for _, run, _, _ in NUMBERED.findall(prompt))
    tool, arguments = steps[done] if done < len(steps) else ("", {})
    return {"purpose": "see what it does", "tool": tool, "arguments": arguments}


def _proposed_tasks(prompt: str) -> Arguments:
    """Of what ran well: an easy task, one of two turns, and one whose request leaves out the value that it needs."""
    ran: dict[tuple[str, str], tuple[int, str]] = {}
    for place, run, action, status in NUMBERED.findall(prompt):
        if status == "ok":
            tool, arguments = _call(action)
            ran.setdefault((run, tool), (int(place), json.dumps(next(iter(arguments.values()), ""))))
    first, easy, second, later = ("mkdir", "Make the folder {}.", "touch", "Put an empty file {} beside it.")
    if _is_car(prompt):
        first, easy, second, later = ("fillFuelTank", "Add {} gallons to the tank.", "lockDoors", "Lock all the doors.")
    found = next((key for key in ran if key[1] == first), None)
    if found is None:
        return {"tasks": []}
    place, value = ran[found]
    then, other = ran.get((found[0], second), (0, ""))
    one, two = (easy.format(value), [place]), (later.format(other), [then])
    tasks = [[one], *([[one, two]] if then > place else []), [("Do the first thing that is needed.", [place])]]
    return {"tasks": [{"turns": [{"query": query, "calls": calls} for query, calls in turns]} for turns in tasks]}


def _carried_out(prompt: str) -> Arguments:
    """The next call of the solution; of folders with an even number none."""
    history, _, solution = prompt.partition("The solution of this turn:")
    calls = re.findall(r"<action>(.*)</action>", solution)
    done = history.split("<user>")[-1].count("<action>")
    box = BOX.search(history)
    if done >= len(calls) or (box is not None and int(box.group(1)[3:]) % 2 == 0):
        return {"tool": "", "arguments": {}}
    tool, arguments = _call(calls[done])
    return {"tool": tool, "arguments": arguments}


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
