"""Replace the world of an ``appworld serve environment`` server, with the answers of a worker's child.

The server executes code and evaluates, but does not report the API calls of a step, the changes, or whether the world
still belongs to the caller. ``environments/appworld/servers.py`` sends this module with those that it imports to a
server, which runs it for one episode; the next ``/initialize`` removes it.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from collections.abc import Callable
from typing import Any

from environments.appworld.engine.evaluation_results import without_traces
from environments.appworld.engine.protocol import said
from environments.appworld.engine.world import EngineWorld


class StandIn:
    """An object with those attributes of the package's world that the server's requests use.

    Args:
        appworld: the world that the server has opened.
        episode: the text that messages of this episode carry.
    """

    def __init__(self, appworld: Any, episode: str) -> None:  # noqa: ANN401 - the package has no types
        self.task_id = appworld.task_id
        self._appworld = appworld
        self._episode = episode
        self._world = EngineWorld()  # adopts the server's, which has no limits
        self._operations: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "execute": self._world.execute,
            "difference": self._world.difference,
            "evaluate": self._evaluate,
            "close": self.close,
        }

    def execute(self, code: str) -> dict[str, Any]:
        """Answer a message, which comes as the code of the server's ``/execute``: a value, or how it failed.

        A text that is not a message of this episode is another client's, and does nothing.
        """
        try:
            message = json.loads(code)
            if message.pop("episode") != self._episode:
                return {"foreign": True}
            operation = self._operations[message.pop("op")]
        except (ValueError, KeyError, TypeError, AttributeError):
            return {"foreign": True}
        try:
            return {"value": operation(**message)}
        except Exception as error:  # noqa: BLE001 - every error is reported to the other side
            traceback.print_exc()
            return {"error": said(error)}

    def close(self) -> None:
        """End the world and remove what it wrote."""
        self._appworld.close()
        shutil.rmtree(self._appworld.base_output_directory, ignore_errors=True)

    def _open(self, instruction: str | None) -> dict[str, Any]:
        return self._world.adopt(self._appworld, instruction)

    def _evaluate(self) -> dict[str, Any]:
        return without_traces(self._appworld.evaluate(suppress_errors=True))


def stand_in(episode: str) -> None:
    """Replace the world of this process's server by a stand-in."""
    server = sys.modules["appworld.serve.environment"]
    server.world = StandIn(server.world, episode)  # type: ignore[attr-defined]
