"""Tasks and rollouts as messages of the roles system, user, assistant and tool, as chat templates take them.

The prompt of a task is what ``training.rendering.chat_template`` shows a policy before its first message: the
environment's preface and advice as the system message, the turns in which the reference acted before the agent, the
agent's first user turn. The completion is the reference, carried out in a fresh episode.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from typing import Any, NamedTuple

from environments.base import Action, Environment, Episode, Observation, TaskSpec, ToolCall, UserTurn
from environments.turns import open_for_agent
from memory.records import Trajectory
from training.rendering.base import ASKS_BACK, DONE
from training.rendering.chat_template import announced
from training.rendering.tool_calls import Schema, call_message, tool_schema

ChatMessage = dict[str, Any]


class Conversation:
    """Messages so far, with the tools that are documented: ``tools`` beside the messages, later ones within them.

    Each call is an assistant message of its own, and its place is its id.
    """

    def __init__(self, documented: Collection[str] = ()) -> None:
        """``documented``: tools that need no documentation, because it is elsewhere."""
        self.messages: list[ChatMessage] = []
        self.tools: list[Schema] = []
        self._documented = set(documented)
        self._calls = 0

    def say(self, role: str, content: str) -> None:
        """Add a message of text."""
        self.messages.append({"role": role, "content": content})

    def open(self, turn: UserTurn, environment: Environment) -> None:
        """Add a user turn: the first with the system message before it, a later one with the tools that it adds."""
        new = [tool_schema(tool) for tool in environment.tools(turn.tools) if tool.name not in self._documented]
        self._documented.update(turn.tools)
        if self.messages:
            self.say("user", announced(new, turn.full_text))
            return
        self.tools = new
        if system := "\n\n".join(filter(None, (turn.preface, turn.advice))):
            self.say("system", system)
        self.say("user", turn.text)

    def act(self, action: Action, observation: Observation) -> None:
        """Add an action and its answer.

        Text that was not a call is what the assistant said, and the answer to it is a user's message: a tool's message
        needs a call.
        """
        if not isinstance(action, ToolCall):
            self.say("assistant", action.text)
            self.say("user", observation.full_text)
            return
        call = call_message(self._calls, action.name, _arguments(action))
        answer = {"role": "tool", "name": action.name, "tool_call_id": call["id"], "content": observation.full_text}
        self.messages += [{"role": "assistant", "content": "", "tool_calls": [call]}, answer]
        self._calls += 1


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    """Return the arguments, as JSON text where the reader of ``datasets.Json`` does not give their numbers back."""
    from datasets.utils.json import ujson_loads

    try:
        text = json.dumps(call.arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return call.arguments  # no JSON: whatever writes it refuses it by the name of its record
    try:
        return call.arguments if ujson_loads(text) == call.arguments else text
    except ValueError:  # an integer of more than 64 bits
        return text


def rollout_messages(trajectory: Trajectory) -> list[ChatMessage]:
    """Return a trajectory as messages.

    A record does not say which calls a policy wrote in one message, nor the words with which it ended a turn. So a turn
    that the agent ended closes with an empty assistant message.
    """
    said = Conversation()
    for turn in trajectory.turns:
        said.say("user", turn.full_text)
        for step in turn.steps:
            said.act(step.action, step.observation)
        if turn.ended:
            said.say("assistant", "")
    return said.messages


def begin(environment: Environment, episode: Episode, task: TaskSpec, documented: Collection[str] = ()) -> Conversation:
    """Start ``episode`` of ``task`` and return what its agent is shown first. Raises EnvironmentFault.

    That is the system message, the turns that the reference played, and the agent's first user turn.
    """
    said = Conversation(documented)
    played, turn = open_for_agent(episode, task)
    for opened, steps in played:
        said.open(opened, environment)
        for call, observation in steps:
            said.act(call, observation)
        said.say("assistant", DONE if steps else ASKS_BACK)
    said.open(turn, environment)
    return said


class TaskMessages(NamedTuple):
    """A task as messages: what its agent is shown first, the reference, and the tools documented beside them."""

    prompt: list[ChatMessage]
    completion: list[ChatMessage]
    tools: list[Schema]


def task_messages(environment: Environment, task: TaskSpec) -> TaskMessages:
    """Carry out the reference of ``task`` and return it as messages. Raises EnvironmentFault like a rollout.

    References hold no words: each turn of the agent ends with those of a teacher in training (``DONE``, ``ASKS_BACK``).
    """
    with closing(environment.open(task)) as episode:
        said = begin(environment, episode, task)
        shown = len(said.messages)
        for calls in task.reference[task.played :]:
            for call in calls:
                said.act(call, episode.step(call))
            said.say("assistant", DONE if calls else ASKS_BACK)
            following = episode.end_turn()
            if following is not None:
                said.open(following, environment)
    return TaskMessages(said.messages[:shown], said.messages[shown:], said.tools)
