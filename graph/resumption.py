"""Says whether a thread's state is the one that the run recorded: it may have been edited in LangGraph Studio."""

from __future__ import annotations

from environments.base import InputError
from graph.records import ExtractionRecord, Fork
from graph.state import IterationState
from memory.failures import DeduplicationResult
from memory.records import FailureContext
from memory.run import RunDirectory, read_json, read_jsonl

# The ids of the state that a node takes; nodes before it wrote their records.
_TAKEN = {"extract": (), "reflect": ("signals",), "deduplicate": ("signals", "contexts")}
_ALL = ("signals", "contexts", "new")


def as_recorded(run: RunDirectory, state: IterationState, node: str) -> bool:
    """Return whether the ids that ``node`` takes from the state are those that earlier nodes wrote into ``run``."""
    folder = run.iteration(state.iteration)

    def written(name: str) -> list[str]:
        if name == "signals":
            return list(read_json(folder.extraction, ExtractionRecord).chosen)
        if name == "contexts":
            return [one.id for one in read_jsonl(folder.contexts, FailureContext)]
        return [one.context_id for one in read_jsonl(folder.judgements, DeduplicationResult) if one.status == "new"]

    files = {"signals": folder.extraction, "contexts": folder.contexts, "new": folder.judgements}
    return all(
        files[name].exists() and sorted(getattr(state, name)) == sorted(written(name))
        for name in _TAKEN.get(node, _ALL)
    )


def refuse_unfinished(run: RunDirectory, iteration: int) -> None:
    """Raise InputError for a copy whose own graph call has not ended: only its thread has the edited state."""
    if run.fork_path.exists():
        fork = read_json(run.fork_path, Fork)
        if fork.iteration == iteration and not run.iteration(iteration).evolution.exists():
            raise InputError(
                f"{run.root} is a fork of {fork.of} whose graph has not ended: go on with thread {fork.thread} in "
                f"LangGraph Studio, or remove {run.root}"
            )
