"""Starts the processes of a round under torch's or accelerate's launcher, and ends with one sentence when one fails.

``training.run_round`` becomes the launcher itself, so that a round in several processes is to everything above it one
child process. With ``fsdp`` it is ``accelerate launch``, else ``torchrun``; both are called as
functions, because the commands lose what a process said and how it ended. Import torch late: the checks of this module
are made before anything is started.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from environments.base import InputError
from environments.checkout import child_variables
from environments.command import MISTAKE, StorageError, storage_refusal
from training.grpo.ranks import started_by_launcher
from training.grpo.record import RoundFailure
from training.rollout.settings import IN_PROCESS, SamplingSettings
from training.settings import LaunchSettings, PolicySettings

if TYPE_CHECKING:
    from training.grpo.record import RoundSettings

RANK = "training.grpo.rank"
"""The module that each process runs."""


FSDP2 = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "num_machines": 1,
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",  # the layers that the model's class names
        "fsdp_cpu_ram_efficient_loading": False,  # each process reads all: 4 bytes a parameter of host memory in each
        "fsdp_state_dict_type": "FULL_STATE_DICT",  # checkpoints are whole, for evaluation and other numbers of GPUs
        "fsdp_offload_params": False,
        "fsdp_activation_checkpointing": False,  # training.gradient_checkpointing does it
    },
}
"""accelerate's configuration of weights that are divided among the GPUs of one machine. Not run on GPUs.

What is tested on the CPU over gloo: torch's fully_shard of the tiny policy, gathering its weights, equal numbers of
forwards in every process, gradients equal to the unsharded ones."""


def check_launch(
    launch: LaunchSettings, policy: PolicySettings, sampling: SamplingSettings = IN_PROCESS, expert: bool = False
) -> None:
    """Raise InputError that names the key for which the processes could not train together.

    Weights that are divided leave no process with a whole model to sample from, or to send by the ways that need one;
    nor for an ``expert`` step, whose gradients are those of whole weights.
    """
    if not launch.fsdp:
        return
    if policy.device == "cpu":
        raise InputError("training.launch.fsdp divides weights over GPUs and policy.device is cpu: set it to false")
    if sampling.engine != "vllm_server":
        raise InputError(
            f"training.launch.fsdp divides weights, and sampling.engine {sampling.engine} needs all of them in each "
            "process: make it vllm_server, or set fsdp to false"
        )
    if expert:
        raise InputError(
            "training.launch.fsdp divides weights, and training.expert updates whole ones: set training.expert to "
            "null, or fsdp to false"
        )


def launch_round(root: Path, iteration: int, resume: bool, settings: RoundSettings) -> None:
    """Train the round of ``iteration`` in the processes of ``training.launch``, and return when all have ended well.

    They inherit stdout and stderr; the first one prints the lines of progress. When one fails, or is killed, the others
    are ended. Raises InputError and StorageError where that was its cause, RoundFailure otherwise, SystemExit after a
    signal to this process.
    """
    if started_by_launcher():
        raise InputError(
            "training.launch starts the processes of a round, and a launcher (WORLD_SIZE) has started this one "
            f"already: start it without one, or run python -m {RANK} RUN ITERATION under yours"
        )
    launch, policy, training = settings.training.launch, settings.policy, settings.training
    assert launch is not None
    check_launch(launch, policy, settings.sampling, training.expert is not None)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.update(child_variables())
    os.environ.setdefault("OMP_NUM_THREADS", str(training.threads))
    words = [RANK, str(root.resolve()), str(iteration), *(["resume"] if resume else [])]
    with TemporaryDirectory(prefix="coevolve-ranks-") as logs:
        try:
            if launch.fsdp:
                _accelerate(launch, policy.dtype == "bfloat16", logs, words)
            else:
                _torchrun(launch, logs, words)
        except ChildFailedError as failed:
            ended = [Ended(rank, one.exitcode, one.message) for rank, one in sorted(failed.failures.items())]
            raise failure_of(ended) from None
        except SignalException as stopped:
            raise SystemExit(128 + stopped.sigval) from None


def _torchrun(launch: LaunchSettings, logs: str, words: Sequence[str]) -> None:
    from torch.distributed.run import get_args_parser, run

    options = ["--log-dir", logs, "--nproc-per-node", str(launch.processes), "--standalone"]
    run(get_args_parser().parse_args([*options, "--module", *words]))  # type: ignore[no-untyped-call]


def _accelerate(launch: LaunchSettings, bfloat16: bool, logs: str, words: Sequence[str]) -> None:
    from accelerate.commands.launch import launch_command, launch_command_parser

    options = accelerate_options(launch, bfloat16, Path(logs))
    launch_command(launch_command_parser().parse_args([*options, "--module", *words]))


def accelerate_options(launch: LaunchSettings, bfloat16: bool, folder: Path) -> list[str]:
    """Write accelerate's configuration into ``folder``; return the options of its command."""
    # A file, because accelerate takes what is missing from a configuration in the user's home.
    file = folder / "fsdp2.json"
    file.write_text(json.dumps({**FSDP2, "mixed_precision": "bf16" if bfloat16 else "no"}))
    options = ["--config_file", str(file), "--log_dir", str(folder), "--num_processes", str(launch.processes)]
    return [*options, "--num_machines", "1", "--main_process_port", "0"]  # any free one


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
