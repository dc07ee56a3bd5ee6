"""The tables of results in README and docs/ are those of the studies' reports, and of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT

LOOP = {
    "initial policy": "starter",
    "plain GRPO on static tasks": "grpo",
    "plain GRPO on static D_0": "grpo",
    "full loop": "full",
    "contexts from random tasks and calls": "random",
    "contexts from random tasks and calls instead of signals": "random",
    "unguided exploration, as many tasks": "unguided",
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
    [("README.md", "learning", LOOP, 5), ("docs/results.md", "learning", LOOP, 8), ("docs/seal.md", "seal", SEAL, 8)],
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


def test_readme_is_short_and_says_early_how_small_it_is() -> None:
    words = (ROOT / "README.md").read_text().split()
    assert len(words) < 2000
    assert "0.6 M parameters" in " ".join(words[:120])


def test_ratios_of_speed_are_in_the_tables_of_the_benchmarks() -> None:
    pages = [ROOT / "benchmarks" / name for name in ("results.md", "appworld.md")]
    found = re.findall(r"\| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|", "\n".join(page.read_text() for page in pages))
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
