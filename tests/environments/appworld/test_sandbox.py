"""Where the wall is missing: AppWorld says so in one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.appworld import environment as shared_engine
from environments.appworld import sandbox
from environments.appworld.client import AppWorldEngine
from environments.appworld.installation import REPOSITORY, Installation
from environments.appworld.sandbox import missing, sandboxed
from environments.base import InputError
from environments.registry import open_named


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without bubblewrap."""
    sandbox.missing.cache_clear()
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", "no-such-program")
    monkeypatch.setattr(shared_engine, "_engines", {})
    yield
    sandbox.missing.cache_clear()


def test_here_the_wall_works_and_is_tried_once(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(installation) is None
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was tried again"))
    assert missing(installation) is None


@pytest.mark.usefixtures("nowhere")
def test_without_bubblewrap_it_says_what_to_do(installation: Installation) -> None:
    for opened in (lambda: AppWorldEngine(installation), lambda: open_named("appworld")):
        with pytest.raises(InputError, match=r"\(no-such-program is not installed\), and .* elsewhere: run `make app"):
            opened()


def test_where_namespaces_are_forbidden_it_says_what_failed(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(sandbox, "BUBBLEWRAP", str(refusing))
    sandbox.missing.cache_clear()
    lack = missing(installation)
    assert lack is not None
    assert lack.reason == "bwrap: No permissions to create new namespace"
    assert "install bubblewrap" in lack.remedy
    sandbox.missing.cache_clear()


def test_a_root_that_nobody_may_read_is_named(installation: Installation, tmp_path: Path) -> None:
    closed = installation.model_copy(update={"world": tmp_path / "world"})
    for root in (closed.blind, closed.full):
        (root / "data").mkdir(parents=True)
    assert str(closed.blind / "data" / "tasks") in str(missing(closed))


def test_a_world_below_the_scratch_folder_is_refused_before_an_episode_misses_it(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall gives code a folder of its own there, behind which the world's files are gone."""
    sandbox.missing.cache_clear()
    monkeypatch.setattr(sandbox, "SCRATCH", str(installation.world.parent))
    with pytest.raises(InputError, match=r"sandboxed here \(.* is below .*\), and .*: move the checkout elsewhere$"):
        sandbox.require(installation)
    sandbox.missing.cache_clear()


def test_the_worker_is_given_no_root_but_its_own(installation: Installation) -> None:
    command = sandboxed(installation, (installation.blind,), ["-c", "pass"])
    shown = {Path(command[place + 1]) for place, word in enumerate(command) if word.endswith("bind")}
    assert installation.blind in shown
    assert not shown & {Path("/"), Path.home(), REPOSITORY, installation.full, installation.world}
    assert "--unshare-net" in command
