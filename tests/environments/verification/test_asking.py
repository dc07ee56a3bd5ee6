"""A reference does what its words ask for: what is found, and what is left to a reader of the words."""

from __future__ import annotations

import time

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.written_tasks import draft

from environments.base import Environment, TaskSpec, ToolCall
from environments.example import depot
from environments.task_text import Seen
from environments.verification.replay import PlayedReference, replay
from environments.verification.turn_text import foreign_text, unasked_call, unmet_request
from environments.verification.verify import Refusal, verify

DEPOT = depot()
START = next(start for start in DEPOT.starts() if "books" in str(start.initial_state))
FUEL = ("fillFuelTank", {"fuelAmount": 5})
SHOP = ("find_nearest_tire_shop", {})
TIRES = ("check_tire_pressure", {})
BRAKE = ("pressBrakePedal", {"pedalPosition": 1.0})
ENGINE = ("startEngine", {"ignitionMode": "START"})
LIST = ("list_parcels", {})
INSURE = ("insure_parcel", {"label": "books", "euros": 300})
OPEN = ("open_gate", {})


def parcels(text: str, *calls: tuple[str, dict]) -> TaskSpec:
    return TaskSpec(
        environment=DEPOT.name,
        split="train",
        classes=START.classes,
        turns=(text,),
        initial_state=START.initial_state,
        tools=START.tools,
        reference=(tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls),),
    )


def played(environment: Environment, task: TaskSpec) -> PlayedReference:
    return PlayedReference(environment, task, replay(environment, task))


def lights(mode: str) -> tuple[str, dict]:
    return ("setHeadlights", {"mode": mode})


def brake(mode: str) -> tuple[str, dict]:
    return ("activateParkingBrake", {"mode": mode})


def lock(unlock: bool, *doors: str) -> tuple[str, dict]:
    return ("lockDoors", {"unlock": unlock, "door": list(doors)})


@pytest.mark.parametrize(
    ("task", "phrase"),
    [
        (draft(CAR, ("add 5 gallons", [FUEL])), None),
        (draft(CAR, ("add 7 gallons", [FUEL])), "states 7"),
        (draft(CAR, ("add 5.0 gallons", [FUEL])), None),
        (draft(CAR, ("if fewer than 7 are left, add 5 gallons", [FUEL])), None),
        (draft(CAR, ("on the 7th, add 5 gallons", [FUEL])), None),
        (draft(CAR, ("on 2026-07-11, add 5 gallons", [FUEL])), None),
        (draft(CAR, ('add 5 gallons and go to "Rivermist"', [FUEL])), "states 'Rivermist'"),
        (draft(CAR, ("add 5 gallons and go to 'Rivermist'", [FUEL])), "states 'Rivermist'"),
        (draft(CAR, ("add 5 gallons, it's 'all' we need", [FUEL])), "states 'all'"),
        (draft(FILES, ('sort "Notes.txt."', [("sort", {"file_name": "notes.txt"})])), None),
        (draft(FILES, ("sort 'drafts/notes.txt'", [("sort", {"file_name": "notes.txt"})])), None),
        (draft(FILES, ('the last 10 lines of "notes.txt"', [("tail", {"file_name": "notes.txt"})])), None),
        (draft(FILES, ('the last 9 lines of "notes.txt"', [("tail", {"file_name": "notes.txt"})])), "states 9"),
        (draft(CAR, ("headlights on auto", [lights("auto")])), None),
        (draft(CAR, ("headlights on auto", [lights("off")])), "states 'auto', and setHeadlights takes 'off'"),
        (draft(CAR, ("make it bright", [lights("auto")])), None),
        (draft(CAR, ("release the pedal and pull the hand brake", [("releaseBrakePedal", {}), brake("engage")])), None),
        (
            draft(CAR, ("unlock the passenger's, lock the driver's", [lock(True, "passenger"), lock(False, "driver")])),
            None,
        ),
        (draft(CAR, ("add 5 gallons and find the nearest tire shop", [FUEL])), "asks for find_nearest_tire_shop"),
        (draft(CAR, ("add 5 gallons, then tell me more", [FUEL])), "asks for 2 steps, one after the other"),
        (draft(CAR, ("if the tank is low, then add 5 gallons", [FUEL])), None),
        (draft(CAR, ("then add 5 gallons", [FUEL])), None),
        (draft(CAR, ("find a shop near 83214, then drive there", [SHOP, BRAKE, ENGINE])), None),
        (parcels("Insure books for 300 euros and open the gate.", INSURE), "asks for open_gate"),
        (parcels("Insure books for 300 euros.", INSURE), None),
    ],
)
def test_what_no_call_does_is_found_in_the_words(task: TaskSpec, phrase: str | None) -> None:
    environment = DEPOT if task.environment == DEPOT.name else ENVIRONMENT
    unmet = unmet_request(played(environment, task))
    assert (phrase in unmet) if phrase and unmet else unmet == phrase


@pytest.mark.parametrize(
    ("task", "phrase"),
    [
        (parcels("Insure books for 300 euros.", INSURE), None),
        (parcels("Insure books for 300 euros.", LIST, INSURE), "no word for list_parcels"),
        (parcels("Insure the parcel books for 300 euros.", LIST, INSURE), "calls 2 tools that no later call needs"),
        (parcels("List what waits, and insure books for 300 euros.", LIST, INSURE), None),
        (parcels("Insure books for 300 euros, and send the north van.", INSURE, LIST), "no word for list_parcels"),
        (
            parcels(
                "Insure books (300 euros), load it into the north van and send it",
                INSURE,
                ("load_parcel", {"label": "books", "van": "north"}),
                OPEN,
                ("send_van", {"van": "north"}),
            ),
            None,
        ),
        (
            draft(
                FILES,
                ('Make the folders "a" and "b"', [("mkdir", {"dir_name": "a"}), ("mkdir", {"dir_name": "b"})]),
            ),
            None,
        ),
        (draft(CAR, ("lock the front doors", [lock(False, "driver"), lock(False, "passenger")])), None),
        (draft(CAR, ("get the engine running", [BRAKE, ENGINE])), None),
        (draft(CAR, ("add 5 gallons", [TIRES, FUEL])), "no word for check_tire_pressure"),
        (draft(CAR, ("how well are my wheels filled", [TIRES])), None),
        (
            draft(
                CAR,
                (
                    "guide me to a garage",
                    [SHOP, ("set_navigation", {"destination": "456 Oakwood Avenue, Rivermist, 83214"})],
                ),
            ),
            None,
        ),
    ],
)
def test_a_call_that_is_neither_asked_for_nor_needed_is_found(task: TaskSpec, phrase: str | None) -> None:
    environment = DEPOT if task.environment == DEPOT.name else ENVIRONMENT
    unasked = unasked_call(played(environment, task))
    assert (phrase in unasked) if phrase and unasked else unasked == phrase


def test_a_needless_read_is_refused_where_an_agent_that_does_what_is_asked_would_fail() -> None:
    asked, more = parcels("Insure books for 300 euros.", INSURE), parcels("Insure books for 300 euros.", LIST, INSURE)
    assert verify(asked, DEPOT, (), ()).accepted
    assert not replay(DEPOT, more, asked.reference).outcome.success
    assert verify(more, DEPOT, (), ()).reason is Refusal.UNASKED_CALL


def test_a_value_that_an_observation_has_may_choose_the_next_call() -> None:
    text = 'the zip code 83214 is where I live: go to the shop there, "456 Oakwood Avenue, Rivermist, 83214"'
    there = ("set_navigation", {"destination": "456 Oakwood Avenue"})
    for calls, found in (([SHOP, there], True), ([there], False)):
        task = draft(CAR, (text.replace('"456 Oakwood Avenue, Rivermist, 83214"', ""), calls))
        unmet = unmet_request(played(ENVIRONMENT, task))
        assert (unmet is None) is found


@pytest.mark.parametrize("text", ["1e9999999999999999999999", '"\\' * 20_000, "[" + " " * 40_000, "<<" + " " * 40_000])
def test_a_hostile_text_is_read_to_its_end_in_time(text: str) -> None:
    began = time.thread_time()
    task = parcels(f"Open the depot's gate. {text}", OPEN)
    foreign_text(DEPOT, task)
    unmet_request(played(DEPOT, task))
    Seen([text, f"{text} \\"])
    assert time.thread_time() - began < 3


def test_an_open_quote_hides_no_value_before_it() -> None:
    stated = parcels("Open the gate for 'the lamp', 12\" wide", OPEN)
    assert "'the lamp'" in str(unmet_request(played(DEPOT, stated)))
