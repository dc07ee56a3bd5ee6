"""A recipe runs a program, and calls what may destroy, only where the user bound that program or address."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from environments.addresses import origin_of
from environments.base import InputError
from environments.settings import EnvironmentSettings
from environments.trust import TRUST_VARIABLE, how_to_bind, is_trusted

HASH = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def _nothing_bound(monkeypatch, tmp_path):
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "made.py").write_text("def make(): open('ran', 'w')")


def said(command=(), **options):
    """What a recipe with these options is answered: a refusal of trust, or what the server said when it ran."""
    given = {"command": list(command)} if command else {}
    with pytest.raises(InputError) as caught:
        EnvironmentSettings(name="mcp", options=given | options).open()
    return str(caught.value)


def bind(refusal, monkeypatch):
    """Do what the refusal says, as a shell does."""
    _, _, line = refusal.rpartition(": ")
    word, assigned = shlex.split(line)
    assert word == "export"
    monkeypatch.setenv(*assigned.split("=", 1))


RAN = "the MCP server does not start"
SERVED = (sys.executable, "server.py", "--port", "1")


def _another_folder(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    (folder / "elsewhere" / "server.py").write_bytes((folder / "server.py").read_bytes())


CHANGES = {
    "other arguments": ((*SERVED[:-1], "2"), {}, None),
    "an argument in two": ((*SERVED[:2], "--port 1"), {}, None),
    "code in place of a file": ((sys.executable, "-c", "import os"), {}, None),
    "a module": ((sys.executable, "-m", "server"), {}, None),
    "the interpreter alone": ((sys.executable,), {}, None),
    "another interpreter": (("bash", *SERVED[1:]), {}, None),
    "a variable": (SERVED, {"env": ["HOME"]}, None),
    "a folder of its own": ((*SERVED, "{folder}"), {}, None),
    "another file of that name": (
        SERVED,
        {},
        lambda folder, _: (folder / "server.py").write_text("raise SystemExit(3)"),
    ),
    "another working directory": (SERVED, {}, _another_folder),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_line_of_a_refusal_binds_that_program_and_no_other(change, monkeypatch, tmp_path):
    refusal = said(SERVED)
    assert refusal.startswith("environment.options.command: a recipe does not decide which programs run, and this one ")
    assert f"{sys.executable} server.py --port 1 in {tmp_path}" in refusal
    bind(refusal, monkeypatch)
    command, options, prepare = CHANGES[change]
    if prepare is not None:
        prepare(tmp_path, monkeypatch)
    assert "does not decide which programs run" in said(command, **options)


@pytest.mark.process
def test_several_are_bound_and_data_that_a_server_writes_may_change(monkeypatch, tmp_path):
    data = (*SERVED, "notes.db")
    for command in (SERVED, data):
        bind(said(command), monkeypatch)
    (tmp_path / "notes.db").write_text("one")
    for command in (SERVED, data):
        assert RAN in said(command, call_seconds=29)


@pytest.mark.parametrize(
    "program",
    ["server.py", "server.mjs", "run.sh", "server", "./server.py", "--require=server.js"],
)
def test_a_program_among_the_arguments_is_bound_with_its_bytes(program, monkeypatch, tmp_path):
    file = tmp_path / program.rpartition("=")[2]
    file.write_text("raise SystemExit(1)")
    command = ("cat", program)
    bind(said(command), monkeypatch)
    file.write_text("raise SystemExit(2)")
    assert "does not decide which programs run" in said(command)


def test_the_old_variable_and_a_hash_of_another_program_bind_nothing(monkeypatch):
    monkeypatch.setenv("COEVOLVE_TRUST_AGENT_CODE", "1")
    for value in ("", f"{sys.executable}={HASH}", f"http://127.0.0.1:8000, {HASH},"):
        monkeypatch.setenv(TRUST_VARIABLE, value)
        assert "does not decide which programs run" in said(SERVED)


@pytest.mark.parametrize("value", ["1", "python", "/usr/bin/python3", "a=sha256:12", HASH.upper(), "http://u:p@host"])
def test_an_entry_that_binds_nothing_is_refused_by_its_number(value, monkeypatch):
    monkeypatch.setenv(TRUST_VARIABLE, f"{HASH}, {value}")
    refusal = said(SERVED)
    assert refusal.startswith(f"{TRUST_VARIABLE}: entry 2 is neither PROGRAM=sha256:HASH nor an address")
    assert "u:p" not in refusal


def test_a_function_is_bound_with_its_module_and_not_imported_before(monkeypatch, tmp_path):
    refusal = said(factory="made:make")
    assert f"runs made:make of {tmp_path}/made.py" in refusal
    bind(refusal, monkeypatch)
    for other in ("server:make", "made:other"):
        assert "does not decide which programs run" in said(factory=other)
    assert "there is no module of no_such:make" in said(factory="no_such:make")
    (tmp_path / "made.py").write_text("def make(): open('ran', 'w'); exit()")
    assert "does not decide which programs run" in said(factory="made:make")
    assert not Path("ran").exists()
    assert "made" not in sys.modules


def test_what_is_refused_is_one_line_that_a_terminal_can_show():
    refusal = said(("bash", "-c", "true\n\x1b[2Jrm -r ~"))
    assert "true\\n\\x1b[2Jrm" in refusal
    assert "\n" not in refusal
    assert "there is no program 'no-such-program'" in said(["no-such-program"])


def test_an_address_is_bound_by_scheme_host_and_port(monkeypatch):
    monkeypatch.setenv(TRUST_VARIABLE, f"{HASH}, http://127.0.0.1:8000/mcp")
    for url, trusted in {
        "http://127.0.0.1:8000/other": True,
        "http://127.0.0.1:8001/mcp": False,
        "https://127.0.0.1:8000/mcp": False,
        "http://localhost:8000/mcp": False,
    }.items():
        assert is_trusted(origin_of(url)) is trusted, url
    line = how_to_bind("http://[::1]:9")
    assert line == f"export {TRUST_VARIABLE}={shlex.quote(os.environ[TRUST_VARIABLE] + ',http://[::1]:9')}"
    assert re.fullmatch(r"export \w+='[^']*'", line)
