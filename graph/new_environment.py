"""`coevolve environment new`: writes a folder with an environment to change, which runs as it is.

The class and the recipe are those that ship as examples (``environments/example.py``, ``recipes/own-environment.yaml``)
under the new name. The held-out file is made by exploring other start states, as anyone would make it.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from contextlib import chdir
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.checkout import ROOT
from environments.command import check_output, exit_statuses

HELD_OUT, TASKS, STARTER = "held-out.jsonl", "lessons.jsonl", "starter"
RECIPE = "recipe.yaml"
HELD_OUT_TASKS = 80
_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_SEEDS = "--set environment.options.seed=1 --set evaluation.tasks=null"
_TEST = '''"""Holds {name} to the contract of environments: `python -m pytest` in this folder (pip install pytest)."""

import pytest
from {name} import {name}

from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Contract
from graph.check_environment import explored_tasks


@pytest.fixture(scope="module")
def tasks():
    return explored_tasks({name}())


@pytest.mark.parametrize("held", PROPERTIES)
def test_contract(held, request):
    given = [] if held in WITHOUT_TASKS else [request.getfixturevalue("tasks")]
    getattr(Contract({name}), held)({name}(), *given)
'''


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the environment, its module and its folder")],
) -> None:
    """Write the folder NAME: an environment of your own to change, its recipe, contract test and held-out tasks.

    It runs as it is. The commands that make its first policy and start a run are printed. Nothing is overwritten.

    Exit status: 0, 2 for a user's mistake, 1 when the environment failed.
    """
    with exit_statuses():
        from memory.jsonl import whole_folder

        _check_name(name)
        check_output("NAME", Path(name), "folder")
        with whole_folder(Path(name).absolute()) as folder:
            _write(folder, name)
            _make_held_out(folder)
        print(_next(name))


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(f"{name!r} cannot name a module: write small letters, digits and _, a letter first")
    from environments.registry import packaged_names

    if name in packaged_names() or importlib.util.find_spec(name) is not None:
        raise InputError(f"{name} is the name of a benchmark or of an installed module: choose another")


def _write(folder: Path, name: str) -> None:
    code = (ROOT / "environments" / "example.py").read_text(encoding="utf-8")
    recipe = (ROOT / "recipes" / "own-environment.yaml").read_text(encoding="utf-8")
    _, _, rest = code.partition('"""\n')
    for old, new in (
        ("environments.example:depot", f"{name}:{name}"),
        ("def depot(", f"def {name}("),
        ('PythonEnvironment("depot"', f'PythonEnvironment("{name}"'),
    ):
        rest = _replaced(rest, old, new)
    head = f'"""Change the class and its start states, then `coevolve environment check {name}:{name}`."""\n'
    (folder / f"{name}.py").write_text(head + rest, encoding="utf-8")
    _, _, recipe = recipe.partition("\n")
    for old, new in (
        ("environments.example:depot", f"{name}:{name}"),
        ("runs/depot-starter", STARTER),
        ("runs/depot-held-out.jsonl", HELD_OUT),
    ):
        recipe = _replaced(recipe, old, new)
    (folder / RECIPE).write_text(f"# {name}: run commands in this folder.\n{recipe}", encoding="utf-8")
    (folder / f"test_{name}.py").write_text(_TEST.format(name=name), encoding="utf-8")


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise RuntimeError(f"an example that ships has {old!r} {text.count(old)} times")
    return text.replace(old, new)


def _make_held_out(folder: Path) -> None:
    from graph.seed_tasks import seed_file

    given = ["environment.options.seed=1", "evaluation.tasks=null", "seed=30", f"tasks.initial_count={HELD_OUT_TASKS}"]
    with chdir(folder):
        seed_file(Path(RECIPE), given, None, Path(HELD_OUT))


def _next(name: str) -> str:
    seed = f"python -P -m graph.seed_tasks --recipe {RECIPE}"
    return f"""{name}: {name}.py (the class), {RECIPE}, test_{name}.py, {HELD_OUT} (tasks of other start states)
next:
cd {name}
coevolve environment check {name}:{name}
{seed} --count 400 --seed 1 --output {TASKS}
python -P -m training.warm_start --model embedded --environment {name}:{name} --tasks {TASKS} --passes 2 --out {STARTER}
coevolve evolve --recipe {RECIPE} --run run
after a change of the class, make the held-out tasks anew as well:
rm {HELD_OUT} && {seed} --count {HELD_OUT_TASKS} --seed 30 {_SEEDS} --output {HELD_OUT}"""
