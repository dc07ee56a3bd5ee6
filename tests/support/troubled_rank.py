"""A process of a round that is killed right before it plays its rollouts: ``COEVOLVE_TEST_TROUBLE`` is "RANK STEP"."""

from __future__ import annotations

import os
import signal

TROUBLE = "COEVOLVE_TEST_TROUBLE"


def main() -> None:
    from training.grpo import group_rollouts, rank, round

    who, step = os.environ[TROUBLE].split()
    round.CHECKPOINT_STEPS = 1
    real = group_rollouts.GroupRollouts._play

    def troubled(self, at, *given):
        if os.environ["RANK"] == who and at == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, at, *given)

    group_rollouts.GroupRollouts._play = troubled
    rank.main()


if __name__ == "__main__":
    main()
