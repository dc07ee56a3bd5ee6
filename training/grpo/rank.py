"""One of several processes of a round: ``python -m training.grpo.rank RUN ITERATION [resume]``, under a launcher.

``training.run_round`` starts it through ``training.grpo.launch``; torchrun and ``accelerate launch`` may as well. Its
arguments have no options: torchrun would take ``--run`` for one of its own. What went wrong is written to the file that
torch's launcher names, so that the launcher can say it after all processes have ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from environments.base import InputError
from environments.command import FAILURE, MISTAKE, storage_refusal
from environments.terminal import say
from memory.processes import end_all, run_to_end

POLL_SECONDS = 0.5
"""Seconds between two looks at whether the launcher is still there (ours)."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""torch's name of the variable that names the file for a process's failure."""


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
        _tell(error)
        sys.stdout.flush()
        # Python's shutdown would wait for the other processes of the group.
        os._exit(MISTAKE if isinstance(error, InputError) or storage_refusal(error) else FAILURE)


def _train(root: Path, iteration: int, resume: bool) -> None:
    from memory.run import RunDirectory
    from training.grpo.ranks import join
    from training.grpo.record import RoundSettings
    from training.grpo.round import run_round

    settings = RunDirectory.open(root).settings(RoundSettings)
    launch = settings.training.launch
    if launch is None:
        raise InputError(f"{root}: training.launch is null, a round trains in one process: use training.run_round")
    import torch

    on_cpu = settings.policy.device == "cpu" or not torch.cuda.is_available()
    ranks = join(launch, on_cpu)
    run_round(root, iteration, resume, lambda line: print(line.model_dump_json(), flush=True), ranks)
    torch.distributed.destroy_process_group()


def _tell(error: Exception) -> None:
    """Write the failure to stderr, and to the launcher's file."""
    from environments.base import EnvironmentFault
    from training.grpo.ranks import LostRanks, lost_in_a_collective
    from training.grpo.record import RoundFailure

    refusal, lost = storage_refusal(error), isinstance(error, LostRanks)
    sentence = refusal or str(error)
    if not lost and lost_in_a_collective(error):
        lost, sentence = True, f"lost the other processes ({sentence.strip().partition(chr(10))[0]})"
    elif not refusal and not isinstance(error, InputError | EnvironmentFault | RoundFailure):
        traceback.print_exception(error)
        sentence = f"{type(error).__name__}: {error}"
    rank = os.environ.get("RANK", "0")
    if rank != "0" and not sentence.startswith("rank "):
        sentence = f"rank {rank}: {sentence}"
    say(sentence)
    file = os.environ.get(ERROR_FILE)
    if file and file != os.devnull:
        failure = {"message": sentence, "lost": lost, "extraInfo": {"timestamp": int(time.time())}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": failure}))


if __name__ == "__main__":
    run_to_end(main)
