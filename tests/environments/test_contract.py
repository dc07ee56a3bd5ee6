"""The contract can fail: each broken environment is noticed by the test that is there for it, a sound one by none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from support.broken_environments import BROKEN, PassingEnvironment

from environments.base import EnvironmentFault, InputError, TaskSpec
from environments.contract.checks import PROPERTIES, WITHOUT_TASKS, Contract
from environments.example import Depot, depot
from environments.python_class.environment import PythonEnvironment
from graph.check_environment import explored_tasks


@cache
def sound_tasks() -> tuple[TaskSpec, ...]:
    return explored_tasks(depot())


def problem(make: Callable[[], object], name: str) -> str | None:
    """What one property has against an environment, None if nothing."""
    contract = Contract(make)
    # The tasks are copied: a broken environment may change them.
    given = [] if name in WITHOUT_TASKS else [[task.model_copy(deep=True) for task in sound_tasks()]]
    try:
        getattr(contract, name)(make(), *given)
    except (AssertionError, AttributeError, InputError, EnvironmentFault, RuntimeError, ValueError) as error:
        return str(error) or repr(error)
    return None


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_sound_environment_passes(name: str) -> None:
    assert problem(PassingEnvironment, name) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_noticed(name: str) -> None:
    assert problem(*BROKEN[name])


def test_every_property_has_an_environment_that_fails_it() -> None:
    assert {broken.noticed_by for broken in BROKEN.values()} == set(PROPERTIES)


def test_without_tasks_that_act_the_contract_asks_for_some() -> None:
    class Silent(Depot):
        def __init__(self, parcels) -> None:
            super().__init__(parcels, gate_open=True)

        def _waiting(self, label):
            return {"kilograms": 1, "euros": 100}

        def list_parcels(self) -> None:
            """List nothing."""

        open_gate = send_van = load_parcel = insure_parcel = weigh_parcel = list_parcels

    with pytest.raises(InputError, match="exploration found 0 tasks in 40 episodes"):
        explored_tasks(PythonEnvironment("silent", Silent, [{"parcels": {}}]))
