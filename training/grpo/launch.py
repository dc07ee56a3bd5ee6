"""The processes of a round: starts them under torch's launcher, is each of them, and says why one failed.

``training.run_round`` becomes the launcher itself, so that a round in several processes is to everything above it one
child process. ``torchrun`` is called as a function, because the command loses what a process said and how it ended. It
runs this module as each process, with the arguments RUN ITERATION [resume]: it would take an option ``--run`` for one
of its own. What went wrong in a process is written to the file that torch's launcher names, and said after all have
ended. Import torch late: the checks of this module are made before anything is started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from environments.base import EnvironmentFault, InputError
from environments.checkout import child_variables
from environments.command import FAILURE, MISTAKE, StorageError, say, storage_refusal
from memory.processes import end_all, run_to_end
from memory.run import RunDirectory
from training.grpo.ranks import LostRanks, join, lost_in_a_collective
from training.grpo.record import RoundFailure, RoundSettings
from training.preflight import check_launch
from training.rollout.sampling import EngineFailure

RANK = "training.grpo.launch"
"""The module that each process runs."""

POLL_SECONDS = 0.5
"""Seconds between two looks at whether the launcher is still there (ours)."""

_KINDS: tuple[type[Exception], ...] = (InputError, StorageError, LostRanks, RoundFailure)
"""What the failure of a process is said as; the first that fits."""


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
    check_launch(settings.training, settings.policy, settings.sampling)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    os.environ.update(child_variables())
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.training.threads))
    words = [RANK, str(root.resolve()), str(iteration), *(["resume"] if resume else [])]
    with TemporaryDirectory(prefix="coevolve-ranks-") as logs:
        options = [
            "--log-dir",
            logs,
            "--nproc-per-node",
            str(settings.training.processes),
            "--standalone",
            "--module",
            *words,
        ]
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
    kinds = {kind.__name__: kind for kind in _KINDS}
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


def end_with_the_launcher() -> None:
    """End this process and its children with status 3 once the process that started it is gone.

    The launcher puts every process into a session of its own and passes no descriptor on, so that neither the end of a
    process group nor a closed pipe reaches it.
    """
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(POLL_SECONDS)
        end_all()

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def main() -> None:
    """Train as one of the processes of a round. Exit status: as of ``training.run_round``."""
    end_with_the_launcher()
    try:
        root, iteration, *flags = sys.argv[1:]
        _train(Path(root), int(iteration), flags == ["resume"])
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher has to know
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        failure = _failure(error)
        say(str(failure))
        with suppress(OSError):
            get_error_handler().record_exception(failure)
        sys.stdout.flush()
        # Python's shutdown would wait for the other processes of the group.
        os._exit(MISTAKE if isinstance(failure, InputError | StorageError) else FAILURE)


def _train(root: Path, iteration: int, resume: bool) -> None:
    settings = RunDirectory.open(root).settings(RoundSettings)
    launch = settings.training.launch
    assert launch is not None
    import torch

    from training.grpo.round import run_round

    ranks = join(launch, on_cpu=settings.policy.device == "cpu" or not torch.cuda.is_available())
    run_round(root, iteration, resume, lambda line: print(line.model_dump_json(), flush=True), ranks)
    torch.distributed.destroy_process_group()


def _failure(error: Exception) -> Exception:
    """Return the failure as ``failure_of`` of the launcher reads it: of a kind that it knows, in one sentence."""
    kind = next((one for one in _KINDS if isinstance(error, one)), RoundFailure)
    sentence = str(error)
    if refusal := storage_refusal(error):
        kind, sentence = StorageError, refusal
    elif isinstance(error, (*_KINDS, EnvironmentFault, EngineFailure)):
        pass
    elif lost_in_a_collective(error):
        kind, sentence = LostRanks, f"lost the other processes ({sentence.strip().splitlines()[0]})"
    else:
        traceback.print_exception(error)
        sentence = f"{type(error).__name__}: {error}"
    rank = os.environ.get("RANK", "0")
    return kind(sentence if rank == "0" or sentence.startswith("rank ") else f"rank {rank}: {sentence}")


if __name__ == "__main__":
    run_to_end(main)
