"""Roles from settings: scripted without a key, chat lazily and with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from agents.roles import (
    UNGUIDED_EXPLORATION,
    Abstractor,
    Explorer,
    Reflector,
    Roles,
    baseline_contexts,
    build_roles,
    unguided_context,
    unguided_exploration,
    unguided_roles,
)
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.scripted.reflector import RuleReflector
from agents.settings import ExplorationSettings, RoleSettings, RolesSettings
from agents.spending import Ledger
from environments.base import Environment, InputError
from environments.bfcl.benchmark import BENCHMARK
from memory.records import Unsignalled

CHAT = RoleSettings(kind="chat", model="some-model", base_url="http://127.0.0.1:9/v1", timeout=5.0, max_retries=1)


def build(settings: RolesSettings) -> Roles:
    return build_roles(settings, Ledger(None, settings.budget))


def test_scripted_roles_need_nothing(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    roles = build(RolesSettings())
    assert isinstance(roles.reflector, RuleReflector)
    assert isinstance(roles.explorer, GuidedExplorer)
    assert isinstance(unguided(RolesSettings()).explorer, UnguidedExplorer)


def unguided(settings: RolesSettings) -> Roles:
    return unguided_roles(build(settings), settings, Ledger(None, settings.budget), BENCHMARK)


def test_a_chat_explorer_explores_without_a_guide_too_within_the_recipes_limits(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    limits = ExplorationSettings(rounds=2, steps=5, drafts_per_context=4, min_reference_calls=3, max_reference_calls=9)
    settings = RolesSettings(explorer=CHAT, exploration=limits)
    assert type(unguided(settings).explorer).__name__ == "ChatExplorer"
    assert unguided_exploration(settings, BENCHMARK) == limits


def test_scripted_unguided_exploration_keeps_its_budget_and_takes_the_recipes_lengths() -> None:
    limits = ExplorationSettings(rounds=2, steps=5, drafts_per_context=4, min_reference_calls=3, max_reference_calls=9)
    found = unguided_exploration(RolesSettings(exploration=limits), BENCHMARK)
    assert found == limits.model_copy(update={"rounds": 1, "steps": 14, "drafts_per_context": 14})


@pytest.mark.parametrize(("calls", "episodes"), [(1, 1), (14, 1), (15, 2), (768, 55)])
def test_the_unguided_baseline_gets_the_calls_it_is_paid_for_and_less_than_an_episode_more(
    environment: Environment, calls: int, episodes: int
) -> None:
    contexts = baseline_contexts(environment.starts(), calls, 3, UNGUIDED_EXPLORATION)
    assert len(contexts) == len({context.id for context in contexts}) == episodes
    assert {(context.kind, context.iteration, context.tool) for context in contexts} == {(Unsignalled.UNGUIDED, 3, "")}
    assert contexts == baseline_contexts(environment.starts(), calls, 3, UNGUIDED_EXPLORATION)
    others = [
        baseline_contexts(environment.starts(), calls, iteration, UNGUIDED_EXPLORATION) for iteration in (0, 2, 4)
    ]
    seeds = [unguided_context(start, n) for n, start in enumerate(environment.starts())]
    taken = {one.id for context in (*others, seeds) for one in context}
    assert taken.isdisjoint(context.id for context in contexts)


def test_the_unguided_baseline_takes_the_start_states_in_turn_across_iterations(environment: Environment) -> None:
    starts = environment.starts()
    contexts = [context for n in range(3) for context in baseline_contexts(starts, 14 * 10, n, UNGUIDED_EXPLORATION)]
    assert [context.initial_state for context in contexts] == [starts[n % len(starts)].initial_state for n in range(30)]
    assert baseline_contexts((), 100, 0, UNGUIDED_EXPLORATION) == ()


@pytest.mark.parametrize("role", ["reflector", "explorer", "abstractor", "validator"])
def test_a_chat_role_without_a_key_is_an_input_error(monkeypatch, role: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match=rf"roles\.{role}\.kind is chat.*OPENAI_API_KEY"):
        build(RolesSettings(**{role: RoleSettings(kind="chat", model="some-model")}))


def test_a_chat_role_without_a_model_is_an_input_error(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.delenv("COEVOLVE_CHAT_MODEL", raising=False)
    with pytest.raises(InputError, match=r"roles\.chat\.model.*COEVOLVE_CHAT_MODEL"):
        build(RolesSettings(explorer=RoleSettings(kind="chat")))
    monkeypatch.setenv("COEVOLVE_CHAT_MODEL", "of-the-environment")
    assert build(RolesSettings(explorer=RoleSettings(kind="chat"))).explorer is not None


def test_chat_roles_are_opened_without_a_request(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    roles = build(RolesSettings(reflector=CHAT, explorer=CHAT, abstractor=CHAT, validator=CHAT))
    assert type(roles.reflector).__name__ == "ChatReflector"
    assert type(roles.explorer).__name__ == "ChatExplorer"
    assert type(roles.abstractor).__name__ == "ChatAbstractor"
    assert type(roles.validator).__name__ == "ChatValidator"
    assert build(RolesSettings(reflector=CHAT)).validator is None
    cut = RolesSettings(abstractor=CHAT, exploration=ExplorationSettings(references="cut"))
    assert type(build(cut).abstractor).__name__ == "WordingAbstractor"
    assert type(unguided(cut).abstractor).__name__ == "WordingAbstractor"
    own = unguided_exploration(cut, BENCHMARK)
    assert (own.rounds, own.steps, own.drafts_per_context) == (1, 14, 3), "each draft is questions to a model"


def test_roles_keep_their_protocols() -> None:
    """Checked by mypy: the assignments below do not type-check otherwise."""
    roles = build(RolesSettings())
    reflector: Reflector = roles.reflector
    explorer: Explorer = roles.explorer
    abstractor: Abstractor = roles.abstractor
    assert {reflector, explorer, abstractor} == {roles.reflector, roles.explorer, roles.abstractor}


@pytest.mark.process
def test_scripted_assembly_imports_no_chat_library() -> None:
    code = (
        "import sys; from agents.roles import build_roles; from agents.settings import RolesSettings\n"
        "from agents.spending import Ledger; build_roles(RolesSettings(), Ledger(None, RolesSettings().budget))\n"
        "print([m for m in ('langchain_core', 'langchain_openai', 'openai', 'torch', 'bfcl_eval') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"validator_actions": 2}, "'validator_actions' is for validator, validator: null would"),
        ({"validator": RoleSettings()}, "kind must be chat"),
    ],
)
def test_options_that_nobody_would_read_are_errors(given: dict, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RolesSettings.model_validate(given)


def test_a_local_explorer_explores_without_a_guide_too() -> None:
    settings = RolesSettings.model_validate({"explorer": {"kind": "local"}, "abstractor": {"kind": "local"}})
    model = object()
    ledger = Ledger(None, settings.budget)
    roles = build_roles(settings, ledger, model)  # type: ignore[arg-type]
    assert type(roles.explorer).__name__ == "LocalExplorer"
    assert type(roles.abstractor).__name__ == "LocalAbstractor"
    assert unguided_roles(roles, settings, ledger, BENCHMARK, model) is roles  # type: ignore[arg-type]
    some = settings.model_copy(update={"exploration": ExplorationSettings(absent=0.3)})
    changed = build_roles(some, ledger, model).abstractor  # type: ignore[arg-type]
    assert (type(changed).__name__, type(changed.inner).__name__) == ("AbsenceAbstractor", "LocalAbstractor")  # type: ignore[attr-defined]
    assert unguided_exploration(settings, BENCHMARK) == settings.exploration
    alone = build_roles(settings.model_copy(update={"explorer": RoleSettings()}), ledger, model)  # type: ignore[arg-type]
    assert isinstance(alone.explorer, GuidedExplorer)
