"""The installed Chromium without a window, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NAMED = "COEVOLVE_CHROMIUM"
"""The environment variable that names the browser's program."""
READY = "document.documentElement.dataset.ready === 'true'"
"""The report's page says so once it can be used."""


def find_chromium() -> str | None:
    """Return the program of an installed browser; None without one."""
    names = (os.environ[NAMED],) if NAMED in os.environ else NAMES
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile; no event loop can run in this thread until the end of the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The browser's own sandbox refuses to work for root.
        yield playwright.chromium.launch(executable_path=program, chromium_sandbox=os.geteuid() != 0)


def wait(page: Page, expression: str, seconds: float = 60.0) -> None:
    """Wait until an expression is true. ``Page.wait_for_function`` makes code of a text, which the report forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not within {seconds:g} s: {expression}"
        page.wait_for_timeout(10)
