"""Rules on one context's drafts: accepted, or refused with the reason."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path

from langgraph.runtime import Runtime

from agents.roles import RoleRefused, Solved, Solver
from agents.settings import RolesSettings
from environments.base import Environment
from environments.verification.verify import Refusal, can_train
from environments.verification.verify import verify as verify_draft
from graph.assembly import Rooms, open_rooms
from graph.forks import on_its_run
from graph.records import KnownTasks
from graph.state import BranchState, BranchUpdate, RunContext
from memory.records import Draft, FailureContext, Verdict
from memory.run import read_json, read_jsonl, write_jsonl

# Lets a solver try an accepted draft: its success rate goes into the verdict, and may refuse the draft (ours).


async def with_solver(
    solver: Solver, draft: Draft, verdict: Verdict, environment: Environment, iteration: int, settings: RolesSettings
) -> Verdict:
    """The verdict with what the solver made of the draft; a refused draft is not tried.

    A solver that cannot be asked (no usable reply, a spent budget) leaves no rate. The reason stands in ``detail``;
    the draft is then refused where a gate is set, and stays accepted where the rate is only recorded.
    """
    if not verdict.accepted:
        return verdict
    try:
        solved = await solver.solve(draft, environment, iteration)
    except RoleRefused as refusal:
        return _unsolved(verdict, f"No attempt of the solver could be judged: {refusal}", settings)
    return _gated(verdict, solved, settings)


def _unsolved(verdict: Verdict, detail: str, settings: RolesSettings) -> Verdict:
    gated = settings.solver_min is not None or settings.solver_max is not None
    change = {"accepted": False, "reason": Refusal.SOLVER.value} if gated else {}
    return verdict.model_copy(update={"detail": detail, **change})


def _gated(verdict: Verdict, solved: Solved, settings: RolesSettings) -> Verdict:
    judged = verdict.model_copy(update={"solved": solved.rate, "attempts": solved.attempts})
    key = None
    if settings.solver_min is not None and solved.rate < settings.solver_min:
        key, word, bound = "solver_min", "below", settings.solver_min
    elif settings.solver_max is not None and solved.rate > settings.solver_max:
        key, word, bound = "solver_max", "above", settings.solver_max
    if key is None:
        return judged
    detail = f"Its success rate over {solved.attempts} attempts is {solved.rate:.2f}, {word} roles.{key} ({bound:g})."
    return judged.model_copy(update={"accepted": False, "reason": Refusal.SOLVER.value, "detail": detail})


@on_its_run
async def verify(state: BranchState, runtime: Runtime[RunContext]) -> BranchUpdate:
    """Reads the branch's drafts.jsonl and the stage's known.json, writes the branch's verdicts.jsonl.

    Drafts that the environment accepts are then tried by the solver, where there is one; D_0's are not. A draft that
    equals one of another branch is not seen here: ``update`` resolves those, in order of id. With verification off,
    an iteration's drafts are only asked whether an agent can be trained on them; D_0's are verified all the same.
    """
    rooms = await asyncio.to_thread(open_rooms, runtime.context)
    folder = rooms.branch_folder(state)
    context = await asyncio.to_thread(read_json, folder / "context.json", FailureContext)
    drafts, verdicts = await asyncio.to_thread(_verdicts, rooms, state, folder, context)
    solver, iteration = rooms.roles_for(context).solver, context.iteration
    if solver is not None and iteration is not None:
        settings = rooms.settings.roles
        tried = (
            with_solver(solver, draft, verdict, rooms.environment, iteration, settings)
            for draft, verdict in zip(drafts, verdicts, strict=True)
        )
        verdicts = await asyncio.gather(*tried)
    await asyncio.to_thread(write_jsonl, folder / "verdicts.jsonl", verdicts)
    rooms.breaker.succeeded()
    return {"finished": [state.context_id]}


def _verdicts(
    rooms: Rooms, state: BranchState, folder: Path, context: FailureContext
) -> tuple[list[Draft], list[Verdict]]:
    """The branch's drafts and what the environment's replays say of them, place by place."""
    settings = rooms.settings.verification
    unverified = not settings.enabled and context.iteration is not None
    path = rooms.run.root / state.stage / "known.json"
    known = _known(path, path.stat().st_mtime_ns)
    drafts = read_jsonl(folder / "drafts.jsonl", Draft)
    verdicts = []
    for draft in drafts:
        if unverified:
            ruling = can_train(draft, rooms.environment, known, rooms.sealed)
        else:
            ruling = verify_draft(draft, rooms.environment, known, rooms.sealed, settings)
        verdicts.append(
            Verdict(
                draft_id=draft.id,
                context_id=draft.context_id,
                accepted=ruling.accepted,
                reason=ruling.reason,
                detail=ruling.detail,
                nearest=ruling.nearest,
            )
        )
    return drafts, verdicts


@lru_cache(maxsize=1)
def _known(path: Path, _written: int) -> frozenset[str]:
    """Read once for all branches of a stage; rewriting the file makes it another one."""
    return frozenset(read_json(path, KnownTasks).fingerprints)
