"""Reads programs: Python that calls an environment's tools as ``apis.NAME(parameter=value)``. Pure functions of text.

A reference that is a program is kept as blocks that run one after the other, like an agent's: what can be left out of
it (``environments.minimality``) is then found block by block.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from environments.base import ToolSpec

APIS = "apis"
MAX_CHARACTERS = 100_000
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_JOINED = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.AugAssign | _Definition


def program_tool(tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """The first tool that runs programs (``ToolSpec.program``), or None."""
    return next((tool for tool in tools if tool.program is not None), None)


def parsed(code: str) -> ast.Module:
    """The syntax of ``code``. Raises ValueError, saying why, for what is no Python or too long or nested to read."""
    if len(code) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    try:
        with told_when_too_deep():
            return ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} is no Python: {error.msg}") from None


@contextmanager
def told_when_too_deep() -> Iterator[None]:
    """Raises ValueError where what is done inside goes deeper than Python can."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


def blocks(code: str) -> tuple[str, ...]:
    """The top-level statements of ``code``, each a block of its own, in Python's normal form and without comments.

    Imports, assignments and definitions that call no tool join the statement after them when that one calls a tool;
    otherwise they are one block together. Raises ValueError for what ``parsed`` refuses.
    """
    reach = Reach()
    found: list[list[ast.stmt]] = []
    waiting: list[ast.stmt] = []
    with told_when_too_deep():
        for statement in parsed(code).body:
            calls = reach.calls(statement)
            reach.learn(statement)
            if not calls and isinstance(statement, _JOINED):
                waiting.append(statement)
                continue
            if calls:
                found.append([*waiting, statement])
            else:
                found += [waiting, [statement]]
            waiting = []
        return tuple("\n".join(map(ast.unparse, block)) for block in [*found, waiting] if block)


def called(code: str) -> tuple[str, ...]:
    """The names of the tools that ``code`` calls or passes on, in order of their first mention.

    Raises ValueError for what ``parsed`` refuses.
    """
    reach = Reach()
    names: dict[str, None] = {}
    with told_when_too_deep():
        for statement in parsed(code).body:
            reach.learn(statement)
            names |= dict.fromkeys(tool for call in _calls(statement) if (tool := reach.called(call)))
    return tuple(names)


class Reach:
    """Which names of a program lead to tools: ``apis``, what was assigned from it, functions that use either.

    Statements are learnt in their order; what one block defines, the next ones may use.
    """

    def __init__(self) -> None:
        self._paths = {APIS: ""}
        self._functions: set[str] = set()

    def learn(self, statement: ast.AST) -> None:
        """Take in what the statement names."""
        for node in ast.walk(statement):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Name() as value):
                    path = self._path(value)
                    if path is not None:
                        self._paths[name] = path
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    if any(map(self._is_reaching, ast.walk(node))):
                        self._functions.add(name)

    def calls(self, statement: ast.stmt) -> bool:
        """Whether running the statement may call a tool; a definition alone does not."""
        if isinstance(statement, _Definition):
            return False
        return any(self._is_reaching(part) for call in _calls(statement) for part in ast.walk(call))

    def called(self, call: ast.Call) -> str | None:
        """The tool that is called, or passed as the first argument to whatever calls it; else None."""
        return self._path(call.func) or (self._path(call.args[0]) if call.args else None) or None

    def _path(self, node: ast.expr) -> str | None:
        """The dotted name behind ``apis``, empty for itself; None for what does not lead there."""
        match node:
            case ast.Name(id=name):
                return self._paths.get(name)
            case ast.Attribute(value=value, attr=attribute):
                path = self._path(value)
                return None if path is None else f"{path}.{attribute}".lstrip(".")
        return None

    def _is_reaching(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and (node.id in self._paths or node.id in self._functions)


def _calls(statement: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(statement) if isinstance(node, ast.Call))
