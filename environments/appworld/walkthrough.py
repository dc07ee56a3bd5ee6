"""Opens the environment for a notebook, or ends it with one sentence where AppWorld or its sandbox is missing."""

from __future__ import annotations

import builtins
from typing import Any

from environments.appworld.environment import AppWorldEnvironment
from environments.appworld.installation import find_installation
from environments.appworld.official_tasks import official_task
from environments.appworld.sandbox import require
from environments.appworld.start import Start
from environments.appworld.worlds import PYTHON
from environments.base import InputError, TaskSpec, ToolCall

__all__ = [
    "ATTEMPTS",
    "COMPLETE",
    "environment_or_skip",
    "first_official_task",
    "named_call",
    "program",
    "solutions",
    "written_task",
]

COMPLETE = ToolCall(name="supervisor.complete_task")
"""The call that ends a task."""

ATTEMPTS = {
    "read a file": "print(open('/etc/passwd').read())",
    "import the operating system": "import os",
    "reach the network": "import urllib.request",
    "find a class that opens files": "print(().__class__.__base__.__subclasses__())",
    "start a program": 'eval(\'__import__("os").system("true")\')',
    "read the solution": "from appworld.ground_truth import GroundTruth",
}
"""Ways out of the apps that an agent's code may try first."""


def environment_or_skip() -> AppWorldEnvironment | None:
    """Return the environment. Where it cannot be opened, print why and let every later cell of the notebook do nothing.

    None, outside of a notebook too, where it cannot be opened.
    """
    try:
        require(find_installation())
    except InputError as error:
        print(f"The rest of this notebook does nothing: {error}.")
        _do_nothing_more()
        return None
    return AppWorldEnvironment()


def named_call(name: str, **arguments: str) -> ToolCall:
    """Return a call of an API by its name."""
    return ToolCall(name=name, arguments=dict(arguments))


def program(code: str) -> ToolCall:
    """Return a call of the tool that runs an agent's Python."""
    return ToolCall(name=PYTHON, arguments={"code": code})


def first_official_task() -> TaskSpec:
    """Return the first training task of the world. Raises InputError like ``find_installation``."""
    installation = find_installation()
    return official_task(installation, installation.task_ids("train")[0], "train")


def written_task(text: str, *reference: ToolCall) -> TaskSpec:
    """Return a task of one's own in the world of the first training task, with the tools of its reference.

    Raises InputError like ``find_installation``.
    """
    names = [one.name for one in reference if one.name not in (PYTHON, COMPLETE.name)]
    tools = (PYTHON, *dict.fromkeys(names), COMPLETE.name)
    return TaskSpec(
        environment="appworld",
        split="train",
        classes=tuple(dict.fromkeys(name.partition(".")[0] for name in tools)),
        turns=(text,),
        initial_state=Start(task=find_installation().task_ids("train")[0]).initial_state(),
        tools=tools,
        reference=(reference,),
    )


def solutions() -> dict[str, int]:
    """Return how many tasks' solutions the evaluator's root holds, and how many the root of agents' code."""
    installation = find_installation()
    return {
        "the evaluator's": len([*installation.full.glob("data/tasks/*/ground_truth/solution.py")]),
        "the agent's": len([*installation.blind.glob("data/tasks/*/ground_truth/*")]),
    }


def _do_nothing_more() -> None:
    shell: Any = getattr(builtins, "get_ipython", lambda: None)()
    if shell is not None:
        shell.input_transformers_cleanup.append(lambda lines: [])
