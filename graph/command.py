"""`coevolve`: the commands of the project under one name, each loaded when it is called."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

from typer.core import TyperCommand
from typer.main import get_command

from environments.command import OneSentenceGroup

COMMANDS = {
    "evolve": ("graph.run_iteration", "Evolve an agent and its tasks: rounds of GRPO, new tasks from its weaknesses."),
    "evaluate": ("evaluation.run", "Score a model on an evaluation set or a file of tasks."),
    "study": ("evaluation.study.__main__", "Run arms and seeds of a study, and report on them."),
    "plan": ("graph.plan", "Say what a recipe needs, memory by device and hours, before anything is downloaded."),
    "check": ("graph.check_recipe", "Check recipes as a run does before it begins."),
    "export": ("graph.export.__main__", "Write a run's tasks and trajectories as a data set with a card."),
    "environment": ("graph.check_environment", "Check an environment of your own, or serve tasks to other frameworks."),
    "show": ("graph.show", "Follow a task, context, rollout or tool of a run in the terminal."),
    "report": ("graph.write_report", "Write one HTML page with a run's story, task by task."),
    "studio": ("graph.studio.__main__", "Open a run's graph in LangGraph Studio."),
}
"""Subcommands: the module that holds each one's typer app as ``app``, and its line in the help."""


class Lazy(TyperCommand):
    """A subcommand whose module is imported when it is called, so that the list of commands needs none of them."""

    def __init__(self, name: str, module: str, line: str) -> None:
        super().__init__(name, help=line)
        self._module = module

    def make_context(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the library's own types are private
        """Import the module, and let its own command read the arguments."""
        return get_command(import_module(self._module).app).make_context(*arguments, **options)


def main() -> None:
    """Run the subcommand that the arguments name, as the whole work of this process.

    The working directory is not on the import path (``environments.checkout``).
    """
    from memory.processes import run_to_end

    commands = [Lazy(name, module, line) for name, (module, line) in COMMANDS.items()]
    group = OneSentenceGroup(
        name="coevolve",
        commands=commands,
        help="Train a tool-using agent together with its tasks (--version: which one).",
    )
    arguments = sys.argv[1:] or ["--help"]
    if arguments == ["--version"]:
        print(f"coevolve {version('coevolve')}")
        return
    run_to_end(lambda: group.main(arguments, prog_name="coevolve"))


if __name__ == "__main__":
    main()
