"""Find benchmarks and open environments by name: a benchmark's package, or a user's own by import path."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue, RootModel, ValidationError

from environments.base import Environment, InputError, TaskSpec
from environments.benchmark import PLAIN, AnyBenchmark, Benchmark, explain
from environments.declared import find, where

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

    Raises InputError for a name that is neither, which begins with ``source``, and like ``environments.declared.find``
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
