"""A run with a finished round and a finished graph, made once for the tests of exports; they copy it to change it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.made_run import AFTER, BEFORE, make_run, run_graph

from environments.checkout import ROOT
from memory.run import PolicyDirectory, RunDirectory, read_json, write_json
from training.grpo.record import RoundRecord


@pytest.fixture(scope="package")
def evolved(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Its policy is the embedded initial one, with files that only a trainer needs; its set was scored."""
    run = make_run(tmp_path_factory.mktemp("exported") / "my-run", "evaluation.set=templated-dev")
    run_graph(run)
    folder = run.iteration(0)
    write_json(folder.evaluation_before, BEFORE)
    write_json(folder.evaluation_after, AFTER)
    record = read_json(folder.round, RoundRecord)
    write_json(folder.round, record.model_copy(update={"policy": "policy/checkpoint-3"}))
    policy = run.policy_path / "checkpoint-3"
    shutil.copytree(ROOT / "recipes" / "starter", policy)
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (policy / name).write_bytes(b"of the trainer")
    PolicyDirectory(policy).mark.write_text("{}")
    return run


@pytest.fixture
def copied(evolved: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy to damage."""
    shutil.copytree(evolved.root, tmp_path / "copy")
    return RunDirectory(tmp_path / "copy")
