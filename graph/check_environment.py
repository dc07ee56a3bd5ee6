"""`coevolve environment`: writes an environment to change, and holds one of the user's to the contract.

`new` writes a folder that runs as it is. The class and the recipe are those that ship as examples
(``environments/example.py``, ``recipes/own-environment.yaml``) under the new name. The held-out file is made by
exploring other start states, as anyone would make it.

`check` says of each property whether it holds, and what follows where it does not. First a few unguided episodes are
explored, each of which is played twice more: does it begin alike, answer alike, show its state? `coevolve evolve --mcp`
looks at a server in the same way. `serve` is ``graph.interop.openenv.serve``.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from environments.base import InputError
from environments.checkout import ROOT
from environments.command import (
    FAILURE,
    OneSentence,
    OneSentenceGroup,
    check_output,
    exit_on_signals,
    exit_statuses,
    say,
)
from graph.interop.openenv.serve import command as serve_command

if TYPE_CHECKING:
    from environments.base import Environment, TaskSpec
    from environments.contract.checks import Checked

LOOKED_AT = 4
"""Episodes that are explored and played again (our choice): a tool that is called in none is said to be."""
TASKS = 6
EPISODES = 40
LONGEST = 3
"""Calls of a task's reference at most."""

HELD_OUT, LESSONS, STARTER, RECIPE = "held-out.jsonl", "lessons.jsonl", "starter", "recipe.yaml"


class Sizes(NamedTuple):
    """Held-out tasks, tasks that the first policy learns from, and how often it does."""

    held_out: int
    lessons: int
    passes: int


SIZES = {"scripted": Sizes(80, 400, 2), "local": Sizes(20, 60, 14)}
"""By the kind of the roles (ours): a language model takes half a minute for what rules make in a tenth of a second."""
_RULED = "independent: false       # ours: scripted rules learn from round to round"
_MODELLED = "rounds: 1                # ours: each call of a language model takes seconds"
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

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, cls=OneSentenceGroup)


@app.callback()
def _group() -> None:
    """Start an environment of your own, check it, or serve tasks to clients of other frameworks."""


@app.command("new", cls=OneSentence)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="of the environment, its module and its folder")],
    roles: Annotated[
        Literal["local", "scripted"] | None,
        typer.Option(help="who words tasks: rules, or the language model of make model; rules if none"),
    ] = None,
) -> None:
    """Write the folder NAME: an environment of your own to change, its recipe, contract test and held-out tasks.

    It runs as it is. The commands that make its first policy and start a run are printed. Nothing is overwritten.
    The recipe states who words the tasks.

    Exit status: 0, 2 for a user's mistake, 1 when the environment failed.
    """
    with exit_statuses():
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            raise InputError(f"{name!r} cannot name a module: write small letters, digits and _, a letter first")
        from environments.registry import packaged_names

        if name in packaged_names() or importlib.util.find_spec(name) is not None:
            raise InputError(f"{name} is the name of a benchmark or of an installed module: choose another")
        check_output("NAME", Path(name), "folder")
        from graph.default_roles import words_by
        from graph.seed_tasks import seed_file
        from memory.files import whole_folder

        kind = roles or "scripted"
        sizes = SIZES[kind]
        with whole_folder(Path(name).absolute()) as folder, chdir(folder):
            _write(folder, name, kind)
            kinds = {"explorer": kind, "abstractor": kind}
            say(f"roles: {words_by(kinds, kinds if roles else (), '--roles scripted')}")
            given = ["environment.options.seed=1", "evaluation.tasks=null", "seed=30"]
            seed_file(Path(RECIPE), [*given, f"tasks.initial_count={sizes.held_out}"], None, Path(HELD_OUT))
        print(_next(name, sizes))


def _write(folder: Path, name: str, kind: str) -> None:
    named = {"environments.example:depot": f"{name}:{name}"}
    of_class = {"def depot(": f"def {name}(", 'PythonEnvironment("depot"': f'PythonEnvironment("{name}"'}
    kinds = "".join(f"  {role}: {{kind: {kind}}}\n" for role in ("explorer", "abstractor"))
    of_recipe = {
        "runs/depot-starter": STARTER,
        "runs/depot-held-out.jsonl": HELD_OUT,
        "\nroles:\n": f"\nroles:\n{kinds}",
    }
    if kind == "local":
        of_recipe[_RULED] = _MODELLED
    code = _adapted("environments/example.py", '"""\n', named | of_class)
    head = f'"""Change the class and its start states, then `coevolve environment check {name}:{name}`."""\n'
    recipe = _adapted("recipes/own-environment.yaml", "\n", named | of_recipe)
    (folder / f"{name}.py").write_text(head + code, encoding="utf-8")
    (folder / RECIPE).write_text(f"# {name}: run commands in this folder.\n{recipe}", encoding="utf-8")
    (folder / f"test_{name}.py").write_text(_TEST.format(name=name), encoding="utf-8")


def _adapted(example: str, head: str, changes: dict[str, str]) -> str:
    """Return an example that ships, behind the first ``head``, with ``changes`` of words that it has once."""
    _, _, text = (ROOT / example).read_text(encoding="utf-8").partition(head)
    for old, new in changes.items():
        if text.count(old) != 1:
            raise RuntimeError(f"{example} has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    return text


def _next(name: str, sizes: Sizes) -> str:
    own = f"{name}:{name}"
    seed = f"python -P -m graph.seed_tasks --recipe {RECIPE}"
    start = f"python -P -m training.warm_start --model embedded --environment {own}"
    return f"""{name}: {name}.py (the class), {RECIPE}, test_{name}.py, {HELD_OUT} (tasks of other start states)
next:
cd {name}
coevolve environment check {own}
{seed} --count {sizes.lessons} --seed 1 --output {LESSONS}
{start} --tasks {LESSONS} --passes {sizes.passes} --out {STARTER}
coevolve evolve --recipe {RECIPE} --run run
after a change of the class, make the held-out tasks anew as well:
rm {HELD_OUT} && {seed} --count {sizes.held_out} --seed 30 {_SEEDS} --output {HELD_OUT}"""


app.command("serve", cls=OneSentence)(serve_command)


@app.command("check", cls=OneSentence)
def main(
    name: Annotated[
        str, typer.Argument(metavar="MODULE:CALLABLE", help="the environment, as a recipe names it, or a recipe.yaml")
    ],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of it, as in a recipe")
    ] = None,
) -> None:
    """Hold an environment to what training, verification and the roles rely on.

    It is opened and looked at: whether it begins and answers alike, and shows its state; what was not seen is a note.
    Then tasks are found by exploring it, and every property of the contract is checked on them: a line for each, with
    what follows where it does not hold. Nothing is written. A recipe's options are used with those given on top.

    Exit status: 0 where all hold, 1 where one does not, 2 for a user's mistake; 129 on SIGHUP, 130 on SIGINT, 143 on
    SIGTERM.
    """
    exit_on_signals(at_once=True)
    with exit_statuses():
        from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Checked, Contract, check
        from environments.registry import benchmark_of, find_benchmark, open_named, where
        from memory.jsonl import options_given

        if name.endswith(".yaml"):
            from graph.settings import load_recipe

            chosen = load_recipe(Path(name), [f"environment.options.{one}" for one in option or []]).environment
            contract = Contract(chosen.open)
        else:
            options = options_given(option or [])
            find_benchmark(name)
            contract = Contract(lambda: open_named(name, options))
        opened = contract.make()
        for note in benchmark_of(opened).notes(opened):
            print(note)
        if opened.starts():
            for found in findings(opened):
                print(line(found, "note "), flush=True)
        if _broken(check(contract)):
            print(f"the other {len(PROPERTIES) - len(WITHOUT_TASKS)} properties are checked once these hold")
            raise SystemExit(FAILURE)
        try:
            tasks = explored_tasks(contract.make())
        except Exception as error:  # noqa: BLE001 - an environment may raise anything, and that is the answer
            said = str(error) if isinstance(error, InputError) else f"it raised {where(error)}"
            _broken([Checked("tasks can be found in it", said, "A run has nothing to train on.")])
            raise SystemExit(FAILURE) from None
        _broken([Checked(f"tasks can be found in it: {len(tasks)} of these are played", None, "")])
        if broken := _broken(check(contract, tasks)):
            print(f"{broken} of {len(PROPERTIES)} properties do not hold")
            raise SystemExit(FAILURE)
        print(f"all {len(PROPERTIES)} properties hold")


def line(checked: Checked, otherwise: str = "FAILS") -> str:
    """Return a property in a line; behind ``otherwise``, and with what follows below it, where it does not hold."""
    words, problem, follows = checked
    return f"ok     {words}" if problem is None else f"{otherwise}  {words}: {problem}\n       {follows}"


def _broken(checked: Iterable[Checked]) -> int:
    """Print a line for each property, and count those that do not hold."""
    count = 0
    for one in checked:
        print(line(one), flush=True)
        count += one.problem is not None
    return count


def findings(environment: Environment) -> Iterator[Checked]:
    """Explore ``LOOKED_AT`` episodes, play each twice more, and yield what was found, why not, and what follows.

    A fault of the environment ends its episode alone.
    """
    from agents.roles import UNGUIDED_EXPLORATION, unguided_context
    from agents.scripted.explorer import UnguidedExplorer
    from environments.base import EnvironmentFault, ToolCall
    from environments.contract.checks import Checked
    from environments.verification.replay import bare_task, replay

    calls, ran, differs = Counter[str](), set[str](), set[str]()
    begins, faults, changes = dict[str, None](), list[str](), False
    starts = environment.starts()
    for position in range(LOOKED_AT):
        start = starts[position % len(starts)]
        try:
            context = unguided_context(start, position)
            found = UnguidedExplorer(UNGUIDED_EXPLORATION).explore_now(context, environment, position)
            made = [one.action for one in found if isinstance(one.action, ToolCall)]
            first, again = (replay(environment, bare_task(start), [made]) for _ in range(2))
        except (EnvironmentFault, InputError) as error:
            faults.append(str(error))
            continue
        if first.initial != again.initial:
            begins[start.id] = None
        one, other = (pairwise((played.initial, *played.turns[0].states)) for played in (first, again))
        answers = zip(first.turns[0].observations, again.turns[0].observations, strict=True)
        for call, (answer, second), (before, after), (begun, ended) in zip(made, answers, one, other, strict=True):
            calls[call.name] += 1
            changes |= before != after
            if not answer.failed:
                ran.add(call.name)
            if (answer, before == after) != (second, begun == ended):
                differs.add(call.name)
    tools = starts[0].tools
    yield Checked(
        "it answers",
        f"{len(faults)} of {LOOKED_AT} episodes failed, the last so: {faults[-1]}" if faults else None,
        "Such rollouts and drafts count as faults, never as failures of the policy: correct the environment.",
    )
    yield Checked(
        "it begins alike each time",
        f"two episodes of {', '.join(begins)} begin in different states" if begins else None,
        "Nothing can be verified: drafts are refused as nondeterministic. Have it reset, or compare less of its state.",
    )
    yield Checked(
        "equal calls do equal things",
        f"{', '.join(name for name in tools if name in differs)} did not" if differs else None,
        "Drafts that call them are refused as nondeterministic: tasks are made of the other tools.",
    )
    yield Checked(
        "calls change the state that is compared",
        None if changes else f"none of {calls.total()} calls did",
        "Only answers are compared: calls that only change something make no task, and damage goes unnoticed.",
    )
    never = [name for name in tools if name not in ran]
    yield Checked(
        "every tool was called and ran",
        f"{', '.join(never)} did not" if never else None,
        f"A run that explores more than these {LOOKED_AT} episodes may still reach them. Else give starts "
        "in which they work, and documentation that names values.",
    )


def explored_tasks(environment: Environment) -> tuple[TaskSpec, ...]:
    """Return verified tasks from unguided exploration; some change the state, and one has several calls at least.

    Raises InputError where none are found.
    """
    from agents.roles import UNGUIDED_EXPLORATION, unguided_context
    from agents.scripted.abstractor import TemplateAbstractor
    from agents.scripted.explorer import UnguidedExplorer
    from agents.spending import RoleRefused
    from environments.base import TaskSpec
    from environments.verification.verify import verify

    settings = UNGUIDED_EXPLORATION.model_copy(update={"max_reference_calls": LONGEST, "order": "easy_first"})
    found: list[TaskSpec] = []
    refused: Counter[str] = Counter()
    starts = environment.starts()
    for position in range(EPISODES):
        context = unguided_context(starts[position * 7 % len(starts)], position)
        interactions = UnguidedExplorer(settings).explore_now(context, environment, position)
        try:
            drafts = TemplateAbstractor(settings).abstract_now(context, interactions, environment, position)
        except RoleRefused:
            refused["that cannot be worded"] += 1
            continue
        for draft in drafts:
            task = TaskSpec(**{name: getattr(draft, name) for name in TaskSpec.model_fields})
            result = verify(task, environment, (), ())
            if result.reason is not None:
                refused[result.reason] += 1
            elif task not in found:
                found.append(task)
        if chosen := _chosen(environment, found):
            return chosen
    often = ", ".join(f"{number} {why}" for why, number in refused.most_common(3)) or "none was made"
    raise InputError(
        f"exploration found {len(found)} tasks in {EPISODES} episodes, and {TASKS} are needed, one of several calls "
        f"and one that changes the state; drafts were refused: {often}. See that the values of arguments can be seen "
        "in answers or documentation, and that equal calls do equal things"
    )


def _chosen(environment: Environment, found: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
    """Return a task of several calls, one that changes the state, and others; none while one of these is missing."""
    from environments.contract.checks import in_turns
    from environments.verification.replay import replay

    if len(found) < TASKS:
        return ()
    # A reference that is cut into turns must still act in every turn.
    several = (task for task in found for cut in in_turns([task]) if replay(environment, cut).outcome.success)
    played = ((task, replay(environment, task)) for task in found)
    changing = (task for task, one in played if one.initial != one.end_states()[-1])
    first = (next(several, None), next(changing, None))
    if None in first:
        return ()
    return tuple({id(task): task for task in (*first, *found) if task is not None}.values())[:TASKS]


if __name__ == "__main__":
    app()
