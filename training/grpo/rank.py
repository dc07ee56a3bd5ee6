"""One of several processes of a round: ``training.run_round`` starts it through ``training.grpo.launch``.

Its arguments are RUN ITERATION [resume], without options: torchrun would take ``--run`` for one of its own. What went
wrong is written to the file that torch's launcher names, so that it can be said after all processes have ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from environments.base import InputError
from environments.command import FAILURE, MISTAKE, StorageError, storage_refusal
from environments.terminal import say
from memory.processes import end_all, run_to_end

POLL_SECONDS = 0.5
"""Seconds between two looks at whether the launcher is still there (ours)."""


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
    from memory.run import RunDirectory
    from training.grpo.ranks import join
    from training.grpo.record import RoundSettings
    from training.grpo.round import run_round

    settings = RunDirectory.open(root).settings(RoundSettings)
    launch = settings.training.launch
    assert launch is not None
    import torch

    ranks = join(launch, on_cpu=settings.policy.device == "cpu" or not torch.cuda.is_available())
    run_round(root, iteration, resume, lambda line: print(line.model_dump_json(), flush=True), ranks)
    torch.distributed.destroy_process_group()


def _failure(error: Exception) -> Exception:
    """Return the failure as ``failure_of`` of the launcher reads it: of a kind that it knows, in one sentence."""
    from environments.base import EnvironmentFault
    from training.grpo.ranks import LostRanks, lost_in_a_collective
    from training.grpo.record import RoundFailure
    from training.rollout.sampling import EngineFailure

    kind: type[Exception] = RoundFailure
    sentence = storage_refusal(error) or str(error)
    if storage_refusal(error):
        kind = StorageError
    elif isinstance(error, InputError):
        kind = InputError
    elif isinstance(error, LostRanks):
        kind = LostRanks
    elif isinstance(error, EnvironmentFault | EngineFailure | RoundFailure):
        kind = RoundFailure
    elif lost_in_a_collective(error):
        kind, sentence = LostRanks, f"lost the other processes ({sentence.strip().splitlines()[0]})"
    else:
        traceback.print_exception(error)
        sentence = f"{type(error).__name__}: {error}"
    rank = os.environ.get("RANK", "0")
    return kind(sentence if rank == "0" or sentence.startswith("rank ") else f"rank {rank}: {sentence}")


if __name__ == "__main__":
    run_to_end(main)
