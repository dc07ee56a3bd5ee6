"""The AppWorld benchmark at a small size, and that it is skipped with its reason where AppWorld is not installed."""

import psutil
import pytest
from support.installed_appworld import installed_appworld

from benchmarks import appworld_worlds
from benchmarks.__main__ import _measure_all
from benchmarks.catalogue import BENCHMARKS

pytestmark = [pytest.mark.slow, pytest.mark.appworld, pytest.mark.long]

(BENCHMARK,) = (benchmark for benchmark in BENCHMARKS if benchmark.module == "benchmarks.appworld_worlds")


def test_both_sides_solve_the_task_and_leave_no_process():
    installed_appworld()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    rows = appworld_worlds.measure(1, worlds=2, episodes=4)
    assert [row.unit for row in rows] == ["s", "MB", "episodes/s", "s", "MB"]
    _, memory, _, _, private = rows
    assert all(row.ours > 0 and row.other > 0 and row.repeats == 1 for row in rows)
    assert memory.ours > 2 * private.ours
    assert memory.other > private.other  # two servers against one
    assert [row.met is None for row in rows] == [True, True, True, False, False]
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize(("named", "status"), [(False, 0), (True, 2)])
def test_it_is_skipped_with_the_reason_unless_it_was_asked_for(named, status, tmp_path, monkeypatch):
    monkeypatch.setenv("COEVOLVE_APPWORLD", str(tmp_path / "nothing"))
    table = tmp_path / "table.md"
    assert _measure_all([BENCHMARK], 1, None, table, named=named) == status
    (line,) = (line for line in table.read_text().splitlines() if line.startswith("- appworld: "))
    assert "make appworld" in line
