"""One draw of arguments for both explorers: without an aim they act alike, with one they draw the same values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from agents.roles import unguided_context, unguided_exploration
from agents.scripted.explorer import GuidedExplorer, UnguidedExplorer
from agents.settings import ExplorationSettings, RolesSettings
from environments.base import StartState
from environments.registry import benchmark_of
from memory.jsonl import dump_line
from memory.records import FailureContext, Interaction

DRAWS = 250
ONE_CALL = ExplorationSettings(rounds=1, steps=1)


def settings(unguided: str, base: ExplorationSettings = ONE_CALL) -> ExplorationSettings:
    return base.model_copy(update={"unguided": unguided})


def drawn(explore: Callable[[FailureContext, int], tuple[Interaction, ...]], start: StartState, tool: str) -> Counter:
    """The arguments of the first call of an explorer that has this tool alone, over many seeds; of lists the size."""
    context = unguided_context(start, 0).model_copy(update={"tools": (tool,)})
    calls = (explore(context, seed)[0].action for seed in range(DRAWS))
    return Counter(
        str({name: len(value) if isinstance(value, list) else value for name, value in call.arguments.items()})
        for call in calls
    )


def apart(one: Counter, other: Counter) -> float:
    """Half of the summed differences of two distributions, in [0, 1]."""
    return sum(abs(one[key] - other[key]) for key in one.keys() | other.keys()) / (2 * DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["lockDoors", "pressBrakePedal", "setHeadlights", "cat"])
def test_guided_and_unguided_exploration_draw_the_same_arguments(environment, car_start, files_start, tool) -> None:
    start = files_start if tool == "cat" else car_start

    def aimed(context: FailureContext, seed: int) -> tuple[Interaction, ...]:
        aim = context.model_copy(update={"tool": tool, "explore": (tool,)})
        return GuidedExplorer(ONE_CALL).explore_now(aim, environment, seed)

    guided = drawn(aimed, start, tool)
    explorer = UnguidedExplorer(settings("same_rules"))
    assert apart(guided, drawn(lambda c, s: explorer.explore_now(c, environment, s), start, tool)) < 0.15
    if tool == "cat":  # the recorded draw differs: it takes any value seen
        recorded = UnguidedExplorer(settings("uniform_calls"))
        assert apart(guided, drawn(lambda c, s: recorded.explore_now(c, environment, s), start, tool)) > 0.3


def test_the_same_rules_without_an_aim_are_the_guided_explorers(environment, car_start) -> None:
    context = unguided_context(car_start, 0)
    aimed = context.model_copy(update={"tool": "startEngine", "explore": ("startEngine",), "facts": ("speed=3",)})
    base = ExplorationSettings(rounds=2, steps=8)
    unguided = UnguidedExplorer(settings("same_rules", base))
    lines = [dump_line(one) for one in GuidedExplorer(base).explore_now(context, environment, 3)]
    assert [dump_line(one) for one in unguided.explore_now(context, environment, 3)] == lines
    assert [dump_line(one) for one in unguided.explore_now(aimed, environment, 3)] == lines
    assert [dump_line(one) for one in GuidedExplorer(base).explore_now(aimed, environment, 3)] != lines


def test_the_setting_reaches_d_0_and_is_off_in_recorded_recipes(environment) -> None:
    roles = RolesSettings(exploration=settings("same_rules"))
    assert unguided_exploration(roles, benchmark_of(environment)).unguided == "same_rules"
    assert RolesSettings().exploration.unguided == "uniform_calls"


@pytest.mark.parametrize(
    ("role", "exploration", "told"),
    [
        ("explorer", {"unguided": "same_rules"}, r"exploration\.unguided' is for explorer.kind: scripted"),
        ("abstractor", {"absent": 0.5}, r"exploration\.absent' is for abstractor.kind: scripted or local"),
        ("abstractor", {"two_turns": 0.5}, r"exploration\.two_turns' is for abstractor.kind: scripted"),
    ],
)
def test_a_chat_role_refuses_what_it_would_ignore(role: str, exploration: dict, told: str) -> None:
    RolesSettings.model_validate({"exploration": exploration})
    with pytest.raises(ValueError, match=told):
        RolesSettings.model_validate({role: {"kind": "chat", "model": "m"}, "exploration": exploration})
