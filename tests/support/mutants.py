"""Small changes to a module, each of which a test of it should notice.

``python -m support.mutants MODULE INDEX TEST...`` runs the tests with the INDEX-th change of the module, and ends as
pytest does: 1 where a test noticed it.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

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


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, object]]:
    """Yield what can be changed inside functions: a node, its field, and the other value."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {id(one): one for function in functions for part in function.body for one in ast.walk(part)}.values():
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in OTHER:
                yield node, "ops", [OTHER[type(operator)]()]
            case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in OTHER:
                yield node, "op", OTHER[type(operator)]()
            case ast.UnaryOp(op=ast.Not()):
                yield node, "op", ast.UAdd()
            case ast.Constant(value=bool(value)):
                yield node, "value", not value
            case ast.Constant(value=int(value) | float(value)):
                yield node, "value", value + 1


def mutant(path: Path, index: int) -> tuple[ast.Module, str]:
    """Return the module with its ``index``-th change, and a line that says which one it is."""
    tree = ast.parse(path.read_text())
    node, field, other = list(changes(tree))[index]
    before = ast.unparse(node)
    setattr(node, field, copy.deepcopy(other))
    return ast.fix_missing_locations(tree), f"{path.name}:{getattr(node, 'lineno', 0)}: {before} -> {ast.unparse(node)}"


class _Changed(MetaPathFinder, Loader):
    def __init__(self, module: str, path: Path, tree: ast.Module) -> None:
        self._module, self._path, self._tree = module, path, tree

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)


def main(arguments: Sequence[str]) -> int:
    import pytest

    module, index, *tests = arguments
    path = Path(*module.split(".")).with_suffix(".py").resolve()
    sys.meta_path.insert(0, _Changed(module, path, mutant(path, int(index))[0]))
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
