"""The contract can fail: each broken environment is noticed by the test that is there for it, a sound one by none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import pytest
from support.broken_environments import BROKEN, PassingEnvironment
from support.contract import EnvironmentContract
from support.contract_tasks import explored_tasks

from environments.base import EnvironmentFault, InputError, TaskSpec
from environments.example import Depot, depot
from environments.python_class.environment import PythonEnvironment

TESTS = [name for name in vars(EnvironmentContract) if name.startswith("test_")]


@cache
def sound_tasks() -> tuple[TaskSpec, ...]:
    return explored_tasks(depot())


def problem(make: Callable[[], object], test: str) -> str | None:
    """What a test of the contract has against an environment, None if nothing."""

    class Contract(EnvironmentContract):
        def make(self):
            return make()

    contract = Contract()
    method = getattr(contract, test)
    # The tasks are copied: a broken environment may change them.
    given = {"environment": make(), "tasks": [task.model_copy(deep=True) for task in sound_tasks()]}
    try:
        method(**{name: given[name] for name in inspect.signature(method).parameters})
    except (AssertionError, AttributeError, InputError, EnvironmentFault, RuntimeError, ValueError) as error:
        return str(error) or repr(error)
    return None


@pytest.mark.parametrize("test", TESTS)
def test_a_sound_environment_passes(test: str) -> None:
    assert problem(PassingEnvironment, test) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_noticed(name: str) -> None:
    assert problem(*BROKEN[name])


def test_every_test_has_an_environment_that_fails_it() -> None:
    assert {broken.noticed_by for broken in BROKEN.values()} == set(TESTS)


def test_without_tasks_that_act_the_contract_asks_for_some() -> None:
    class Silent(Depot):
        def __init__(self, parcels) -> None:
            super().__init__(parcels, gate_open=True)

        def _waiting(self, label):
            return {"kilograms": 1, "euros": 100}

        def list_parcels(self) -> None:
            """List nothing."""

        open_gate = send_van = load_parcel = insure_parcel = weigh_parcel = list_parcels

    with pytest.raises(AssertionError, match="override make_tasks"):
        explored_tasks(PythonEnvironment("silent", Silent, [{"parcels": {}}]))
