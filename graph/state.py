"""The state that flows between the nodes of the graph: ids and paths, and a few lines that say what happened.

Each superstep stores the whole state, so records stay in the run directory and only their ids travel. The digests are
for people: no node reads them. Fields that join updates are lists, not tuples: a checkpoint returns tuples as lists.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from graph.digests import Digest, ended, joined

Ids = SkipValidation[tuple[str, ...]]
NEWEST = -1
"""Given as the number of an iteration: the newest one whose round of training is done."""


def edited(old: object, new: object) -> object:
    """Return the edits after a write: those of people and nodes, a dict, replace them; those of branches, a list, join.

    Branches end at the same time. LangGraph calls this with what people may have edited, so it takes every value.
    """
    if not isinstance(new, list) or not all(isinstance(one, dict) for one in (old, *new)):
        return new
    edits: dict[object, object] = dict(cast("dict[object, object]", old))
    for name, fields in (pair for one in new for pair in one.items()):
        former = edits.get(name)
        edits[name] = {**former, **fields} if isinstance(former, dict) and isinstance(fields, dict) else fields
    return edits


Edits = Annotated[SkipValidation[dict[str, Any]], edited]


class RunContext(BaseModel):
    """Which run the graph works on, and where it pauses. A run's settings are in its settings.yaml, and stay."""

    # Shown as a form. graph.studio.forks resolves it to the graph.assembly.RunServices that nodes find in
    # runtime.context; a command gives those directly.
    model_config = ConfigDict(frozen=True, extra="forbid")

    run: SkipValidation[str] = Field(
        "",
        description="path of the run directory; empty: the run named by COEVOLVE_RUN, else the newest under runs/. A "
        "server of LangGraph Studio works on the run that it opened and refuses another",
    )
    pause: SkipValidation[Literal["", "explore", "abstract", "verify"]] = Field(
        "",
        description="stop every branch before this step, so that its records can be read, and edited in the answer; "
        "run the thread again with an empty value to go on",
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

    ``new`` are the contexts that get a branch; ``finished`` and ``failed`` are the branches that ended. ``again`` and
    ``edits`` are set by people only, in forks and in answers to branches that wait. ``graph.studio.forks`` refuses
    wrong values before a node runs: a schema that refused them would make their thread unreadable, too.
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
    again: Ids = Field((), description="contexts of new whose branch alone is run (again); empty: every one of new")
    edits: Edits = Field(
        {}, description="changed fields of contexts and drafts by id, such as {DRAFT_ID: {turns: [...]}}; in a copy"
    )
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")


class SeedState(BaseModel):
    """One batch of unguided exploration: the ids of its contexts, and the branches that ended."""

    model_config = ConfigDict(extra="forbid")

    branches: Annotated[SkipValidation[list[str]], ended] = Field([], description="each branch that ended, a line each")
    contexts: tuple[str, ...] = Field((), description="ids of the unguided contexts to explore")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")
    edits: Edits = Field({}, description="none: only branches of an iteration are edited")


class ExplorationInput(BaseModel):
    """The input of an unguided exploration."""

    model_config = ConfigDict(extra="forbid")

    start_states: SkipValidation[Annotated[int, Field(ge=1)]] = Field(
        4, description="start states to explore without a guide, a branch each, as for the first tasks of a run (D_0)"
    )


class ExplorationState(BaseModel):
    """Unguided exploration of a few start states, in a copy of the run that has its settings alone."""

    model_config = ConfigDict(extra="forbid")

    start_states: SkipValidation[int] = Field(4, description="start states to explore")
    digest: Annotated[SkipValidation[Digest], joined] = Field({}, description="what each node did, in a few lines")
    branches: Annotated[SkipValidation[list[str]], ended] = Field([], description="each branch that ended, a line each")
    contexts: Ids = Field((), description="ids of the unguided contexts")
    finished: Annotated[list[str], operator.add] = Field([], description="contexts whose branch finished")
    failed: Annotated[list[str], operator.add] = Field([], description="contexts whose branch failed")
    edits: Edits = Field({}, description="none: only branches of an iteration are edited")


class BranchState(BaseModel):
    """One context's branch. ``stage`` is the folder of the run that holds ``branches/CONTEXT_ID``."""

    model_config = ConfigDict(extra="forbid")

    weakness: str = Field("", description="the weakness that the branch explores, in words")
    digest: Annotated[SkipValidation[Digest], joined] = Field({}, description="what each node did, in a few lines")
    stage: str = Field(description="folder below the run directory: iterations/NNN, or seed")
    context_id: str
    run: str = Field("", description="name of the copy of the run in which a fork works; empty: the run itself")
    keep: bool = Field(False, description="take what an earlier branch left in the folder, in a copy with edits")
    branches: list[str] = Field([], description="the whole branch on one line, once it ended")
    finished: list[str] = []
    edits: list[dict[str, Any]] = Field([], description="changed fields by id, from the answer to a pause")


class BranchEnd(BaseModel):
    """The output of a branch for the graph around it: that it finished, or the edits that it is to begin again with."""

    branches: list[str] = []
    finished: list[str] = []
    edits: list[dict[str, Any]] = []


class IterationUpdate(TypedDict, total=False):
    """The keys that a node of an iteration may write; LangGraph drops others silently, mypy refuses them."""

    iteration: int
    digest: Digest
    again: tuple[str, ...]
    edits: dict[str, Any]
    signals: tuple[str, ...]
    contexts: tuple[str, ...]
    new: tuple[str, ...]


class BranchUpdate(TypedDict, total=False):
    """The keys that a node of a branch, or the handler of its failure, may write."""

    digest: Digest
    branches: list[str]
    finished: list[str]
    failed: list[str]
    edits: list[dict[str, Any]]
