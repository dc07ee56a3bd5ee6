"""Rules on one context's drafts: accepted, or refused with the reason."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path

from langgraph.runtime import Runtime

from environments.verification import verify as verify_draft
from graph.assembly import Rooms, open_rooms
from graph.records import KnownTasks
from graph.state import BranchState, BranchUpdate, RunContext
from memory.records import Draft, Verdict
from memory.run import read_json, read_jsonl, write_jsonl


async def verify(state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
    """Reads the branch's drafts.jsonl and the stage's known.json, writes the branch's verdicts.jsonl.

    A draft that equals one of another branch is not seen here: ``update`` resolves those, in order of id.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    await asyncio.to_thread(_verify_branch, rooms, state)
    return {"finished": [state.context_id]}


def _verify_branch(rooms: Rooms, state: BranchState) -> None:
    folder = rooms.branch_folder(state)
    path = rooms.run.root / state.stage / "known.json"
    known = _known(path, path.stat().st_mtime_ns)
    verdicts = []
    for draft in read_jsonl(folder / "drafts.jsonl", Draft):
        ruling = verify_draft(draft, rooms.environment, known, rooms.sealed, rooms.settings.verification)
        verdicts.append(
            Verdict(
                draft_id=draft.id,
                context_id=draft.context_id,
                accepted=ruling.accepted,
                reason=ruling.reason,
                detail=ruling.detail,
            )
        )
    write_jsonl(folder / "verdicts.jsonl", verdicts)


@lru_cache(maxsize=1)
def _known(path: Path, _written: int) -> frozenset[str]:
    """Read once for all branches of a stage; rewriting the file makes it another one."""
    return frozenset(read_json(path, KnownTasks).fingerprints)
