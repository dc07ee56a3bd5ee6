"""An environment written with OpenEnv's own package, as its documentation does it: run by the Python of .venvs/openenv.

``python depot_server.py PORT SESSIONS KIND``; KIND is state, blind (its state shows nothing) or typed (actions of a
form in place of tools).
"""

import random
import sys
from typing import Any, Literal

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

LABELS = ("books", "lamp", "mirror", "red crate", "seeds", "tools", "toys", "vase", "wine")
PORT, SESSIONS, KIND = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class DepotState(State):
    parcels: dict[str, Any] = {}
    gate_open: bool = False


class Depot(MCPEnvironment):
    """Parcels are insured, loaded into one of two vans and sent off through a gate; a sent van is worth 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("depot")
        self._begin(0)

        @server.tool
        def list_parcels() -> list[str]:
            """List what waits in the depot."""
            return sorted(label for label, parcel in self.parcels.items() if parcel["van"] is None)

        @server.tool
        def weigh_parcel(label: str = Field(description="label of the parcel")) -> dict[str, int]:
            """Weigh one parcel in the depot."""
            return {"kilograms": self._waiting(label)["kilograms"]}

        @server.tool
        def insure_parcel(
            label: str = Field(description="label of the parcel"),
            euros: int = Field(ge=100, le=500, description="value in euros, between 100 and 500"),
        ) -> str:
            """Insure one parcel in the depot."""
            self._waiting(label)["euros"] = euros
            return f"insured for {euros}"

        @server.tool
        def load_parcel(
            label: str = Field(description="label of the parcel"),
            van: Literal["north", "south"] = Field(description="the van"),
        ) -> str:
            """Put one parcel from the depot into a van."""
            self._waiting(label)["van"] = van
            return f"{label} is in the {van} van"

        @server.tool
        def open_gate() -> None:
            """Open the depot's gate; it closes behind every van."""
            self.gate_open = True

        @server.tool
        def send_van(van: Literal["north", "south"] = Field(description="the van")) -> list[str]:
            """Let a loaded van drive off; answers what it carries."""
            if not self.gate_open:
                raise ValueError("open the gate first")
            sent = sorted(label for label, parcel in self.parcels.items() if parcel["van"] == van)
            if not sent:
                raise ValueError(f"the {van} van is empty: load a parcel first")
            self.parcels = {label: one for label, one in self.parcels.items() if label not in sent}
            self.gate_open, self.sent = False, True
            return sent

        super().__init__(server)

    def _begin(self, index: int) -> None:
        rng = random.Random(index)
        self.parcels = {
            label: {"kilograms": rng.randint(1, 15), "euros": 0, "van": None} for label in rng.sample(LABELS, 4)
        }
        self.gate_open, self.sent, self.steps = rng.random() < 0.2, False, 0

    def _waiting(self, label: str) -> dict[str, Any]:
        if label not in self.parcels or self.parcels[label]["van"] is not None:
            raise ValueError(f"no parcel {label!r} waits in the depot: list parcels first")
        return self.parcels[label]

    def reset(self, seed: int | None = None, episode_id: str | None = None, split: str = "train", index: int = 0):
        self._begin(index)
        return Observation(metadata={"instruction": "Send a van off."})

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        if isinstance(seen, CallToolObservation):
            self.steps += 1
            seen.reward = float(self.sent)
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise ValueError("call a tool")

    @property
    def state(self) -> State:
        if KIND == "blind":
            return State(step_count=self.steps)
        return DepotState(step_count=self.steps, parcels=self.parcels, gate_open=self.gate_open)


class Walk(Action):
    move: Literal["left", "right"] = Field(description="where to go")


class Seen(Observation):
    at: int = 0


class Walker(Environment):
    """A walker on a line; three steps to the right are worth 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    at = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Seen:
        self.at = 0
        return Seen()

    def step(self, action: Walk, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self.at += 1 if action.move == "right" else -1
        return Seen(at=self.at, reward=float(self.at == 3), done=self.at == 3)

    @property
    def state(self) -> State:
        return State(at=self.at)


if KIND == "typed":
    app = create_app(Walker, Walk, Seen, env_name="walker", max_concurrent_envs=SESSIONS)
else:
    app = create_app(Depot, CallToolAction, CallToolObservation, env_name="depot", max_concurrent_envs=SESSIONS)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="warning")
