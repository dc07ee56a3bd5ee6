"""`python -m graph.check_recipe`: says whether recipes are right, without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from environments.command import exit_statuses

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(recipes: Annotated[list[Path], typer.Argument(help="YAML files of settings")]) -> None:
    """Check the settings of recipes, all keys and values, and stop at the first mistake.

    Exit status: 0, or 2 with one sentence that names the file and the key. Models and files that a recipe names are
    looked for when it is run.
    """
    with exit_statuses():
        from graph.recipe import load_recipe

        for recipe in recipes:
            load_recipe(recipe)
        print(f"{len(recipes)} recipes are right" if len(recipes) > 1 else f"{recipes[0]} is right")


if __name__ == "__main__":
    app()
