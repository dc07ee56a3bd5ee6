"""Programs as blocks, and the tools that they call."""

from __future__ import annotations

import ast
import threading

import pytest
from support import ROOT

from environments.base import Parameter, ToolSpec
from environments.verification.programs import blocks, called, program_tool, syntax_tree


def parameter(name: str, kind: str, required: bool = True) -> Parameter:
    return Parameter(name=name, type=kind, description="", required=required)


def tool(name: str, *parameters: Parameter) -> ToolSpec:
    return ToolSpec(name=name, group="G", description="", parameters=parameters)


def test_a_tool_runs_programs_when_it_requires_code_and_nothing_else() -> None:
    plain = tool("a.b", parameter("x", "string"))
    two = tool("two", parameter("code", "code"), parameter("x", "integer"))
    runs = tool("run", parameter("seconds", "integer", required=False), parameter("code", "code"))
    assert program_tool((plain, two, tool("none"), runs)) is runs
    assert runs.program == runs.parameters[1]
    assert program_tool((plain, two)) is None


HELPER = "def pages(f):\n    return f()\nx = pages(apis.a.b)"
LOOP = "for n in seen:\n    total += n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = apis.a.b()", ["x = apis.a.b()"]),
        ("import re\ny = 1\nx = apis.a.b(n=y)", ["import re\ny = 1\nx = apis.a.b(n=y)"]),
        ("x = apis.a.b(); apis.a.c(x=x)  # do it", ["x = apis.a.b()", "apis.a.c(x=x)"]),
        (f"total = 0\n{LOOP}\napis.a.b(n=total)", ["total = 0", LOOP, "apis.a.b(n=total)"]),
        ("x = apis.a.b()\nprint(x)\napis.a.c()", ["x = apis.a.b()", "print(x)", "apis.a.c()"]),
        ("apis.a.b()\nunused = 5", ["apis.a.b()", "unused = 5"]),
        ("def f():\n    return apis.a.b()\nx = f()", ["def f():\n    return apis.a.b()\nx = f()"]),
        ("a = apis.a\nx = a.b()\ny = a.c()", ["a = apis.a\nx = a.b()", "y = a.c()"]),
        (f"{HELPER}\nn = len(x)\napis.a.c(n=n)", [HELPER, "n = len(x)\napis.a.c(n=n)"]),
        ("for x in apis.a.b():\n    apis.a.c(x=x)", ["for x in apis.a.b():\n    apis.a.c(x=x)"]),
        ("x = [apis.a.b(n=n) for n in seen]", ["x = [apis.a.b(n=n) for n in seen]"]),
        ("# nothing", []),
    ],
)
def test_a_program_is_cut_at_its_top_level(code: str, expected: list[str]) -> None:
    assert list(blocks(code)) == expected


@pytest.mark.parametrize("code", ["a = 1\n\nif a:  # why\n    apis.a.b()\nb = '''x\ny'''\n", "@f\ndef g(): pass\ng()"])
def test_the_blocks_together_are_the_program(code: str) -> None:
    together = "\n".join(blocks(code))
    assert ast.dump(ast.parse(together)) == ast.dump(ast.parse(code))


def test_the_tools_that_a_program_calls() -> None:
    code = "a = apis.a\nx = a.b()\npages(apis.c.d, n=apis.e.f(n=a.b()))\ndef g():\n    apis.h.i()\nprint(x.y())"
    assert called(code) == ("a.b", "c.d", "e.f", "h.i")
    assert called("print('apis.a.b()')") == ()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (", "line 1 is no Python"),
        ("x" * 100_001, "100000 characters"),
        (f"f({'+'.join('1' * 20_000)})", "deeply"),
    ],
)
def test_what_is_no_program_is_said(code: str, says: str) -> None:
    for read in (blocks, called):
        with pytest.raises(ValueError, match=says):
            read(code)


def test_one_thread_parses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once make CPython 3.11 raise SystemError now and then, whatever the text."""
    inside, most, real = [], [], ast.parse
    met = threading.Event()

    def watched(code: str, mode: str) -> ast.AST:
        inside.append(code)
        most.append(len(inside))
        met.wait(0.05)  # long enough for another thread to come in
        inside.pop()
        return real(code, mode=mode)

    monkeypatch.setattr(ast, "parse", watched)
    threads = [threading.Thread(target=syntax_tree, args=("x = 1",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_nobody_else_parses() -> None:
    """But the filter of AppWorld's worker, which runs one thread."""
    packages = ("agents", "environments", "evaluation", "graph", "memory", "training")
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in files if "ast.parse(" in path.read_text()}
    assert found == {"environments/verification/programs.py", "environments/appworld/engine/code_filter.py"}
