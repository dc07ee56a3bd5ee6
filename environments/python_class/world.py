"""Document the public methods of a user's class as tools, run calls on an instance and serialise its public state."""

from __future__ import annotations

import copy
import inspect
import json
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue, ValidationError

from environments.answers import is_empty, rounded, says_error
from environments.base import (
    EnvironmentDefect,
    InputError,
    Observation,
    ObservationStatus,
    Parameter,
    ToolCall,
    ToolSpec,
)
from environments.python_class.time_limit import OutOfTime, time_limit
from environments.verification.replay import argument_problem, beyond_caps

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
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(kind(inspect.unwrap(method)) for kind in kinds):
        raise InputError(
            f"{world.__name__}.{name} ({_place(None, method)}) is async or a generator, which does nothing when it is "
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


MAX_STATE_DEPTH = 100
"""Levels of lists and objects in the state and in an answer, at most (our choice)."""

CALL_SECONDS = 60.0
"""Seconds of one call into the class, at most (our choice): a tool answers in milliseconds."""


class ToolRefused(Exception):
    """A tool refuses a call; the agent reads the message as an error observation."""


class ClassWorld:
    """An instance made from an initial state; used by one thread at a time.

    Args:
        made_of: the user's class.
        tools: its documented tools by name.
        initial_state: ``{class name: arguments of its constructor}``.
        call_seconds: timeout of one call into the class in seconds.

    Raises InputError where the constructor does not accept these arguments, or the state is not JSON.
    """

    def __init__(
        self,
        made_of: type,
        tools: Mapping[str, ToolSpec],
        initial_state: Mapping[str, JsonValue],
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        given = initial_state.get(made_of.__name__)
        if initial_state.keys() != {made_of.__name__} or not isinstance(given, dict):
            raise InputError(f"an initial state of {made_of.__name__} is {{{made_of.__name__!r}: its arguments}}")
        try:
            with time_limit(made_of.__name__, call_seconds):
                self._instance = made_of(**copy.deepcopy(given))
                self._state = self._written()
        except KeyboardInterrupt:
            raise
        except OutOfTime:
            raise InputError(
                f"{made_of.__name__} was not made of this initial state within {call_seconds:g} s"
            ) from None
        except BaseException as error:  # SystemExit too: the user's class does not end this process
            problem = f"{type(error).__name__}: {error}"
            raise InputError(f"{made_of.__name__} cannot be made of this initial state ({problem})") from error
        self._tools = tools
        self._call_seconds = call_seconds

    def state(self) -> str:
        """Return the public attributes after the last call as JSON with sorted keys and ``rounded`` floats."""
        return self._state

    def run(self, call: ToolCall) -> Observation:
        """Execute one call; arguments that do not fit the documentation are refused before the tool sees them.

        Raises EnvironmentDefect when the tool raises any exception but ToolRefused, SystemExit included, does not
        return in time, or its answer or state is not JSON: that is a defect of the environment, not of the agent.
        """
        if (refusal := refused(call, self._tools)) is not None:
            return refusal
        tool = self._tools[call.name]
        given = (parameter for parameter in tool.parameters if parameter.name in call.arguments)
        arguments = {parameter.name: _converted(parameter, call.arguments[parameter.name]) for parameter in given}
        before, result, answer, said = self._state, None, None, None
        name, method = f"{type(self._instance).__name__}.{call.name}", getattr(self._instance, call.name)
        try:
            with time_limit(name, self._call_seconds):
                try:
                    result = method(**copy.deepcopy(arguments))
                except ToolRefused as why:
                    said = str(why)
                answer = _canonical(result, "result", MAX_STATE_DEPTH)
                text = _text(answer)
                self._state = self._written()
                f"{said}{text}{self._state}".encode()  # half a surrogate pair could be recorded nowhere
        except KeyboardInterrupt:
            raise
        except OutOfTime as error:
            raise EnvironmentDefect(
                f"{name} did not return within {self._call_seconds:g} s at {_place(error, method)}: let it end"
            ) from None
        except BaseException as error:
            raise EnvironmentDefect(
                f"{name} failed ({type(error).__name__}: {error}) at {_place(error, method)}: a tool raises "
                "ToolRefused for what an agent is to read, and keeps and returns JSON values"
            ) from error
        if said is not None:
            return error_observation(said).model_copy(update={"calls": (call,)})
        status = ObservationStatus.OK
        if says_error(answer):
            status = ObservationStatus.ERROR
        elif is_empty(answer) and self._state == before:
            status = ObservationStatus.EMPTY
        return Observation(text=text, status=status, calls=(call,))

    def close(self) -> None:
        """Do nothing: an instance holds nothing that has to be released."""

    def _written(self) -> str:
        public = {name: value for name, value in vars(self._instance).items() if not name.startswith("_")}
        state = rounded(_canonical(public, "state", MAX_STATE_DEPTH))
        return json.dumps(state, sort_keys=True, ensure_ascii=False)


def _place(error: BaseException | None, method: Callable[..., object]) -> str:
    """``file:line`` of the innermost step in the file that the method is written in; without one, of the method."""
    code = inspect.unwrap(method).__code__
    steps = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__ if error else None)]
    within = [line for file, line in steps if file == code.co_filename]
    return f"{Path(code.co_filename).name}:{within[-1] if within else code.co_firstlineno}"


def refused(call: ToolCall, tools: Mapping[str, ToolSpec]) -> Observation | None:
    """Return the answer to a call that no tool is to see, by documentation and caps; None for any other."""
    tool = tools.get(call.name)
    if tool is None:
        return unknown_tool(call.name)
    problem = beyond_caps(call) or argument_problem(call, tool)
    return error_observation(problem) if problem else None


def unknown_tool(name: str) -> Observation:
    """Return the answer to a call of an unknown tool."""
    return error_observation(f"there is no tool {name!r}")


def error_observation(reason: str) -> Observation:
    """Return the answer to a call that was refused."""
    return Observation(text=json.dumps({"error": reason}, ensure_ascii=False), status=ObservationStatus.ERROR)


def _text(answer: JsonValue) -> str:
    """Return objects and lists as JSON, None as null, any other value under the key ``result``."""
    return json.dumps(answer if isinstance(answer, dict | list | None) else {"result": answer}, ensure_ascii=False)


def _canonical(value: object, name: str, levels: int) -> JsonValue:
    """Return the value as plain JSON of at most ``levels``. Raises TypeError naming a part that is not JSON."""
    if levels < 0:
        raise TypeError(f"{name[:60]} is nested too deeply")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value - value == 0:
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{name}[{place}]", levels - 1) for place, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _canonical(item, f"{name}.{key}", levels - 1) for key, item in value.items()}
    raise TypeError(f"{name} is {value!r:.60}, which JSON does not have")


def _converted(parameter: Parameter, value: JsonValue) -> JsonValue:
    """Return whole numbers in the documented type, so that 3 and 3.0 have the same effect."""
    wanted = parameter.items if parameter.type == "array" else parameter.type
    return [_number(item, wanted) for item in value] if isinstance(value, list) else _number(value, wanted)


def _number(value: JsonValue, wanted: str | None) -> JsonValue:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if wanted == "integer" else float(value) if wanted == "float" else value
