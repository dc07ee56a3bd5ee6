"""``policy.dtype: auto`` is decided once, when a run begins, and said; another machine goes on as the run was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.checkout import QUICKSTART
from graph.run_iteration import open_run
from graph.settings import RunSettings, load_recipe

AUTO = ["policy.dtype=auto", "policy.device=cpu", "evaluation.set=null", "evaluation.limit=null"]
NOW = "matrix products in {}: this processor has {}bfloat16 instructions"
SLOW = "matrix products in bfloat16, as stated: this processor has no instructions for it"


@pytest.mark.parametrize(
    ("has", "dtype", "first", "later"),
    [(False, "float32", NOW.format("float32", "no "), ""), (True, "bfloat16", NOW.format("bfloat16", ""), SLOW)],
)
def test_a_run_keeps_the_type_that_it_began_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has: bool,
    dtype: str,
    first: str,
    later: str,
) -> None:
    monkeypatch.setattr("training.device_memory.bfloat16_at_hand", lambda device: has)
    made = open_run(tmp_path / "run", QUICKSTART, AUTO, None, resume=False)
    assert first in capsys.readouterr().err
    assert made.directory.settings(RunSettings).policy.dtype == made.settings.policy.dtype == dtype
    monkeypatch.setattr("training.device_memory.bfloat16_at_hand", lambda device: not has)
    for recipe, given in ((QUICKSTART, AUTO), (None, [])):
        again = open_run(tmp_path / "run", recipe, given, None, resume=True)
        said = capsys.readouterr().err
        assert later in said
        assert later or "matrix products" not in said
        assert again.settings == made.settings


def test_recipes_for_processors_leave_it_to_the_machine() -> None:
    assert load_recipe(QUICKSTART.with_name("lm.yaml")).policy.dtype == "auto"
