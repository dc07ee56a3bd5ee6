"""Simulators: nothing shared between episodes, nothing that depends on the day or the process, nothing unbounded."""

import inspect
import os
import re
import subprocess
import sys
import time

import pytest

from environments.base import InputError, ObservationStatus, ToolCall
from environments.bfcl.official import CLASSES, load_category, simulator_class
from environments.bfcl.simulators import Simulators, not_defined

TWITTER = {"TwitterAPI": {"authenticated": True, "username": "john"}}


def run(simulators, name, /, **arguments):
    return simulators.run(ToolCall(name=name, arguments=arguments))


def test_default_lists_are_not_shared_between_calls_or_episodes():
    for _ in range(2):
        simulators = Simulators(["TwitterAPI"], TWITTER, False)
        assert '"mentions": []' in run(simulators, "post_tweet", content="one").text
        run(simulators, "mention", tweet_id=0, mentioned_usernames=["@a"])
        assert '"mentions": []' in run(simulators, "post_tweet", content="two").text


def test_a_call_is_not_changed_by_what_happens_to_its_arguments():
    simulators = Simulators(["TwitterAPI"], TWITTER, False)
    call = ToolCall(name="post_tweet", arguments={"content": "one", "mentions": ["@a"]})
    simulators.run(call)
    run(simulators, "mention", tweet_id=0, mentioned_usernames=["@b"])
    assert call.arguments["mentions"] == ["@a"]


def test_the_initial_state_is_not_changed():
    task = load_category("base", ("train",))[0]
    before = task.model_dump_json()
    simulators = Simulators(task.spec.classes, task.spec.initial_state, False)
    for turn in task.spec.reference:
        for call in turn:
            simulators.run(call)
    assert task.model_dump_json() == before


def test_rows_of_the_long_context_tables_are_not_shared():
    state = {"TravelAPI": {"access_token": "t", "token_expires_in": 2}}
    one = Simulators(["TravelAPI"], state, True)
    before = one.state()
    card, row = next((c, r) for c, r in one.instances["TravelAPI"].credit_card_list.items() if r["balance"] > 5000)
    booked = run(
        one,
        "book_flight",
        access_token="t",
        card_id=card,
        travel_date="2024-01-01",
        travel_from="SFO",
        travel_to="LAX",
        travel_class="economy",
    )
    assert booked.status is ObservationStatus.OK
    assert one.state() != before
    assert Simulators(["TravelAPI"], state, True).state() == before
    assert row["balance"] < 10**9


def reachable(value, found):
    """Every object that can change and is reached from ``value``, by identity."""
    if isinstance(value, str | int | float | bool | type(None)) or id(value) in found:
        return found
    found[id(value)] = value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    for item in (*inside, *([vars(value)] if hasattr(value, "__dict__") else [])):
        reachable(item, found)
    return found


def test_no_instance_reaches_into_a_table_of_a_module():
    """The long-context tables, and whatever else of the simulators' modules can change."""
    tasks = load_category("long_context")
    modules = {sys.modules[simulator_class(name).__module__] for task in tasks for name in task.spec.classes}
    modules.add(sys.modules["bfcl_eval.eval_checker.multi_turn_eval.func_source_code.long_context"])
    tables = {}
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, dict | list | set) and not name.startswith("__"):
                reachable(value, tables)
    assert len(tables) > 100
    for task in tasks:
        simulators = Simulators(task.spec.classes, task.spec.initial_state, True)
        shared = tables.keys() & reachable(simulators.instances, {}).keys()
        assert not shared, task.id


def test_an_age_does_not_depend_on_today():
    """Eighteen on the frozen date, 1 September 2024, and not a day before."""
    simulators = Simulators(["TravelAPI"], {"TravelAPI": {"user_first_name": "A", "user_last_name": "B"}}, False)
    arguments = {"first_name": "A", "last_name": "B", "passport_number": "US1"}
    old_enough = run(simulators, "verify_traveler_information", date_of_birth="2006-09-01", **arguments)
    too_young = run(simulators, "verify_traveler_information", date_of_birth="2006-09-02", **arguments)
    assert old_enough.status is ObservationStatus.OK
    assert too_young.status is ObservationStatus.ERROR


def test_the_clock_of_the_process_is_left_alone():
    import datetime

    simulator_class("TravelAPI")
    assert datetime.datetime.today().date() == datetime.date.fromtimestamp(time.time())
    trading = sys.modules[simulator_class("TradingBot").__module__]
    assert trading.datetime is datetime.datetime


PROGRAM = """
import hashlib, random
from environments.base import ToolCall
from environments.bfcl.official import all_tools, tool_names
from environments.bfcl.official import load_category
from environments.bfcl.simulators import Simulators
digest = hashlib.sha256()
pool = ["a.txt", "SFO", "LAX", "economy", "t", "c", "2024-01-01", 1, 5, 2.5, True, ["x"], {"a": 1, "b": 2, "c": 3}]
for task in load_category("base", ("train",)):
    draw = random.Random(task.index)
    simulators = Simulators(task.spec.classes, task.spec.initial_state, False)
    for _ in range(40):
        spec = all_tools()[draw.choice(task.spec.tools)]
        call = ToolCall(name=spec.name, arguments={p.name: draw.choice(pool) for p in spec.parameters if p.required})
        digest.update(simulators.run(call).text.encode())
    digest.update(simulators.state().encode())
state = {"TravelAPI": {"access_token": "t", "token_expires_in": 2, "credit_card_list": {"c": {"balance": 5}}}}
travel = Simulators(["TravelAPI", "TicketAPI"], {**state, "TicketAPI": {"ticket_queue": [{"id": 1}]}}, False)
flight = {"travel_date": "2024-01-01", "travel_from": "SFO", "travel_to": "LAX", "travel_class": "x"}
flight |= {"access_token": "t", "card_id": "c"}
edit = {"ticket_id": 1, "updates": {"z": 1, "y": 1, "x": 1}}
for name, arguments in (("book_flight", flight), ("edit_ticket", edit)):
    text = travel.run(ToolCall(name=name, arguments=arguments)).text
    print(text)
    digest.update(text.encode())
print(digest.hexdigest())
"""


@pytest.mark.process
def test_processes_agree_whatever_their_hash_seed_and_time_zone():
    printed = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
        ).stdout
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    }
    assert len(printed) == 1
    booking, ticket, _ = printed.pop().splitlines()
    assert booking.endswith("""Must be one of {'business', 'economy', 'first'}"}""")
    assert ticket == '{"error": "Invalid fields for update: x, y, z"}'


@pytest.mark.slow
def test_copies_of_copies_are_stopped_before_they_fill_the_memory():
    simulators = Simulators(["GorillaFileSystem"], {}, False)
    run(simulators, "mkdir", dir_name="d0")
    run(simulators, "cd", folder="d0")
    run(simulators, "touch", file_name="f")
    run(simulators, "cd", folder="..")
    began = time.perf_counter()
    answers = []
    for level in range(70):
        answers.append(run(simulators, "cp", source=f"d{level}", destination=f"d{level + 1}"))
        answers.append(run(simulators, "cp", source=f"d{level}", destination=f"d{level + 1}"))
    run(simulators, "find")
    run(simulators, "du")
    simulators.state()
    assert time.perf_counter() - began < 20
    assert answers[0].ran
    assert "the directory tree has more than" in answers[-1].text or "No such file" in answers[-1].text
    assert any("the directory tree has more than" in answer.text for answer in answers)


def test_a_directory_that_contains_itself_is_survived():
    simulators = Simulators(["GorillaFileSystem"], {}, False)
    run(simulators, "mkdir", dir_name="a")
    assert run(simulators, "cp", source="a", destination="a").text == "{\"result\": \"'a' copied to 'a/a'\"}"
    for name in ("find", "du"):
        assert run(simulators, name).status is ObservationStatus.ERROR
    for name in ("ls", "pwd"):
        assert run(simulators, name).status is ObservationStatus.OK
    assert run(simulators, "rm", file_name="a").status is ObservationStatus.OK
    assert run(simulators, "find").status is ObservationStatus.EMPTY


def test_a_class_without_a_configuration_starts_from_its_default():
    simulators = Simulators(["TicketAPI", "VehicleControlAPI"], {}, False)
    assert '"fuelLevel": 0.0' in run(simulators, "displayCarStatus", option="fuel").text


@pytest.mark.parametrize(
    "configuration", [{"root": {"a": {}}}, {"root": {"a": {"contents": {"b": {}}}}}, "text", {"root": {}}]
)
def test_a_configuration_that_cannot_be_loaded_is_the_users_mistake(configuration):
    with pytest.raises(InputError, match="GorillaFileSystem cannot load its initial state"):
        Simulators(["GorillaFileSystem"], {"GorillaFileSystem": configuration}, False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing", "Error during execution: name 'nothing' is not defined"),
        ("remove", "Error during execution: Function call remove is not allowed."),
    ],
)
def test_a_function_that_is_not_there(name, text):
    assert not_defined(name).text == text
    assert Simulators(["TicketAPI"], {}, False).run(ToolCall(name=name)).text == text


@pytest.mark.parametrize(
    ("classes", "state", "calls", "status"),
    [
        (["VehicleControlAPI"], {}, [("check_tire_pressure", {})], "ok"),
        (["VehicleControlAPI"], {}, [("displayCarStatus", {"option": "wings"})], "error"),
        (["VehicleControlAPI"], {}, [("get_outside_temperature_from_weather_com", {})], "error"),
        (["VehicleControlAPI"], {}, [("get_zipcode_based_on_city", {"city": "Atlantis"})], "empty"),
        (["VehicleControlAPI"], {}, [("get_zipcode_based_on_city", {"city": "Rivermist"})], "ok"),
        (["VehicleControlAPI"], {}, [("estimate_drive_feasibility_by_mileage", {"distance": 500})], "ok"),
        (["VehicleControlAPI"], {}, [("lockDoors", {"unlock": True, "door": ["trunk"]})], "error"),
        (["VehicleControlAPI"], {}, [("startEngine", {})], "error"),
        (["GorillaFileSystem"], {}, [("ls", {})], "empty"),
        (["GorillaFileSystem"], {}, [("mkdir", {"dir_name": "a"})], "ok"),
        (
            ["GorillaFileSystem"],
            {},
            [("mkdir", {"dir_name": "a"}), ("cd", {"folder": "a"}), ("cd", {"folder": ".."})],
            "ok",
        ),
        (["GorillaFileSystem"], {}, [("touch", {"file_name": "a"}), ("cat", {"file_name": "a"})], "empty"),
        (["GorillaFileSystem"], {}, [("cat", {"file_name": "a"})], "error"),
        (["GorillaFileSystem"], {}, [("find", {"name": "a"})], "empty"),
        (["TradingBot"], {}, [("get_symbol_by_name", {"name": "Nobody"})], "empty"),
        (["TradingBot"], {}, [("get_symbol_by_name", {"name": "Apple"})], "ok"),
        (["TradingBot"], {}, [("get_watchlist", {})], "error"),
        (["TradingBot"], {}, [("get_order_history", {})], "error"),
        (["TradingBot"], {}, [("trading_get_login_status", {})], "ok"),
        (["TradingBot"], {}, [("trading_logout", {})], "empty"),
        (["TradingBot"], {}, [("get_available_stocks", {"sector": "Fishing"})], "empty"),
        (["TicketAPI"], {}, [("logout", {})], "error"),
        (["TicketAPI"], {}, [("ticket_get_login_status", {})], "ok"),
        (["TicketAPI"], {}, [("get_user_tickets", {})], "error"),
        (["TicketAPI"], {}, [("ticket_login", {"username": "a", "password": "b"}), ("get_user_tickets", {})], "empty"),
        (["MessageAPI"], {}, [("message_login", {"user_id": "nobody"})], "error"),
        (["MessageAPI"], {}, [("message_get_login_status", {})], "ok"),
        (["TwitterAPI"], {}, [("authenticate_twitter", {"username": "a", "password": "b"})], "error"),
        (["TwitterAPI"], TWITTER, [("follow_user", {"username_to_follow": "alice"})], "error"),
        (["TwitterAPI"], TWITTER, [("get_user_tweets", {"username": "nobody"})], "empty"),
        (["TravelAPI"], {}, [("get_nearest_airport_by_city", {"location": "Atlantis"})], "empty"),
        (["TravelAPI"], {}, [("travel_get_login_status", {})], "ok"),
        (["MathAPI"], {}, [("add", {"a": 0, "b": 0})], "ok"),
        (["MathAPI"], {}, [("divide", {"a": 1, "b": 0})], "error"),
        (["MathAPI"], {}, [("power", {"base": 10, "exponent": 5000})], "error"),
    ],
)
def test_failure_has_many_faces(classes, state, calls, status):
    simulators = Simulators(classes, state, False)
    answers = [run(simulators, name, **arguments) for name, arguments in calls]
    assert answers[-1].status.value == status, answers[-1].text


@pytest.mark.slow
def test_a_state_without_a_free_number_is_an_error_and_not_for_ever():
    state = {"MessageAPI": {"generated_ids": list(range(10_000, 100_000)), "current_user": "USR001"}}
    simulators = Simulators(["MessageAPI"], state, False)
    for _ in range(2):
        answer = run(simulators, "send_message", receiver_id="USR002", message="hello")
        assert (answer.status, "no free number" in answer.text) == (ObservationStatus.ERROR, True)
    other = run(Simulators(["MessageAPI"], {"MessageAPI": {"current_user": "USR001"}}, False), "get_message_stats")
    assert other.ran, "the lock that all calls share is free"


@pytest.mark.parametrize("name", CLASSES)
def test_every_way_in_which_a_simulator_draws_is_bounded(name):
    """Official draws come from the same generator; no simulator draws otherwise than by these two methods."""
    source = inspect.getsource(sys.modules[simulator_class(name).__module__])
    drawn = set(re.findall(r"(?<!import )\brandom\.(\w+)|_random\.(\w+)", source))
    assert {one or other for one, other in drawn} <= {"Random", "randint", "uniform"}
