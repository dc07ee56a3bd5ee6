"""Options that are wrong, told by each command in one sentence like any other mistake."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import evaluation.run
import evaluation.study.__main__
import graph.check_recipe
import graph.run_iteration
import graph.seed_tasks
import training.run_round


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        (graph.run_iteration, ["--iterations", "0"], "invalid value for '--iterations': "),
        (graph.run_iteration, ["--iterations", "many"], "invalid value for '--iterations': "),
        (
            graph.run_iteration,
            ["--steps", "5"],
            "there is no option --steps: settings are given as --set",
        ),
        (
            graph.run_iteration,
            ["--max-tokens=5"],
            "there is no option --max-tokens: settings are given as --set",
        ),
        (graph.seed_tasks, ["--rn", "x"], "there is no option --rn: settings are given as "),
        (graph.seed_tasks, ["--count"], "option '--count' requires an argument"),
        (graph.check_recipe, [], "missing argument 'recipes'"),
        (evaluation.run, ["--limit", "0"], "invalid value for '--limit': "),
        (evaluation.run, ["--nonsense"], "no such option: --nonsense"),
        (evaluation.study.__main__, ["a", "b"], "got unexpected extra argument"),
        (training.run_round, [], "missing option '--run'"),
    ],
)
def test_wrong_options_are_told_in_one_sentence(command, options: list[str], says: str) -> None:
    ended = CliRunner().invoke(command.app, options)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {says}"), ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.endswith("see --help\n")


def test_help_is_no_mistake() -> None:
    ended = CliRunner().invoke(graph.run_iteration.app, ["--help"])
    assert ended.exit_code == 0
    assert "Usage" in ended.stdout
