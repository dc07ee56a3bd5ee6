"""A process of a round that comes to harm: ``COEVOLVE_TEST_TROUBLE`` is "KIND RANK STEP", KIND one of these functions.

It happens right before that rank plays its rollouts of that step.
"""

from __future__ import annotations

import os
import signal
import time

from environments.base import EnvironmentFault, InputError

TROUBLE = "COEVOLVE_TEST_TROUBLE"


def fault() -> None:
    raise EnvironmentFault("the simulator is gone")


def mistake() -> None:
    raise InputError("tasks.jsonl is damaged: restore it")


def bug() -> None:
    raise KeyError("nothing")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_launcher() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def hang() -> None:
    time.sleep(600)


def main() -> None:
    from training.grpo import group_rollouts, rank, round

    kind, who, step = os.environ[TROUBLE].split()
    round.CHECKPOINT_STEPS = 1
    real = group_rollouts.GroupRollouts._play

    def troubled(self, at, *given):
        if os.environ["RANK"] == who and at == int(step):
            globals()[kind]()
        return real(self, at, *given)

    group_rollouts.GroupRollouts._play = troubled
    rank.main()


if __name__ == "__main__":
    main()
