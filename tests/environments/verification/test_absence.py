"""Turns in which nothing can be called yet: needed ones are accepted, near misses refused; what each policy gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import pytest
from pydantic import JsonValue, TypeAdapter
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES, call
from support.written_tasks import draft

from environments.base import Environment, InputError, TaskSpec, ToolCall
from environments.example import depot
from environments.python_class.environment import PythonEnvironment, ToolRefused
from environments.verification.absence import asked_at_once, unneeded_turn
from environments.verification.replay import attempt
from environments.verification.verify import Refusal, verify

DEPOT = depot(starts=1)
SORT, MAKE = ("sort", {"file_name": "notes.txt"}), ("mkdir", {"dir_name": "old notes"})
FUEL, LOOK = ("fillFuelTank", {"fuelAmount": 7}), ("displayCarStatus", {"option": "fuel"})
LOAD = ("load_parcel", {"label": "lamp", "van": "north"})
NOW, NAMED = "You can do that now, please.", "Call it 'old notes'."
Turn = tuple[str, list[tuple[str, dict]]]


def parcels(*turns: Turn, start: Sequence[str] = ("lamp", "seeds"), **changes: object) -> TaskSpec:
    """A task of the depot in which these parcels of 3 kilograms wait."""
    place = DEPOT.starts()[0]
    return TaskSpec(
        environment=place.environment,
        split=place.split,
        classes=place.classes,
        tools=place.tools,
        initial_state={"Depot": {"parcels": {label: {"kilograms": 3} for label in start}, "gate_open": False}},
        turns=tuple(text for text, _ in turns),
        reference=tuple(tuple(call(name, **arguments) for name, arguments in calls) for _, calls in turns),
    ).model_copy(update=changes)


PUT = ("Put one parcel from the depot into the north van.", [])
GOOD = {
    "missing text": (ENVIRONMENT, draft(FILES, ("Make a directory here.", []), (NAMED, [MAKE]))),
    "missing number": (ENVIRONMENT, draft(CAR, ("Fill in some gallons of fuel.", []), ("7, please.", [FUEL]))),
    "missing at the second call, too": (
        ENVIRONMENT,
        draft(FILES, ("Make a directory and go there.", []), (NAMED, [MAKE, ("cd", {"folder": "old notes"})])),
    ),
    "missing after a turn with calls": (
        ENVIRONMENT,
        draft(FILES, ('Sort "notes.txt".', [SORT]), ("Make a directory.", []), (NAMED, [MAKE])),
    ),
    "withheld tool": (
        ENVIRONMENT,
        draft(FILES, ('Make the directory "old notes".', []), (NOW, [MAKE]), withheld={1: ("mkdir",)}),
    ),
    "before a further turn": (
        ENVIRONMENT,
        draft(FILES, ("Make a directory here.", []), (NAMED, [MAKE]), ('Sort "notes.txt".', [SORT])),
    ),
    "withheld before a further turn": (
        ENVIRONMENT,
        draft(
            FILES,
            ('Make the directory "old notes".', []),
            (NOW, [MAKE]),
            ('Sort "notes.txt".', [SORT]),
            withheld={1: ("mkdir",)},
        ),
    ),
    "withheld read": (ENVIRONMENT, draft(FILES, ('Sort "notes.txt".', []), (NOW, [SORT]), withheld={1: ("sort",)})),
    "a further call that waits for the withheld one": (
        ENVIRONMENT,
        draft(
            FILES,
            ('Make the directory "old notes", sort "notes.txt" and move "notes.txt" to "old notes".', []),
            (NOW, [MAKE, SORT, ("mv", {"source": "notes.txt", "destination": "old notes"})]),
            withheld={1: ("mkdir",)},
        ),
    ),
    "a further call that can be made at once": (
        DEPOT,
        parcels(
            ("Weigh the lamp and put the seeds into the north van.", []),
            (NOW, [("weigh_parcel", {"label": "lamp"}), ("load_parcel", {"label": "seeds", "van": "north"})]),
            withheld={1: ("weigh_parcel",)},
        ),
    ),
    "a further call that can be made at once, and a further turn": (
        DEPOT,
        parcels(
            ("Weigh the lamp and put the seeds into the north van.", []),
            (NOW, [("weigh_parcel", {"label": "lamp"}), ("load_parcel", {"label": "seeds", "van": "north"})]),
            ("Put the lamp into the south van.", [("load_parcel", {"label": "lamp", "van": "south"})]),
            withheld={1: ("weigh_parcel",)},
        ),
    ),
    "missing label": (DEPOT, parcels(PUT, ("It's the lamp.", [LOAD]))),
    "withheld tool of the depot": (
        DEPOT,
        parcels(("Put the lamp into the north van.", []), (NOW, [LOAD]), withheld={1: ("load_parcel",)}),
    ),
}
MISSES: list[tuple[str, Environment, TaskSpec]] = [
    (
        "turn 1 has no call, and no turn with calls",
        ENVIRONMENT,
        draft(FILES, ("Hello.", []), ("Hi.", []), ("a", [SORT])),
    ),
    ("turn 2 has no call, and no turn with calls", ENVIRONMENT, draft(FILES, ('"notes.txt"', [SORT]), ("Thanks.", []))),
    (
        "turn 1 has no call, though mkdir is not withheld until turn 2, and its dir_name 'old notes' is known before "
        "turn 2 (earlier turn)",
        ENVIRONMENT,
        draft(FILES, ("Make the directory old notes.", []), (NAMED, [MAKE])),
    ),
    (
        "its dir_name 'drafts 2' is known before turn 3 (earlier turn)",
        ENVIRONMENT,
        draft(
            FILES,
            ('Sort "notes.txt", not "drafts 2".', [SORT]),
            ("Make a directory.", []),
            ("Call it drafts 2.", [("mkdir", {"dir_name": "drafts 2"})]),
        ),
    ),
    (
        "its pattern 'alpha' is known before turn 3 (observation)",
        ENVIRONMENT,
        draft(
            FILES,
            ('Sort "notes.txt".', [SORT]),
            ('Search "notes.txt".', []),
            ("For alpha.", [("grep", {"file_name": "notes.txt", "pattern": "alpha"})]),
        ),
    ),
    (
        "its option 'fuel' is known before turn 2 (documentation)",
        ENVIRONMENT,
        draft(CAR, ("Show the status of the car.", []), ("The fuel.", [LOOK])),
    ),
    (
        "requires no value that turn 2 says",
        ENVIRONMENT,
        draft(FILES, ("Show what is in the file.", []), ("With what is hidden.", [("ls", {"a": True})])),
    ),
    (
        "until turn 2, and its file_name 'notes.txt' is known",
        ENVIRONMENT,
        draft(
            FILES,
            ("Show the end of notes.txt.", []),
            ("3 lines of notes.txt.", [("tail", {"file_name": "notes.txt", "lines": 3})]),
        ),
    ),
    ("requires no value", ENVIRONMENT, draft(FILES, ("Make a directory.", []), ("A new one.", [MAKE]))),
    (
        "mkdir is not withheld",
        ENVIRONMENT,
        draft(FILES, ('Make the directory "old notes".', []), (NOW, [MAKE]), withheld={1: ("sort",)}),
    ),
    (
        "mkdir is not withheld",
        ENVIRONMENT,
        draft(FILES, ('Make the directory "old notes".', []), (NOW, [MAKE]), withheld={0: ("mkdir",)}),
    ),
    (
        "mkdir is not withheld",
        ENVIRONMENT,
        draft(
            FILES,
            ('Make the directory "old notes" and sort "notes.txt".', []),
            (NOW, [MAKE, SORT]),
            withheld={1: ("sort",)},
        ),
    ),
    (
        "mkdir is not withheld until turn 2",
        ENVIRONMENT,
        draft(
            FILES,
            ('Make the directory "old notes".', []),
            (NOW, [MAKE]),
            ('Sort "notes.txt".', [SORT]),
            withheld={2: ("mkdir",)},
        ),
    ),
    (
        "turn 1 has no call, though load_parcel can be made in it, and the task fails after that",
        DEPOT,
        parcels(
            ("List what waits, then put the lamp into the north van.", []),
            (NOW, [("list_parcels", {}), LOAD]),
            withheld={1: ("list_parcels",)},
        ),
    ),
    (
        "though open_gate and load_parcel can be made in it",
        DEPOT,
        parcels(
            ("List what waits, open the gate and put the lamp into the north van.", []),
            (NOW, [("list_parcels", {}), ("open_gate", {}), LOAD]),
            withheld={1: ("list_parcels",)},
        ),
    ),
    ("list_parcels answers its label 'lamp', and no other", DEPOT, parcels(PUT, ("The lamp.", [LOAD]), start=["lamp"])),
    (
        "a guess of its euros, 100, is made good by turn 2",
        DEPOT,
        parcels(("Insure the lamp.", []), ("For 300.", [("insure_parcel", {"label": "lamp", "euros": 300})])),
    ),
]


@pytest.mark.parametrize(("environment", "task"), GOOD.values(), ids=GOOD.keys())
def test_a_turn_that_lacks_what_the_next_one_brings_is_accepted(environment: Environment, task: TaskSpec) -> None:
    result = verify(task, environment, (), ())
    assert result.accepted, result.detail


@pytest.mark.parametrize(
    ("says", "environment", "task"), MISSES, ids=lambda one: one[:60] if isinstance(one, str) else ""
)
def test_a_turn_that_could_have_calls_is_refused(says: str, environment: Environment, task: TaskSpec) -> None:
    result = verify(task, environment, (), ())
    assert result.reason is Refusal.EMPTY_TURN, result
    assert says in f"{result.detail[0].lower()}{result.detail[1:]}"
    assert result.detail.startswith("Turn ")


@pytest.mark.parametrize(("environment", "task"), GOOD.values(), ids=GOOD.keys())
def test_the_reference_succeeds_and_nothing_at_all_does_not(environment: Environment, task: TaskSpec) -> None:
    assert attempt(environment, task, task.reference).success
    assert not attempt(environment, task, [()] * len(task.turns)).success
    assert not attempt(environment, task, [*task.reference[:-1], ()]).success


@pytest.mark.parametrize(
    ("name", "guess", "passes"),
    [
        ("missing text", call("mkdir", dir_name="new"), False),
        ("missing text", call("ls"), True),
        ("missing text", call("mkdir"), True),
        ("missing number", call("fillFuelTank", fuelAmount=3), False),
        ("missing number", call("displayCarStatus", option="fuel"), True),
        ("missing label", call("load_parcel", label="seeds", van="north"), False),
        ("missing label", call("list_parcels"), True),
        ("withheld tool of the depot", call("open_gate"), False),
        ("withheld tool of the depot", call("weigh_parcel", label="lamp"), True),
    ],
)
def test_a_guess_that_changes_the_state_fails_and_a_read_or_a_refused_call_does_not(
    name: str, guess: ToolCall, passes: bool
) -> None:
    environment, task = GOOD[name]
    assert attempt(environment, task, [(guess,), *task.reference[1:]]).success is passes


def test_a_withheld_tool_cannot_be_called_before_its_turn() -> None:
    environment, task = GOOD["withheld tool of the depot"]
    assert not attempt(environment, task, [task.reference[1], ()]).success


@pytest.mark.parametrize(
    ("reason", "task"),
    [
        (Refusal.UNMET_REQUEST, draft(FILES, ("Make a directory and 3 files.", []), (NAMED, [MAKE]))),
        (
            Refusal.UNASKED_CALL,
            draft(CAR, ("Fill in some gallons.", []), ("7, please.", [FUEL, ("find_nearest_tire_shop", {})])),
        ),
        (Refusal.UNGROUNDED_ARGUMENT, draft(FILES, ("Make a directory, then sort.", []), (NAMED, [MAKE, SORT]))),
        (Refusal.SUPERFLUOUS_CALL, draft(FILES, ("Sort the lines twice.", []), ("Of notes.txt.", [SORT, SORT]))),
        (Refusal.BAD_ARGUMENTS, draft(FILES, ("Make a directory.", []), (NAMED, [("mkdir", {})]))),
        (Refusal.ERROR_RESULT, draft(FILES, ("Remove a directory.", []), ("x", [("rmdir", {"dir_name": "x"})]))),
        (
            Refusal.TRIVIAL_POLICY,
            draft(FILES, ("Show all files.", []), (NOW, [("ls", {})]), withheld={1: ("ls",)}),
        ),
        (Refusal.EMPTY_TURN, draft(FILES, ("", []), (NAMED, [MAKE]))),
    ],
)
def test_all_other_checks_hold(reason: Refusal, task: TaskSpec) -> None:
    assert verify(task, ENVIRONMENT, (), ()).reason is reason


def test_what_a_turn_without_calls_says_is_asked_with_the_next_turn() -> None:
    turns: list[Turn] = [("Hello.", []), ("Sort ", []), ("it", [SORT]), ("Now?", []), ("Yes", [MAKE])]
    joined = asked_at_once(draft(FILES, *turns, withheld={1: ("sort",)}))
    assert joined.turns == ("Hello. Sort . it", "Now? Yes")
    assert joined.reference == (draft(FILES, ("", [SORT])).reference[0], draft(FILES, ("", [MAKE])).reference[0])
    assert joined.withheld == {}


class Lamps:
    """Lamps are lit by their place, at some levels."""

    def __init__(self, lit: list[str], level: float, levels: list[float], names: list[str]) -> None:
        self.lit, self.level, self.levels, self.names = lit, level, levels, names

    def where(self, near: Annotated[bool, "also near"] = False) -> dict[str, object]:
        """Say where the only lamp is."""
        return {"place": "hall", "number": 4, "works": True}

    def light(self, place: Annotated[str, "the place"], rooms: Annotated[list[str], "the rooms"] = []) -> str:  # noqa: B006
        """Light a lamp at a place."""
        self.lit = [*self.lit, place, *rooms]
        return "lit"

    def join(self, rooms: Annotated[list[str], "the rooms"]) -> str:
        """Light lamps of rooms."""
        self.lit = [*rooms]
        return "lit"

    def dim(self, level: Annotated[float, "the level, from 0 to 100"]) -> str:
        """Set the level of light."""
        if level not in self.levels:
            raise ToolRefused("no such level")
        self.level = level
        return "set"

    def name(self, name: Annotated[str, "the name"]) -> str:
        """Name the lamp."""
        if name not in self.names:
            raise ToolRefused("no such name")
        self.lit = [name]
        return "named"

    def forget(self) -> str:
        """Put out all lamps."""
        self.lit = []
        return "garden"


LEVELS = [2.5, 4.0]
LAMPS = PythonEnvironment("lamps", Lamps, [{"lit": ["shed"], "level": 1.0, "levels": LEVELS, "names": []}])


@pytest.mark.parametrize(
    ("answer", "made", "says"),
    [
        ("The garden.", ("light", {"place": "garden"}), None),
        ("The hall.", ("light", {"place": "hall"}), "where answers its place 'hall', and no other"),
        ("2.5, please.", ("dim", {"level": 2.5}), None),
        ("4, please.", ("dim", {"level": 4.0}), "where answers its level 4.0, and no other"),
        ("Hall and attic.", ("join", {"rooms": ["hall", "attic"]}), None),
        ("In the attic", ("light", {"place": "shed", "rooms": ["attic"]}), "requires no value that turn 2 says"),
    ],
)
def test_reads_without_arguments_and_guesses(answer: str, made: tuple[str, dict], says: str | None) -> None:
    found = unneeded_turn(LAMPS, lamps(answer, call(made[0], **made[1])))
    assert (found is None) if says is None else (says in str(found))


def test_a_call_that_takes_a_value_of_the_missing_ones_answer_is_not_made_at_once() -> None:
    task = lamps("Now.", call("forget")).model_copy(
        update={"reference": ((), (call("forget"), call("light", place="garden"))), "withheld": {1: ("forget",)}}
    )
    assert unneeded_turn(LAMPS, task) is None
    said = task.model_copy(update={"turns": ("Light the garden.", "Now.")})
    assert "though light can be made in it" in str(unneeded_turn(LAMPS, said))


def lamps(answer: str, made: ToolCall, **start: object) -> TaskSpec:
    place = LAMPS.starts()[0]
    initial = {"lit": ["shed"], "level": 1.0, "levels": LEVELS, "names": []} | start
    return TaskSpec(
        environment=place.environment,
        split=place.split,
        classes=place.classes,
        tools=place.tools,
        initial_state=TypeAdapter(dict[str, JsonValue]).validate_python({"Lamps": initial}),
        turns=("Do it.", answer),
        reference=((), (made,)),
    )


@pytest.mark.parametrize("guess", [3.5, 1.5, 5.0, 0.0, 100.0])
def test_numbers_that_an_agent_may_guess(guess: float) -> None:
    """One more, one less, twice as much, and what the documentation has; an own value changes nothing that counts."""
    task = lamps("2.5, please.", call("dim", level=2.5), levels=[2.5, guess])
    assert f"a guess of its level, {guess}, is" in str(unneeded_turn(LAMPS, task))
    assert unneeded_turn(LAMPS, lamps("2.5, please.", call("dim", level=2.5), levels=[2.5, 1.0, 7.5, 4.5])) is None


def test_texts_that_an_agent_may_guess_are_those_of_the_start_by_length() -> None:
    far = [*map(str, range(9))]
    made = call("name", name="moon")
    assert "a guess of its name, 'star', is" in str(
        unneeded_turn(LAMPS, lamps("moon", made, names=["moon", "star", *far]))
    )
    named = lamps("moon", made, names=["moon", "moon 2"])
    assert "a guess of its name, 'moon 2', is" in str(unneeded_turn(LAMPS, named))
    assert "a guess of its name, 'xxx" in str(unneeded_turn(LAMPS, lamps("moon", made, names=["moon", "x" * 60])))
    assert unneeded_turn(LAMPS, lamps("moon", made, names=["moon", "x" * 61])) is None


def test_a_task_that_cannot_be_opened_is_no_turn_that_is_needed() -> None:
    with pytest.raises(InputError):
        unneeded_turn(ENVIRONMENT, draft(FILES, ("Make a directory.", []), (NAMED, [MAKE]), environment="other"))
    assert verify(draft(CAR, ("a", []), ("b", [MAKE])), ENVIRONMENT, (), ()).reason is Refusal.UNKNOWN_TOOL
