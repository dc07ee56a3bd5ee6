"""`python -m graph.check_recipe`: checks recipes without running them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.command import OneSentence, exit_statuses

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipes: Annotated[list[Path], typer.Argument(help="YAML files of settings")],
    rehearses: Annotated[
        bool,
        typer.Option("--rehearse", help="run the whole chain of one recipe at toy size, on what the machine has"),
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="one setting of each; @FILE: all those of a file"),
    ] = None,
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
    if rehearses:
        _rehearse(recipes, overrides or ())
        return
    with exit_statuses():
        from agents.chat.endpoint import destination
        from graph.preflight import check_run
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


def _rehearse(recipes: Sequence[Path], given: Sequence[str]) -> None:
    from environments.command import run_interruptible

    with exit_statuses():
        if len(recipes) != 1:
            raise InputError("--rehearse runs one recipe: name one")
        from graph.rehearsal.chain import rehearse, table

        print(table(*run_interruptible(rehearse(recipes[0], given))))


if __name__ == "__main__":
    app()
