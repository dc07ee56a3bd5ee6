"""What flows between the nodes of the graph: ids and paths, never payloads.

Each superstep stores the whole state, so records stay in the run directory and only their ids travel. Lists, not
tuples, where updates are joined: a checkpoint gives tuples back as lists.
"""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

Ids = SkipValidation[tuple[str, ...]]

SEED_STAGE = "seed"
"""The stage of D_0: a folder below the run directory, like each iteration's."""


def iteration_stage(iteration: int) -> str:
    """The stage of an iteration: its folder below the run directory."""
    return f"iterations/{iteration:03d}"


class RunContext(BaseModel):
    """Which run the graph works on; Studio shows it as a form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(
        "",
        description="path of the run directory; empty: the run named by COEVOLVE_RUN, else the newest under runs/. A "
        "server of LangGraph Studio works on the run that it opened and refuses another",
    )


class IterationState(BaseModel):
    """One iteration: its number, then the ids that each node found.

    ``new`` are the contexts that get a branch; ``finished`` and ``failed`` are the branches that ended. Wrong values
    are refused by the nodes (``graph.forks``): a schema that refused them would refuse to show their thread, too.
    """

    model_config = ConfigDict(extra="forbid")

    iteration: SkipValidation[Annotated[int, Field(ge=0)]] = Field(
        -1, description="number of the iteration whose trajectories are read, from 0"
    )
    signals: Ids = Field((), description="ids of the signals that were chosen")
    contexts: Ids = Field((), description="ids of the failure contexts that were reflected")
    new: Ids = Field((), description="ids of the contexts that memory did not know")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")


class SeedState(BaseModel):
    """One batch of unguided exploration: the ids of its contexts, and the branches that ended."""

    model_config = ConfigDict(extra="forbid")

    contexts: tuple[str, ...] = Field((), description="ids of the unguided contexts to explore")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")


class BranchState(BaseModel):
    """One context's branch. ``stage`` is the folder of the run that holds ``branches/CONTEXT_ID``."""

    model_config = ConfigDict(extra="forbid")

    stage: str = Field(description="folder below the run directory: iterations/NNN, or seed")
    context_id: str
    run: str = Field("", description="name of the copy of the run in which a fork works; empty: the run itself")
    finished: list[str] = []


class BranchEnd(BaseModel):
    """What a branch hands to the graph around it."""

    finished: list[str] = []


class IterationUpdate(TypedDict, total=False):
    """What a node of an iteration may write. LangGraph drops other keys silently, so the type checker refuses them."""

    signals: tuple[str, ...]
    contexts: tuple[str, ...]
    new: tuple[str, ...]


class BranchUpdate(TypedDict, total=False):
    """What a node of a branch, or the handler of its failure, may write."""

    finished: list[str]
    failed: list[str]
