"""The recipes of the papers' loops hold the papers' values: each with the place in the paper that states it.

A value that a paper leaves open has no row: the recipe marks it "ours".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from evaluation.study.recipe import read_study
from graph.settings import RunSettings, dotted, load_recipe

PAPERS = ROOT / "recipes" / "papers"
COEVOLVE: dict[str, tuple[Any, str]] = {
    "policy.path": ("Qwen/Qwen3-4B-Instruct-2507", "S4.2: Qwen3-4B-Instruct, which release is our reading"),
    "policy.lora": (None, "no adapter is mentioned"),
    "iterations": (12, "A.2: 120 steps, an evolution every 10"),
    "tasks.initial": (None, "S3.1: unguided exploration"),
    "tasks.initial_count": (100, "A.2"),
    "tasks.evolved_share": (None, "S3.3: D_t + accepted"),
    "tasks.admissions": (None, "S3.3: all that are accepted"),
    "training.steps": (10, "A.2"),
    "training.tasks_per_step": (32, "T9"),
    "training.rollouts_per_task": (8, "T9"),
    "training.learning_rate": (1e-6, "T9"),
    "training.clip_low": (0.2, "T9"),
    "training.clip_high": (0.28, "T9"),
    "training.dual_clip": (None, "Eq. 1"),
    "training.loss": ("group_tokens", "Eq. 1"),
    "training.kl": (1e-3, "T9"),
    "training.temperature": (0.9, "T9"),
    "training.max_new_tokens": (4096, "T9"),
    "training.max_episode_steps": (30, "A.2, T9"),
    "training.max_actions": (30, "A.2: an episode's limit alone"),
    "training.length_cost": (0.0, "T9"),
    "training.expert": (None, "none"),
    "training.seal": (None, "none"),
    "signals.contexts": ("signals", "S3.1"),
    "signals.kinds": (["forgetting", "boundary", "rare"], "S3.1"),
    "signals.contexts_per_iteration": (None, "S3.2: each marked trajectory"),
    "signals.rare_percent": (5.0, "S3.1: its example"),
    "memory.deduplicate": (False, "S3.2: none"),
    "roles.reflector.kind": ("chat", "S3.2"),
    "roles.explorer.kind": ("chat", "S3.2"),
    "roles.abstractor.kind": ("chat", "S3.3"),
    "roles.validator.kind": ("chat", "S3.3"),
    "roles' models": (["qwen3-max"], "A.2"),
    "roles.validator_actions": (30, "A.2"),
    "roles.exploration.independent": (True, "S3.2"),
    "roles.exploration.drafts_per_context": (1, "F3d: fewer tasks than signals"),
    "roles.exploration.min_reference_calls": (3, "F12"),
    "roles.exploration.max_reference_calls": (30, "F12: none but the episode's"),
    "roles.exploration.order": ("long_first", "F12: as many steps as possible"),
    "roles.exploration.compositions": (0, "none"),
    "verification.enabled": (True, "S3.3"),
    "verification.mode": ("agent", "S3.3"),
}
SEAL: dict[str, tuple[Any, str]] = {
    "policy.path": ("Qwen/Qwen2.5-7B-Instruct", "T4"),
    "policy.lora": (None, "T4"),
    "iterations": (6, "released: 6 epochs"),
    "tasks.initial": ("official", "S4.1"),
    "tasks.evolved_share": (0.0, "no tasks are made"),
    "training.steps": (12, "released: 12 steps an epoch"),
    "training.tasks_per_step": (32, "T4"),
    "training.rollouts_per_task": (8, "T4"),
    "training.updates_per_step": (4, "T4: mini-batches of 8 prompts"),
    "training.learning_rate": (1e-6, "T4"),
    "training.weight_decay": (0.01, "released"),
    "training.max_grad_norm": (1.0, "T4"),
    "training.clip_low": (0.2, "released"),
    "training.clip_high": (0.2, "released"),
    "training.dual_clip": (10.0, "released"),
    "training.loss": ("grpo", "released: token mean of each rollout"),
    "training.kl": (1e-3, "T4"),
    "training.temperature": (1.0, "T4"),
    "training.max_new_tokens": (4096, "T4"),
    "training.max_tokens": (16384, "T4"),
    "training.max_trained_tokens": (4096, "released"),
    "training.max_episode_steps": (20, "T4"),
    "training.strict_messages": (True, "released"),
    "training.length_cost": (0.0, "released"),
    "training.expert": (None, "none"),
    "roles' models": ([], "none is asked"),
    "training.seal.weights.dynamic": (True, "released: rho moves"),
    "training.seal.interface.schema_cues": (True, "D.4"),
    "training.seal.interface.recovery_hints": (False, "D.4"),
    "training.seal.interface.constraint_cues": (False, "D.4"),
}
LITERAL = [
    (PAPERS / "literal-bfcl.yaml", COEVOLVE),
    (PAPERS / "literal-appworld.yaml", COEVOLVE),
    (ROOT / "recipes" / "seal-bfcl" / "seal-as-released.yaml", SEAL),
]
STUDIES = [path for path in sorted(PAPERS.glob("*.yaml")) if not path.name.startswith("literal")]


def values(settings: RunSettings) -> dict[str, Any]:
    """The resolved settings by dotted key, and the models that the roles ask."""
    return dotted(settings) | {"roles' models": sorted({str(one.model) for one in settings.roles.by_chat().values()})}


@pytest.mark.parametrize(("path", "table"), LITERAL, ids=lambda one: one.stem if isinstance(one, Path) else "")
def test_every_value_that_the_paper_states_is_the_papers(path: Path, table: dict[str, tuple[Any, str]]) -> None:
    resolved = values(load_recipe(path))
    wrong = {
        key: (resolved.get(key, "missing"), wanted, where)
        for key, (wanted, where) in table.items()
        if resolved.get(key, "missing") != wanted
    }
    assert not wrong


def test_the_two_literal_recipes_differ_in_their_benchmark_alone() -> None:
    bfcl, appworld = (dotted(load_recipe(path)) for path, _ in LITERAL[:2])
    differ = {key for key in bfcl.keys() | appworld.keys() if bfcl.get(key) != appworld.get(key)}
    assert {key.partition(".")[0] for key in differ} == {"environment", "plan"}


@pytest.mark.parametrize("name", ["bfcl", "appworld"])
def test_ours_departs_from_theirs_where_it_says_so(name: str) -> None:
    ours = values(load_recipe(ROOT / "recipes" / f"paper-{name}.yaml"))
    departs = {key for key, (wanted, _) in COEVOLVE.items() if key in ours and ours[key] != wanted}
    assert departs - {"training.max_actions"} == {
        "memory.deduplicate",
        "roles.exploration.drafts_per_context",
        "roles.exploration.max_reference_calls",
        "verification.mode",
    }
    assert ours["verification.mode"] == "deterministic"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_table_is_a_study_over_a_literal_recipe(path: Path) -> None:
    study, _ = read_study(path)
    assert study.base in {one.relative_to(ROOT) for one, _ in LITERAL}
