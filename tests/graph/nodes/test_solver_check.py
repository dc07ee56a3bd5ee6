"""The solver's rate in a verification, and the gate: tables and properties, without a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.made_run import ENVIRONMENT, first_tasks

from agents.roles import RoleRefused, Solved
from agents.settings import RoleSettings, RolesSettings
from agents.spending import BudgetReached
from environments.base import Environment
from graph.nodes.verify import with_solver
from memory.records import Draft, DraftVerification

CHAT = RoleSettings(kind="chat", model="some-model")
RATES = st.floats(min_value=0.0, max_value=1.0)
ACCEPTED = DraftVerification(draft_id="draft-1", context_id="context-1", accepted=True)
REFUSED = DraftVerification(
    draft_id="draft-1", context_id="context-1", accepted=False, reason="no_effect", detail="Nothing."
)


class Solver:
    """Gives one answer, or raises it; counts how often it was asked."""

    def __init__(self, answer: Solved | Exception) -> None:
        self._answer = answer
        self.asked = 0

    async def solve(self, draft: Draft, environment: Environment, iteration: int | None) -> Solved:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def settings(lowest: float | None = None, highest: float | None = None) -> RolesSettings:
    return RolesSettings(solver=CHAT, solver_min=lowest, solver_max=highest)


async def check(solver: Solver, verification: DraftVerification, roles: RolesSettings) -> DraftVerification:
    task = first_tasks()[0].model_dump(exclude={"id", "origin", "parents", "admitted_at"})
    draft = Draft(**task, id="draft-1", context_id="context-1")
    return await with_solver(solver, draft, verification, ENVIRONMENT, 0, roles)


@pytest.mark.parametrize(
    ("rate", "lowest", "highest", "told"),
    [
        (0.0, None, None, None),
        (0.25, 0.25, 0.75, None),
        (0.75, 0.25, 0.75, None),
        (0.0, 0.25, None, "0.00, below roles.solver_min (0.25)"),
        (1.0, None, 0.75, "1.00, above roles.solver_max (0.75)"),
    ],
)
async def test_the_rate_is_recorded_and_gates_where_a_gate_is_set(rate, lowest, highest, told) -> None:
    checked = await check(Solver(Solved(rate=rate, attempts=4)), ACCEPTED, settings(lowest, highest))
    assert (checked.solved, checked.attempts) == (rate, 4)
    assert checked.accepted is (told is None)
    assert checked.reason == (None if told is None else "solver")
    assert (told or "") in checked.detail


async def test_a_refused_draft_is_not_tried() -> None:
    solver = Solver(Solved(rate=1.0, attempts=4))
    assert await check(solver, REFUSED, settings(0.5)) == REFUSED
    assert solver.asked == 0


@pytest.mark.parametrize("refusal", [RoleRefused("no usable reply"), BudgetReached("roles.budget.tokens (9) is spent")])
async def test_without_a_rate_a_gate_does_not_pass_and_a_record_says_why(refusal: RoleRefused) -> None:
    recorded = await check(Solver(refusal), ACCEPTED, settings())
    assert (recorded.accepted, recorded.solved, recorded.attempts) == (True, None, 0)
    assert str(refusal) in recorded.detail
    gated = await check(Solver(refusal), ACCEPTED, settings(highest=1.0))
    assert (gated.accepted, gated.reason, gated.solved) == (False, "solver", None)
    assert str(refusal) in gated.detail


@given(rate=RATES, bounds=st.tuples(RATES, RATES).map(sorted))
async def test_what_passes_lies_between_the_bounds(rate: float, bounds: list[float]) -> None:
    checked = await check(Solver(Solved(rate=rate, attempts=1)), ACCEPTED, settings(*bounds))
    assert checked.accepted is (bounds[0] <= rate <= bounds[1])
