"""Servers of a policy: their command, what is refused before one is started, and their end with this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from support import ROOT
from support.commands import run_here
from support.pretended_vllm import write_interpreter

from environments.base import InputError
from training.rollout.serving import (
    CPU_PROMPT_BUDGET,
    ServedPolicy,
    ServerFailure,
    ServerSettings,
    check_servers,
    server_command,
    vllm_servers,
)

STARTER = "recipes/starter"


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def settings(python: Path, **given: object) -> ServerSettings:
    return ServerSettings(python=str(python), start_timeout=60, **given)


@pytest.mark.process
def test_no_prompt_is_computed_in_parts_on_cpu(tmp_path: Path) -> None:
    """A seeded request whose prompt is computed in parts ends the CPU engine."""
    python = write_interpreter(tmp_path)
    for length in (16, 500, 1024, 4096, CPU_PROMPT_BUDGET * 2):
        argv, env = server_command(settings(python), ServedPolicy(STARTER, max_model_len=length), 1)
        sequences, budget = int(option(argv, "--max-num-seqs")), int(option(argv, "--max-num-batched-tokens"))
        assert budget >= sequences * length
        assert sequences >= 1
        assert env["TORCH_COMPILE_DISABLE"] == "1"
    assert sequences == 1
    argv, _ = server_command(settings(python), ServedPolicy(STARTER), 1)
    positions = json.loads((ROOT / STARTER / "config.json").read_text())["max_position_embeddings"]
    assert int(option(argv, "--max-num-batched-tokens")) >= int(option(argv, "--max-num-seqs")) * positions


@pytest.mark.process
def test_a_gpu_gets_its_share_and_no_workaround(tmp_path: Path) -> None:
    chosen = settings(write_interpreter(tmp_path, "gpu"), count=2, device_ids=(0, 1, 4, 5), weight_transfer="nccl")
    served = ServedPolicy(STARTER, "bfloat16", 8192, lora_rank=20)
    check_servers(chosen, served)
    argv, env = server_command(chosen, served, 8001, number=1)
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert option(argv, "--tensor-parallel-size") == "2"
    assert option(argv, "--max-lora-rank") == "32"
    assert json.loads(option(argv, "--weight-transfer-config")) == {"backend": "nccl"}
    assert "--tool-call-parser" not in argv, "chat requests with tools are refused"
    called, _ = server_command(chosen.model_copy(update={"tool_call_parser": "hermes"}), served, 8001)
    assert option(called, "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in called
    assert not {"--enforce-eager", "--max-num-batched-tokens", "--block-size"} & set(argv)
    assert not {"TORCH_COMPILE_DISABLE", "VLLM_CPU_KVCACHE_SPACE"} & set(env)


@pytest.mark.process
def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    python = write_interpreter(tmp_path)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wrong = {
            "there is no Python at": (settings(tmp_path / "nowhere"), ServedPolicy(STARTER)),
            "has no vLLM: run make vllm": (settings(write_interpreter(tmp_path, "none")), ServedPolicy(STARTER)),
            "is a LoRA adapter: serve its base": (settings(python), ServedPolicy(str(adapter))),
            "does not exist": (settings(python), ServedPolicy("recipes/no-policy")),
            "of rank 512 at most": (settings(python), ServedPolicy(STARTER, lora_rank=600)),
            "is for GPUs and": (settings(python, device_ids=(0,)), ServedPolicy(STARTER)),
            f"127.0.0.1:{port}": (settings(python, port=port), ServedPolicy(STARTER)),
            "of memory and": (settings(python, count=1000), ServedPolicy(STARTER)),
        }
        for said, (chosen, served) in wrong.items():
            with pytest.raises(InputError, match=said):
                check_servers(chosen, served)
    for given, said in (
        ({"device_ids": (0, 1, 2), "count": 2}, "give each as many"),
        ({"device_ids": (0, 0), "count": 2}, "names a GPU twice"),
        ({"port": 65_535, "count": 3}, "choose a lower port"),
    ):
        with pytest.raises(ValueError, match=said):
            ServerSettings(**given)


def processes_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def all_end(processes: list[psutil.Process], within: float = 15.0) -> bool:
    limit = time.monotonic() + within
    while alive(processes) and time.monotonic() < limit:
        time.sleep(0.02)
    return not alive(processes)


@pytest.mark.process
def test_they_run_for_the_length_of_the_block(tmp_path: Path) -> None:
    chosen = settings(write_interpreter(tmp_path), count=2)
    with vllm_servers(chosen, ServedPolicy(STARTER), tmp_path / "logs") as servers:
        assert len({server.url for server in servers}) == 2
        for server in servers:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as reply:
                assert reply.status == 200
            assert server.log.is_file()
        processes = [one for server in servers for one in processes_of(server.pid)]
        assert len(processes) == 6  # a sentinel, a server and its engine each
    assert all_end(processes, within=1.0)


@pytest.mark.process
def test_a_server_that_dies_or_never_answers_is_an_error_with_its_log(tmp_path: Path) -> None:
    dies = settings(write_interpreter(tmp_path, "dies"))
    with (
        pytest.raises(ServerFailure, match=r"ended with status 1; the end of (.|\n)*no room for the cache"),
        vllm_servers(dies, ServedPolicy(STARTER), tmp_path),
    ):
        pytest.fail("it was taken for healthy")
    silent = dies.model_copy(update={"python": str(write_interpreter(tmp_path, "silent")), "start_timeout": 2.0})
    with (
        pytest.raises(ServerFailure, match="did not answer within 2 s"),
        vllm_servers(silent, ServedPolicy(STARTER), tmp_path),
    ):
        pytest.fail("it was taken for healthy")


def serve(python: Path, logs: Path) -> tuple[subprocess.Popen[str], int]:
    """Start the command; return it and the pid that it prints of its server."""
    argv = [sys.executable, "-m", "graph.serve", "--python", str(python)]
    command = subprocess.Popen(
        [*argv, "--log-dir", str(logs)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = command.stdout.readline().split()
    assert line[0].startswith("http://127.0.0.1:")
    assert (line[1], line[3:]) == ("pid", ["log", str(logs / "server-0.log")])
    return command, int(line[2])


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGHUP, 0), (signal.SIGKILL, -9)]
)
def test_nothing_outlives_the_command(number: signal.Signals, status: int, tmp_path: Path) -> None:
    command, pid = serve(write_interpreter(tmp_path), tmp_path / "logs")
    processes = [psutil.Process(pid), *processes_of(pid)]
    assert len(processes) == 4
    command.send_signal(number)
    command.communicate(timeout=30)
    assert command.returncode == status
    assert all_end(processes)


@pytest.mark.process
def test_the_command_ends_with_a_sentence_when_its_server_does(tmp_path: Path) -> None:
    command, pid = serve(write_interpreter(tmp_path), tmp_path / "logs")
    program = next(one for one in psutil.Process(pid).children() if "memory.guard" not in one.cmdline())
    processes = processes_of(pid)
    os.kill(program.pid, signal.SIGKILL)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 1
    assert said.startswith("error: the server http://127.0.0.1:")
    assert f"(pid {pid}) ended with status 137; the end of " in said
    assert all_end(processes)


@pytest.mark.process
def test_wrong_options_are_mistakes(tmp_path: Path) -> None:
    python = str(write_interpreter(tmp_path))
    for arguments, said in (
        (("--device-ids", "a,b"), "--device-ids a,b: name GPUs by number"),
        (("--device-ids", "0,1,2", "--count", "2"), "'device_ids' names 3 GPUs for 2 servers"),
        (("--policy", "recipes/no-policy", "--python", python), "does not exist"),
        (("--python", str(tmp_path / "nowhere")), "run make vllm"),
    ):
        result = run_here("graph.serve", *arguments)
        assert (result.returncode, said in result.stderr) == (2, True), result.stderr
