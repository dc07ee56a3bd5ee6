"""Decide which code a name in data may run: an environment that declares itself, looked at before it is called.

A recipe, the settings of a run and a study name an environment of the user's as ``module:attribute``. They may come
from a stranger, so the name alone must not run anything that was not written to be an environment:

- ``look`` runs nothing. It finds the module's file as an import would, without importing the packages around it, and
  parses its source. An import runs a module from top to bottom, so a name reaches no further than the user's own
  modules: those in the working directory, in folders of PYTHONPATH and in other folders of ``sys.path`` that nothing is
  installed into. The standard library and installed packages hold modules that act when they are imported.
- ``find`` imports the module and looks at the object. A benchmark is a ``Benchmark``; anything else must be a class
  with the methods of ``Environment``, or a function whose return annotation is one. ``subprocess:check_output``, also
  under another name in a module of the user's, declares nothing of the kind.

A file in the user's own folders that declares an environment is run once that is opened. Commands that only read
(``check``, ``plan``, ``show``, ``report``) open none.
"""

from __future__ import annotations

import ast
import importlib
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

from environments.base import Environment, InputError
from environments.benchmark import AnyBenchmark, Benchmark
from environments.checkout import append_working_directory, places
from environments.verification.programs import syntax_tree

__all__ = ["find", "look", "where"]

_METHODS = tuple(name for name, value in vars(Environment).items() if callable(value) and not name.startswith("_"))
_DECLARE = (
    "name a function with the annotation -> Environment (environments.base.Environment), a class with its methods "
    f"{', '.join(_METHODS)}, or a Benchmark"
)
_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def look(name: str) -> bool:
    """Look at ``module:attribute`` without running anything of it.

    Return whether it is a function or a class, so that it makes a plain environment; another object may be a
    ``Benchmark``, which only ``find`` knows. Raises InputError for a module that is not there, that a name in data must
    not import or that is not Python, for an attribute that it does not bind, and for a function that does not say what
    it returns.
    """
    module, _, attribute = name.partition(":")
    bound = _binding(_parsed(module, _own_spec(module)), attribute)
    if bound is None:
        raise InputError(f"environment.name: {module} has no {attribute!r}: {_DECLARE}")
    if isinstance(bound, ast.FunctionDef | ast.AsyncFunctionDef) and bound.returns is None:
        raise InputError(
            f"environment.name: {name} does not say that it returns an environment: write def {attribute}(...) -> "
            "Environment, with from environments.base import Environment (a name alone must not call any function)"
        )
    return isinstance(bound, _Defined)


def find(name: str) -> AnyBenchmark | Callable[..., Any]:
    """Import ``module`` of ``module:attribute`` and return the benchmark, or what makes an environment when called.

    Nothing is called. Raises InputError like ``look``, that names the error in a module which cannot be imported, and
    for an object that does not declare itself an environment.
    """
    look(name)
    module, _, attribute = name.partition(":")
    append_working_directory()
    try:
        found: object = getattr(importlib.import_module(module), attribute, None)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: the user must see that no run was made
        raise InputError(f"environment.name: {module} cannot be imported: {where(error)}") from error
    if isinstance(found, Benchmark):
        return found
    if not callable(found):
        raise InputError(f"environment.name: {module} cannot call {attribute!r}: {_DECLARE}")
    made = found if isinstance(found, type) else _returned(name, found)
    if not (isinstance(made, type) and all(callable(getattr(made, method, None)) for method in _METHODS)):
        raise InputError(f"environment.name: {name} does not declare that it makes an environment: {_DECLARE}")
    return found


def where(error: BaseException) -> str:
    """Return the error in one line, with the place in the user's code that raised it."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if len(frames) > 1 else said


def _own_spec(module: str) -> ModuleSpec:
    """Find a module as an import would, without running the packages around it, in the user's own folders alone."""
    importlib.invalidate_caches()
    parts, spec = module.split("."), None
    if parts[0] in sys.stdlib_module_names:
        raise _unreached(module)
    folders: Sequence[str] | None = places()
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        spec = None if folders is None else PathFinder.find_spec(name, folders)
        if spec is None or (spec.origin is None and name == module):  # a folder without __init__.py is not a module
            raise InputError(
                f"environment.name: there is no module {name!r}: start the command in the folder that holds it, or put "
                "that folder on PYTHONPATH"
            )
        folders = spec.submodule_search_locations
    assert spec is not None
    assert spec.origin is not None
    if _is_installed(Path(spec.origin)):
        raise _unreached(module)
    return spec


def _unreached(module: str) -> InputError:
    return InputError(
        f"environment.name: {module} is of Python or of an installed package, which a name does not import: name a "
        "module of your own, which may import it"
    )


def _is_installed(origin: Path) -> bool:
    return any(place.is_relative_to(folder) for place in (origin.absolute(), origin.resolve()) for folder in _folders())


@cache
def _folders() -> tuple[Path, ...]:
    """Return the folders of the standard library and of installed packages."""
    named = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = [Path(one) for one in (*named, *site.getsitepackages(), site.getusersitepackages())]
    return tuple({*found, *(one.resolve() for one in found)})


def _parsed(module: str, spec: ModuleSpec) -> ast.Module:
    try:
        if not isinstance(spec.loader, SourceFileLoader):
            raise ImportError("it has no Python source to look at")
        tree = syntax_tree(spec.loader.get_source(spec.name) or "")
        assert isinstance(tree, ast.Module)
        return tree
    except SyntaxError as error:
        said = f"SyntaxError: {error.msg} ({Path(spec.origin or module).name}, line {error.lineno})"
        raise InputError(f"environment.name: {module} cannot be imported: {said}") from error
    except (ImportError, OSError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"environment.name: {module} cannot be imported: {where(error)}") from error


def _binding(tree: ast.Module, attribute: str) -> ast.stmt | None:
    """Return the last statement outside functions and classes that gives a module its ``attribute``."""
    return next((one for one in reversed([*_statements(tree.body)]) if attribute in _names(one)), None)


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for one in body:
        yield one
        for field in ("body", "handlers", "orelse", "finalbody"):
            if not isinstance(one, _Defined):
                for inner in getattr(one, field, ()):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _names(one: ast.stmt) -> list[str]:
    if isinstance(one, _Defined):
        return [one.name]
    if isinstance(one, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in one.names]
    targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _returned(name: str, function: Callable[..., Any]) -> object:
    """Return the type that a function's return annotation names; None where it has none."""
    inner = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    annotation = getattr(inner, "__annotations__", {}).get("return")
    if not isinstance(annotation, str):
        return annotation
    try:
        # The return annotation alone: those of parameters may name what is imported for type checkers only.
        stated = SimpleNamespace(__annotations__={"return": annotation})
        return get_type_hints(stated, globalns=getattr(inner, "__globals__", {}))["return"]
    except Exception as error:
        raise InputError(
            f"environment.name: the return annotation {annotation!r} of {name} cannot be resolved "
            f"({type(error).__name__}: {error}): import what it names, not under TYPE_CHECKING alone"
        ) from error
