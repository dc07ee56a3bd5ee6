"""Starts the processes of a round under torch's or accelerate's launcher, and ends with one sentence when one fails.

``training.run_round`` becomes the launcher itself, so that a round in several processes is to everything above it one
child process. With ``config`` it is ``accelerate launch --config_file``, else ``torchrun``; both are called as
functions, because the commands lose what a process said and how it ended. Import torch late: the checks of this module
are made before anything is started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from environments.base import InputError
from environments.checkout import ROOT, child_variables
from environments.command import MISTAKE, StorageError, storage_refusal
from memory.strict_yaml import read_yaml
from training.grpo.ranks import Sharding, started_by_launcher
from training.grpo.record import RoundFailure
from training.rollout.settings import IN_PROCESS, SamplingSettings
from training.settings import LaunchSettings, PolicySettings

RANK = "training.grpo.rank"
"""The module that each process runs."""


class _Config(BaseModel):
    """The part of accelerate's configuration file that is checked; accelerate reads the rest."""

    model_config = ConfigDict(extra="ignore")

    distributed_type: str = "NO"
    num_processes: int | None = None
    num_machines: int | None = None
    mixed_precision: str = "no"
    fsdp_config: dict[str, Any] = {}


def config_file(launch: LaunchSettings) -> Path | None:
    """Return accelerate's configuration; a relative path is the project's own where the working directory has none.

    Raises InputError where neither has it.
    """
    if launch.config is None:
        return None
    places = [Path(launch.config), ROOT / launch.config]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise InputError(
            f"training.launch.config: {launch.config} cannot be read, there is no such file: name one of "
            "recipes/launch/"
        )
    return found


def _config(launch: LaunchSettings) -> _Config | None:
    path = config_file(launch)
    if path is None:
        return None
    try:
        return _Config.model_validate(read_yaml(path))
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(map(str, wrong["loc"])) or "the file"
        raise InputError(f"training.launch.config: {path}: {key}: {wrong['msg']}") from None


def sharding(launch: LaunchSettings) -> Sharding | None:
    """Return how the processes divide the weights; None where each has all of them."""
    return None if _config(launch) is None else "fsdp"


def offloads(launch: LaunchSettings) -> bool:
    """Return whether the processes keep parts of the training on other devices than their own, or may do so."""
    config = _config(launch)
    return config is not None and bool(config.fsdp_config.get("fsdp_offload_params"))


def check_launch(
    launch: LaunchSettings, policy: PolicySettings, sampling: SamplingSettings = IN_PROCESS, expert: bool = False
) -> None:
    """Raise InputError that names the key for which the processes could not train together.

    Weights that are divided leave no process with a whole model to sample from, or to send by the ways that need one;
    nor for an ``expert`` step, whose gradients are those of whole weights.
    """
    config = _config(launch)
    if config is None:
        return
    where = f"training.launch.config: {launch.config}"
    if config.distributed_type != "FSDP":
        raise InputError(
            f"{where} has distributed_type {config.distributed_type}: make it FSDP, or leave config null, with which "
            "each process has all weights"
        )
    for key, wanted in (("num_processes", launch.processes), ("num_machines", 1)):
        given = getattr(config, key)
        if given is not None and given != wanted:
            raise InputError(f"{where} has {key} {given}, and training.launch starts {wanted}: make them equal")
    precision = "bf16" if policy.dtype == "bfloat16" else "no"
    if config.mixed_precision != precision:
        raise InputError(
            f"{where} has mixed_precision {config.mixed_precision} and policy.dtype is {policy.dtype}: make it "
            f"{precision}"
        )
    if policy.device == "cpu":
        raise InputError(f"{where} shards weights over GPUs and policy.device is cpu: leave config null on the CPU")
    if sampling.engine != "vllm_server":
        raise InputError(
            f"{where} shards weights, and sampling.engine {sampling.engine} needs all of them in each process: "
            "make it vllm_server, or leave config null"
        )
    for key, value, why in (
        ("fsdp_version", 2, "FSDP1 is not supported"),
        ("fsdp_state_dict_type", "FULL_STATE_DICT", "a checkpoint has to hold the policy's whole weights"),
    ):
        if config.fsdp_config.get(key) != value:
            raise InputError(f"{where}: fsdp_config.{key} is {config.fsdp_config.get(key)}, {why}: make it {value}")
    if expert:
        raise InputError(
            f"{where} divides weights or their optimizer, and training.expert updates whole ones: set "
            "training.expert to null, or leave config null"
        )


def launch_round(
    root: Path,
    iteration: int,
    resume: bool,
    launch: LaunchSettings,
    policy: PolicySettings,
    threads: int = 1,
    sampling: SamplingSettings = IN_PROCESS,
    expert: bool = False,
) -> None:
    """Train the round of ``iteration`` in the processes of ``launch``, and return when all have ended well.

    They inherit stdout and stderr; the first one prints the lines of progress. When one fails, or is killed, the others
    are ended. Raises InputError and StorageError where that was its cause, RoundFailure otherwise, SystemExit after a
    signal to this process.
    """
    if started_by_launcher():
        raise InputError(
            "training.launch starts the processes of a round, and a launcher (WORLD_SIZE) has started this one "
            f"already: start it without one, or run python -m {RANK} RUN ITERATION under yours"
        )
    check_launch(launch, policy, sampling, expert)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.update(child_variables())
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    words = [RANK, str(root.resolve()), str(iteration), *(["resume"] if resume else [])]
    with TemporaryDirectory(prefix="coevolve-ranks-") as logs:
        try:
            if launch.config is None:
                _torchrun(launch, logs, words)
            else:
                _accelerate(launch, logs, words)
        except ChildFailedError as failed:
            ended = [Ended(rank, one.exitcode, one.message) for rank, one in sorted(failed.failures.items())]
            raise failure_of(ended) from None
        except SignalException as stopped:
            raise SystemExit(128 + stopped.sigval) from None


def _torchrun(launch: LaunchSettings, logs: str, words: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser, run

    options = ["--log-dir", logs, "--nproc-per-node", str(launch.processes), "--standalone"]
    run(get_args_parser().parse_args([*options, "--module", *words]))  # type: ignore[no-untyped-call]


def _accelerate(launch: LaunchSettings, logs: str, words: Sequence[str]) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser

    options = ["--config_file", str(config_file(launch)), "--log_dir", logs]
    options += ["--num_processes", str(launch.processes), "--num_machines", "1"]
    options += ["--main_process_port", "0"]  # any free one
    launch_command(launch_command_parser().parse_args([*options, "--module", *words]))


class Ended(NamedTuple):
    """How one process ended: its exit status (negative: the signal), and what it wrote to its failure file."""

    rank: int
    status: int
    failure: object


def failure_of(ended: Sequence[Ended]) -> Exception:
    """Return the exception for processes that failed: the cause of the first that has one of its own.

    A process that only lost the others is not the cause while another one is known.
    """
    failed = [one for one in ended if isinstance(one.failure, Mapping)]
    for one in failed:
        assert isinstance(one.failure, Mapping)
        sentence = str(one.failure.get("message"))
        if one.failure.get("lost"):
            continue
        if storage_refusal(sentence):
            return StorageError(sentence)
        return InputError(sentence) if one.status == MISTAKE else RoundFailure(sentence)
    # The launcher ends the others with SIGTERM, and lists them, too.
    killed = sorted((one for one in ended if one.status < 0), key=lambda one: one.status == -signal.SIGTERM)
    if killed and not (failed and killed[0].status == -signal.SIGTERM):
        rank, status, _ = killed[0]
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return RoundFailure(f"rank {rank} was ended by {name}, and the others with it: go on with --resume")
    if failed:
        assert isinstance(failed[0].failure, Mapping)
        return RoundFailure(str(failed[0].failure.get("message")))
    return RoundFailure(f"rank {ended[0].rank} ended with status {ended[0].status}: its reason is above, in the log")
