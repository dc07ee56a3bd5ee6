"""`coevolve report --serve`: the page follows the records, and only this machine's own pages can ask for it."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from support import ROOT
from support.browser import Browser
from support.commands import run_here
from support.made_run import make_run

from environments.base import InputError
from graph.report.following import LOOPBACK, SCRIPT, Follower, followed, page_server
from memory.run import RunDirectory

HASH = f"sha256-{'A' * 43}="
PLAIN = (
    "<!doctype html><html lang='en'><head><meta http-equiv='Content-Security-Policy' "
    f"content=\"default-src 'none'; script-src '{HASH}'\"><title>run</title></head>"
    "<body><p id='said'>{}</p></body></html>"
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    folder = run.iteration(0)
    folder.root.mkdir(parents=True)
    folder.trajectories.write_text("one\n")
    return run


def render(run: RunDirectory) -> bytes:
    """A page of the trajectories' text; half a line is damage."""
    text = run.iteration(0).trajectories.read_text()
    if not text.endswith("\n"):
        raise InputError("trajectories.jsonl, line 1: half <b>a</b> line")
    return PLAIN.format(text.strip()).encode()


@pytest.fixture
def server(run: RunDirectory) -> Iterator[ThreadingHTTPServer]:
    with page_server(Follower(run, render)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server: ThreadingHTTPServer, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    if host is None or host:
        connection.putheader("Host", host or f"{LOOPBACK}:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def write(run: RunDirectory, text: str) -> None:
    path = run.iteration(0).trajectories
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a coarse clock must not hide the change


def test_the_page_is_made_again_when_a_record_changed_and_only_then(run: RunDirectory) -> None:
    made = []

    def counted(run: RunDirectory) -> bytes:
        made.append(run)
        return render(run)

    follower = Follower(run, counted)
    first, version = follower.page(), follower.version()
    assert (follower.page(), len(made)) == (first, 1)
    write(run, "two\n")
    assert follower.version() != version
    assert b">two<" in follower.page()
    assert len(made) == 2
    write(run, "half")
    assert b">two<" in follower.page(), "the last page stays while a record is written"
    assert follower.page()
    assert (follower.refusal(follower.version()), len(made)) == ("trajectories.jsonl, line 1: half <b>a</b> line", 3)
    write(run, "three\n")
    assert (follower.refusal(follower.version()), b">three<" in follower.page()) == ("", True)
    (run.policy_path / "checkpoint-1").mkdir(parents=True)
    before = follower.version()
    (run.policy_path / "checkpoint-1" / "state.json").write_text("{}")
    assert follower.version() == before, "weights are no records"


def test_only_the_page_is_served_and_only_to_its_own_address(server: ThreadingHTTPServer, run: RunDirectory) -> None:
    assert server.server_address[0] == LOOPBACK
    status, page = ask(server)
    assert status == 200
    assert ">one<" in page
    assert "connect-src 'self'" in page
    status, version = ask(server, "/version")
    assert (status, version.split()[0] in page) == (200, True)
    port = server.server_port
    assert ask(server, host=f"localhost:{port}")[0] == 200
    for host in ("pwned.invalid", f"pwned.invalid:{port}", LOOPBACK, "", f"{LOOPBACK}:{port}.pwned.invalid"):
        status, text = ask(server, host=host)
        assert (status, ">one<" in text) == (421, False), host
    secret = run.root / "secret.txt"
    secret.write_text("secret")
    for path in ("/secret.txt", "/../secret.txt", "//etc/passwd", f"/{secret}", "/version/..", "/?x", "*", "http://x/"):
        assert ask(server, path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, method=method)[0] == 501


def test_a_run_without_records_is_waited_for(server: ThreadingHTTPServer, run: RunDirectory) -> None:
    write(run, "half")
    status, text = ask(server)
    assert status == 503
    assert "half &lt;b&gt;a&lt;/b&gt; line" in text
    assert 'http-equiv="refresh"' in text
    write(run, "whole\n")
    assert ask(server)[0] == 200


def test_a_port_that_is_taken_is_refused(server: ThreadingHTTPServer, run: RunDirectory) -> None:
    with pytest.raises(InputError, match=f"--port {server.server_port}: .* choose another one"):
        page_server(Follower(run, render), server.server_port)


def test_a_page_of_another_shape_is_not_served_without_its_policy() -> None:
    for page in (b"<html lang='en'><body></body></html>", PLAIN.replace("</body>", "").encode()):
        with pytest.raises(RuntimeError, match="another policy or end"):
            followed(page, "1")


@pytest.mark.browser
def test_an_open_page_shows_new_records(browser: Browser, server: ThreadingHTTPServer, run: RunDirectory) -> None:
    url = f"http://{LOOPBACK}:{server.server_port}/"
    with browser.page() as page:
        page.open(url)
        assert page.evaluate("document.getElementById('said').textContent") == "one"
        write(run, "two\n")
        page.wait("document.getElementById('said').textContent === 'two'", 20)
        page.press("a")  # somebody reads it: the page is not changed under the eyes
        write(run, "three\n")
        page.wait("!!document.getElementById('following')", 20)
        assert page.evaluate("document.getElementById('said').textContent") == "two"
        page.click("#following")
        page.wait("document.getElementById('said').textContent === 'three'", 20)
        page.settle(0.1)
        write(run, "half")
        ask(server)  # somebody's page is made of it
        page.wait("document.getElementById('following')?.textContent.includes('half <b>a</b> line')", 20)
        assert (page.errors, page.dialogs) == ([], [])
        assert {address.removeprefix(url) for address in page.requests} <= {"", "version"}
        shutil.rmtree(run.root)
    assert "http" not in SCRIPT


@pytest.mark.process
def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    argv = [sys.executable, "-m", "graph.write_report", str(run.root), "--serve"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url, timeout=60) as answer:
            page = answer.read().decode()
        assert "data-version" in page
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert not run.report_path.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--serve", "--output", "new.html"], "--output has no effect with --serve"), (["--port", "0"], "is of --serve")],
)
def test_options_without_effect_are_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    run = make_run(tmp_path / "run")
    done = run_here("graph.write_report", str(run.root), *arguments)
    assert (done.returncode, says in done.stderr) == (2, True)
    assert not run.report_path.exists()
