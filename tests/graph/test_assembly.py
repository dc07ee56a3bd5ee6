"""Services of a run that a server keeps: one for all nodes, and new ones after a call that was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.made_run import settings_for

from environments.base import InputError
from graph.assembly import CACHED, services_at
from memory.run import RunDirectory


def test_services_are_kept_for_a_call(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", settings_for(tmp_path / "recipe"))
    services = services_at(run.root, "call-1")
    assert services_at(run.root, "call-1") is services
    services.breaker.stop(InputError("the endpoint is down"))
    with pytest.raises(InputError, match="the endpoint is down"):
        services_at(run.root, "call-1").breaker.check()
    services_at(run.root, "call-2").breaker.check()


def test_few_runs_are_kept(tmp_path: Path) -> None:
    runs = [
        RunDirectory.create(tmp_path / f"run-{number}", settings_for(tmp_path / "recipe"))
        for number in range(CACHED + 1)
    ]
    first = services_at(runs[0].root)
    for run in runs[1:]:
        services_at(run.root)
    assert services_at(runs[0].root) is not first
