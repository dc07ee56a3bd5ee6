"""The README's pictures, taken of the page of a real run in Chromium: ``make pictures``.

``python -m support.pictures RUN FOLDER`` writes ``report.png`` (the run's curves, whether they helped, and its
tools by iteration), ``weakness.png`` and ``effect.png`` (the two ends of the first task that can be followed).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from environments.base import InputError
from environments.command import exit_statuses
from graph.report.lineage import History
from graph.report.page import make_page
from graph.report.stories import first_story
from memory.run import RunDirectory
from support.browser import READY, find_chromium, running_browser, wait

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WIDTH, HEIGHT = 1280, 900


def take_pictures(run: RunDirectory, folder: Path, browser: Browser) -> list[Path]:
    """Write the pictures of a run's page into a folder and return their paths."""
    story = first_story(History.read(run))
    if story is None:
        raise InputError(f"{run.root}: no task of it can be followed to its effect yet: take a longer run")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as held:
        path = Path(held) / "report.html"
        path.write_bytes(make_page(run).html)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(path.as_uri())
        wait(page, READY)
        files = [folder / f"{name}.png" for name in ("report", "weakness", "effect")]
        # The head of the page down to its map of tools.
        bottom = page.evaluate("document.getElementById('records').getBoundingClientRect().top + scrollY")
        page.screenshot(path=files[0], full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})
        page.evaluate(f"location.hash = 'task={story.task.id}'")
        wait(page, "document.getElementById('drawer').open")
        page.wait_for_timeout(500)
        page.screenshot(path=files[1])
        page.evaluate(
            "document.querySelector('.lineage').lastChild.scrollIntoView({ behavior: 'instant', inline: 'end' })"
        )
        page.screenshot(path=files[2])
        page.close()
        return files


def main() -> None:
    """Take the pictures of the run and into the folder that the arguments name."""
    with exit_statuses():
        if len(sys.argv) != 3:
            raise InputError("name a run and a folder: python -m support.pictures RUN FOLDER")
        program = find_chromium()
        if program is None:
            raise InputError("no Chromium is installed: make chromium, or name one by COEVOLVE_CHROMIUM")
        with running_browser(program) as browser:
            for path in take_pictures(RunDirectory.open(Path(sys.argv[1])), Path(sys.argv[2]), browser):
                print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
