"""Every recipe fits the machine that it names, or a file of recipes/machines/; the next smaller machine is refused."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from support import ROOT
from support.commands import run_here

from graph.fit import RecipePlan, config_here, plan_of
from graph.settings import load_recipe
from memory.jsonl import read_recipe
from training.device_memory import device_at_hand
from training.plan import GIB

RECIPES = ROOT / "recipes"
MACHINES = RECIPES / "machines"
FOUR_B = ("papers/literal-bfcl", "papers/literal-appworld", "paper-bfcl", "paper-appworld")
SEVEN_B = tuple(f"seal-bfcl/{path.stem}" for path in sorted((RECIPES / "seal-bfcl").glob("*.yaml")))
FITS = {
    "gpu-24gb": (*FOUR_B, *SEVEN_B),  # it names a policy of its own
    "gpu-40gb": FOUR_B,
    "gpu-80gb": (*FOUR_B, *SEVEN_B),
    "node-8x80gb": (*FOUR_B, *SEVEN_B),
}
SMALLER = {"gpu-24gb": 15.0, "gpu-40gb": 22.0, "gpu-80gb": 39.0, "node-8x80gb": 39.0}
"""GiB of a GPU of the next smaller kind: 16, 24 and 40 GB."""

PAIRS = [(machine, name) for machine, names in FITS.items() for name in names]
ALONE = [path for path in sorted(RECIPES.glob("*.yaml")) if "base" not in read_recipe(path)]
LARGEST_HERE = 32.0
"""GiB of a machine without a GPU: the plan has every rollout at its limit, and no prompt shared."""


@cache
def planned(recipe: str, *changes: str, gib: float | None = None) -> RecipePlan:
    settings = load_recipe(RECIPES / f"{recipe}.yaml", changes)
    device = "cuda" if settings.plan.gib else device_at_hand(settings.policy.device)
    available = gib or settings.plan.gib or LARGEST_HERE
    return plan_of(settings, config_here(settings, None), device=device, available=round(available * GIB))


def test_every_machine_is_planned() -> None:
    assert sorted(path.stem for path in MACHINES.iterdir()) == sorted(FITS)


@pytest.mark.parametrize(("machine", "recipe"), PAIRS, ids="-".join)
def test_a_recipe_fits_the_machine(machine: str, recipe: str) -> None:
    made = planned(recipe, f"@{MACHINES / machine}.yaml")
    assert made.fits, (made.fullest / GIB, made.advice)


@pytest.mark.parametrize("machine", [one for one in FITS if one.startswith("gpu")])
def test_the_share_of_a_server_beside_a_trainer_leaves_both_enough(machine: str) -> None:
    """Of a GPU that both use, by the command in the file: vLLM takes its share whatever it needs."""
    path = MACHINES / f"{machine}.yaml"
    (share,) = map(float, re.findall(r"--gpu-memory-utilization ([\d.]+)", path.read_text()))
    for recipe in FITS[machine]:
        made = planned(recipe, f"@{path}")
        assert made.memory is not None
        assert made.available is not None
        trainer, server = made.memory.devices
        assert server.peak <= share * made.available <= made.available - trainer.peak, recipe


@pytest.mark.parametrize("machine", FITS)
def test_the_next_smaller_machine_is_refused_with_changes_that_fit(machine: str) -> None:
    changes = (f"@{MACHINES / machine}.yaml",)
    made = planned(FOUR_B[0], *changes, gib=SMALLER[machine])
    assert made.fits is False
    assert made.advice
    words = re.findall(r"\S+={[^}]*}|\S+=\S+", made.advice)
    assert planned(FOUR_B[0], *changes, *words, gib=SMALLER[machine]).fits


def test_what_no_setting_makes_fit_is_said() -> None:
    thirty = "policy.path=Qwen/Qwen3-30B-A3B-Instruct-2507"
    given = ("recipes/papers/literal-bfcl.yaml", "--set", f"@{MACHINES / 'gpu-40gb.yaml'}", "--set", thirty)
    done = run_here("graph.plan", *given)
    assert done.returncode == 2
    assert "1 x trainer and 1 x vLLM server on 1 GPU need" in done.stderr
    assert done.stderr.rstrip().endswith("choose a smaller policy or a larger device, or more of them")


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_a_recipe_that_names_no_file_of_a_machine_fits_its_own(path: Path) -> None:
    text = path.read_text()
    settings = load_recipe(path)
    named = "@recipes/machines/FILE" in text
    assert named == (settings.policy.device == "cuda" and settings.plan.gib is None), "a GPU's recipe says its machine"
    if named or settings.policy.path.startswith(("runs/", "smollm2")):  # made by the user, by make model
        return
    assert planned(path.stem).fits
    if "0.5 to 4 B parameters" in text:
        assert planned(path.stem, "policy.path=Qwen/Qwen3-4B-Instruct-2507").fits


def test_what_recipes_and_pages_say_of_machines_is_there() -> None:
    """Files by their name, in comments and documents; and each row of docs/scale.md that a plan decides."""
    texts = [*RECIPES.rglob("*.yaml"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    for path in texts:
        for name in re.findall(r"@recipes/machines/([\w-]+)\.yaml", path.read_text()):
            assert name in FITS, path
    rows = re.findall(r"^\| `(recipes/machines/([\w-]+)\.yaml)` \|.*\| ([\d.]+) of (\d+) \|", scale(), re.M)
    assert {machine for _, machine, _, _ in rows} == set(FITS)
    for _, machine, needed, available in rows:
        made = planned(FOUR_B[0], f"@{MACHINES / machine}.yaml")
        assert (f"{made.fullest / GIB:.1f}", f"{made.available / GIB:.0f}") == (needed, available), machine


def scale() -> str:
    return (ROOT / "docs" / "scale.md").read_text()
