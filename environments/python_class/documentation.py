"""Read a class's public methods as tools: name, docstring, and each parameter's type, description and default."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue, ValidationError

from environments.base import InputError, Parameter, ToolSpec

_NAMES = {str: "string", int: "integer", float: "float", bool: "boolean", list: "array", dict: "dict"}


class _Type(NamedTuple):
    name: str
    choices: tuple[JsonValue, ...] = ()
    items: str | None = None


def documented_tools(world: type) -> dict[str, ToolSpec]:
    """Return the tools of ``world`` by name, inherited ones first, in the order of the class body.

    A tool is a method whose name has no leading underscore. Its docstring is its documentation; each parameter is
    written ``name: Annotated[type, "what it is"]``, where the type is str, int, float, bool, list[...], dict or a
    Literal of documented choices. Raises InputError for a class without tools, and naming the method and parameter
    whose documentation is missing, or which is async or a generator.
    """
    methods: dict[str, Callable[..., object]] = {}
    for base in reversed(world.__mro__[:-1]):
        methods.update((name, method) for name, method in vars(base).items() if inspect.isfunction(method))
    tools = {name: _tool(world, name, method) for name, method in methods.items() if not name.startswith("_")}
    if not tools:
        raise InputError(f"the class {world.__name__} has no public method: every tool is one")
    return tools


def _tool(world: type, name: str, method: Callable[..., object]) -> ToolSpec:
    description = " ".join((inspect.getdoc(method) or "").split())
    if not description:
        raise InputError(f"{world.__name__}.{name} has no docstring: say there what the tool does")
    if _is_deferred(method):
        raise InputError(
            f"{world.__name__}.{name} ({_written_at(method)}) is async or a generator, which does nothing when it is "
            "called: make it a plain def that returns its answer"
        )
    hints = get_type_hints(method, include_extras=True)
    parameters = [*inspect.signature(method).parameters.values()][1:]
    return ToolSpec(
        name=name,
        group=world.__name__,
        description=description,
        parameters=tuple(_parameter(f"{world.__name__}.{name}", given, hints.get(given.name)) for given in parameters),
    )


def _is_deferred(method: Callable[..., object]) -> bool:
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return any(kind(inspect.unwrap(method)) for kind in kinds)


def _written_at(method: Callable[..., object]) -> str:
    code = inspect.unwrap(method).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _parameter(tool: str, given: inspect.Parameter, hint: object) -> Parameter:
    if given.kind not in (given.POSITIONAL_OR_KEYWORD, given.KEYWORD_ONLY):
        raise InputError(f"{tool}: the parameter {given.name!r} cannot be given by name: make it a plain parameter")
    texts = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
    if not texts:
        raise InputError(f'{tool}: document the parameter as {given.name}: Annotated[type, "what it is"]')
    found = _type(get_args(hint)[0])
    if found is None:
        raise InputError(
            f"{tool}: the type of {given.name!r} is not one of str, int, float, bool, list, dict and Literal"
        )
    required = given.default is given.empty
    try:
        return Parameter(
            name=given.name,
            type=found.name,
            description=texts[0],
            required=required,
            choices=found.choices,
            default=None if required else given.default,
            items=found.items,
        )
    except ValidationError as error:
        raise InputError(f"{tool}: the default of {given.name!r} is not a JSON value: use one") from error


def _type(hint: Any) -> _Type | None:  # noqa: ANN401 - whatever an annotation holds
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        left = [argument for argument in arguments if argument is not type(None)]
        return _type(left[0]) if len(left) == 1 else None
    if origin is Literal:
        kinds = {type(choice) for choice in arguments}
        name = _NAMES.get(kinds.pop()) if len(kinds) == 1 else None
        return _Type(name, arguments) if name else None
    if (origin or hint) is list and arguments:
        item = _type(arguments[0])
        return _Type("array", item.choices, item.name) if item else None
    name = _NAMES.get(origin or hint)
    return _Type(name) if name else None
