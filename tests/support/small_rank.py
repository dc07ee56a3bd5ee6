"""A process of a launch without a trainer: what ranks exchange, and one that does not answer, in few seconds."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from environments.base import EnvironmentFault, InputError
from support.checked_rank import FOUND


def train(root: Path, iteration: int, resume: bool) -> None:
    from training.grpo.ranks import LostRanks, join
    from training.settings import LaunchSettings

    ranks = join(LaunchSettings(processes=2, deadline=60.0), on_cpu=True)
    told: dict[str, object] = {
        "gathered": ranks.gather(f"of {ranks.index}"),
        "shared": ranks.share("the first's" if ranks.first else None),
        "most": ranks.most(3 - ranks.index),
        "by_first": ranks.by_first(lambda: f"by {ranks.index}"),
    }

    def attempt(name, fail):
        try:
            with ranks.agreeing():
                fail()
        except Exception as error:  # noqa: BLE001 - it is reported
            told[name] = [type(error).__name__, str(error)]

    def on_second():
        if not ranks.first:
            raise EnvironmentFault("no simulator")

    def on_first():
        if ranks.first:
            raise InputError("no file")

    def full_disk():
        if not ranks.first:
            raise OSError(28, "No space left on device", "log")

    def bug():
        if not ranks.first:
            raise KeyError("x")

    for name, fail in {"second": on_second, "first": on_first, "disk": full_disk, "bug": bug}.items():
        attempt(name, fail)
    attempt("none", lambda: None)
    told["place"] = [ranks.index, ranks.count, ranks.first]
    Path(f"{os.environ[FOUND]}.{ranks.index}").write_text(json.dumps(told))
    from datetime import timedelta

    from torch import distributed

    ranks._group, ranks._deadline = distributed.new_group(backend="gloo", timeout=timedelta(seconds=1)), 1.0
    if not ranks.first:
        time.sleep(600)
    try:
        ranks.gather(1)
    except LostRanks:
        sys.stdout.flush()
        raise


def main() -> None:
    from training.grpo import rank

    rank._train = train
    rank.main()


if __name__ == "__main__":
    main()
