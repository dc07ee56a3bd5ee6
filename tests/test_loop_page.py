"""docs/loop.py: the whole algorithm on one page, made of the product's functions, does what it says."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from environments.checkout import ROOT

PAGE = ROOT / "docs/loop.py"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("loop_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TRAINING", module.TRAINING.model_copy(update={"steps": 2}))
    monkeypatch.setattr(module, "TASKS", 20)
    monkeypatch.setattr(module, "ITERATIONS", 1)
    return module


def test_it_fits_on_a_page() -> None:
    assert len(PAGE.read_text().splitlines()) <= 250


@pytest.mark.slow
def test_it_trains_and_makes_tasks_of_what_failed(loop: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    weights = []
    update = loop.update

    def watched(policy, *given):
        before = [one.detach().clone() for one in policy.model.parameters()]
        loss = update(policy, *given)
        weights.append(
            any(not torch.equal(one, two) for one, two in zip(before, policy.model.parameters(), strict=True))
        )
        return loss

    loop.update = watched
    loop.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("D_0: 20 tasks from unguided exploration")
    assert len([line for line in lines if line.startswith("step ")]) == 2
    (size,) = (int(line.rpartition("D_t has ")[2].split()[0]) for line in lines if line.startswith("iteration "))
    assert size > 20
    assert "  became " in "\n".join(lines)
    assert any(weights)
