"""Escape attempts against the real worker, with its filter and without: no answer, no file, no harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from escape_attempts import ATTEMPTS, ESCAPED, INTRUSIONS, intrusion
from solutions import answer

from environments.appworld import client
from environments.appworld.client import AppWorldEngine, World
from environments.appworld.installation import Installation
from environments.appworld.records import Limits

SECRET = "made02_1"  # a question whose answer is a word that its owner's note holds, and nothing of another person's
UNHARMED = "print(apis.supervisor.show_profile()['email'])"


@pytest.fixture(scope="module")
def unfiltered(installation: Installation) -> Iterator[AppWorldEngine]:
    """An engine whose worker lacks the code filter."""
    with AppWorldEngine(installation, Limits(execute=30, grace=10.0)) as engine:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_WORKER", "tests.environments.appworld.unfiltered_worker")
            engine.open("made01_1").close()
        with engine.open("made01_1") as world:
            assert world.execute("print(().__class__)").output == "<class 'tuple'>\n"
        yield engine


@pytest.fixture(scope="module")
def besieged(engine: AppWorldEngine) -> Iterator[World]:
    """One world for all attempts: none may harm it."""
    with engine.open("made01_1") as world:
        yield world


@pytest.fixture(scope="module")
def besieged_unfiltered(unfiltered: AppWorldEngine) -> Iterator[World]:
    with unfiltered.open("made01_1") as world:
        yield world


def filled(code: str, engine: AppWorldEngine, outside: Path) -> str:
    full, blind = engine.installation.full, engine.installation.blind
    truth = full / "data" / "tasks" / SECRET / "ground_truth" / "answer.json"
    assert truth.is_file()
    places = {"answer": truth, "full": full, "outside": outside}
    places["specification"] = blind / "data" / "tasks" / SECRET / "specs.json"
    for name, path in places.items():
        code = code.replace("{" + name + "}", str(path))
    return code


def unharmed(world: World) -> bool:
    return world.execute(UNHARMED).output == f"{world.opening.supervisor.email}\n"


def test_there_are_many_attempts() -> None:
    assert len(ATTEMPTS) >= 20


@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_attempt_escapes(name: str, besieged: World, engine: AppWorldEngine, tmp_path: Path) -> None:
    world, outside = besieged, tmp_path / "outside"
    start = world.state()
    executed = world.execute(filled(ATTEMPTS[name], engine, outside))
    assert ESCAPED not in executed.output
    assert str(answer(engine, SECRET)) not in executed.output
    assert not outside.exists()
    assert unharmed(world)
    assert world.state() == start


@pytest.mark.parametrize("name", ATTEMPTS)
def test_without_the_filter_no_attempt_gets_an_answer_or_leaves_a_trace(
    name: str, besieged_unfiltered: World, unfiltered: AppWorldEngine, tmp_path: Path
) -> None:
    world, outside = besieged_unfiltered, tmp_path / "outside"
    executed = world.execute(filled(ATTEMPTS[name], unfiltered, outside))
    assert str(answer(unfiltered, SECRET)) not in executed.output
    assert not outside.exists()
    assert unharmed(world)


@pytest.mark.parametrize("name", INTRUSIONS)
def test_code_that_holds_pythons_own_modules_stays_confined(
    name: str, unfiltered: AppWorldEngine, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    with unfiltered.open("made01_1") as world:
        executed = world.execute(filled(intrusion(name), unfiltered, outside))
        assert "reached" not in executed.output.splitlines()[-1], "the probe itself failed to reach Python's modules"
        assert ESCAPED not in executed.output
        assert str(answer(unfiltered, SECRET)) not in executed.output
        assert not outside.exists()
        assert unharmed(world)
    unfiltered.open("made01_1").close()
