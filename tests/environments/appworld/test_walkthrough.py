"""Where AppWorld is missing, the notebook is told so in one sentence; nothing fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.appworld.walkthrough import environment_or_skip


def test_without_a_world_one_sentence_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COEVOLVE_APPWORLD", str(tmp_path))
    assert environment_or_skip() is None
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("The rest of this notebook does nothing: ")
