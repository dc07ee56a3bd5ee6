"""Novelty: the contexts whose (tool, error class) was explored least go first, a share a kind."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from graph.nodes.reflect import most_novel
from memory.records import PAPER_KINDS, FailureContext, SignalKind, Unsignalled
from training.signal_settings import ExperimentalSignals, SignalSettings

FORGETTING, BOUNDARY, RARE = PAPER_KINDS


def context(
    identifier: str, tool: str, error: str = "", kind: SignalKind | Unsignalled | None = BOUNDARY
) -> FailureContext:
    return FailureContext(
        id=identifier, kind=kind, environment="e", tool=tool, error_class=error, classes=(), initial_state={}, tools=()
    )


def chosen(candidates: list[FailureContext], explored: list[FailureContext], budget: int, seed: int = 1) -> list[str]:
    limits = SignalSettings(contexts_per_iteration=budget, experimental=ExperimentalSignals(novelty=True))
    return [one.id for one in most_novel(candidates, explored, limits, seed)]


def test_the_least_explored_tool_and_error_class_goes_first() -> None:
    explored = [context("x", "ls"), context("y", "ls"), context("z", "cd", "no such folder")]
    candidates = [context("a", "ls"), context("b", "cd", "no such folder"), context("c", "cd", "it is a file")]
    assert chosen(candidates, explored, 1) == ["c"]
    assert chosen(candidates, explored, 2) == ["b", "c"]
    assert chosen(candidates, explored, 3) == ["a", "b", "c"]


def test_what_was_just_chosen_counts_as_explored() -> None:
    candidates = [context(f"a{n}", "ls") for n in range(5)] + [context("b", "cd"), context("c", "cat")]
    for seed in range(5):
        assert {"b", "c"} < set(chosen(candidates, [], 3, seed))


def test_among_equals_the_seed_decides() -> None:
    candidates = [context(f"a{n}", f"tool-{n}") for n in range(10)]
    assert len({tuple(chosen(candidates, [], 3, seed)) for seed in range(10)}) > 5


def test_each_kind_keeps_its_share() -> None:
    kinds = [FORGETTING] * 20 + [BOUNDARY] * 20 + [RARE] * 20
    candidates = [context(f"{kind}-{n:02d}", f"tool-{n % 3}", kind=kind) for n, kind in enumerate(kinds)]
    found = Counter(identifier.partition("-")[0] for identifier in chosen(candidates, [], 10))
    assert found == {"forgetting": 3, "boundary": 5, "rare": 2}


def test_contexts_without_a_signal_are_never_chosen() -> None:
    assert chosen([context("a", "ls", kind=None), context("b", "ls", kind=Unsignalled.RANDOM)], [], 5) == []


made = st.lists(
    st.builds(
        context,
        st.integers(0, 999).map(str),
        st.sampled_from(["ls", "cd", "cat"]),
        st.sampled_from(["", "no"]),
        st.sampled_from(PAPER_KINDS),
    ),
    max_size=25,
    unique_by=lambda one: one.id,
)


@settings(max_examples=100, deadline=None)
@given(candidates=made, explored=made, budget=st.integers(1, 12), seed=st.integers(0, 2**40), data=st.data())
def test_what_holds_for_every_choice(
    candidates: list[FailureContext], explored: list[FailureContext], budget: int, seed: int, data: st.DataObject
) -> None:
    first = chosen(candidates, explored, budget, seed)
    again = chosen(data.draw(st.permutations(candidates)), data.draw(st.permutations(explored)), budget, seed)
    assert first == again == sorted(first)
    assert len(set(first)) == len(first) == min(budget, len(candidates))
    counts = Counter((one.tool, one.error_class) for one in explored)
    for kind in PAPER_KINDS:
        # Before the first of a kind is chosen nothing of the batch counts, when the other kinds have none.
        of_kind = [one for one in candidates if one.kind is kind]
        alone = chosen(of_kind, explored, 1, seed)
        if of_kind:
            (best,) = [one for one in of_kind if one.id in alone]
            assert counts[best.tool, best.error_class] == min(counts[one.tool, one.error_class] for one in of_kind)
