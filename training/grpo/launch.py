"""Starts the processes of a round under torch's launcher, and ends with one sentence when one fails.

``training.run_round`` becomes the launcher itself, so that a round in several processes is to everything above it one
child process. ``torchrun`` is called as a function, because the command loses what a process said and how it ended.
Import torch late: the checks of this module are made before anything is started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.base import InputError
from environments.checkout import child_variables
from environments.command import StorageError
from training.grpo.ranks import LostRanks
from training.grpo.record import RoundFailure
from training.rollout.settings import IN_PROCESS, SamplingSettings
from training.settings import LaunchSettings, PolicySettings

if TYPE_CHECKING:
    from training.grpo.record import RoundSettings

RANK = "training.grpo.rank"
"""The module that each process runs."""


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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        raise InputError(
            "training.launch starts the processes of a round, and a launcher (WORLD_SIZE) has started this one "
            "already: start it without one"
        )
    launch, policy, training = settings.training.launch, settings.policy, settings.training
    assert launch is not None
    check_launch(launch, policy, settings.sampling, training.expert is not None)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    os.environ.update(child_variables())
    os.environ.setdefault("OMP_NUM_THREADS", str(training.threads))
    words = [RANK, str(root.resolve()), str(iteration), *(["resume"] if resume else [])]
    with TemporaryDirectory(prefix="coevolve-ranks-") as logs:
        options = ["--log-dir", logs, "--nproc-per-node", str(launch.processes), "--standalone", "--module", *words]
        try:
            run(get_args_parser().parse_args(options))  # type: ignore[no-untyped-call]
        except ChildFailedError as failed:
            ended = []
            for rank, one in sorted(failed.failures.items()):
                said: Any = one.message  # a mapping where the process wrote to its failure file
                ended.append(Ended(rank, one.exitcode, said["message"] if isinstance(said, dict) else said))
            raise failure_of(ended) from None
        except SignalException as stopped:
            raise SystemExit(128 + stopped.sigval) from None


class Ended(NamedTuple):
    """How one process ended: its exit status (negative: the signal), and what is said of its failure."""

    rank: int
    status: int
    failure: str


def failure_of(ended: Sequence[Ended]) -> Exception:
    """Return the exception for processes that failed: the cause of the first that has one of its own.

    A process that only lost the others is not the cause while another one is known.
    """
    kinds = {kind.__name__: kind for kind in (InputError, StorageError, RoundFailure, LostRanks)}
    said = [(kinds[name], text) for name, _, text in (one.failure.partition(": ") for one in ended) if name in kinds]
    if cause := next((kind(text) for kind, text in said if kind is not LostRanks), None):
        return cause
    # The launcher ends the others with SIGTERM, and lists them, too.
    killed = sorted((one for one in ended if one.status < 0), key=lambda one: one.status == -signal.SIGTERM)
    if killed and not (said and killed[0].status == -signal.SIGTERM):
        rank, status, _ = killed[0]
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return RoundFailure(f"rank {rank} was ended by {name}, and the others with it: go on with --resume")
    if said:
        return RoundFailure(said[0][1])
    rank, status, _ = ended[0]
    return RoundFailure(f"rank {rank} ended with status {status}: its reason is above, in the log")
