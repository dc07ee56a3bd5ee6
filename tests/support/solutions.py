"""Code that solves the synthetic world's tasks, read from the full root like the evaluator, and code that does not."""

from __future__ import annotations

import json
from typing import Any

from environments.appworld.client import AppWorldEngine, World
from environments.appworld.records import Executed, ExecutionStatus


def solve(engine: AppWorldEngine, world: World) -> Executed:
    """Run the task's own solution in the world."""
    folder = engine.installation.full / "data" / "tasks" / world.task_id / "ground_truth"
    code = (folder / "solution.py").read_text() + "\nsolution(apis, None)"
    executed = world.execute(code)
    assert executed.status is ExecutionStatus.OK, executed.output
    return executed


def answer(engine: AppWorldEngine, task_id: str) -> Any:
    """The task's answer."""
    path = engine.installation.full / "data" / "tasks" / task_id / "ground_truth" / "answer.json"
    return json.loads(path.read_text())


NOTE = """
profile = apis.supervisor.show_profile()
passwords = {entry["account_name"]: entry["password"] for entry in apis.supervisor.show_account_passwords()}
token = apis.simple_note.login(username=profile["email"], password=passwords["simple_note"])["access_token"]
apis.simple_note.create_note(title={title!r}, content={content!r}, access_token=token)
"""


def note(title: str, content: str) -> str:
    """Code that makes a note, and completes nothing."""
    return NOTE.replace("{title!r}", repr(title)).replace("{content!r}", repr(content))
