"""Restrict the namespace of an agent's code to the apps and harmless parts of Python.

The code filter reads text; this restriction holds at run time, also for code that bypassed the filter.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from environments.appworld.engine.code_filter import ALLOWED_MODULES, WITHHELD_BUILTINS

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
