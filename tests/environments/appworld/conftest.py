"""The real AppWorld engine for the tests of this folder; they skip, with the reason, where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.installed_appworld import installed_appworld

from environments.appworld.client import AppWorldEngine, World
from environments.appworld.installation import Installation
from environments.appworld.records import Limits


@pytest.fixture(scope="session")
def installation() -> Installation:
    return installed_appworld()


@pytest.fixture(scope="session")
def engine(installation: Installation) -> Iterator[AppWorldEngine]:
    """One engine for all tests that leave it as it was; code has 30 seconds and 256 MiB."""
    with AppWorldEngine(installation, Limits(execute=30, grace=10.0, megabytes=256)) as engine:
        yield engine


@pytest.fixture
def world(engine: AppWorldEngine) -> Iterator[World]:
    with engine.open("made01_1") as world:
        yield world
