"""Parse programs: Python that calls an environment's tools as ``apis.NAME(parameter=value)``. Pure functions of text.

A reference that is a program is kept as blocks that run one after the other, like an agent's, so that superfluous
parts (``environments.verification.replay``) are found block by block.

``literals`` finds the values that a program holds as literals, for grounding. The rule (ours): every string with a
letter or digit in it and every number counts, in any position, except

- a constant key in square brackets that is read (``profile["email"]``, ``songs[2]``), and the first argument of
  ``get`` and ``pop``: they select from existing values;
- 0, 1 and -1, unless a tool is given them: they count, index and start sums;
- arguments that control cutting, rounding or formatting: those of ``split``, ``strip`` and similar methods, the digits
  of ``round``, format specifications, the directives of ``strftime`` and ``strptime``;
- booleans, None, docstrings, and names of variables, attributes and parameters.

Of an f-string each piece counts without the signs and spaces at its ends, so that separators do not count; of a
date's format and of a regular expression's pattern each word counts by itself.

``Exercised`` counts the functions that the references of tasks call, in programs or as calls.
"""

from __future__ import annotations

import ast
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

from environments.base import TaskSpec, ToolCall, ToolSpec

_PICKING = frozenset({"get", "pop"})
_CUTTING = frozenset({"split", "rsplit", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"})
_DATES = frozenset({"strftime", "strptime"})
_MATCHING = frozenset({"search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn", "compile"})
_COUNTING = frozenset({0, 1, -1})
_DIRECTIVE = re.compile(r"%[-#]?[A-Za-z%]")
_ESCAPE_OR_CLASS = re.compile(r"\(\?(?:P<\w+>|P=\w+|[a-zA-Z:=!<]+)|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[\d,]+\}")
_WORD = re.compile(r"[^\W_]+")
_LONGEST_PATTERN = 1000
_LONGEST_NUMBER = 1000


class Literal(NamedTuple):
    """A value; for an argument of a tool also the tool's name and the parameter's (empty for a positional one)."""

    value: str | int | float
    tool: str | None = None
    parameter: str = ""


def literals(code: str, reach: Reach | None = None) -> tuple[Literal, ...]:
    """Return the values in ``code`` in their order. Raises ValueError for code that ``programs.parsed`` refuses.

    ``reach`` holds the names that earlier blocks defined, and is extended by those of this one.
    """
    reach = reach or Reach()
    found: list[Literal] = []
    with told_when_too_deep():
        for statement in parsed(code).body:
            reach.learn(statement)
            found += _Reader(reach).read(statement)
    return tuple(found)


class _Reader:
    """Read a statement; ``given`` names the tool and parameter that an expression is passed to unchanged."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def read(self, node: ast.AST, given: tuple[str, str] | None = None) -> Iterator[Literal]:
        match node:
            case ast.Constant(value=value) | ast.UnaryOp(op=ast.UAdd(), operand=ast.Constant(value=value)):
                yield from _constant(value, given)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                yield from _constant(-value, given)
            case ast.Subscript(value=value, slice=key, ctx=ast.Load()):
                yield from self.read(value)
                if not _is_plain(key):
                    yield from self.read(key)
            case ast.Call():
                yield from self._call(node)
            case ast.JoinedStr(values=pieces):
                for piece in pieces:
                    yield from self._piece(piece, given)
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Starred() | ast.BoolOp():
                yield from self._children(node, given)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from (*self.read(body, given), *self.read(test), *self.read(orelse, given))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from self._definition(node)
            case _:
                yield from self._children(node, None)

    def _children(self, node: ast.AST, given: tuple[str, str] | None) -> Iterator[Literal]:
        for child in ast.iter_child_nodes(node):
            yield from self.read(child, given)

    def _call(self, call: ast.Call) -> Iterator[Literal]:
        yield from self.read(call.func)
        tool = self._reach.called(call)
        if tool is None:
            for place, argument in enumerate(call.args):
                yield from self._argument(call.func, place, argument)
            yield from (literal for keyword in call.keywords for literal in self.read(keyword.value))
            return
        for argument in call.args:
            yield from self.read(argument, (tool, ""))
        for keyword in call.keywords:
            yield from self.read(keyword.value, (tool, keyword.arg or ""))

    def _argument(self, function: ast.expr, place: int, argument: ast.expr) -> Iterator[Literal]:
        """Yield a positional argument of a function that is not a tool, unless it says how to cut, pick or round."""
        match function, argument:
            case ast.Attribute(value=ast.Name(id="re"), attr=name), ast.Constant(value=str() as text) if (
                name in _MATCHING and place == 0 and len(text) <= _LONGEST_PATTERN
            ):
                yield from (Literal(word) for word in _WORD.findall(_ESCAPE_OR_CLASS.sub(" ", text)))
            case ast.Attribute(attr=name), ast.Constant(value=str() as text) if name in _DATES:
                yield from (Literal(word) for word in _WORD.findall(_DIRECTIVE.sub(" ", text)))
            case ast.Attribute(attr=name), _ if name in _CUTTING or (name in _PICKING and place == 0):
                yield from () if _is_plain(argument) else self.read(argument)
            case ast.Name(id="round"), _ if place == 1 and _is_plain(argument):
                return
            case _:
                yield from self.read(argument)

    def _piece(self, piece: ast.expr, given: tuple[str, str] | None) -> Iterator[Literal]:
        if isinstance(piece, ast.FormattedValue):
            yield from self.read(piece.value)
        elif isinstance(piece, ast.Constant):
            words = list(_WORD.finditer(str(piece.value)))
            if words:
                yield Literal(str(piece.value)[words[0].start() : words[-1].end()], *(given or ()))

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Literal]:
        said = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
        for child in ast.iter_child_nodes(node):
            if child is not said:
                yield from self.read(child)


def _constant(value: object, given: tuple[str, str] | None) -> Iterator[Literal]:
    match value:
        case bool():
            return
        case bytes():
            value = value.decode("latin-1")
        case complex():
            value = value.imag
        case int() if value.bit_length() > _LONGEST_NUMBER:
            value = hex(value)  # Python does not write longer ones in decimal
    if isinstance(value, str):
        counts = _WORD.search(value) is not None
    else:
        counts = isinstance(value, int | float) and (given is not None or value not in _COUNTING)
    if counts and isinstance(value, str | int | float):
        yield Literal(value, *(given or ()))


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


APIS = "apis"
MAX_CHARACTERS = 100_000
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_JOINED = ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign | ast.AugAssign | _Definition


def program_tool(tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the first tool that runs programs (``ToolSpec.program``), or None."""
    return next((tool for tool in tools if tool.program is not None), None)


_parsing = threading.RLock()


def syntax_tree(code: str, mode: str = "exec") -> ast.AST:
    """Return what ``ast.parse`` does, by one thread at a time.

    CPython before 3.12 counts the depth of all threads' trees in one place, so that two that parse at the same time can
    raise SystemError ("AST constructor recursion depth mismatch").
    """
    with _parsing:
        return ast.parse(code, mode=mode)


def parsed(code: str) -> ast.Module:
    """Parse ``code``. Raises ValueError with the reason for text that is not Python, too long or nested too deeply."""
    if len(code) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS} characters")
    try:
        with told_when_too_deep():
            tree = syntax_tree(code)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno} is no Python: {error.msg}") from None
    assert isinstance(tree, ast.Module)
    return tree


@contextmanager
def told_when_too_deep() -> Iterator[None]:
    """Raise ValueError where the block exceeds Python's recursion depth or memory."""
    try:
        yield
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None


def blocks(code: str) -> tuple[str, ...]:
    """Return the top-level statements of ``code`` as blocks, in Python's normal form and without comments.

    Imports, assignments and definitions without a tool call join the statement after them when that one calls a tool;
    otherwise they are one block together. Raises ValueError like ``parsed``.
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
    """Return the names of the tools that ``code`` calls or passes on, in order of their first mention.

    Raises ValueError like ``parsed``.
    """
    reach = Reach()
    names: dict[str, None] = {}
    with told_when_too_deep():
        for statement in parsed(code).body:
            reach.learn(statement)
            names |= dict.fromkeys(tool for call in _calls(statement) if (tool := reach.called(call)))
    return tuple(names)


class Reach:
    """Names of a program that refer to tools: ``apis``, names assigned from it, and functions that use either.

    Statements are added in their order; later blocks may use the names of earlier ones.
    """

    def __init__(self) -> None:
        self._paths = {APIS: ""}
        self._functions: set[str] = set()

    def learn(self, statement: ast.AST) -> None:
        """Add the names that the statement defines."""
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
        """Return whether running the statement may call a tool; a definition alone does not."""
        if isinstance(statement, _Definition):
            return False
        return any(self._is_reaching(part) for call in _calls(statement) for part in ast.walk(call))

    def called(self, call: ast.Call) -> str | None:
        """Return the tool that is called, or passed as the first argument to another function; else None."""
        return self._path(call.func) or (self._path(call.args[0]) if call.args else None) or None

    def _path(self, node: ast.expr) -> str | None:
        """Return the dotted name after ``apis``, empty for ``apis`` itself; None for any other expression."""
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


Pair = tuple[str, str]


class Exercised:
    """The number of tasks that call each function, and each function somewhere after another one.

    In programs for one of ``tools``, which the tasks may call, the functions that are called count in place of it.
    """

    def __init__(self, tasks: Iterable[TaskSpec], tools: Iterable[ToolSpec]) -> None:
        self.functions: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        programs = program_parameters(tools)
        for task in tasks:
            calls = [call for turn in task.reference for call in turn]
            names = [name for call in calls for name in functions_of(call, programs.get(call.name))]
            self.functions.update(set(names))
            self.pairs.update({pair for pair in combinations(names, 2) if pair[0] != pair[1]})


def program_parameters(tools: Iterable[ToolSpec]) -> dict[str, str]:
    """Return the parameter that holds a program, by the name of its tool."""
    return {tool.name: tool.program.name for tool in tools if tool.program is not None}


def functions_of(call: ToolCall, parameter: str | None) -> Sequence[str]:
    """Return the functions that a call calls; ``parameter`` holds its program, None where the call is not a program."""
    code = call.arguments.get(parameter) if parameter is not None else None
    if not isinstance(code, str):
        return (call.name,)
    try:
        return called(code)
    except ValueError:  # it is not Python, and calls nothing
        return ()
