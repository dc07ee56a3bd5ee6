"""The quota: exactly so many accepted drafts stay, and which is a matter of the seed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from environments.verification.verify import Refusal
from graph.ours import quota_of, within_quota
from memory.records import DraftVerification
from memory.tasks import TaskSettings

verifications = st.lists(
    st.builds(
        lambda number, accepted: DraftVerification(
            draft_id=f"draft-{number:03d}",
            context_id="context",
            accepted=accepted,
            reason=None if accepted else Refusal.TOO_LONG,
        ),
        st.integers(0, 99),
        st.booleans(),
    ),
    unique_by=lambda verification: verification.draft_id,
)


@given(given_=verifications, quota=st.integers(0, 12), seed=st.integers(0, 2**40), data=st.data())
def test_what_holds_for_every_quota(
    given_: list[DraftVerification], quota: int, seed: int, data: st.DataObject
) -> None:
    held = within_quota(given_, quota, seed)
    assert [one.draft_id for one in held] == [one.draft_id for one in given_]
    accepted = {one.draft_id for one in given_ if one.accepted}
    kept = {one.draft_id for one in held if one.accepted}
    assert kept <= accepted
    assert len(kept) == min(quota, len(accepted))
    for before, after in zip(given_, held, strict=True):
        if before.draft_id in accepted - kept:
            assert (after.accepted, after.reason) == (False, Refusal.OVER_QUOTA)
            assert f"admits {quota}" in after.detail
        else:
            assert after == before
    shuffled = within_quota(data.draw(st.permutations(given_)), quota, seed)
    assert {one.draft_id for one in shuffled if one.accepted} == kept


def test_the_seed_decides_who_stays() -> None:
    made = [DraftVerification(draft_id=f"draft-{n}", context_id="context", accepted=True) for n in range(10)]
    kept = {tuple(one.draft_id for one in within_quota(made, 3, seed) if one.accepted) for seed in range(10)}
    assert len(kept) > 5


def test_each_iteration_has_its_number() -> None:
    assert quota_of(TaskSettings(), 4) is None
    settings = TaskSettings(admissions=(3, 0, 7))
    assert [quota_of(settings, iteration) for iteration in range(3)] == [3, 0, 7]
