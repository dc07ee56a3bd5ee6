"""The BFCL environment: opens episodes on the official simulators and names the training split's initial states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from environments.base import InputError, StartState, TaskSpec, ToolSpec
from environments.bfcl import package
from environments.bfcl.docs import all_tools, tool_names
from environments.bfcl.episode import BFCLEpisode
from environments.bfcl.official import OfficialTask, load_category

NAME = "bfcl"


class BFCLEnvironment:
    """Implements ``environments.base.Environment``.

    Args:
        classes: official classes that ``starts`` is restricted to; tasks of every class can be opened.
        max_steps: actions in one user turn before it is cut off (official: 20).

    Raises InputError when bfcl-eval is not installed or a class is not one of its eight.
    """

    name: str = NAME

    def __init__(self, classes: Sequence[str] = package.CLASSES, max_steps: int = 20) -> None:
        package.require()
        self._classes = tuple(classes)
        _check_classes(self._classes)
        self._max_steps = max_steps

    def open(self, task: TaskSpec) -> BFCLEpisode:
        """A fresh episode. Raises InputError for a task of another environment, or unknown classes or tools."""
        if task.environment != NAME:
            raise InputError(f"a task of the environment {task.environment!r} was given to {NAME!r}: open it there")
        if not task.turns:
            raise InputError("the task has no user turn: give one at least")
        _check_classes(task.classes)
        for turn in task.withheld:
            if not 0 <= turn < len(task.turns):
                raise InputError(f"tools are withheld until turn {turn}, but the task has {len(task.turns)} turns")
        known = set(tool_names(task.classes))
        for name in (*task.tools, *(name for names in task.withheld.values() for name in names)):
            if name not in known:
                raise InputError(f"the tool {name!r} belongs to none of the task's classes {', '.join(task.classes)}")
        return BFCLEpisode(task, self._max_steps)

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        """Documentation of the named functions, in the given order. Raises InputError for an unknown one."""
        known = all_tools()
        for name in names:
            if name not in known:
                raise InputError(f"BFCL has no function {name!r}: use a name from its function documentation")
        return tuple(known[name] for name in names)

    def starts(self) -> tuple[StartState, ...]:
        """Where the base tasks of the training split begin, restricted to the environment's classes."""
        return self._starts

    @cached_property
    def _starts(self) -> tuple[StartState, ...]:
        restricted = (self._start(task) for task in load_category("base", ("train",)))
        return tuple(start for start in restricted if start is not None)

    def _start(self, task: OfficialTask) -> StartState | None:
        initial_state = {
            name: task.spec.initial_state[name]
            for name in task.spec.classes
            if name in self._classes and name in task.spec.initial_state
        }
        if not initial_state:
            return None
        classes = tuple(name for name in task.spec.classes if name in self._classes)
        return StartState(
            id=task.id,
            environment=NAME,
            split=task.spec.split,
            classes=classes,
            initial_state=initial_state,
            tools=tool_names(classes),
        )


def _check_classes(classes: Sequence[str]) -> None:
    if not classes:
        raise InputError(f"no class is given: name some of {', '.join(package.CLASSES)}")
    for name in classes:
        if name not in package.CLASSES:
            raise InputError(f"{name!r} is no class of BFCL multi-turn: use some of {', '.join(package.CLASSES)}")
    if len(set(classes)) < len(classes):
        raise InputError(f"a class is given twice in {', '.join(classes)}: give each once")
