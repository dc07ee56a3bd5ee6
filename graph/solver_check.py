"""Lets a solver try an accepted draft: its success rate goes into the verdict, and may refuse the draft (ours)."""

from __future__ import annotations

from agents.roles import RoleRefused, Solved, Solver
from agents.settings import RolesSettings
from environments.base import Environment
from environments.verification import Refusal
from memory.records import Draft, Verdict


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
