"""Chromium without a window, driven by its own protocol over a websocket: pages are opened, used and looked at.

The protocol (https://chromedevtools.github.io/devtools-protocol/) needs nothing but ``websockets``, which LangGraph's
client requires too; Playwright would bring a second browser driver of 45 MB, and Selenium one program more. A page
notes what must not happen: errors on its console, exceptions, dialogs, requests.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NAMED = "COEVOLVE_CHROMIUM"
"""The environment variable that names the browser's program."""
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
START = 60.0
ANSWER = 60.0
READY = "document.documentElement.dataset.ready === 'true'"
"""The report's page says so once it can be used."""
_POINT = """async (selector) => {
  const point = () => {
    const e = document.querySelector(selector);
    if (!e) return null;
    e.scrollIntoView({ block: 'center', behavior: 'instant' });
    const b = e.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2;
    return e.contains(document.elementFromPoint(x, y)) ? [x, y] : null;
  };
  const before = point();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return String(before) === String(point()) ? before : null;
}"""
"""The middle of an element; null where something else lies there, or while it moves."""
_KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    " ": (32, " "),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    "Home": (36, ""),
    "End": (35, ""),
}


class BrowserFailure(RuntimeError):
    """The browser did not start or answer, or the page threw an exception where an answer was asked for."""


def find_chromium() -> str | None:
    """Return the program of an installed browser; None without one."""
    names = (os.environ[NAMED],) if NAMED in os.environ else NAMES
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """A running browser with an empty profile. Make one with ``running_browser``."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._pages: dict[str, Page] = {}

    @contextmanager
    def page(self, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Page]:
        """Open an empty page that shares nothing with others, and close it at the end of the block."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.look(width, height, scheme)
        try:
            yield page
        finally:
            del self._pages[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return the answer to one call of the protocol; events that arrive before it go to their pages."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        end = time.monotonic() + ANSWER
        while True:
            try:
                found = json.loads(self._socket.recv(timeout=max(0.0, end - time.monotonic())))
            except TimeoutError:
                raise BrowserFailure(f"{method} was not answered within {ANSWER:g} s") from None
            if found.get("id") == self._number:
                if "error" in found:
                    raise BrowserFailure(f"{method}: {found['error']['message']}")
                return dict(found["result"])
            self._note(found)

    def listen(self, seconds: float) -> None:
        """Take in events for a while."""
        end = time.monotonic() + seconds
        with suppress(TimeoutError):
            while (left := end - time.monotonic()) > 0:
                self._note(json.loads(self._socket.recv(timeout=left)))

    def _note(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is not None and "method" in event:
            page.note(event["method"], event["params"])
            if event["method"] == "Page.javascriptDialogOpening":  # it would block every answer
                close = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
                self._socket.send(json.dumps(close | {"sessionId": event["sessionId"]}))


class Page:
    """One page. ``errors``: on the console and exceptions; ``dialogs``: their texts; ``requests``: URLs asked for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to one call of the protocol on this page."""
        return self._browser.call(method, self._session, **parameters)

    def look(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Set the size of the window and the scheme of colours that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, where: Path | str, ready: str = "document.readyState === 'complete'", fragment: str = "") -> float:
        """Load a file or a URL; return the seconds until the expression ``ready`` was true."""
        url = where.resolve().as_uri() if isinstance(where, Path) else where
        start = time.perf_counter()
        failed = self.call("Page.navigate", url=url + fragment).get("errorText")
        if failed:
            raise BrowserFailure(f"{url}: {failed}")
        self.wait(ready)
        return time.perf_counter() - start

    def wait(self, expression: str, seconds: float = 60.0, what: str = "") -> Any:
        """Wait until an expression is true; return its value. ``what`` names it where it does not become true."""
        end = time.monotonic() + seconds
        while not (value := self._value(expression)):
            if time.monotonic() > end:
                raise BrowserFailure(f"{what or expression} was not true within {seconds:g} s; errors: {self.errors}")
            time.sleep(0.01)
        return value

    def _value(self, expression: str) -> Any:
        try:
            return self.evaluate(expression)
        except BrowserFailure:  # between two documents
            return None

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or what its promise gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserFailure(f"{expression}: {_words(found['exceptionDetails'])}")
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that matches, once it rests there and nothing lies above it.

        A closing dialog or a page that scrolls would get the click otherwise.
        """
        x, y = self.wait(
            f"({_POINT})({json.dumps(selector)})", what=f"that {selector} is there, rests and is uncovered"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key: a letter, or a name such as Enter, Tab, Escape, ArrowDown."""
        code, text = _KEYS.get(key, (ord(key.upper()) if len(key) == 1 else 0, key))
        options = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **options, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **options)

    def write(self, text: str) -> None:
        """Insert a text where the focus is."""
        self.call("Input.insertText", text=text)

    def back(self) -> None:
        """Press the browser's back button."""
        history = self.call("Page.getNavigationHistory")
        entry = history["entries"][history["currentIndex"] - 1]
        self.call("Page.navigateToHistoryEntry", entryId=entry["id"])

    def settle(self, seconds: float = 0.3) -> None:
        """Take in what happens for a while: errors, dialogs, requests."""
        self._browser.listen(seconds)

    def screenshot(
        self, path: Path, *, whole: bool = False, clip: tuple[float, float, float, float] | None = None
    ) -> Path:
        """Write a picture as PNG: of the window, the ``whole`` page, or a ``clip`` (x, y, width, height) of it."""
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, size["width"], size["height"])
        part = {} if clip is None else {"clip": dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=1)}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=clip is not None, **part)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def note(self, method: str, event: dict[str, Any]) -> None:
        """Note an event of the page."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(_words(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert", "warning"):
            said = (str(one.get("value", one.get("description", ""))) for one in event["args"])
            self.errors.append(f"{event['type']}: {' '.join(said)}")
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(event["message"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])


def _words(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile; end it, with its processes, at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as folder:
        # The browser's own sandbox refuses to work for root.
        flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={folder}/profile"]
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *flags, "about:blank"],
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "TMPDIR": folder},  # it leaves folders there
            )
        try:
            url = _address(process, Path(folder) / "profile" / "DevToolsActivePort", log)
            with connect(url, max_size=None, compression=None, open_timeout=START) as socket:
                yield Browser(socket)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _address(process: subprocess.Popen[bytes], told: Path, log: Path) -> str:
    """Return the address that a browser that starts writes into its profile."""
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.02)
    raise BrowserFailure(f"the browser did not start: {log.read_text(errors='replace')[-2000:]}")
