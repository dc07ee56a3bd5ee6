"""A world of the session's engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.appworld.client import AppWorldEngine, World


@pytest.fixture
def world(engine: AppWorldEngine) -> Iterator[World]:
    with engine.open("made01_1") as world:
        yield world
