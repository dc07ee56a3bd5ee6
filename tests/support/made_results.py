"""Results of arms made by hand, for reports that need no run."""

from collections.abc import Sequence
from pathlib import Path

from evaluation.outcomes import TaskOutcome
from evaluation.statistics import Shape
from evaluation.study.study import ArmHeader, ArmMeasured, ArmResult, IterationFigures, Study, load_study

RECIPE = """\
base: BASE
sets: {dev: [templated-dev], test: [templated-test]}
compare: [[full, random]]
arms:
  - {name: grpo, description: plain, seeds: 3, overrides: {tasks.evolved_share: 0.0}}
  - {name: full, description: loop, seeds: 3}
  - {name: random, description: chance, seeds: 2, overrides: {signals.contexts: random}, match_admissions: full}
  - {name: starter, description: start, seeds: 1, untrained: true}
"""


def made_study(folder: Path, recipe: str = RECIPE) -> Study:
    """A study whose recipe and base lie in ``folder``."""
    (folder / "base.yaml").write_text("iterations: 2\npolicy: {path: recipes/starter}\n")
    (folder / "study.yaml").write_text(recipe.replace("BASE", str(folder / "base.yaml")))
    return load_study(folder / "study.yaml")


def figures(
    iteration: int, *, success: float, admitted: int = 3, rollouts: int = 8, calls: int = 20
) -> IterationFigures:
    """One iteration's figures."""
    return IterationFigures(
        iteration=iteration,
        steps=10 * (iteration + 1),
        dev_before=0.2,
        dev_after=success,
        signals={"forgetting": 1, "boundary": 4, "rare": 0},
        drafts=10,
        admitted=admitted,
        refused={"no_effect": 6 - admitted, "over_quota": 4},
        rollouts=rollouts,
        rollout_calls=calls,
        exploration_calls=30,
        mixed_groups=0.25,
        trained_functions={"ls": 2, "cd": 1} if iteration else {"ls": 2},
        admitted_functions={"cat": 1},
        measured={"stage evolve": 1.0, "round rollouts": 2.0, "round optimisation": 1.0},
    )


def result(
    study: Study, arm: str, seed: int, solved: list[bool], shapes: Sequence[Shape] = (), **header: object
) -> ArmResult:
    """One arm and seed: ``solved`` are results on tasks t0, t1, ..., two in each cluster, of these call shapes."""
    made = study.recipe.arm(arm)
    iterations = () if made.untrained else (figures(0, success=0.3), figures(1, success=0.4))
    admissions = (3, 3) if made.match_admissions else None
    fields = {
        "arm": arm,
        "seed": seed,
        "recipe": study.run_hash(made, seed, "dev", admissions),
        "study": study.sha256,
        "initial_tasks": None if made.untrained else f"d0 of {seed}",
        "labels": ("scripted roles",),
        "functions": 4,
        "initial_functions": {} if made.untrained else {"ls": 3},
        "iterations": iterations,
        "measured": ArmMeasured(wall_seconds=120.0, commit=None),
    }
    outcomes = tuple(
        TaskOutcome(
            group="templated-dev",
            task_id=f"t{number}",
            cluster=str(number // 2),
            split="dev",
            shape=shapes[number] if shapes else (),
            success=success,
            calls=3,
            reference_calls=2,
        )
        for number, success in enumerate(solved)
    )
    return ArmResult(header=ArmHeader.model_validate(fields | header), outcomes=outcomes)
