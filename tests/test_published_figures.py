"""The tables of results in README and docs/ are those of the studies' reports, and of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

LOOP = {
    "initial policy": "starter",
    "plain GRPO on static D_0": "grpo",
    "full loop": "full",
    "contexts from random tasks and calls instead of signals": "random",
    "unguided exploration, as many tasks admitted": "unguided",
    "full, off-policy demonstrations for groups without success": "lent-reference",
    "plain GRPO, off-policy demonstrations": "static-lent-reference",
    "full with the forgetting signal alone, a third of the tasks": "forgetting-only",
}
SEAL = {
    "initial policy": "starter",
    "plain GRPO on static D_0": "grpo",
    "SEAL on static D_0": "seal",
    "without the interface": "seal-no-interface",
    "without weights": "seal-no-weights",
    "without what follows the failure profile": "seal-no-loop",
    "CoEvolve": "full",
    "CoEvolve and SEAL": "coevolve-seal",
}
WORLD = {
    "policy at the start": "starter",
    "plain GRPO on static D_0": "grpo",
    "the paper's loop, GRPO alone": "loop-without-expert",
    "SEAL on static D_0, GRPO alone": "seal",
    "the same with the fixed rho": "seal-fixed-rho",
    "the paper's loop with SEAL, GRPO alone": "coevolve-seal",
    "static D_0, an expert step with as many tokens": "static",
    "contexts from the paper's signals": "signals",
    "contexts from forgetting alone": "forgetting",
    "contexts from boundary alone": "boundary",
    "contexts from rare alone": "rare",
    "the paper's signals without forgetting": "without-forgetting",
    "the paper's signals without boundary": "without-boundary",
    "the paper's signals without rare": "without-rare",
    "the paper's signals, no deduplication": "no-deduplication",
    "the paper's signals, three of ten drafts wrong": "checked",
    "the same without verification": "unverified",
    "contexts from random tasks and calls": "random",
    "unguided exploration, as many tasks": "unguided",
    "contexts by coverage, no policy in the loop": "coverage",
    "**ours**: contexts by need": "ours",
    "nearest to a ceiling, 4,800 tasks": "everything",
}


def table(page: Path, header: str) -> dict[str, list[str]]:
    """Return the rows of the first table whose header has ``header``, by their first cell."""
    lines = iter(page.read_text().splitlines())
    assert any(header in line for line in lines), f"{page.name} has no table with {header!r}"
    rows: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    return {name: cells for name, cells in rows.items() if not set(name) <= {"-"}}


@pytest.mark.parametrize(
    ("page", "report", "arms", "least"),
    [("results/history/development.md", "learning", LOOP, 8), ("docs/seal.md", "seal", SEAL, 8)],
)
def test_tables_of_results_are_the_reports(page: str, report: str, arms: dict[str, str], least: int) -> None:
    reported = table(ROOT / "results" / "history" / report / "summary.md", "| arm | n seeds | success |")
    rows = table(ROOT / page, "| minus plain GRPO |")
    assert len(rows) >= least
    for name, (seeds, success, minus, interval, without) in rows.items():
        n, score, _, difference, between, _, score_without, minus_without, *_ = reported[arms[name]]
        assert success == score, name
        if arms[name] == "starter":  # one policy: its difference by seed is of the other arm's
            assert (seeds, minus, interval, without) == ("", "", "", score_without)
            continue
        assert (seeds, minus, interval) == (n, difference, between), name
        gain = minus_without.partition(" ")[0].replace("-0.0", "0.0")
        assert without == (f"{score_without} ({gain})" if gain else score_without), name


FINDINGS = ROOT / "results" / "study-world" / "findings.md"
BETWEEN = re.compile(r"^-?[\d.]+ to -?[\d.]+$")


@pytest.mark.parametrize(
    ("header", "report", "rows_at_least"),
    [
        ("| recipes/study-world.yaml |", "study-world", 22),
        ("| recipes/study-world-large.yaml |", "study-world-large", 3),
    ],
)
def test_tables_of_the_world_are_the_reports(header: str, report: str, rows_at_least: int) -> None:
    """But for the intervals, which stay as they were published: the report has those of today's method."""
    reported = table(ROOT / "results" / report / "summary.md", "| arm | n seeds | success |")
    rows = table(FINDINGS, header)
    assert len(rows) >= rows_at_least
    for name, (seeds, *cells, lookup) in rows.items():
        arm = WORLD[name]
        n, success, *_, by_shape, _, minus, _ = reported[arm]
        assert [cells[0], cells[1], cells[3]] == [success, by_shape, minus], name
        assert all(not one or BETWEEN.match(one) for one in (cells[2], cells[4])), name
        assert seeds == ("" if arm == "starter" else n), name
        assert lookup == ("" if arm == "starter" else reported[f"{arm} (lookup)"][10]), name


def test_the_table_of_the_readme_is_that_of_the_results() -> None:
    published = table(FINDINGS, "| recipes/study-world.yaml |")
    rows = table(ROOT / "README.md", "| minus plain GRPO |")
    assert len(rows) >= 8
    for name, cells in rows.items():
        seeds, _, by_shape, _, minus, interval, *_, lookup = published[name.removesuffix(" (two seeds)")]
        assert cells == [by_shape, minus, interval, lookup], name
        assert seeds == ("2" if name.endswith("(two seeds)") else "6"), name


def test_conclusions_about_the_world_are_as_published() -> None:
    reported = table(ROOT / "results" / "study-world" / "summary.md", "| hypothesis | expected |")
    rows = table(FINDINGS, "| 95 % by the committed rule |")
    again = table(FINDINGS, "| 95 % by the method of today |")
    assert len(rows) == len(reported)
    for name, (expected, found, interval, _, p, conclusion) in rows.items():
        there = reported[name]
        assert (float(expected), found) == (float(there[0]), there[1]), name
        assert p == there[5] or float(p) == pytest.approx(float(there[5]), abs=6e-4), name
        assert interval == again[name][1], "a published interval is the same in both tables"
        low = float(interval.partition(" to ")[0])
        assert conclusion == ("shown" if low > 0 and float(p.strip("<")) < 0.05 else "not shown"), name


def test_intervals_by_the_method_of_today_are_the_reports() -> None:
    text = (ROOT / "results" / "study-world" / "summary.md").read_text()
    reported = text[text.index("**world-test**") : text.index("**world-longer-test**")]
    rows = table(FINDINGS, "| 95 % by the method of today |")
    assert len(rows) >= 10
    for name, (found, published, interval) in rows.items():
        there = re.search(rf"^{re.escape(name)}: .*; by shape (\S+) \(([^)]*)\);", reported, re.MULTILINE)
        assert there is not None, name
        assert (found, interval) == there.groups(), name
        assert BETWEEN.match(published), name


def test_shares_of_signals_are_the_reports() -> None:
    reported = table(ROOT / "results" / "study-world" / "summary.md", "| marks of the paper's kinds |")
    rows = table(FINDINGS, "| marks of the paper's kinds |")
    for name, (marks, *shares) in rows.items():
        if name.startswith("CoEvolve"):
            which = {"AppWorld": "first", "BFCL": "second"}[name.rpartition(" ")[2]]
            assert shares == reported[f"CoEvolve's figure 4, {which} benchmark"][2:], name
        else:
            assert [marks, *shares] == [reported[WORLD[name]][0], *reported[WORLD[name]][2:]], name


def test_the_choice_of_intervals_is_the_simulations() -> None:
    """The one that is used is the only one that holds the truth in 94 % or more of each kind of simulated study."""
    lines = [line for line in (ROOT / "benchmarks" / "intervals.md").read_text().splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert len(rows) >= 20
    held = {name: [float(row[at].split(",")[0]) for row in rows if row[at]] for at, name in enumerate(head[3:], 3)}
    assert [name for name, found in held.items() if min(found) >= 94.0] == ["chosen"]


def test_readme_is_short_and_says_early_how_small_it_is() -> None:
    words = (ROOT / "README.md").read_text().split()
    assert len(words) <= 1200
    assert "0.6 M parameters" in " ".join(words[:120])


def test_ratios_of_speed_are_in_the_tables_of_the_benchmarks() -> None:
    page = (ROOT / "benchmarks" / "results.md").read_text()
    found = re.findall(r"\| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", page)
    measured = [tuple(map(float, row)) for row in found]
    for name, (ratio, spread) in table(ROOT / "docs" / "results.md", "| ratio | spread |").items():
        texts = re.findall(r"[\d.]+", f"{ratio} {spread}")
        scale = 100 if "%" in ratio else 1
        assert any(
            all(
                f"{value * scale:.{len(text.partition('.')[2])}f}" == text
                for value, text in zip(row, texts, strict=True)
            )
            for row in measured
        ), name
