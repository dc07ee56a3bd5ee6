"""`coevolve environment check`: holds an environment of the user's to the contract, and says what follows.

`coevolve environment serve` is ``graph.interop.openenv.serve``, `new` is ``graph.new_environment``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from environments.command import FAILURE, OneSentence, OneSentenceGroup, exit_statuses
from graph.interop.openenv.serve import command as serve_command
from graph.new_environment import command as new_command

if TYPE_CHECKING:
    from environments.base import Environment, TaskSpec
    from environments.contract.checks import Checked

TASKS = 6
EPISODES = 40
LONGEST = 3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, cls=OneSentenceGroup)


@app.callback()
def _group() -> None:
    """Start an environment of your own, check it, or serve tasks to clients of other frameworks."""


app.command("new", cls=OneSentence)(new_command)
app.command("serve", cls=OneSentence)(serve_command)


@app.command("check", cls=OneSentence)
def main(
    name: Annotated[
        str, typer.Argument(metavar="MODULE:CALLABLE", help="the environment, as a recipe names it, or mcp")
    ],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of it, as in a recipe")
    ] = None,
) -> None:
    """Hold an environment of your own to what training, verification and the roles rely on.

    It is opened and looked at: whether it begins and answers alike, and shows its state. Then tasks are found by
    exploring it, and every property of the contract is checked on them: a line for each, with what follows where it
    does not hold. Nothing is written.

    Exit status: 0 where all hold, 1 where one does not, 2 for a user's mistake.
    """
    with exit_statuses():
        from environments.base import InputError
        from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Checked, Contract, check
        from environments.declared import where
        from environments.registry import benchmark_of, find_benchmark, is_import_path, named_benchmark, open_named
        from graph.first_look import findings, look_at
        from memory.strict_yaml import options_given

        if not is_import_path(name) and not named_benchmark(name).brought:
            raise InputError(f"{name!r} is not an environment of your own: write module:callable")
        options = options_given(option or [])
        find_benchmark(name)
        contract = Contract(lambda: open_named(name, options))
        opened = contract.make()
        for note in benchmark_of(opened).notes(opened):
            print(note)
        if opened.starts():
            _broken(findings(look_at(opened)))
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


def _broken(checked: Iterable[Checked]) -> int:
    """Print a line for each property, with what follows where it does not hold, and count these."""
    count = 0
    for words, problem, follows in checked:
        print(f"ok     {words}" if problem is None else f"FAILS  {words}: {problem}\n       {follows}", flush=True)
        count += problem is not None
    return count


def explored_tasks(environment: Environment) -> tuple[TaskSpec, ...]:
    """Return verified tasks from unguided exploration; some change the state, and one has several calls at least.

    Raises InputError where none are found.
    """
    from agents.assembly import UNGUIDED_EXPLORATION, unguided_context
    from agents.live import call_of, context_task, partition, successful_runs
    from agents.scripted.explorer import UnguidedExplorer
    from environments.base import InputError

    found: list[TaskSpec] = []
    refused: Counter[str] = Counter()
    starts = environment.starts()
    for position in range(EPISODES):
        context = unguided_context(starts[position * 7 % len(starts)], position)
        interactions = UnguidedExplorer(UNGUIDED_EXPLORATION).explore_now(context, environment, position)
        rng = random.Random(position)
        for run in successful_runs(interactions):
            for cut in partition(run, LONGEST, rng):
                calls = tuple(call_of(interaction) for interaction in cut.reference)
                update = {"setup": cut.setup, "reference": (calls,)}
                task = _verified(environment, context_task(context).model_copy(update=update), rng, refused)
                found += [task] if task is not None and task not in found else []
        chosen = _chosen(environment, found)
        if chosen:
            return chosen
    often = ", ".join(f"{number} {why}" for why, number in refused.most_common(3)) or "none was made"
    raise InputError(
        f"exploration found {len(found)} tasks in {EPISODES} episodes, and {TASKS} are needed, one of several calls "
        f"and one that changes the state; drafts were refused: {often}. See that the values of arguments can be seen "
        "in answers or documentation, and that equal calls do equal things"
    )


def _verified(environment: Environment, task: TaskSpec, rng: random.Random, refused: Counter[str]) -> TaskSpec | None:
    """Return the task with its text if verification accepts it, else None, counting the reason."""
    from environments.base import InputError
    from environments.task_text import render_documented
    from environments.verification.replay import reduce
    from environments.verification.verify import verify

    reduced = reduce(environment, task)
    if reduced is None:
        refused["that cannot be reduced"] += 1
        return None
    try:
        written = render_documented(environment, reduced, rng)
    except InputError:
        refused["that cannot be worded"] += 1
        return None
    result = verify(written, environment, (), ())
    if result.reason is not None:
        refused[result.reason] += 1
    return written if result.accepted else None


def _chosen(environment: Environment, found: Sequence[TaskSpec]) -> tuple[TaskSpec, ...]:
    """Return a task of several calls, one that changes the state, and others; none while one of these is missing."""
    from environments.contract.play import in_turns
    from environments.verification.replay import replay

    several = [task for task in found if len(task.reference[0]) > 1]
    # A reference that is cut into turns must still act in every turn.
    several = [task for task in several if replay(environment, in_turns([task])[0]).outcome.success]
    changing = [task for task in found if _changes(environment, task)]
    if len(found) < TASKS or not several or not changing:
        return ()
    return tuple({id(task): task for task in (several[0], changing[0], *found)}.values())[:TASKS]


def _changes(environment: Environment, task: TaskSpec) -> bool:
    from environments.verification.replay import replay

    played = replay(environment, task)
    return played.initial != played.end_states()[-1]


if __name__ == "__main__":
    app()
