"""The state that flows between the nodes of the graph: ids and paths, never payloads.

Each superstep stores the whole state, so records stay in the run directory and only their ids travel. Fields that join
updates are lists, not tuples: a checkpoint returns tuples as lists.
"""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

Ids = SkipValidation[tuple[str, ...]]


class RunContext(BaseModel):
    """Which run the graph works on; LangGraph Studio shows it as a form.

    ``graph.forks`` resolves it to the ``graph.assembly.RunServices`` that nodes find in ``runtime.context``. A command
    gives those directly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(
        "",
        description="path of the run directory; empty: the run named by COEVOLVE_RUN, else the newest under runs/. A "
        "server of LangGraph Studio works on the run that it opened and refuses another",
    )


class IterationState(BaseModel):
    """One iteration: its number, then the ids that each node found.

    ``new`` are the contexts that get a branch; ``finished`` and ``failed`` are the branches that ended. ``graph.forks``
    refuses wrong values before a node runs: a schema that refused them would make their thread unreadable, too.
    """

    model_config = ConfigDict(extra="forbid")

    iteration: SkipValidation[Annotated[int, Field(ge=0)]] = Field(
        -1, description="number of the iteration whose trajectories are read, from 0"
    )
    signals: Ids = Field((), description="ids of the chosen signals")
    contexts: Ids = Field((), description="ids of the failure contexts that reflectors made")
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
    """The output of a branch for the graph around it."""

    finished: list[str] = []


class IterationUpdate(TypedDict, total=False):
    """The keys that a node of an iteration may write; LangGraph drops others silently, mypy refuses them."""

    signals: tuple[str, ...]
    contexts: tuple[str, ...]
    new: tuple[str, ...]


class BranchUpdate(TypedDict, total=False):
    """The keys that a node of a branch, or the handler of its failure, may write."""

    finished: list[str]
    failed: list[str]
