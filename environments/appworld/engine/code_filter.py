"""Keep agents' code to the apps and harmless parts of Python: by its text, and by the namespace that it runs in.

``refusal`` reads the syntax alone, a pure function of the text. It is the first of several layers (see the package's
docstring), and the one that reports the reason to the agent. ``restrict`` holds at run time, also for code that
bypassed it.

``Names`` and the table of modules define what an agent's code may import and which names of each module it gets: a
subset of the benchmark's. Left out are modules that reach files, processes or the interpreter, and names that look up
attributes by a string, evaluate text or call back with the interpreter's own objects.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import string
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple


class Names(NamedTuple):
    """The allowed names of a module: all public ones but ``without``, or ``only`` some."""

    without: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def allow(self, name: str) -> bool:
        """Return whether the code may use ``name``."""
        if name.startswith("_"):
            return False
        return name not in self.without if self.only is None else name in self.only


def _without(*names: str) -> Names:
    return Names(without=frozenset(names))


def _only(*names: str) -> Names:
    return Names(only=frozenset(names))


ALLOWED_MODULES: dict[str, Names] = {
    "bisect": _without(),
    "calendar": _without("main"),
    "collections": _without(),
    "collections.abc": _without(),
    "copy": _only("copy", "deepcopy"),
    "datetime": _without(),
    "difflib": _without(),
    "fractions": _without(),
    "functools": _only("cache", "cmp_to_key", "lru_cache", "partial", "reduce", "total_ordering"),
    "heapq": _without(),
    "itertools": _without(),
    "json": _without("dump", "load"),
    "math": _without(),
    "numbers": _without(),
    "pendulum": _without(),
    "pprint": _only("pformat", "pp", "pprint"),
    "random": _without(),
    "re": _without(),
    "string": _without("Formatter"),
    "textwrap": _without(),
    "time": _without("sleep"),
    "typing": _only(
        *("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal", "Mapping", "Optional", "Sequence"),
        *("Set", "Tuple", "Union"),
    ),
    "uuid": _only("UUID", "uuid4", "uuid5"),
}

WITHHELD_BUILTINS = frozenset(
    {
        *("breakpoint", "compile", "copyright", "credits", "delattr", "eval", "exec", "exit", "getattr", "globals"),
        *("help", "input", "license", "locals", "memoryview", "open", "quit", "setattr", "vars"),
        *("get_ipython", "display"),
    }
)


MAX_CHARACTERS = 100_000

_REFUSED_NAMES = WITHHELD_BUILTINS | {"requester", "Requester", "ApiCollection", "builtins"}
_REFUSED_ATTRIBUTES = WITHHELD_BUILTINS - {"input", "open", "compile", "copyright", "display", "help", "license"}
_REFUSED_ATTRIBUTES |= {"attrgetter", "methodcaller", "format_map", "requester", "Formatter", "get_type_hints", "mro"}
_REFUSED_ATTRIBUTES |= {"sys", "os", "io", "codecs", "builtins", "importlib", "inspect", "subprocess", "modules"}
_FRAME_PREFIXES = ("f_", "tb_", "gi_", "cr_", "ag_", "co_")
_FRAME_NAMES = frozenset(
    prefix + name
    for prefix in _FRAME_PREFIXES
    for name in ("frame", "back", "globals", "locals", "builtins", "code", "next", "await", "yieldfrom", "origin")
)
_METHODS = frozenset(
    f"__{name}__"
    for name in (
        *("init", "str", "repr", "eq", "ne", "lt", "le", "gt", "ge", "hash", "len", "iter", "next", "contains"),
        *("getitem", "setitem", "delitem", "call", "enter", "exit", "add", "sub", "mul", "truediv", "bool"),
    )
)


def refusal(code: str) -> str | None:
    """Return why ``code`` may not run, in one sentence for the agent; None when it may run or is not valid Python."""
    if len(code) > MAX_CHARACTERS:
        return f"The code has more than {MAX_CHARACTERS} characters."
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None  # the engine reports the place to the agent
    except (ValueError, RecursionError, MemoryError):
        return "The code cannot be parsed."
    try:
        return next((reason for node in ast.walk(tree) for reason in _reasons(node)), None)
    except RecursionError:
        return "The code is nested too deeply."


def _reasons(node: ast.AST) -> Iterator[str]:
    for name in _identifiers(node):
        if name in _REFUSED_NAMES and isinstance(node, ast.Name):  # a parameter may be called so
            yield f"Usage of the following name is not allowed: {name}."
        elif name.startswith("__") and not (isinstance(node, ast.FunctionDef) and name in _METHODS):
            yield f"Names that begin with two underscores are not allowed: {name}."
    match node:
        case ast.Import(names=names):
            yield from _imports(alias.name for alias in names)
        case ast.ImportFrom(module=module, level=level, names=names):
            yield from _imports(["." * level + (module or "")])
            yield from _names_imported(module or "", names)
        case ast.Attribute(attr=attribute) if not _is_super_init(node):
            yield from _attribute(attribute)
        case ast.MatchClass(patterns=patterns, kwd_patterns=keywords) if patterns or keywords:
            yield "Class patterns with attributes are not allowed in match statements."
        case ast.Call(func=ast.Attribute(value=receiver, attr="format"), args=args, keywords=keywords):
            yield from _format(receiver, [*args, *(keyword.value for keyword in keywords)])
    for child in ast.iter_child_nodes(node):
        called = isinstance(node, ast.Call) and node.func is child
        if isinstance(child, ast.Attribute) and child.attr == "format" and not called:
            yield "The method format may be called, not passed on."


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Yield every identifier that the node itself holds, attributes and imported modules aside."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(asname=str(name)):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names


def _imports(modules: Iterator[str] | list[str]) -> Iterator[str]:
    for module in modules:
        if module not in ALLOWED_MODULES:
            yield f"Usage of the following module is not allowed: {module}."


def _names_imported(module: str, names: list[ast.alias]) -> Iterator[str]:
    for alias in names:
        allowed = ALLOWED_MODULES.get(module)
        if alias.name == "*" or (allowed is not None and not allowed.allow(alias.name)):
            yield f"Importing {alias.name} from {module} is not allowed."


def _attribute(name: str) -> Iterator[str]:
    if name.startswith("_"):
        yield f"Attributes that begin with an underscore are not allowed: {name}."
    elif name in _REFUSED_ATTRIBUTES or name in _FRAME_NAMES:
        yield f"Usage of the following attribute is not allowed: {name}."


def _is_super_init(node: ast.Attribute) -> bool:
    match node:
        case ast.Attribute(attr="__init__", value=ast.Call(func=ast.Name(id="super"), args=[], keywords=[])):
            return True
    return False


def _format(receiver: ast.expr, values: list[ast.expr]) -> Iterator[str]:
    """Check ``format``, which reads attributes named in its text: it must be literal without refused names.

    A date's ``format`` looks the same but gets constants, whose attributes are harmless.
    """
    if isinstance(receiver, ast.Constant) and isinstance(receiver.value, str):
        yield from _fields(receiver.value)
    elif not all(isinstance(value, ast.Constant) for value in values):
        yield "The method format is allowed on a literal text only; use an f-string."


def _fields(text: str) -> Iterator[str]:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return  # raises in the code too
    for _, field, specification, _ in fields:
        for part in (field or "").replace("[", ".").replace("]", ".").split(".")[1:]:
            yield from _attribute(part)
        if specification:
            yield from _fields(specification)


_WITHDRAWN = ("requester", "Requester", "ApiCollection", "get_ipython", "exit", "quit", "open")


class Apis(dict[str, Any]):
    """The apps, or one app's APIs, by attribute or key; an unknown name raises with the package's own message."""

    __slots__ = ("_unknown",)

    def __init__(self, members: dict[str, Any], unknown: str) -> None:
        super().__init__(members)
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an app or an API
        try:
            return self[name]
        except KeyError:
            raise Exception(self._unknown.format(key=name)) from None


def restrict(namespace: dict[str, Any], apis: Any) -> None:  # noqa: ANN401 - the package has no types
    """Change the shell's ``namespace`` in place; ``apis`` is the package's collection.

    Call it with the clocks frozen, since the modules' names are copied as they are now.
    """
    for name in _WITHDRAWN:
        namespace.pop(name, None)
    modules = _modules()
    namespace["__builtins__"] = _builtins(modules)
    namespace["builtins"] = SimpleNamespace(print=print)  # what the package's own print calls
    namespace["apis"] = _apis(apis)
    for name, value in list(namespace.items()):
        if isinstance(value, ModuleType):
            if value.__name__ in modules:
                namespace[name] = modules[value.__name__]
            elif not name.startswith("_"):
                del namespace[name]


def _apis(apis: Any) -> Apis:  # noqa: ANN401
    by_app = {
        app: Apis(dict(members.items()), "No API named '{key}' found in the " + app + " app.")
        for app, members in apis.items()
        if isinstance(members, dict)
    }
    return Apis(by_app, "No app named '{key}' found.")


def _modules() -> dict[str, ModuleType]:
    """Return a stand-in for each allowed module, with its allowed names and no module among their values.

    The stand-ins' own names differ from all real modules: ``from x import y`` looks for a module x.y by them.
    """
    stand_ins = {}
    for name, names in ALLOWED_MODULES.items():
        stand_in = ModuleType(f"allowed {name}")
        for key, value in vars(importlib.import_module(name)).items():
            if names.allow(key) and not isinstance(value, ModuleType):
                setattr(stand_in, key, value)
        stand_ins[name] = stand_in
    stand_ins["collections"].abc = stand_ins["collections.abc"]  # type: ignore[attr-defined]
    return stand_ins


def _builtins(modules: dict[str, ModuleType]) -> dict[str, Any]:
    allowed = {name: value for name, value in vars(builtins).items() if name not in WITHHELD_BUILTINS}
    return allowed | {"__import__": _import_from(modules), "type": _type, "SystemExit": Exception}


def _import_from(modules: dict[str, ModuleType]) -> Callable[..., ModuleType]:
    def restricted(
        name: str,
        globals: object = None,  # the interpreter's names, as the next
        locals: object = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or name not in modules:
            raise ImportError(f"Usage of the following module is not allowed: {name}.")
        return modules[name] if fromlist else modules[name.split(".", maxsplit=1)[0]]

    return restricted


def _type(value: object) -> type:
    """Return the type of a value. The type of a class is refused, because it can create classes of any names."""
    found = type(value)
    if issubclass(found, type):
        raise TypeError("type() of a class is not allowed")
    return found
