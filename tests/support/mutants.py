"""Small changes to a module, each of which a test of it should notice.

``python -m support.mutants MODULE TEST...`` collects the tests once, runs them with MODULE as it is, and then, in a
process forked for each change, those that reach the changed function, the quickest first and to the first failure. It
prints the survivors, one line each.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

OTHER = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
CPU_SECONDS = 5
"""A change is noticed, too, if its tests compute for so long and twice as long as without it: its loop does not end."""
WAIT = 120
"""Seconds after which the tests of a change are ended; a change that only waited by then is not noticed."""
AT_ONCE = 2


class Mutant(NamedTuple):
    """The text of a change, and the changed function: its name with its classes, and its code."""

    text: str
    function: str
    code: CodeType


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every change of one operator, condition or number inside a function of a module or of a class in it.

    No two texts are equal up to ``  # ``: a further change that reads like another of its function has its number.
    """
    source = path.read_text()
    seen: Counter[str] = Counter()
    for index in range(len(list(_changes(ast.parse(source))))):
        tree = ast.parse(source)
        function, node, field, other = list(_changes(tree))[index]
        before = ast.unparse(node)
        setattr(node, field, copy.deepcopy(other))
        changed = compile(ast.fix_missing_locations(tree), path, "exec")
        line = source.splitlines()[getattr(node, "lineno", 1) - 1].strip()
        text = f"{function}: {before} -> {ast.unparse(node)}"
        seen[text] += 1
        numbered = text if seen[text] == 1 else f"{text} ({seen[text]})"
        yield Mutant(f"{numbered}  # {line}", function, _codes(changed)[function])


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.AST, str, object]]:
    """Yield what can be changed: the function, a node in it, the node's field, and its other value."""
    for name, function in _functions(tree.body, ""):
        found = (node for part in function.body for node in ast.walk(part) if isinstance(node, ast.expr | ast.keyword))
        nodes = sorted(found, key=lambda node: (node.lineno, node.col_offset))
        asserted = [id(one.value) for one in nodes if isinstance(one, ast.keyword) and one.arg == "strict"]
        for node in nodes:
            if id(node) in asserted:  # of zip: no input reaches it
                continue
            match node:
                case ast.Compare(ops=[operator]) if type(operator) in OTHER:
                    yield name, node, "ops", [OTHER[type(operator)]()]
                case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OTHER:
                    yield name, node, "op", OTHER[type(operator)]()
                case ast.UnaryOp(op=ast.Not()):
                    yield name, node, "op", ast.UAdd()
                case ast.Constant(value=bool(value)):
                    yield name, node, "value", not value
                case ast.Constant(value=int(value) | float(value)):
                    yield name, node, "value", value + 1


def _functions(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Return the code of every function, by its name with its classes."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return {one.co_qualname: one for one in inner} | {k: v for one in inner for k, v in _codes(one).items()}


class _Run:
    """Runs the collected tests in forked processes."""

    def __init__(self, module: str) -> None:
        self.module = import_module(module)
        self.path = Path(str(self.module.__file__))
        self.seconds = defaultdict[str, float](float)
        self.survivors: list[str] = []
        self.count = 0
        self.failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:  # a file that cannot be collected
            return False
        reached = self._reached(session)
        self.failed = reached is None
        changes = list(mutants(self.path)) if reached is not None else []
        self.count = len(changes)
        functions = {one.__code__.co_qualname: one for one in _made(self.module)}
        running: dict[int, Mutant] = {}
        while changes or running:
            if changes and len(running) < AT_ONCE:
                change = changes.pop()
                running[self._try(session, change, functions[change.function], reached or {})] = change
                continue
            child, status = os.wait()
            if status == 0 or os.WTERMSIG(status) == signal.SIGALRM:
                self.survivors.append(running[child].text)
            del running[child]
        return True

    def _reached(self, session: pytest.Session) -> dict[str, list[int]] | None:
        """Return the tests, by their place, that reach each function, the quickest first; None where one fails."""
        reading, writing = os.pipe()

        def run() -> int:
            seen: set[str] = set()

            def note(frame: FrameType, event: str, _: object) -> None:
                if frame.f_code.co_filename == str(self.path):
                    seen.add(frame.f_code.co_qualname.partition(".<locals>")[0])

            lines = []
            for place in range(len(session.items)):
                seen.clear()
                began = time.process_time()
                sys.settrace(note)
                failed = _fails(session, [place])
                sys.settrace(None)
                if failed:
                    return 1
                lines += [f"{time.process_time() - began}\t{place}\t{name}\n" for name in seen]
            with os.fdopen(writing, "w") as answers:
                answers.writelines(lines)
            return 0

        child = _fork(run)
        os.close(writing)
        with os.fdopen(reading) as answers:
            found = sorted((float(seconds), int(place), name) for seconds, place, name in map(_columns, answers))
        if os.waitpid(child, 0)[1]:
            return None
        reached: dict[str, list[int]] = {}
        for seconds, place, name in found:
            reached.setdefault(name, []).append(place)
            self.seconds[name] += seconds
        return reached

    def _try(
        self, session: pytest.Session, change: Mutant, function: FunctionType, reached: dict[str, list[int]]
    ) -> int:
        def run() -> int:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS + 2 * self.seconds[change.function])
            signal.alarm(WAIT)
            function.__code__ = change.code
            return int(_fails(session, reached.get(change.function, [])))

        return _fork(run)


def _made(owner: object) -> Iterator[FunctionType]:
    """Yield the functions of a module and of the classes that it defines, without what is wrapped around them."""
    for value in vars(owner).values():
        if isinstance(value, type):
            if value.__module__ == getattr(owner, "__module__", getattr(owner, "__name__", "")):
                yield from _made(value)
            continue
        wrapped = value
        for wrapping in ("fget", "__func__", "func"):
            wrapped = getattr(wrapped, wrapping, wrapped)
        function = inspect.unwrap(wrapped) if callable(wrapped) else wrapped
        if isinstance(function, FunctionType):
            yield function


def _columns(line: str) -> list[str]:
    return line.rstrip("\n").split("\t")


def _fails(session: pytest.Session, places: Sequence[int]) -> bool:
    """Run tests to the first failure, and return whether there is one."""
    for at, place in enumerate(places):
        item, following = session.items[place], places[at + 1 : at + 2]
        following_item: Any = session.items[following[0]] if following else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following_item)
        if session.testsfailed:
            return True
    return False


def _fork(run: Callable[[], int]) -> int:
    """Return the id of a process that runs it, silently, and ends with its status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 2
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            status = run()
        finally:
            os._exit(status)
    return child


def main(arguments: Sequence[str]) -> int:
    """Print the survivors. Returns 1 where tests fail without a change, or there is nothing to change."""
    module, *tests = arguments
    for name in SLOW_IMPORTS.get(module, ()):  # once, not in each process
        import_module(name)
    run = _Run(module)
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", QUICK]
    with redirect_stdout(sys.stderr):
        status = pytest.main([*options, *tests], plugins=[run])
    if status or run.failed or not run.count:
        print(f"{module}: the tests fail without a change, or nothing can be changed", file=sys.stderr)
        return 1
    for survivor in run.survivors:
        print(survivor)
    return 0


SLOW_IMPORTS = {
    "training.grpo.advantages": ["torch"],
    "training.grpo.loss": ["trl.trainer.grpo_trainer"],
    "memory.failures": ["chromadb"],
}
QUICK = "not long and not slow and not process and not appworld and not external and not vllm and not browser"

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
