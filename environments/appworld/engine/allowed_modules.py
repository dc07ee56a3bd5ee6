"""What an agent's code may import, and which names of each module it gets: a subset of what the benchmark allows.

Left out are modules that reach files, processes or the interpreter, and names that look up attributes by a string,
evaluate text or call back with the interpreter's own objects.
"""

from __future__ import annotations

from typing import NamedTuple


class Names(NamedTuple):
    """All public names of a module but ``without``, or ``only`` some."""

    without: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def allow(self, name: str) -> bool:
        """Whether the code gets ``name``."""
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
