"""The ledger: what was spent survives the process, and budgets hold."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.settings import BudgetSettings
from agents.spending import BudgetReached, Ledger, Request, added, read_requests
from environments.base import InputError
from memory.records import Measured

COST = Measured(seconds=2.0, calls=3, prompt_tokens=100, completion_tokens=10, money=0.5)


def request(subject: str = "context-1") -> Request:
    return Request(role="explorer", subject=subject, iteration=0, outcome="answered", measured=COST)


def spend(ledger: Ledger, subject: str) -> None:
    ledger.pay(COST)
    ledger.add(request(subject))


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    path = tmp_path / "run" / "spending.jsonl"
    first = Ledger(path, BudgetSettings())
    assert not path.exists()
    spend(first, "a")
    spend(first, "b")
    second = Ledger(path, BudgetSettings(calls=6))
    assert second.spent() == first.spent() == added(COST, COST)
    assert second.reached() == "roles.budget.calls"
    assert [one.subject for one in read_requests(path)] == ["a", "b"]


def test_half_a_line_of_a_killed_process_is_cut_off_by_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "spending.jsonl"
    Ledger(path, BudgetSettings()).add(request("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    ledger = Ledger(path, BudgetSettings())
    assert (ledger.spent(), len(read_requests(path))) == (COST, 1)
    assert path.read_bytes() == whole + whole[:40], "whoever only looks changes nothing"
    ledger.add(request("b"))
    assert [one.subject for one in read_requests(path)] == ["a", "b"]


def test_a_file_of_half_a_line_only(tmp_path: Path) -> None:
    path = tmp_path / "spending.jsonl"
    path.write_bytes(b'{"role": "expl')
    ledger = Ledger(path, BudgetSettings())
    ledger.add(request("b"))
    assert [one.subject for one in read_requests(path)] == ["b"]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spending.jsonl"
    Ledger(path, BudgetSettings()).add(request())
    path.write_bytes(path.read_bytes() + b'{"role": 3}\n')
    with pytest.raises(InputError, match=r"spending\.jsonl, line 2: role"):
        Ledger(path, BudgetSettings())


def test_threads_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spending.jsonl"
    ledger = Ledger(path, BudgetSettings())
    threads = [threading.Thread(target=lambda n=n: [spend(ledger, f"{n}-{i}") for i in range(20)]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.subject for one in read_requests(path)}) == 160
    assert ledger.spent().calls == 480


def test_what_was_paid_before_is_not_counted_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spending.jsonl", BudgetSettings(calls=3))
    ledger.pay(COST)
    with pytest.raises(BudgetReached):
        ledger.check()
    ledger.add(request())
    assert ledger.spent() == COST == Ledger(tmp_path / "spending.jsonl", BudgetSettings()).spent()


costs = st.builds(
    Measured,
    calls=st.integers(0, 9),
    prompt_tokens=st.integers(0, 99),
    completion_tokens=st.integers(0, 99),
    money=st.integers(0, 8).map(lambda eighths: eighths / 8),
)
limits = st.builds(
    BudgetSettings,
    tokens=st.none() | st.integers(1, 500),
    calls=st.none() | st.integers(1, 30),
    money=st.none() | st.integers(1, 40).map(lambda eighths: eighths / 8),
)


@settings(deadline=None)
@given(st.lists(costs, max_size=8), limits)
def test_a_budget_is_reached_exactly_when_it_is_spent(spent: list[Measured], budget: BudgetSettings) -> None:
    ledger = Ledger(None, budget)
    for cost in spent:
        ledger.pay(cost)
    left = {
        "tokens": (budget.tokens or math.inf) - sum(one.prompt_tokens + one.completion_tokens for one in spent),
        "calls": (budget.calls or math.inf) - sum(one.calls for one in spent),
        "money": (budget.money or math.inf) - sum(one.money for one in spent),
    }
    gone = [name for name, amount in left.items() if amount <= 0]
    assert ledger.reached() == (f"roles.budget.{gone[0]}" if gone else None)
    if gone:
        with pytest.raises(BudgetReached, match=rf"^roles\.budget\.{gone[0]} \(.*\) is spent: raise it and go on with"):
            ledger.check()
    else:
        ledger.check()


def test_a_text_that_cannot_be_encoded_is_recorded_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "spending.jsonl"
    Ledger(path, BudgetSettings()).add(
        Request(
            role="explorer", subject="a\udfff", iteration=0, outcome="failed", faults=("half: \ud800",), measured=COST
        )
    )
    (read,) = read_requests(path)
    assert (read.subject, read.faults, read.measured) == ("a\\udfff", ("half: \\ud800",), COST)
