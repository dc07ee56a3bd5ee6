"""Checks all that a run will need before anything is written or paid; `python -m graph.check_recipe` does that alone.

That is the environment, evaluation set, keys of the roles, files and policy of a recipe, without loading weights and
within a second or two. A run that passes can still fail later, on another machine or another day.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, Overrides, exit_statuses, run_interruptible

if TYPE_CHECKING:
    from environments.base import Environment
    from graph.settings import RunSettings


def check_run(settings: RunSettings, *, trains: bool = True, opens_own: bool = True) -> None:
    """Raise InputError that names the first key for which a run with ``settings`` would fail.

    ``trains`` is False where no policy is needed, to make D_0 alone. ``opens_own`` is False where no code that the
    settings name may run: an environment of the user's is then looked at, and what needs it open is not checked.
    """
    from environments.registry import benchmark_of, is_import_path, look
    from evaluation.settings import check_evaluation
    from graph.settings import check_benchmark, check_starts
    from memory.tasks import OFFICIAL

    environment = None
    if opens_own or not settings.environment.is_own:
        environment = settings.environment.open()
        check_benchmark(settings, f"environment {settings.environment.name}", benchmark_of(environment))
    elif is_import_path(settings.environment.name):
        look(settings.environment.name)
    check_roles(settings, environment)
    if (initial := settings.tasks.initial) not in (None, OFFICIAL) and not Path(initial).is_file():
        raise InputError(f"tasks.initial: {initial} cannot be read, it does not exist: name a file of tasks")
    check_evaluation(settings.evaluation, environment)
    if trains:
        from graph.fit import check_memory
        from graph.tracking import check_trackers
        from training.preflight import check_policy
        from training.rollout.engines import check_engine

        if environment is not None:
            check_starts(settings.signals, environment)
        check_policy(settings.policy, settings.training, settings.sampling, settings.evaluation.max_tokens)
        check_engine(settings.sampling, settings.policy, settings.training)
        elsewhere = settings.training.elsewhere
        if elsewhere is None:
            check_memory(settings)
        elif elsewhere.engine == "verl" and not Path(elsewhere.python).exists():
            raise InputError(f"training.elsewhere.python: there is no {elsewhere.python}: run make verl")
        elif elsewhere.engine == "verl" and settings.policy.lora is not None:
            raise InputError("training.elsewhere: verl trains all weights here: set policy.lora to null")
        check_trackers(settings.training.report_to)


def check_roles(settings: RunSettings, environment: Environment | None) -> None:
    """Raise InputError where a chat role lacks its key, or a local one its model; ``environment``: where it is open."""
    from agents.chat.endpoint import resolve
    from environments.registry import benchmark_of

    for name, role in settings.roles.by_chat().items():
        resolve(role, name)
    if settings.roles.plays_locally():
        from training.local_model import check_local

        if environment is not None and benchmark_of(environment).scripted_roles is not None:
            raise InputError(f"roles: {settings.environment.name} has scripted roles of its own: no kind may be local")
        check_local(settings.roles.local.adapters)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipes: Annotated[list[Path], typer.Argument(help="YAML files of settings")],
    rehearses: Annotated[
        bool,
        typer.Option("--rehearse", help="run the whole chain of one recipe at toy size, on what the machine has"),
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Check recipes as a run does before it begins, and stop at the first mistake.

    All keys and values, then their needs on this machine: the environment, the keys of chat roles, the scored tasks,
    the policy with its tokenizer and chat template, its device. No weights are loaded.

    No code that a recipe names is run: of an environment of your own the declaration is read, and it is not opened.
    `coevolve environment check module:callable` opens it.

    With --rehearse the commands of a run are run, in minutes: D_0, two rounds, the graph between them, scoring on each
    benchmark that is installed, a vLLM server where the recipe has one, a kill and a resume. Sizes alone are changed.
    Chat roles send ten requests at most. Code that the recipe names is run. The list at the end says what was exercised
    and what was not, with the reason. A broken step leaves its folder, and its log's end is shown.

    Exit status: 0, or 2 with one sentence that names the file and the key, or the broken step and its cause.
    """
    with exit_statuses():
        if rehearses:
            if len(recipes) != 1:
                raise InputError("--rehearse runs one recipe: name one")
            from graph.rehearsal.chain import rehearse, table

            print(table(*run_interruptible(rehearse(recipes[0], overrides or ()))))
            return
        from agents.chat.endpoint import destination
        from graph.settings import RunSettings, load_recipe

        unopened: dict[Path, str] = {}
        for recipe in recipes:
            settings = load_recipe(recipe, overrides or ())
            if settings.environment.is_own:
                unopened[recipe] = settings.environment.name
            try:
                check_run(settings, opens_own=False)
            except InputError as error:
                raise InputError(f"{recipe}: {error}") from None
            for name, role in settings.roles.by_chat().items():
                print(f"{recipe}: roles.{name} asks {destination(role, name)}")
        empty = len(recipes) == 1 and settings == RunSettings()
        note = " (it sets nothing: every setting has its default)" if empty else ""
        print(f"{len(recipes)} recipes are right" if len(recipes) > 1 else f"{recipes[0]} is right{note}")
        for recipe, name in unopened.items():
            print(f"{recipe}: {name} was not opened, since a recipe runs no code here: its options are not checked")


if __name__ == "__main__":
    app()
