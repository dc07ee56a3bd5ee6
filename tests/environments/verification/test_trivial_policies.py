"""Trivial policies: that they are found, and that calls without a required argument may stand for one another."""

from __future__ import annotations

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.written_tasks import draft

from environments.base import ObservationStatus, TaskSpec, ToolCall
from environments.bfcl.official import CLASSES, tool_names
from environments.verification import verify
from environments.verification.verify import solving_policy

TIRES = ("check_tire_pressure", {})
SHOP = ("find_nearest_tire_shop", {})
FUEL = ("fillFuelTank", {"fuelAmount": 5})
LIST = ("ls", {})


@pytest.mark.parametrize(
    ("task", "policy"),
    [
        (draft(CAR, ("", [TIRES])), "calling check_tire_pressure without arguments"),
        (draft(CAR, ("", [TIRES, SHOP])), "calling all reads without arguments"),
        (draft(CAR, ("", [TIRES]), ("", [SHOP])), "calling all reads without arguments"),
        (draft(CAR, ("", [TIRES, SHOP]), tools=(TIRES[0], SHOP[0])), "calling all reads without arguments"),
        (
            draft(CAR, ("", [TIRES, SHOP]), setup=(("pressBrakePedal", {"pedalPosition": 1.0}),)),
            "calling all reads without arguments",
        ),
        (draft(CAR, ("", [("releaseBrakePedal", {})])), "calling releaseBrakePedal without arguments"),
        (draft(FILES, ("", [("ls", {"a": False})])), "calling ls without arguments"),
        (draft(FILES, ("", [("ls", {"a": True})])), "calling ls without arguments"),
        (draft(CAR, ("", [FUEL])), None),
        (draft(CAR, ("", [TIRES]), ("", [FUEL])), None),
        (draft(CAR, ("", [TIRES, FUEL])), None),
        (draft(FILES, ("", [("sort", {"file_name": "notes.txt"})])), None),
        (draft(CAR, ("", [FUEL]), ("", [TIRES]), played=1), "calling check_tire_pressure without arguments"),
    ],
)
def test_the_first_policy_that_solves_a_task_is_named(task, policy):
    assert solving_policy(ENVIRONMENT, task) == policy


def test_the_tools_of_the_task_limit_the_policies():
    task = draft(FILES, ("", [LIST]), tools=("ls", "cat"))
    assert solving_policy(ENVIRONMENT, task) == "calling ls without arguments"
    elsewhere = draft(FILES, ("", [("find", {"path": "drafts"})]), tools=("ls", "find"))
    assert solving_policy(ENVIRONMENT, elsewhere) is None


def test_a_policy_acts_in_the_turns_of_the_agent_and_one_tool_stands_for_all_that_need_an_argument(monkeypatch):
    """Each try is an episode: what fails anyway is tried once."""
    tried = []
    monkeypatch.setattr(verify, "succeeds", lambda environment, task, calls: tried.append(calls))
    files = draft(FILES, ("", [LIST]), ("", [("pwd", {})]), tools=("cat", "ls", "sort", "pwd"), played=1)
    assert solving_policy(ENVIRONMENT, files) is None
    assert all(turns[0] == files.reference[0] for turns in tried)
    assert [[[call.name for call in turn] for turn in turns[1:]] for turns in tried] == [
        [[]],
        [["ls"]],
        [["pwd"]],
        [["cat"]],
        [["ls", "pwd"]],
    ]


class TriviallyFuelled:
    """The environment, with five gallons documented as what anybody would fill in."""

    name = ENVIRONMENT.name
    open = staticmethod(ENVIRONMENT.open)

    def tools(self, names):
        tools = ENVIRONMENT.tools(names)
        trivial = {"parameters": tuple(p.model_copy(update={"trivial": (4, 5)}) for p in tools[0].parameters)}
        return tuple(tool.model_copy(update=trivial) if tool.name == "fillFuelTank" else tool for tool in tools)


def test_values_that_are_documented_as_trivial_are_tried():
    task = draft(CAR, ("", [FUEL]), tools=("fillFuelTank",))
    assert solving_policy(TriviallyFuelled(), task) == "calling fillFuelTank with fuelAmount=5"
    other = draft(CAR, ("", [("fillFuelTank", {"fuelAmount": 6})]), tools=("fillFuelTank",))
    assert solving_policy(TriviallyFuelled(), other) is None


def test_what_the_setup_told_counts_as_told():
    sort = ("sort", {"file_name": "notes.txt"})
    assert solving_policy(ENVIRONMENT, draft(FILES, ("", [sort]), setup=(sort,), tools=("sort",))) is not None
    assert solving_policy(ENVIRONMENT, draft(FILES, ("", [sort]), setup=(LIST,), tools=("sort",))) is None


@pytest.mark.parametrize("cls", CLASSES)
def test_tools_that_document_a_required_argument_refuse_to_run_without_it(cls):
    names = tool_names((cls,))
    task = TaskSpec(
        environment="bfcl", split="train", classes=(cls,), turns=("",), initial_state={}, tools=names, reference=((),)
    )
    demanding = [t.name for t in ENVIRONMENT.tools(names) if any(p.required for p in t.parameters)]
    assert demanding
    for name in demanding:
        episode = ENVIRONMENT.open(task)
        episode.start()
        before = episode.state()
        assert episode.step(ToolCall(name=name)).status is ObservationStatus.ERROR
        assert episode.state() == before
