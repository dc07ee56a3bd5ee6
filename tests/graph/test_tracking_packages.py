"""The packages of the trackers themselves, offline: what they wrote is read back. Each is skipped where it is missing.

``test_tracking.py`` tests everything else with a tracker of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.made_run import begun_run, finish_iteration, make_round

from graph.settings import load_recipe
from graph.tracking import follow_run
from memory.run import RunDirectory
from training.settings import ExperimentTracker


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return begun_run(tmp_path / "run")


def send(run: RunDirectory, name: ExperimentTracker) -> list[str]:
    """Two iterations, each sent by a command of its own."""
    said: list[str] = []
    for iteration in (0, 1):
        make_round(run, iteration)
        finish_iteration(run, iteration)
        with follow_run(run, load_recipe(run.settings_path, [f"training.report_to={name}"]), said.append) as send:
            send(iteration)
    assert not [line for line in said if "failed" in line], said
    return said


@pytest.mark.slow
def test_tensorboard_has_every_step_once(run: RunDirectory) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    send(run, "tensorboard")
    events = accumulator(str(run.trackers_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("rollouts/success")] == [1, 2, 3, 4, 5, 6]
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("evaluation/success")] == [
        (0, 0.25),
        (3, 0.35),
        (6, 0.35),
    ]


@pytest.mark.slow
def test_trackio_has_one_run_with_every_step_once(run: RunDirectory) -> None:
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    (*_, last) = send(run, "trackio")
    (name,) = {one.name for one in trackio.Api().runs("coevolve") if one.name.startswith("run-")} & set(last.split())
    logs = SQLiteStorage.get_logs("coevolve", name)
    assert [log["step"] for log in logs if "rollouts/success" in log] == [1, 2, 3, 4, 5, 6]
    assert [log["step"] for log in logs if "evaluation/success" in log] == [0, 3, 6]


@pytest.mark.slow
@pytest.mark.process
def test_wandb_writes_offline_files_of_one_run(run: RunDirectory) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    said = send(run, "wandb")
    assert "wandb sync" in said[0]
    steps, ids = [], set()
    for file in sorted((run.trackers_path / "wandb").glob("offline-run-*/*.wandb")):
        for content in blocks(file.read_bytes()):
            record = Record()
            record.ParseFromString(content)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            steps += [int(values["step"])] if "rollouts/success" in values else []
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len(ids) == 1


def blocks(content: bytes) -> Iterator[bytes]:
    """The records of a W&B transaction log: LevelDB's format behind a header of seven bytes."""
    place, part = 7, b""
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:  # the rest of a block is padding
            place += 2**15 - place % 2**15
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield part
            part = b""
