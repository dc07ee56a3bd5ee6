"""The state that flows between the nodes of the graph: ids and paths, and a few lines that say what happened.

Each superstep stores the whole state, so records stay in the run directory and only their ids travel. The digests are
for people: no node reads them. Fields that join updates are lists, not tuples: a checkpoint returns tuples as lists.
"""

from __future__ import annotations

import operator
from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from graph.report.digest import Digest, ended, joined

Ids = SkipValidation[tuple[str, ...]]
NEWEST = -1
"""Given as the number of an iteration: the newest one whose round of training is done."""


class RunContext(BaseModel):
    """Where the graph pauses. It works on the run that the server opened, with the settings of that run."""

    # Shown as a form. graph.studio.forks resolves it to the graph.assembly.RunServices that nodes find in
    # runtime.context; a command gives those directly.
    model_config = ConfigDict(frozen=True, extra="forbid")

    pause: SkipValidation[Literal["", "explore", "verify"]] = Field(
        "",
        description="stop every branch before this step, so that its context or its drafts can be read, and edited in "
        "the answer; run the thread again with an empty value to go on",
    )


class IterationInput(BaseModel):
    """The input of the graph of an iteration."""

    model_config = ConfigDict(extra="forbid")

    iteration: SkipValidation[Annotated[int, Field(ge=NEWEST)]] = Field(
        NEWEST,
        description="number of the iteration whose trajectories are read, from 0; -1: the newest one whose round of "
        "training is done",
    )


class IterationState(BaseModel):
    """One iteration: its number, what each node did in a few lines, then the ids that each node found.

    ``new`` are the contexts that get a branch; ``finished`` and ``failed`` are the branches that ended.
    ``graph.studio.forks`` refuses wrong values before a node runs: a schema that refused them would
    make their thread unreadable, too.
    """

    model_config = ConfigDict(extra="forbid")

    iteration: SkipValidation[Annotated[int, Field(ge=NEWEST)]] = Field(
        NEWEST, description="number of the iteration whose trajectories are read, from 0"
    )
    digest: Annotated[SkipValidation[Digest], joined] = Field(
        {}, description="what each node did, in a few lines; for people, no node reads it"
    )
    branches: Annotated[SkipValidation[list[str]], ended] = Field([], description="each branch that ended, a line each")
    signals: Ids = Field((), description="ids of the chosen signals")
    contexts: Ids = Field((), description="ids of the failure contexts that reflectors made")
    new: Ids = Field((), description="ids of the contexts that memory did not know")
    run: SkipValidation[str] = Field("", description="name of the copy that Studio's nodes work in; empty: the run")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")


class SeedState(BaseModel):
    """One batch of unguided exploration: the ids of its contexts, and the branches that ended."""

    model_config = ConfigDict(extra="forbid")

    branches: Annotated[SkipValidation[list[str]], ended] = Field([], description="each branch that ended, a line each")
    contexts: tuple[str, ...] = Field((), description="ids of the unguided contexts to explore")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")


class BranchState(BaseModel):
    """One context's branch. ``stage`` is the folder of the run that holds ``branches/CONTEXT_ID``."""

    model_config = ConfigDict(extra="forbid")

    weakness: str = Field("", description="the weakness that the branch explores, in words")
    digest: Annotated[SkipValidation[Digest], joined] = Field({}, description="what each node did, in a few lines")
    stage: str = Field(description="folder below the run directory: iterations/NNN, or seed")
    context_id: str
    run: str = Field("", description="name of the copy that Studio's nodes work in; empty: the run")
    keep: bool = Field(False, description="take what an earlier branch left in the folder, in a copy of the run")
    branches: list[str] = Field([], description="the whole branch on one line, once it ended")
    finished: list[str] = []


class BranchEnd(BaseModel):
    """The output of a branch for the graph around it: that it finished."""

    branches: list[str] = []
    finished: list[str] = []


class IterationUpdate(TypedDict, total=False):
    """The keys that a node of an iteration may write; LangGraph drops others silently, mypy refuses them."""

    iteration: int
    digest: Digest
    signals: tuple[str, ...]
    contexts: tuple[str, ...]
    new: tuple[str, ...]


class BranchUpdate(TypedDict, total=False):
    """The keys that a node of a branch, or the handler of its failure, may write."""

    digest: Digest
    branches: list[str]
    finished: list[str]
    failed: list[str]
