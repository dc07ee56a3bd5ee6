"""Templates are programs of strangers: whatever one does, the answer is a text or a sentence, in bounded time."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.rendering import template_process
from training.rendering.template_process import TemplateFailure, TemplateProcess

pytestmark = pytest.mark.wallclock

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "two loops": (LOOP, "CPU time"),
    "a loop within C": ("{{ (range(99999) | map('string') | join * 9999) | length }}", "CPU time|memory"),
    "a power": ("{{ 9 ** (9 ** 9) % 7 }}", "CPU time|memory"),
    "itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it calls itself without end"),
    "a text without end": ("{{ 'x' * 10 ** 8 }}", "it writes more than|memory"),
    "a text beyond the memory": ("{{ 'x' * 10 ** 12 }}", "memory"),
    "an attribute of Python": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "a mistake": ("{{ 1 // 0 }}", "ZeroDivisionError: "),
    "no template": ("{% for %}", "Expected an expression"),
}


def render(text: str, **values: object) -> str:
    return ImmutableSandboxedEnvironment().from_string(text).render(**values)


@pytest.fixture
def limited(monkeypatch) -> TemplateProcess:
    monkeypatch.setattr(template_process, "CPU_SECONDS", 0.5)
    monkeypatch.setattr(template_process, "MEMORY", 2**28)
    return TemplateProcess(render)


@pytest.mark.parametrize(("text", "told"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_templates_are_one_sentence_and_the_next_one_is_rendered(limited, text: str, told: str) -> None:
    with pytest.raises(TemplateFailure, match=told) as caught:
        limited(text)
    assert len(str(caught.value)) <= 1000
    assert limited("{{ a }} \ud800", a="é") == "é \ud800"


def test_the_process_holds_nothing_of_its_parents_and_ends_with_its_object(tmp_path: Path) -> None:
    with (tmp_path / "mine").open("w") as file, socket.socket() as mine:
        opened = {file.fileno(), mine.fileno()}
        made = TemplateProcess(lambda: ",".join(sorted(os.listdir("/proc/self/fd"))))
        before = set(psutil.Process().children())
        held = {int(number) for number in made().split(",")} - {0, 1, 2}
        assert not held & opened
        (child,) = set(psutil.Process().children()) - before
        del made
        gc.collect()
        assert not child.is_running()


def test_an_interruption_leaves_no_answer_for_the_next_question(monkeypatch) -> None:
    made = TemplateProcess(lambda text: time.sleep(30) or text if text == "slow" else text)
    handler = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            made("slow")
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert made("quick") == "quick"


ORPHAN = """
import os, sys, time
from training.rendering.template_process import TemplateProcess
made = TemplateProcess(lambda: str(os.getpid()))
print(made(), flush=True)
time.sleep(600)
"""


@pytest.mark.process
def test_no_process_outlives_a_parent_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(timeout=60)
