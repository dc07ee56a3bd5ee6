"""A process of a launch without a trainer: what ranks exchange, and one that fails, in few seconds."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from environments.base import InputError
from support.checked_rank import FOUND, TROUBLE


def train(root: Path, iteration: int, resume: bool) -> None:
    from training.grpo.ranks import LostRanks, join
    from training.settings import LaunchSettings

    ranks = join(LaunchSettings(processes=2, deadline=60.0), on_cpu=True)
    told: dict[str, object] = {
        "gathered": ranks.gather(f"of {ranks.index}"),
        "by_first": ranks.by_first(lambda: f"by {ranks.index}"),
    }
    told["place"] = [ranks.index, ranks.count, ranks.first]
    Path(f"{os.environ[FOUND]}.{ranks.index}").write_text(json.dumps(told))
    if os.environ[TROUBLE] == "mistake":

        def fail():
            raise InputError("no file")

        ranks.by_first(fail)
    from datetime import timedelta

    from torch import distributed

    ranks.group, ranks.deadline = distributed.new_group(backend="gloo", timeout=timedelta(seconds=1)), 1.0
    if not ranks.first:
        time.sleep(600)
    try:
        ranks.gather(1)
    except LostRanks:
        sys.stdout.flush()
        raise


def main() -> None:
    from training.grpo import launch

    launch._train = train
    launch.main()


if __name__ == "__main__":
    main()
