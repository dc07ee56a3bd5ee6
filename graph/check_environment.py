"""`coevolve environment check`: holds an environment of the user's to the contract, and says what follows.

First a few unguided episodes are explored, each of which is played twice more: does it begin alike, answer alike, show
its state? `coevolve evolve --mcp` looks at a server in the same way.
`coevolve environment serve` is ``graph.interop.openenv.serve``, `new` is ``graph.new_environment``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from environments.command import FAILURE, OneSentence, OneSentenceGroup, exit_statuses
from graph.interop.openenv.serve import command as serve_command
from graph.new_environment import command as new_command

if TYPE_CHECKING:
    from environments.base import Environment, Observation, StartState, TaskSpec, ToolCall
    from environments.contract.checks import Checked

LOOKED_AT = 4
"""Episodes that are explored and played again (our choice): a tool that is called in none is said to be."""
TASKS = 6
EPISODES = 40
LONGEST = 3
"""Calls of a task's reference at most."""

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
            _broken(findings(opened))
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


def line(checked: Checked) -> str:
    """Return a property in a line, with what follows below it where it does not hold."""
    words, problem, follows = checked
    return f"ok     {words}" if problem is None else f"FAILS  {words}: {problem}\n       {follows}"


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
    from environments.base import EnvironmentFault, InputError, ToolCall
    from environments.contract.checks import Checked

    calls, ran, differs = Counter[str](), set[str](), set[str]()
    begins, faults, changes = dict[str, None](), list[str](), False
    starts = environment.starts()
    for position in range(LOOKED_AT):
        start = starts[position % len(starts)]
        try:
            context = unguided_context(start, position)
            found = UnguidedExplorer(UNGUIDED_EXPLORATION).explore_now(context, environment, position)
            made = [one.action for one in found if isinstance(one.action, ToolCall)]
            first, again = (_played(environment, start, made) for _ in range(2))
        except (EnvironmentFault, InputError) as error:
            faults.append(str(error))
            continue
        if first[0] != again[0]:
            begins[start.id] = None
        for place, call in enumerate(made):
            (_, before), (answer, after) = first[place : place + 2]
            (_, other_before), (other_answer, other_after) = again[place : place + 2]
            calls[call.name] += 1
            changes |= before != after
            if answer is not None and not answer.failed:
                ran.add(call.name)
            if (answer, before == after) != (other_answer, other_before == other_after):
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
        "No task may use them: give starts in which they work, and documentation that names values.",
    )


def _played(
    environment: Environment, start: StartState, calls: Sequence[ToolCall]
) -> list[tuple[Observation | None, str]]:
    """Return the state of a fresh episode, and the answer to each call with the state after it."""
    from environments.verification.replay import bare_task

    with closing(environment.open(bare_task(start))) as episode:
        episode.start()
        played: list[tuple[Observation | None, str]] = [(None, episode.state())]
        for call in calls:
            played.append((episode.step(call), episode.state()))
        return played


def explored_tasks(environment: Environment) -> tuple[TaskSpec, ...]:
    """Return verified tasks from unguided exploration; some change the state, and one has several calls at least.

    Raises InputError where none are found.
    """
    from agents.roles import UNGUIDED_EXPLORATION, unguided_context
    from agents.scripted.abstractor import TemplateAbstractor
    from agents.scripted.explorer import UnguidedExplorer
    from agents.spending import RoleRefused
    from environments.base import InputError, TaskSpec
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
