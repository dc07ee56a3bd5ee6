"""Find the engine's Python and its world, and read a root's files without running its code.

The world's own API documentation and tasks are read at run time, because they must not be part of the project:
documentation from the blind root, tasks from the full one (instructions, apps, and solutions of train and dev alone).
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from environments.appworld.layout import missing, read_ids
from environments.appworld.records import PYTHON, Start
from environments.base import InputError, Parameter, Record, TaskSpec, ToolCall, ToolSpec

REPOSITORY = Path(__file__).resolve().parents[2]
WORLD = "COEVOLVE_APPWORLD"  # environment variable: the folder that holds full/ and blind/
OPEN_SPLITS = ("train", "dev")
"""Data sets whose tasks every caller may open; only ``environments.appworld.evaluation_sets`` opens the others."""

_ANEW = "build it with `make appworld`, or get the benchmark's with `make appworld DATA=download`"
_IN_MEMORY = "memory"  # the appworld package takes paths with this word for databases in memory


class Installation(Record):
    """The AppWorld virtual environment's Python, and the world: a folder with the roots ``full`` and ``blind``."""

    python: Path
    world: Path

    @property
    def full(self) -> Path:
        """The root of the evaluator."""
        return self.world / "full"

    @property
    def blind(self) -> Path:
        """The root of the worker."""
        return self.world / "blind"

    def task_ids(self, split: str) -> tuple[str, ...]:
        """Return the ids of train or dev. Raises InputError for any other split, and for one missing in the world."""
        if split not in OPEN_SPLITS:
            raise InputError(f"the split {split!r} is not open here: use train or dev, test splits are for evaluation")
        if not self.data_set(split).is_file():
            raise InputError(f"the world in {self.world} has no data set {split!r}: build or download it anew")
        return read_ids(self.full / "data", split)

    def data_set(self, split: str) -> Path:
        """Return the file that lists the ids of a split."""
        return self.full / "data" / "datasets" / f"{split}.txt"

    def require_split(self, split: str) -> None:
        """Raise InputError with the file that a task of the split lacks to be played and evaluated, if there is one."""
        lacks = missing(self.full / "data", split)
        if lacks:
            raise InputError(f"the world in {self.world} is not whole, {lacks}: {_ANEW}")

    def require_task(self, task_id: str) -> None:
        """Raise InputError unless the world has the task."""
        if task_id.count("_") != 1 or not (self.blind / "data" / "tasks" / task_id / "specs.json").is_file():
            raise InputError(f"the world in {self.world} has no task {task_id!r}: use an id from its data sets")


def find_installation(world: Path | None = None) -> Installation:
    """Return the project's AppWorld: ``world``, else ``COEVOLVE_APPWORLD``, else the synthetic world in ``.appworld``.

    Raises InputError with the command to run when the virtual environment or the world is missing.
    """
    python = REPOSITORY / ".venvs" / "appworld" / "bin" / "python"
    if not python.exists():
        raise InputError(f"AppWorld is not installed ({python} is missing): run `make appworld`")
    named = os.environ.get(WORLD)
    world = (world or (Path(named) if named else REPOSITORY / ".appworld" / "made")).resolve()
    for root in ("full", "blind"):
        if not (world / root / "data" / "tasks").is_dir():
            raise InputError(f"there is no AppWorld world in {world} ({root}/data/tasks is missing): {_ANEW}")
    if _IN_MEMORY in str(world):
        raise InputError(f"AppWorld cannot work below {world}: its path contains {_IN_MEMORY!r}, choose another")
    return Installation(python=python, world=world)


_CHOICES = re.compile(r"value in (\[.*\])")
_TYPES = {"string": "string", "integer": "integer", "number": "float", "boolean": "boolean", "dict": "dict"}


def read_api_documentation(installation: Installation) -> dict[str, ToolSpec]:
    """Return every API by ``app.api``, apps and APIs in the order of the world's files.

    Raises InputError naming a file that is not in the package's format.
    """
    folder = installation.blind / "data" / "api_docs" / "standard"
    tools = {}
    for path in sorted(folder.glob("*.json")):
        try:
            for api, document in json.loads(path.read_text()).items():
                tools[f"{path.stem}.{api}"] = _tool(path.stem, api, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is not API documentation ({error!r}): build the world anew") from error
    if not tools:
        raise InputError(f"{folder} has no API documentation: build the world anew with `make appworld`")
    return tools


def _tool(app: str, api: str, document: dict[str, Any]) -> ToolSpec:
    parameters = tuple(_parameter(parameter) for parameter in document["parameters"])
    return ToolSpec(name=f"{app}.{api}", group=app, description=document["description"], parameters=parameters)


def _parameter(document: dict[str, Any]) -> Parameter:
    written = document["type"]
    constraints = "; ".join(document["constraints"])
    description = document["description"] + (f" ({constraints})" if constraints else "")
    # Of several types the last, a text, holds a value of any of them: "number | integer | string".
    first = written.split("|")[-1].strip()
    is_list = first.startswith("list")
    default: JsonValue = document["default"]
    return Parameter(
        name=document["name"],
        type="array" if is_list else _TYPES[first],
        description=description,
        required=document["required"],
        default=default,
        choices=_choices(document["constraints"]),
        items=_TYPES[first.removeprefix("list[").removesuffix("]")] if is_list else None,
    )


def _choices(constraints: list[str]) -> tuple[JsonValue, ...]:
    """Return the values that a constraint lists ("value in ['append', 'prepend']"), () without such a constraint."""
    listed = next((found for constraint in constraints if (found := _CHOICES.fullmatch(constraint.strip()))), None)
    return tuple(ast.literal_eval(listed.group(1))) if listed else ()


_RUN = "solution(apis, None)"


def official_task(installation: Installation, task_id: str, split: str) -> TaskSpec:
    """Return the benchmark's task ``task_id`` of ``split``, which the benchmark's checks evaluate.

    The reference is its compiled solution, which needs no import of the package, as one block of code. Raises
    InputError for a split other than train and dev, a task that is not in it, and a task whose files are incomplete.
    """
    if task_id not in installation.task_ids(split):
        raise InputError(f"the split {split} has no task {task_id!r}: use one of its ids")
    solution = _read(installation, task_id, "ground_truth/compiled_solution.py")
    call = ToolCall(name=PYTHON, arguments={"code": f"{solution}\n{_RUN}"})
    return as_task(installation, task_id, split, (call,))


def as_task(installation: Installation, task_id: str, split: str, reference: tuple[ToolCall, ...]) -> TaskSpec:
    """Return the benchmark's task with this reference. Raises InputError for files that cannot be read.

    Its only tool is ``python``: the code that the agent writes may call every API.

    This function does not check the split, only that the world has the task: the caller must check the split.
    """
    installation.require_task(task_id)
    return TaskSpec(
        environment="appworld",
        split=split,
        classes=(PYTHON,),
        turns=(_read_json(installation, task_id, "specs.json")["instruction"],),
        initial_state=Start(task=task_id, official=True).initial_state(),
        tools=(PYTHON,),
        reference=(reference,),
    )


def required_apps(installation: Installation, task_id: str) -> tuple[str, ...]:
    """Return the apps that the task requires by its metadata, in order of name."""
    return tuple(sorted(_read_json(installation, task_id, "ground_truth/required_apps.json")))


def _read(installation: Installation, task_id: str, name: str) -> str:
    path = installation.full / "data" / "tasks" / task_id / name
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): build or download the world anew") from error


def _read_json(installation: Installation, task_id: str, name: str) -> Any:  # noqa: ANN401 - the benchmark's file
    text = _read(installation, task_id, name)
    try:
        return json.loads(text)
    except ValueError as error:
        path = installation.full / "data" / "tasks" / task_id / name
        raise InputError(f"{path} is not JSON ({error}): build or download the world anew") from error
