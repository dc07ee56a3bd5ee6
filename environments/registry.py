"""Find benchmarks and open environments by name, and decide which code a name in data may run.

A name is that of a benchmark's package, or ``module:attribute`` of the user's own. A recipe, the settings of a run and
a study name the latter, and may come from a stranger. So the name alone must not run anything that was not written to
be an environment: one declares itself, and is looked at before it is called.

- ``look`` runs nothing. It finds the module's file as an import would, without importing the packages around it, and
  parses its source. An import runs a module from top to bottom, so a name reaches no further than the user's own
  modules: those in the working directory, in folders of PYTHONPATH and in other folders of ``sys.path`` that nothing is
  installed into. The standard library and installed packages hold modules that act when they are imported, and so do
  this project's programs and tests: of the project a name reaches ``environments`` alone. Nor is a module imported
  whose source shows that the attribute is something else: a function that returns None or a value of the standard
  library, a class that has neither one of an
  environment's methods nor a base that may have them, a constant.
- ``find`` imports the module and looks at the object. A benchmark is a ``Benchmark``; anything else must be a class
  with the methods of ``Environment``, or a function whose return annotation is one. ``subprocess:check_output``, also
  under another name in a module of the user's, declares nothing of the kind.

A file in the user's own folders that declares an environment is run once that is opened. Commands that only read
(``check``, ``plan``, ``show``, ``report``) open none.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib
import inspect
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, JsonValue, RootModel, ValidationError

from environments.base import Environment, InputError, TaskSpec
from environments.benchmark import PLAIN, AnyBenchmark, Benchmark, explain
from environments.checkout import OURS, ROOT, append_working_directory, places
from environments.python_calls import expression
from environments.verification.programs import syntax_tree

DEFAULT = "bfcl"
"""The default benchmark of a recipe or command."""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Arguments(RootModel[dict[str, JsonValue]]):
    """The arguments of a ``module:callable``; they are checked when it is called."""


class PlainEnvironment(Benchmark[Arguments]):
    """A user's environment, ``module:callable``, with the defaults of ``Benchmark``."""

    options_type = Arguments

    def __init__(self, path: str, factory: Callable[..., Any]) -> None:
        self._path = path
        self._factory = factory

    def open(self, options: Arguments) -> Environment:
        """Call the callable with the options and return its result. Raises InputError for wrong arguments."""
        try:
            inspect.signature(self._factory).bind(**options.root)
        except TypeError as error:
            raise InputError(f"environment.options: {self._path} does not take them ({error})") from error
        except ValueError:  # a callable without a signature raises its own error for wrong arguments
            pass
        opened: Environment = self._factory(**options.root)
        return opened

    def evaluation_options(self, options: Arguments) -> dict[str, JsonValue]:
        """Return all options: the callable may fail without them."""
        return options.root


def is_import_path(name: str) -> bool:
    """Return whether ``name`` is written as ``module:attribute``, as a user's environment is."""
    return _IMPORT_PATH.fullmatch(name) is not None


def packaged_names() -> tuple[str, ...]:
    """Return the names of the benchmarks in this folder, the default first."""
    found = (path.parent.name for path in Path(__file__).parent.glob("*/benchmark.py"))
    return tuple(sorted(found, key=lambda name: (name != DEFAULT, name)))


@cache
def packaged(name: str) -> AnyBenchmark | None:
    """Return the benchmark of the package ``environments.<name>``; None where there is none."""
    if name not in packaged_names():
        return None
    found: AnyBenchmark = importlib.import_module(f"environments.{name}.benchmark").BENCHMARK
    if found.name != name:  # an opened environment is found by its name
        raise InputError(f"environments/{name}/benchmark.py: BENCHMARK calls itself {found.name!r}: name it {name!r}")
    return found


def find_benchmark(name: str, source: str = "environment.name") -> AnyBenchmark:
    """Return the benchmark that a recipe or command names, by package or ``module:attribute``.

    Raises InputError for a name that is neither, which begins with ``source``, and like ``environments.registry.find``
    for an import path.
    """
    if not is_import_path(name):
        found = packaged(name)
        if found is None:
            raise InputError(f"{source}: {unknown(name)}")
        return found
    declared = find(name)
    return declared if isinstance(declared, Benchmark) else PlainEnvironment(name, declared)


def named_benchmark(name: str) -> AnyBenchmark:
    """Call ``find_benchmark`` for a command's ``--environment``, which its errors name."""
    return find_benchmark(name, "--environment")


def unknown(name: str) -> str:
    """Return one sentence for a name that is neither a benchmark nor an import path."""
    return (
        f"{name!r} is not an environment: write {', '.join(packaged_names())}, or module:callable of your own, "
        "for example environments.example:depot"
    )


def benchmark_of(environment: Environment) -> AnyBenchmark:
    """Return the benchmark that an opened environment belongs to, ``PLAIN`` where it belongs to none."""
    own = getattr(environment, "benchmark", None)  # set by ``belonging`` where the name alone does not find it
    return own if isinstance(own, Benchmark) else packaged(environment.name) or PLAIN


def parse_options(benchmark: AnyBenchmark, given: Mapping[str, JsonValue]) -> BaseModel:
    """Return the benchmark's options with their defaults.

    Raises ValueError for a key that it does not have, ValidationError for a value that does not fit.
    """
    known = benchmark.options_type.model_fields
    strange = [] if issubclass(benchmark.options_type, RootModel) else [key for key in given if key not in known]
    if strange:
        near = difflib.get_close_matches(strange[0], known, n=1)
        instead = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known) or 'none'}"
        raise ValueError(f"{strange[0]!r} is not an option, {benchmark.name} would ignore it: {instead}")
    parsed: BaseModel = benchmark.parse(given)
    return parsed


def checked_options(benchmark: AnyBenchmark, given: Mapping[str, JsonValue], source: str) -> BaseModel:
    """Call ``parse_options``; its errors become InputErrors that begin with ``source`` and name the option."""
    try:
        return parse_options(benchmark, given)
    except ValidationError as error:
        name = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InputError(f"{source}.{name}: {explain(error)}") from error
    except ValueError as error:
        raise InputError(f"{source}: {error}") from error


def open_named(
    name: str, options: Mapping[str, JsonValue] | None = None, *, max_actions: int | None = None
) -> Environment:
    """Open the environment that a command's ``--environment`` names, with the options of ``named_options``.

    Raises InputError when a requirement is not installed or cannot be imported, for a name that is neither a benchmark
    nor an import path, and like ``belonging``.
    """
    benchmark = named_benchmark(name)
    parsed = named_options(benchmark, options or {}, max_actions)
    return belonging(name, benchmark, lambda: benchmark.open(parsed))


def unpublishable(environment: AnyBenchmark, tasks: Iterable[TaskSpec] = ()) -> str | None:
    """Return one sentence on why these tasks of a run must not be published; None where they may be.

    ``environment`` is the run's; that of each task counts too, whatever the run's settings call theirs.
    """
    benchmarks = [environment, *(packaged(name) for name in sorted({task.environment for task in tasks}))]
    return next((one.unpublishable for one in benchmarks if one is not None and one.unpublishable is not None), None)


def named_options(
    benchmark: AnyBenchmark, options: Mapping[str, JsonValue], max_actions: int | None = None
) -> BaseModel:
    """Return a command's options, with another limit of actions in a user turn where the benchmark has that option.

    Raises InputError naming ``--option``.
    """
    parsed, key = checked_options(benchmark, options, "--option"), benchmark.actions_option
    return parsed.model_copy(update={key: max_actions}) if key and max_actions else parsed


def belonging(name: str, benchmark: AnyBenchmark, factory: Callable[[], Environment]) -> Environment:
    """Return the environment that ``factory`` opens for ``benchmark``, so that ``benchmark_of`` finds it.

    Raises InputError where a user's code fails, or its environment has the name of another benchmark.
    """
    if not is_import_path(name):
        return factory()
    try:
        opened = factory()
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: the user must see that no run was made
        raise InputError(f"environment.name: {name} failed: {where(error)}") from error
    if not isinstance(opened, Environment):
        raise InputError(
            f"environment.name: {name} returned a {type(opened).__name__}: return an Environment (environments/base.py)"
        )
    if isinstance(benchmark, PlainEnvironment):
        if opened.name in packaged_names():
            raise InputError(
                f"environment.name: what {name} returns calls itself {opened.name!r}: give it another name"
            )
        return opened
    if opened.name != benchmark.name:
        raise InputError(
            f"environment.name: {name} opens an environment that calls itself {opened.name!r}, the benchmark is "
            f"{benchmark.name!r}: give both one name"
        )
    vars(opened)["benchmark"] = benchmark
    return opened


_METHODS = tuple(name for name, value in vars(Environment).items() if callable(value) and not name.startswith("_"))
_DECLARE = (
    "name a function with the annotation -> Environment (environments.base.Environment), a class with its methods "
    f"{', '.join(_METHODS)}, or a Benchmark"
)
_DECLARED = {("environments.base", "Environment"), ("environments.benchmark", "Benchmark")}
_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def look(name: str) -> bool:
    """Look at ``module:attribute`` without running anything of it.

    Return whether it is a function or a class, so that it makes a plain environment; another object may be a
    ``Benchmark``, which only ``find`` knows. Raises InputError for a module that is not there, that a name in data must
    not import or that is not Python, for an attribute that it does not bind, and for a function that does not say what
    it returns.
    """
    module, _, attribute = name.partition(":")
    tree = _parsed(module, _own_spec(module))
    bound = _bound(tree, attribute)
    if bound is None:
        raise InputError(f"environment.name: {module} has no {attribute!r}: {_DECLARE}")
    if isinstance(bound, ast.FunctionDef | ast.AsyncFunctionDef) and bound.returns is None:
        raise InputError(
            f"environment.name: {name} does not say that it returns an environment: write def {attribute}(...) -> "
            "Environment, with from environments.base import Environment (a name alone must not call any function)"
        )
    if not _may_declare(module, tree, attribute):
        raise InputError(f"environment.name: {name} does not declare that it makes an environment: {_DECLARE}")
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


def module_spec(module: str) -> ModuleSpec | None:
    """Find a module as an import would, without running the packages around it; None where there is none."""
    importlib.invalidate_caches()
    parts, spec = module.split("."), None
    folders: Sequence[str] | None = places()
    for end in range(1, len(parts) + 1):
        spec = None if folders is None else PathFinder.find_spec(parts[end - 1], folders)
        if spec is None:
            return None
        # Of a folder without __init__.py it is an object that looks for its package among the imported ones.
        folders = getattr(spec.submodule_search_locations, "_path", spec.submodule_search_locations)
    return spec


def _own_spec(module: str) -> ModuleSpec:
    """Find a module in the user's own folders alone."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise _unreached(module)
    spec = module_spec(module)
    if spec is None or spec.origin is None:  # a folder without __init__.py is not a module
        missing = next((one for one in accumulate(module.split("."), "{}.{}".format) if not module_spec(one)), module)
        raise InputError(
            f"environment.name: there is no module {missing!r}: start the command in the folder that holds it, or put "
            "that folder on PYTHONPATH"
        )
    origin = Path(spec.origin)
    if any(place.is_relative_to(folder) for place in (origin.absolute(), origin.resolve()) for folder in _folders()):
        raise _unreached(module)
    if top in OURS - {"environments"} and origin.resolve().is_relative_to(ROOT / top):
        raise _unreached(module, "of this project and not of its environments")
    return spec


def _unreached(module: str, whose: str = "of Python or of an installed package") -> InputError:
    return InputError(
        f"environment.name: {module} is {whose}, which a name does not import: name a module of your own, which may "
        "import it"
    )


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


def _bound(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the last statement outside functions and classes that gives the module its attribute."""
    return next((one for one in reversed([*_statements(tree.body)]) if name in _names(one)), None)


def _may_declare(  # noqa: PLR0911 - a row per kind of statement
    module: str, tree: ast.Module, name: str, made: bool = False, depth: int = 0
) -> bool:
    """Return False where the source alone shows that the attribute declares no environment.

    ``made``: the attribute must be a class of environments, since a function returns it or a class has it as its base.
    What is computed, comes from an installed package or is more than eight imports away may be anything.
    """
    if depth > 8 or (module, name) in _DECLARED:
        return True
    again = partial(_may_be, module, tree, depth=depth + 1)
    match _bound(tree, name):
        case ast.ClassDef(bases=bases, body=body):
            defined = {bound for one in body for bound in _names(one)}
            return not defined.isdisjoint(_METHODS) or any(map(again, bases))
        case ast.FunctionDef(returns=returns) | ast.AsyncFunctionDef(returns=returns):
            return not made and returns is not None and again(returns)
        case ast.ImportFrom(module=str(source), level=0, names=names):
            if source.partition(".")[0] in sys.stdlib_module_names:
                return False
            original = next(alias.name for alias in names if (alias.asname or alias.name) == name)
            try:
                spec = _own_spec(source)
            except InputError:  # an installed package, which may have environments of the user's
                return module.partition(".")[0] != "environments"
            return _may_declare(source, _parsed(source, spec), original, made, depth + 1)
        case ast.ImportFrom():
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return again(value, made=made)
        case None:
            return not hasattr(builtins, name)  # of "import *", or a mistake that an import names
    return False


def _may_be(module: str, tree: ast.Module, value: ast.expr, *, made: bool = True, depth: int) -> bool:
    """Return ``_may_declare`` of an expression: a base, a return annotation, or what an attribute is set to."""
    match value:
        case ast.Name(id=name):
            return _may_declare(module, tree, name, made, depth)
        case ast.Constant(value=str(text)) if made:
            try:
                return _may_be(module, tree, expression(text), depth=depth)
            except ValueError:
                return False
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return _may_be(module, tree, inner, made=made, depth=depth)
        case ast.Attribute():
            root: ast.expr = value
            while isinstance(root, ast.Attribute):
                root = root.value
            bound = _bound(tree, root.id) if isinstance(root, ast.Name) else None
            named = [alias.name for alias in bound.names] if isinstance(bound, ast.Import) else []
            return not any(one.partition(".")[0] in sys.stdlib_module_names for one in named)
    return False


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
