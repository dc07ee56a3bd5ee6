"""Tasks on the synthetic world whose every call is needed, written by hand."""

from __future__ import annotations

from pydantic import JsonValue

from environments.appworld.records import Start
from environments.base import TaskSpec, ToolCall

WORLD = "made01_1"


def call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


COMPLETE = call("supervisor.complete_task")


def written(text: str, *reference: ToolCall) -> TaskSpec:
    """A task of ours with ``python``, the tools of its reference and that which completes a task."""
    names = [one.name for one in reference if one.name not in ("python", COMPLETE.name)]
    tools = ("python", *dict.fromkeys(names), COMPLETE.name)
    return TaskSpec(
        environment="appworld",
        split="train",
        classes=tuple(dict.fromkeys(name.split(".")[0] for name in tools)),
        turns=(text,),
        initial_state=Start(task=WORLD).initial_state(),
        tools=tools,
        reference=(reference,),
    )


def _account(app: str, first: str, last: str) -> ToolCall:
    email = f"{first}.{last}@example.org".lower()
    return call(f"{app}.signup", first_name=first, last_name=last, email=email, password=f"{first}-of-{last}")


def _asked(app: str, first: str, last: str) -> str:
    email = f"{first}.{last}@example.org".lower()
    return f"Make a {app} account for '{first}' '{last}' with '{email}' and the password '{first}-of-{last}'."


ANSWER = written("Give the answer 'sage green'.", call("supervisor.complete_task", answer="sage green"))
ACCOUNT = written(_asked("Simple Note", "Olga", "Birk"), _account("simple_note", "Olga", "Birk"))
ACCOUNT_AND_ANSWER = written(
    f"{_asked('Todoist', 'Pim', 'Vos')} Then give the answer 'done'.",
    _account("todoist", "Pim", "Vos"),
    call("supervisor.complete_task", answer="done"),
)
