"""What the page of a large run weighs, and how fast it opens in Chromium.

``PYTHONPATH=.:tests python -m support.measured_page [PADDING]`` makes a run of 20 iterations, 2,000 tasks and 50,000
rollouts below a temporary folder, each of about 1 kB and PADDING characters, and prints the figures (about a minute).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from graph.report.page import make_page
from memory.run import RunDirectory
from support.browser import Browser, find_chromium, running_browser
from support.large_run import Sizes, make_large_run
from support.made_run import make_run, run_graph

READY = "document.documentElement.dataset.ready === 'true'"
"""The page says so once it can be used."""
TIMES = 5


class Measured(NamedTuple):
    """Figures of a page. Seconds to open it are the least of several; ``inert_seconds`` those of its bytes alone.

    ``decoded`` are the parts of its records that were decoded by then, ``elements`` those of the document.
    """

    rollouts: int
    rollouts_with_turns: int
    megabytes: float
    making_seconds: float
    seconds: float
    first_seconds: float
    inert_seconds: float
    elements: int
    decoded: list[str]
    errors: list[str]


def measure(browser: Browser, of: RunDirectory, folder: Path, sizes: Sizes) -> Measured:
    """Make a run of ``sizes`` and its page in ``folder``, and open the page."""
    run = make_large_run(folder / "large", of, sizes)
    start = time.perf_counter()
    made = make_page(run)
    making = time.perf_counter() - start
    large, inert = folder / "large.html", folder / "inert.html"
    large.write_bytes(made.html)
    inert.write_bytes(b"<!doctype html><title>inert</title><script type='text/plain'>" + b"x" * len(made.html))
    with browser.page() as page:
        alone = min(page.open(inert) for _ in range(TIMES))
    with browser.page() as page:
        seconds = [page.open("about:blank") and page.open(large, READY) for _ in range(TIMES)]
        return Measured(
            rollouts=made.rollouts,
            rollouts_with_turns=made.kept,
            megabytes=len(made.html) / 1e6,
            making_seconds=making,
            seconds=min(seconds),
            first_seconds=seconds[0],
            inert_seconds=alone,
            elements=page.evaluate("document.querySelectorAll('*').length"),
            decoded=page.evaluate("[...decoded.keys()].sort()"),
            errors=page.errors,
        )


def main() -> None:
    """Print the figures of the largest run."""
    parser = argparse.ArgumentParser(description="Make a large run, open its page in Chromium, print the figures.")
    parser.add_argument("padding", type=int, nargs="?", default=0, help="characters added to each rollout (0)")
    padding = parser.parse_args().padding
    program = find_chromium()
    if program is None:
        sys.exit("no Chromium is installed: make chromium, or name one by COEVOLVE_CHROMIUM")
    with tempfile.TemporaryDirectory() as folder, running_browser(program) as browser:
        made = make_run(Path(folder) / "made")
        run_graph(made)
        found = measure(browser, made, Path(folder), Sizes(padding=padding))
    for name, value in found._asdict().items():
        print(f"{name:20} {value:.2f}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
