"""Servers of a run: started for its own length, found by its processes, and checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.pretended_vllm import write_interpreter

from environments.base import InputError
from graph.preflight import check_run
from graph.recipe import load_recipe
from graph.run.servers import run_servers, served_policy
from graph.settings import RunSettings
from memory.run import RunDirectory
from training.rollout.serving import VLLM_PYTHON, VLLM_VARIABLE, ServerFailure, vllm_build
from training.rollout.settings import SERVERS_VARIABLE

STARTS = Path("recipes/vllm-quickstart.yaml")


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVERS_VARIABLE, raising=False)


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunSettings]:
    def settings(python: Path, *overrides: str) -> RunSettings:
        monkeypatch.setenv(VLLM_VARIABLE, str(python))
        return load_recipe(STARTS, ["sampling.start.start_timeout=60", *overrides])

    return settings


def hold(root: Path, settings: RunSettings) -> tuple[object, list[str]]:
    said: list[str] = []
    return run_servers(RunDirectory(root), settings, SimpleNamespace(say=said.append)), said


@pytest.mark.process
def test_a_run_starts_its_servers_and_ends_them(tmp_path: Path, started_by: Callable[..., RunSettings]) -> None:
    servers, said = hold(tmp_path, started_by(write_interpreter(tmp_path), "sampling.start.count=2"))
    with servers:
        addresses = os.environ[SERVERS_VARIABLE].split(",")
        assert len(set(addresses)) == 2
        below = [one for one in psutil.Process().children(recursive=True) if "memory.guard" in one.cmdline()]
        assert len(below) == 4
        assert (tmp_path / "servers" / "server-1.log").is_file()
    assert SERVERS_VARIABLE not in os.environ
    assert not [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert said[0] == f"starting 2 vLLM servers, logs in {tmp_path / 'servers'}"
    assert [words.split()[2] for words in said[1:]] == addresses


@pytest.mark.process
def test_a_server_that_cannot_start_ends_the_run(tmp_path: Path, started_by: Callable[..., RunSettings]) -> None:
    servers, _ = hold(tmp_path, started_by(write_interpreter(tmp_path, "dies")))
    with pytest.raises(ServerFailure, match="ended with status 1"), servers:
        pytest.fail("the run went on")


@pytest.mark.process
def test_a_finished_run_starts_none(tmp_path: Path, started_by: Callable[..., RunSettings]) -> None:
    summary = RunDirectory(tmp_path).iteration(1).summary
    summary.parent.mkdir(parents=True)
    summary.touch()
    servers, said = hold(tmp_path, started_by(write_interpreter(tmp_path, "dies")))
    with servers:
        assert not said
        assert SERVERS_VARIABLE not in os.environ


def test_a_run_without_servers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_by: Callable[..., RunSettings]
) -> None:
    named = load_recipe(STARTS, ["sampling.start=null"])
    with pytest.raises(InputError, match=r"no server is named: set sampling.servers or .start, or COEVOLVE_SERVERS"):
        check_run(named)
    monkeypatch.setenv(SERVERS_VARIABLE, "first:8000")
    with pytest.raises(InputError, match="COEVOLVE_SERVERS: name addresses as http://host:8000"):
        _ = named.sampling.addresses
    monkeypatch.setenv(SERVERS_VARIABLE, "http://first:8000, http://second:8000")
    assert named.sampling.addresses == ("http://first:8000", "http://second:8000")
    with pytest.raises(InputError, match="there is no Python at"):
        check_run(started_by(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="remove one of them"):
        started_by(tmp_path, "sampling.servers=[http://first:8000]")
    with pytest.raises(InputError, match="'start' is for engine: vllm_server"):
        started_by(tmp_path, "sampling.engine=in_process", "sampling.weights=null")


def test_servers_serve_what_the_run_samples() -> None:
    lora = load_recipe(Path("recipes/vllm-lora-quickstart.yaml"), ["evaluation.max_tokens=700"])
    served = served_policy(lora)
    assert (served.path, served.dtype, served.max_model_len, served.lora_rank) == ("recipes/starter", "float32", 700, 8)
    assert served_policy(load_recipe(STARTS)).lora_rank is None


@pytest.mark.parametrize("python", ["./evil", "evil", ".venvs/vllm/bin/python3", "/bin/sh"])
def test_a_recipe_names_no_program(python: str) -> None:
    with pytest.raises(InputError, match=r"'start\.python' is .* a recipe must not name a program to run: remove it"):
        load_recipe(STARTS, [f"sampling.start.python={python}"])


def test_the_default_program_is_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / VLLM_PYTHON
    there.parent.mkdir(parents=True)
    there.symlink_to("/bin/false")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VLLM_VARIABLE, raising=False)
    monkeypatch.setattr("training.rollout.serving.ROOT", tmp_path / "checkout")
    with pytest.raises(InputError, match=r"there is no Python at .*/checkout/\.venvs/vllm/bin/python"):
        vllm_build(VLLM_PYTHON)
