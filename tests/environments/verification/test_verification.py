"""Verification: each reason to refuse a draft, and drafts that are accepted."""

from __future__ import annotations

import pytest
from support.bfcl_tasks import CAR, ENVIRONMENT, FILES
from support.random_paths import with_placeholder_text
from support.written_tasks import draft

from environments.base import EnvironmentFault, Observation, ObservationStatus, TaskSpec
from environments.bfcl.official import load_category
from environments.settings import VerificationSettings
from environments.verification.canonical import fingerprint
from environments.verification.replay import attempt
from environments.verification.verify import Refusal, can_train, verify

BRAKE = ("pressBrakePedal", {"pedalPosition": 1.0})
START = ("startEngine", {"ignitionMode": "START"})
FUEL = ("fillFuelTank", {"fuelAmount": 5})
SORT = ("sort", {"file_name": "notes.txt"})
SHOP = ("find_nearest_tire_shop", {})
GOOD = {
    "a change": draft(CAR, ("add 5 gallons", [FUEL])),
    "a read": draft(FILES, ('sort the lines of "notes.txt"', [SORT])),
    "a documented precondition": draft(CAR, ("get the engine running", [BRAKE, START])),
    "a value from an observation": draft(
        CAR,
        (
            "navigate to the nearest tire shop",
            [SHOP, ("set_navigation", {"destination": "456 Oakwood Avenue, Rivermist, 83214"})],
        ),
    ),
    "a value from an earlier turn": draft(
        FILES,
        ('make the file "log.txt"', [("touch", {"file_name": "log.txt"})]),
        ('write "done" into it', [("echo", {"content": "done", "file_name": "log.txt"})]),
    ),
    "after a setup": draft(
        FILES, ('show "old.txt"', [("cat", {"file_name": "old.txt"})]), setup=(("cd", {"folder": "drafts"}),)
    ),
    "after calls that the task itself could not make": draft(
        FILES, ('sort the lines of "notes.txt"', [SORT]), setup=(("ls", {"a": "yes"}),), tools=("sort",)
    ),
}
REFUSED: list[tuple[Refusal, str, TaskSpec]] = [
    (Refusal.EMPTY_REFERENCE, "no call", draft(CAR, ("hello", []))),
    (Refusal.EMPTY_REFERENCE, "no call", draft(CAR)),
    (Refusal.EMPTY_TURN, "Turn 2 has no call", draft(CAR, ("add 5", [FUEL]), ("thanks", []))),
    (Refusal.EMPTY_TURN, "Turn 1 has no text", draft(CAR, (" \n", [FUEL]))),
    (Refusal.TOO_LONG, "7 calls, 6", draft(CAR, ("add 5 seven times", [FUEL] * 7))),
    (Refusal.UNKNOWN_TOOL, "'fly'", draft(CAR, ("fly", [("fly", {})]))),
    (Refusal.UNKNOWN_TOOL, "'fly'", draft(CAR, ("fly", [("fly", {})]), tools=("fly",))),
    (Refusal.UNKNOWN_TOOL, "'fly'", draft(CAR, ("add 5", [FUEL]), setup=(("fly", {}),))),
    (Refusal.UNKNOWN_TOOL, FILES, draft(CAR, ('sort "notes.txt"', [SORT]))),
    (Refusal.UNKNOWN_TOOL, "Turn 1, call 1", draft(CAR, ("add 5", [FUEL]), tools=("lockDoors",))),
    (Refusal.BAD_ARGUMENTS, "no parameter 'amount'", draft(CAR, ("add 5", [("fillFuelTank", {"amount": 5})]))),
    (Refusal.BAD_ARGUMENTS, "requires 'fuelAmount'", draft(CAR, ("add fuel", [("fillFuelTank", {})]))),
    (Refusal.BAD_ARGUMENTS, "type float", draft(CAR, ("add 5", [("fillFuelTank", {"fuelAmount": "5"})]))),
    (Refusal.BAD_ARGUMENTS, "type float", draft(CAR, ("add all", [("fillFuelTank", {"fuelAmount": float("inf")})]))),
    (Refusal.BAD_ARGUMENTS, "choices", draft(CAR, ("lights", [("setHeadlights", {"mode": "disco"})]))),
    (
        Refusal.BAD_ARGUMENTS,
        "choices",
        draft(CAR, ("unlock boot", [("lockDoors", {"unlock": True, "door": ["driver", "boot"]})])),
    ),
    (Refusal.CANNOT_OPEN, "initial state", draft(FILES, ("sort", [SORT]), initial_state={FILES: {"root": {"w": 5}}})),
    (Refusal.CANNOT_OPEN, "appworld", draft(CAR, ("add 5", [FUEL]), environment="appworld")),
    (Refusal.ERROR_RESULT, "Turn 1, call 1, startEngine", draft(CAR, ("get going", [START]))),
    (Refusal.ERROR_RESULT, "Setup call 1, startEngine", draft(CAR, ("add 5", [FUEL]), setup=(START,))),
    (
        Refusal.UNSTABLE_STATE,
        "after turn 1 cannot",
        draft(FILES, ('copy "drafts" into "drafts"', [("cp", {"source": "drafts", "destination": "drafts"})])),
    ),
    (Refusal.NO_EFFECT, "Turn 1", draft(FILES, ('find "zebra"', [("find", {"name": "zebra"})]))),
    (
        Refusal.NO_EFFECT,
        "Turn 2",
        draft(CAR, ("add 5", [FUEL]), ("zip of Nowhere", [("get_zipcode_based_on_city", {"city": "Nowhere"})])),
    ),
    (Refusal.FOREIGN_TEXT, "Turn 1 has the markup '</user>'", draft(CAR, ("add 5 gallons</user>", [FUEL]))),
    (Refusal.UNMET_REQUEST, "Turn 1 states 7", draft(CAR, ("add 5 gallons and 7 more", [FUEL]))),
    (Refusal.UNASKED_CALL, "Turn 1 has no word for find_nearest", draft(CAR, ("add 5 gallons", [FUEL, SHOP]))),
    (Refusal.TRIVIAL_POLICY, "calling check_tire_pressure", draft(CAR, ("tires?", [("check_tire_pressure", {})]))),
    (Refusal.TRIVIAL_POLICY, "calling find", draft(FILES, ("list all", [("find", {"path": "."})]))),
    (Refusal.TRIVIAL_POLICY, "all reads", draft(CAR, ("tires and shop?", [("check_tire_pressure", {}), SHOP]))),
    (
        Refusal.TRIVIAL_POLICY,
        "calling find_nearest_tire_shop",
        draft(CAR, ("a shop", [SHOP]), ("what is there", [SHOP])),
    ),
    (Refusal.TRIVIAL_POLICY, "calling", draft(FILES, ('sort "notes.txt"', [SORT]), setup=(SORT,))),
    (Refusal.SUPERFLUOUS_CALL, "Turn 1, call 1, sort", draft(FILES, ('sort "notes.txt" twice', [SORT, SORT]))),
    (
        Refusal.SUPERFLUOUS_CALL,
        "Turn 2, call 1, sort",
        draft(FILES, ('sort "notes.txt"', [SORT]), ("again", [SORT])),
    ),
    (
        Refusal.SUPERFLUOUS_CALL,
        "Turn 1, call 2, find",
        draft(FILES, ('sort "notes.txt", find "zebra"', [SORT, ("find", {"name": "zebra"})])),
    ),
    (
        Refusal.SUPERFLUOUS_CALL,
        "Turn 1, call 1, echo",
        draft(
            FILES,
            (
                'write "a", then "b" into "void.txt"',
                [("echo", {"content": text, "file_name": "void.txt"}) for text in ("a", "b")],
            ),
        ),
    ),
    (Refusal.UNGROUNDED_ARGUMENT, "fuelAmount=5", draft(CAR, ("add some fuel", [FUEL]))),
    (
        Refusal.UNGROUNDED_ARGUMENT,
        "pattern='alp'",
        draft(FILES, ('search "notes.txt"', [("grep", {"file_name": "notes.txt", "pattern": "alp"})])),
    ),
    (
        Refusal.UNGROUNDED_ARGUMENT,
        "file_name='old.txt'",
        draft(
            FILES,
            ("show the file that is in here", [("cat", {"file_name": "old.txt"})]),
            setup=(("cd", {"folder": "drafts"}), ("ls", {})),
        ),
    ),
]


@pytest.mark.parametrize("task", GOOD.values(), ids=GOOD.keys())
def test_good_drafts_are_accepted(task):
    result = verify(task, ENVIRONMENT, (), ())
    assert result.accepted, result.detail
    assert result.detail == ""


@pytest.mark.parametrize(
    ("reason", "words", "task"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_refusal_names_its_reason_and_place(reason, words, task):
    result = verify(task, ENVIRONMENT, (), ())
    assert result.reason is reason, result
    assert words in result.detail


def test_a_value_may_not_come_from_a_later_turn():
    task = draft(
        FILES,
        ("make a file", [("touch", {"file_name": "log.txt"})]),
        ('write "done" into "log.txt"', [("echo", {"content": "done", "file_name": "log.txt"})]),
    )
    result = verify(task, ENVIRONMENT, (), ())
    assert result.reason is Refusal.UNGROUNDED_ARGUMENT
    assert "turn 1, call 1: file_name='log.txt'" in result.detail


def test_known_and_held_out_fingerprints_are_refused_and_held_out_comes_first():
    task = GOOD["a change"]
    own = {fingerprint(task)}
    shown = f"(fingerprint {fingerprint(task)[:16]})."
    duplicate, held_out = verify(task, ENVIRONMENT, own, ()), verify(task, ENVIRONMENT, (), own)
    assert (duplicate.reason, held_out.reason) == (Refusal.DUPLICATE, Refusal.HELD_OUT)
    assert duplicate.detail.endswith(shown)
    assert held_out.detail.endswith(shown)
    assert verify(task, ENVIRONMENT, own, own).reason is Refusal.HELD_OUT


def test_the_longest_reference_is_a_setting():
    task = GOOD["a documented precondition"]
    assert verify(task, ENVIRONMENT, (), (), VerificationSettings(max_calls=2)).accepted
    assert verify(task, ENVIRONMENT, (), (), VerificationSettings(max_calls=1)).reason is Refusal.TOO_LONG


class Altered:
    """The real environment, with one method of its episodes replaced; ``alter`` gets the episode and its number."""

    name = "bfcl"

    def __init__(self, method, alter):
        self._method, self._alter, self._opened = method, alter, 0

    def open(self, task):
        self._opened += 1
        episode = ENVIRONMENT.open(task)
        setattr(episode, self._method, self._alter(episode, self._opened))
        return episode

    def tools(self, names):
        return ENVIRONMENT.tools(names)

    def starts(self):
        return ENVIRONMENT.starts()


def numbered_results(episode, number):
    step = episode.step
    return lambda action: step(action).model_copy(update={"text": f"result {number}"})


def numbered_states(episode, number):
    return lambda: f"state {number}" if number > 1 else "state"


def drifting_states(episode, number):
    """After its second call a replay but the first leads elsewhere."""
    state, step, calls = episode.state, episode.step, []

    def counted(action) -> Observation:
        calls.append(action)
        return step(action)

    episode.step = counted
    return lambda: state() + (" " * (number > 1) if len(calls) > 1 else "")


def failing(episode, number):
    outcome = episode.outcome
    return lambda: outcome().model_copy(update={"success": False, "failure": "multi_turn:other"})


def failing_with(text):
    return lambda episode, number: lambda action: Observation(text=text, status=ObservationStatus.ERROR)


def endless(episode, number):
    def state() -> str:
        return state()

    return state


def broken(episode, number):
    def step(action) -> Observation:
        raise EnvironmentFault("the worker died")

    return step


@pytest.mark.parametrize(
    ("method", "alter", "reason", "words"),
    [
        ("step", numbered_results, Refusal.NONDETERMINISTIC, "result of turn 1, call 1, fillFuelTank"),
        ("state", numbered_states, Refusal.NONDETERMINISTIC, "before the first call"),
        ("state", drifting_states, Refusal.NONDETERMINISTIC, "state after turn 1, call 2, startEngine"),
        ("outcome", failing, Refusal.NOT_SOLVED, "multi_turn:other"),
        ("state", endless, Refusal.UNSTABLE_STATE, "contains itself"),
    ],
)
def test_what_the_real_simulators_never_do_is_refused_too(method, alter, reason, words):
    task = GOOD["a documented precondition" if alter is drifting_states else "a change"]
    result = verify(task, Altered(method, alter), (), ())
    assert result.reason is reason
    assert words in result.detail


@pytest.mark.parametrize(("length", "shown"), [(200, 200), (201, 205)])
def test_a_long_error_is_shown_by_its_beginning_and_its_end(length, shown):
    text = "a" * 100 + "b" * (length - 100)
    result = verify(GOOD["a change"], Altered("step", failing_with(text)), (), ())
    assert result.reason is Refusal.ERROR_RESULT
    said = result.detail.partition("fails: ")[2]
    assert (len(said), said[:100], said[-100:]) == (shown, "a" * 100, "b" * 100)


def test_a_broken_environment_is_no_refusal():
    with pytest.raises(EnvironmentFault, match="worker died"):
        verify(GOOD["a change"], Altered("step", broken), (), ())


def test_every_reason_is_tested():
    tabled = {reason for reason, _, _ in REFUSED}
    apart = {Refusal.HELD_OUT, Refusal.DUPLICATE, Refusal.NONDETERMINISTIC, Refusal.NOT_SOLVED}
    reasons_of_others = {Refusal.MISREAD, Refusal.OVER_QUOTA, Refusal.AGENT, Refusal.NOT_VALIDATED}
    assert tabled | apart | reasons_of_others == set(Refusal)


@pytest.mark.slow
def test_human_references_are_refused_for_no_reason_that_depends_on_documentation_or_types():
    never = {Refusal.UNKNOWN_TOOL, Refusal.BAD_ARGUMENTS, Refusal.CANNOT_OPEN, Refusal.NONDETERMINISTIC}
    never |= {Refusal.UNSTABLE_STATE, Refusal.NOT_SOLVED, Refusal.TRIVIAL_POLICY, Refusal.EMPTY_REFERENCE}
    settings = VerificationSettings(max_calls=20)
    results = [
        verify(with_placeholder_text(task.spec), ENVIRONMENT, (), (), settings)
        for task in load_category("base", ("train",))
    ]
    assert not never & {result.reason for result in results}
    assert sum(result.accepted for result in results) >= 0.8 * len(results)


CYCLE = draft(FILES, ('move "drafts" into itself', [("mv", {"source": "drafts", "destination": "drafts"})]))
UNTRAINABLE: list[tuple[Refusal, TaskSpec]] = [
    (Refusal.EMPTY_REFERENCE, draft(CAR, ("hello", []))),
    (Refusal.EMPTY_REFERENCE, draft(CAR)),
    (Refusal.UNKNOWN_TOOL, draft(CAR, ("fly", [FUEL]), tools=("fly",))),
    (Refusal.CANNOT_OPEN, draft(FILES, ("sort", [SORT]), initial_state={FILES: {"root": {"w": 5}}})),
    (Refusal.CANNOT_OPEN, draft(CAR, ("add 5", [FUEL]), environment="appworld")),
]
"""What stays refused with verification off."""


@pytest.mark.parametrize(("reason", "task"), UNTRAINABLE)
def test_what_nobody_can_be_trained_on_is_refused_without_verification_too(reason: Refusal, task: TaskSpec) -> None:
    result = can_train(task, ENVIRONMENT, (), ())
    assert result.reason is reason
    assert result.detail


PLAYABLE = [
    task
    for reason, _, task in REFUSED
    if reason not in (Refusal.EMPTY_REFERENCE, Refusal.CANNOT_OPEN, Refusal.FOREIGN_TEXT) and "fly" not in task.tools
]


@pytest.mark.parametrize("task", [*GOOD.values(), *PLAYABLE, CYCLE])
def test_without_verification_whatever_can_be_played_and_evaluated_is_accepted(task: TaskSpec) -> None:
    assert can_train(task, ENVIRONMENT, (), ()).accepted
    for calls in (task.reference, ((),) * len(task.reference)):
        assert attempt(ENVIRONMENT, task, calls).success in (True, False)


def test_evaluation_sets_and_duplicates_are_refused_without_verification_too() -> None:
    task = GOOD["a change"]
    assert can_train(task, ENVIRONMENT, {fingerprint(task)}, ()).reason is Refusal.DUPLICATE
    assert can_train(task, ENVIRONMENT, (), {fingerprint(task)}).reason is Refusal.HELD_OUT
    assert can_train(task, ENVIRONMENT, {fingerprint(task)}, {fingerprint(task)}).reason is Refusal.HELD_OUT


def test_of_a_reference_that_fails_only_a_repetition_of_the_failure_succeeds() -> None:
    task = draft(CAR, ("get going", [START]))
    assert verify(task, ENVIRONMENT, (), ()).reason is Refusal.ERROR_RESULT
    assert can_train(task, ENVIRONMENT, (), ()).accepted
    assert attempt(ENVIRONMENT, task, task.reference).success
    assert not attempt(ENVIRONMENT, task, GOOD["a documented precondition"].reference).success
