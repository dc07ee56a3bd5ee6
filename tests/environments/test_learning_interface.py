"""The learning interface: the contract around two environments, each cue, and guidelines that appear and retire."""

from __future__ import annotations

import ast
import re
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import ROOT
from support.contract import EnvironmentContract

from environments.base import Environment, MalformedCall, ObservationStatus, Parameter, TaskSpec, ToolCall, ToolSpec
from environments.bfcl.docs import all_tools, tool_names
from environments.bfcl.environment import BFCLEnvironment
from environments.example import depot
from environments.learning_interface.cues import (
    GUIDELINES,
    HintKind,
    split_guidelines,
    split_hint,
    with_guidelines,
    with_hint,
)
from environments.learning_interface.environment import LearningInterface
from environments.learning_interface.profile import FAILED, FailureProfile, LabelStatistics, TurnLabel
from environments.learning_interface.schema import with_schema_cues
from environments.learning_interface.settings import InterfaceSettings
from environments.learning_interface.state import InterfaceState, update

CAR, FILES, TRADING = "VehicleControlAPI", "GorillaFileSystem", "TradingBot"
SETTINGS = InterfaceSettings()
L, H = TurnLabel, HintKind
GUIDED = InterfaceState(guidelines=(L.STATE_MISMATCH, L.EMPTY_TURN))


class TestAroundDepot(EnvironmentContract):
    def make(self) -> Environment:
        return LearningInterface(depot(), SETTINGS)


class TestAroundBFCL(EnvironmentContract):
    def make(self) -> Environment:
        return LearningInterface(BFCLEnvironment(), SETTINGS)


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


LIGHTS = call("setHeadlights", mode="on")
BABBLE = MalformedCall(text="open sesame", reason="not a call")


def task_of(*reference, classes=(CAR,), tools=None, withheld=None):
    return TaskSpec(
        environment="bfcl",
        split="train",
        classes=classes,
        turns=tuple(f"turn {number}" for number in range(len(reference))),
        initial_state={},
        tools=tools or tool_names(classes),
        reference=reference,
        withheld=withheld or {},
    )


def played(environment, task, turns):
    """All that an episode tells: what the agent reads first, then what it does not."""
    texts, facts = [], []
    with closing(environment.open(task)) as episode:
        turn = episode.start()
        for actions in turns:
            texts.append(turn.text)
            facts.append((turn.index, turn.tools, episode.state()))
            for action in actions:
                observation = episode.step(action)
                texts.append(observation.text)
                facts.append((observation.status, observation.calls, episode.state(), episode.outcome()))
            turn = episode.end_turn()
        return texts, [*facts, episode.outcome()]


# What the interface leaves alone


def test_only_what_is_read_differs():
    task = task_of((LIGHTS,), (LIGHTS,))
    turns = [[call("setHeadlights"), BABBLE, LIGHTS, call("no_such_tool")], [call("startEngine", ignitionMode="START")]]
    bare = BFCLEnvironment()
    plain_texts, plain_facts = played(bare, task, turns)
    cued_texts, cued_facts = played(LearningInterface(bare, SETTINGS, GUIDED), task, turns)
    assert cued_facts == plain_facts
    stripped = [split_hint(split_guidelines(text)[1])[0] for text in cued_texts]
    assert stripped == plain_texts
    differing = [cued != plain for cued, plain in zip(cued_texts, plain_texts, strict=True)]
    assert differing == [True, True, True, False, True, False, False]


def test_an_evaluation_sees_the_same_bytes_with_and_without_a_history():
    task = task_of((LIGHTS,))
    turns = [[call("setHeadlights"), BABBLE]]

    def prompt(environment):
        return [tool.model_dump_json() for tool in environment.tools(task.tools)], played(environment, task, turns)

    fresh = prompt(BFCLEnvironment())
    trained = BFCLEnvironment()
    inside = LearningInterface(trained, SETTINGS, GUIDED)
    assert prompt(inside) != fresh
    assert prompt(trained) == fresh


def test_evaluation_knows_nothing_of_the_interface():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def users(room):
        paths = (ROOT / room).rglob("*.py")
        names = ("environments.learning_interface.environment", "training.seal.settings")
        return [path.name for path in paths if any(name.startswith(names) for name in imported(path))]

    assert users("environments") == []
    assert users("evaluation") == []
    assert users("training"), "nobody uses it: the test looks for the wrong module"


# Schema cues


def test_schema_cues_say_what_is_required_and_allowed():
    cued, plain = with_schema_cues(all_tools()["setHeadlights"]), all_tools()["setHeadlights"]
    assert (
        cued.parameters[0].description == plain.parameters[0].description + " [required] Allowed values: on, off, auto."
    )
    assert cued.model_copy(update={"parameters": plain.parameters}) == plain
    tool = ToolSpec(
        name="f",
        group="g",
        description="d",
        parameters=(
            Parameter(name="a", type="string", description="any", required=False),
            Parameter(name="b", type="array", description="list", required=True, choices=(1, True, "x", None)),
        ),
    )
    described = [parameter.description for parameter in with_schema_cues(tool).parameters]
    assert described == ["any", "list [required] Allowed values: 1, true, x, null."]


def test_each_cue_has_its_switch():
    task = task_of((LIGHTS,))
    turns = [[call("setHeadlights")]]
    for key in ("schema_cues", "recovery_hints"):
        on = {other: other == key for other in ("schema_cues", "recovery_hints", "constraint_cues")}
        interface = LearningInterface(BFCLEnvironment(), InterfaceSettings(**on))
        described = interface.tools(("setHeadlights",))[0].parameters[0].description.endswith("auto.")
        assert described == (key == "schema_cues")
        (_, answer), _ = played(interface, task, turns)
        assert (split_hint(answer)[1] is not None) == (key == "recovery_hints")


# Recovery hints


@pytest.mark.parametrize(
    ("classes", "action", "kind", "sentence"),
    [
        ([CAR], call("setHeadlights"), H.MISSING_ARGUMENT, "setHeadlights also needs mode."),
        ([CAR], call("lockDoors", unlock=True), H.MISSING_ARGUMENT, "lockDoors also needs door."),
        ([CAR], call("setHeadlights", state="on"), H.UNEXPECTED_ARGUMENT, "setHeadlights takes mode and nothing else."),
        ([FILES], call("pwd", all=True), H.UNEXPECTED_ARGUMENT, "pwd takes no arguments."),
        ([FILES], call("cd", folder="nowhere"), H.BAD_PATH, "look where you are"),
        ([FILES], call("cat", file_name="nothing.txt"), H.BAD_PATH, "look where you are"),
        ([FILES], call("cd", folder="a/b"), H.BAD_PATH, "look where you are"),
        ([TRADING], call("get_account_info"), H.NOT_AUTHENTICATED, "log in first"),
        ([FILES], call("make_dir", dir_name="a"), H.UNKNOWN_TOOL, "the tools are mkdir, rmdir"),
        ([CAR], call("setHeadlights", mode="dim"), H.WRONG_TYPE, "setHeadlights takes mode as string, from on, off"),
        ([CAR], call("fillFuelTank", fuelAmount="much"), H.WRONG_TYPE, "fillFuelTank takes fuelAmount as float."),
        ([FILES], BABBLE, H.MALFORMED, "write one call in the format of the tools, a name and named arguments"),
        ([CAR], call("startEngine", ignitionMode="START"), None, None),
        ([CAR], call("fillFuelTank", fuelAmount=1000.0), None, None),
        ([CAR], LIGHTS, None, None),
    ],
)
def test_hints(classes, action, kind, sentence):
    (_, answer), _ = played(LearningInterface(BFCLEnvironment(), SETTINGS), task_of((), classes=classes), [[action]])
    (_, plain), _ = played(BFCLEnvironment(), task_of((), classes=classes), [[action]])
    assert split_hint(answer) == (plain, kind)
    if kind is not None:
        assert re.fullmatch(rf"\n\[hint: {kind}\] .+", answer.removeprefix(plain))
        assert sentence in answer


def test_every_kind_of_error_has_a_hint_from_a_plain_class_too():
    task = depot().starts()[0]
    spec = TaskSpec(
        environment="depot",
        split="train",
        classes=task.classes,
        turns=("go",),
        initial_state=task.initial_state,
        tools=task.tools,
        reference=((),),
    )
    actions = [
        call("send_vans"),
        call("send_van"),
        call("send_van", van="east"),
        call("send_van", vans="north"),
        BABBLE,
    ]
    texts, _ = played(LearningInterface(depot(), SETTINGS), spec, [actions])
    assert [split_hint(text)[1] for text in texts[1:]] == [
        H.UNKNOWN_TOOL,
        H.MISSING_ARGUMENT,
        H.WRONG_TYPE,
        H.UNEXPECTED_ARGUMENT,
        H.MALFORMED,
    ]


def test_hints_name_no_tool_that_is_withheld():
    task = task_of((), (), tools=("lockDoors", "setHeadlights"), withheld={1: ("setHeadlights",)})
    texts, _ = played(LearningInterface(BFCLEnvironment(), SETTINGS), task, [[BABBLE, call("setHeadlights")], [BABBLE]])
    assert "setHeadlights" not in texts[1]
    assert split_hint(texts[2])[1] is None, "a withheld tool that ran is neither unknown nor explained"
    assert split_hint(texts[4])[1] is H.MALFORMED
    assert "setHeadlights" in texts[4]


def test_many_tools_are_not_all_listed():
    classes = [CAR, FILES, TRADING]
    (_, answer), _ = played(LearningInterface(BFCLEnvironment(), SETTINGS), task_of((), classes=classes), [[BABBLE]])
    assert answer.endswith(" and others.")
    assert sum(name in re.split(r"[ ,.]", answer) for name in tool_names(classes)) == 20


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


@settings(deadline=None)
@given(st.builds(call, st.sampled_from(["setHeadlights", "lockDoors", "?"]) | texts, mode=texts, door=st.lists(texts)))
def test_a_hint_repeats_nothing_that_the_agent_wrote(action):
    words = "\n".join(tool.model_dump_json() for tool in all_tools().values() if tool.group == CAR)
    (_, answer), _ = played(LearningInterface(BFCLEnvironment(), SETTINGS), task_of(()), [[action]])
    plain, kind = split_hint(answer)
    assert kind is not None
    hint = answer.removeprefix(plain)
    assert hint.count("\n") == 1
    own = {"there", "is", "no", "such", "tool", "the", "tools", "are", "and", "others", "takes", "as", "of", "also"}
    own |= {"needs", "nothing", "else", "arguments", "from", "hint", *kind.split("_"), kind, "to", "array", "string"}
    assert {word for word in re.findall(r"\w+", hint) if word not in own and word not in words} == set()


# Guidelines as text


def test_a_guideline_for_each_label_that_blames_the_policy_and_for_no_other():
    assert set(GUIDELINES) == set(FAILED)
    for sentence in GUIDELINES.values():
        assert not re.search(r"[\d\"'`\n]", sentence)


@settings(deadline=None)
@given(texts, st.lists(st.sampled_from([*GUIDELINES]), unique=True), st.sampled_from(HintKind))
def test_cues_can_be_read_back(text, labels, kind):
    assert split_guidelines(with_guidelines(text, labels)) == (tuple(labels), text)
    assert split_hint(with_hint(text, kind, "do it.")) == (text, kind)
    assert with_guidelines(text, ()) == text


def test_a_hint_of_two_lines_is_refused():
    with pytest.raises(ValueError, match="one line"):
        with_hint("x", H.BAD_PATH, "one\ntwo")


def test_guidelines_stand_before_the_first_turn_only():
    interface = LearningInterface(BFCLEnvironment(), SETTINGS, GUIDED)
    (first, second), _ = played(interface, task_of((), ()), [[], []])
    assert split_guidelines(first) == (GUIDED.guidelines, "turn 0")
    assert first.splitlines()[0] == f"[guideline: state_mismatch] {GUIDELINES[L.STATE_MISMATCH]}"
    assert second == "turn 1"


# U(Omega, C)


def profile(turns=100, **labels):
    """``label=(prevalence, mean reward)``; counts are those of ``turns`` turns."""
    return FailureProfile(
        turns=turns,
        labels={
            TurnLabel(name): LabelStatistics(count=round(share * turns), prevalence=share, mean_reward=reward)
            for name, (share, reward) in labels.items()
        },
    )


def after(*profiles, settings=SETTINGS):
    state = InterfaceState()
    for one in profiles:
        state = update(state, one, settings)
    return state


@pytest.mark.parametrize(
    ("turns", "prevalence", "mean_reward", "appears"),
    [
        (100, 0.10, 0.0, True),
        (100, 0.09, 0.0, False),
        (100, 0.5, 0.59, True),
        (100, 0.5, 0.6, False),
        (80, 0.1, 0.0, True),
        (70, 0.1, 0.0, False),
    ],
)
def test_a_guideline_appears_past_all_three_thresholds(turns, prevalence, mean_reward, appears):
    state = after(profile(turns, state_mismatch=(prevalence, mean_reward)))
    assert state.guidelines == ((L.STATE_MISMATCH,) if appears else ())
    assert state.retired == ()


@pytest.mark.parametrize(
    ("later", "stays"),
    [
        (profile(state_mismatch=(0.3, 0.0)), True),
        (profile(state_mismatch=(0.06, 0.0)), True),
        (profile(state_mismatch=(0.3, 0.65)), True),
        (profile(state_mismatch=(0.04, 0.0)), False),
        (profile(state_mismatch=(0.3, 0.7)), False),
        (profile(), False),
        (profile(turns=7), True),
        (FailureProfile(), True),
    ],
)
def test_a_guideline_retires_when_it_is_mastered_and_not_before(later, stays):
    state = after(profile(state_mismatch=(0.3, 0.0)), later)
    assert state.guidelines == ((L.STATE_MISMATCH,) if stays else ())
    assert state.retired == (() if stays else (L.STATE_MISMATCH,))


def test_a_guideline_comes_and_goes_in_what_the_policy_reads():
    bare, task = BFCLEnvironment(), task_of((LIGHTS,))
    interface = LearningInterface(bare, SETTINGS)
    bad, good = profile(empty_turn_model_response=(0.4, 0.0)), profile(empty_turn_model_response=(0.01, 0.0))
    read = []
    for batch in (bad, good, bad):
        read.append(interface.open(task).start().text)
        interface = LearningInterface(bare, SETTINGS, update(interface.state, batch, SETTINGS))
    read.append(interface.open(task).start().text)
    assert [split_guidelines(text)[0] for text in read] == [(), (L.EMPTY_TURN,), (), (L.EMPTY_TURN,)]
    assert interface.state == InterfaceState(updates=3, guidelines=(L.EMPTY_TURN,))


def test_the_most_pressing_are_shown_and_who_gives_way_is_not_retired():
    crowd = profile(
        spurious_tool_call=(0.2, 0.5),
        empty_turn_model_response=(0.2, 0.0),
        state_mismatch=(0.3, 0.0),
        response_mismatch=(0.11, 0.0),
    )
    first = after(profile(spurious_tool_call=(0.2, 0.5)))
    assert first.guidelines == (L.SPURIOUS_TOOL_CALL,)
    second = update(first, crowd, SETTINGS)
    assert second.guidelines == (L.STATE_MISMATCH, L.EMPTY_TURN, L.RESPONSE_MISMATCH)
    assert second.retired == ()
    assert after(crowd, settings=InterfaceSettings(at_most=1)).guidelines == (L.STATE_MISMATCH,)


def test_excluded_and_good_labels_have_no_guideline():
    everything = {label.value: (0.9, 0.0) for label in TurnLabel}
    assert set(after(profile(**everything), settings=InterfaceSettings(at_most=9)).guidelines) == set(FAILED)


def test_without_constraint_cues_nothing_appears():
    off = InterfaceSettings(constraint_cues=False)
    assert after(profile(state_mismatch=(0.9, 0.0)), settings=off) == InterfaceState(updates=1)


shares = st.sampled_from([0.0, 0.04, 0.05, 0.07, 0.1, 0.3, 1.0])
rewards = st.sampled_from([0.0, 0.3, 0.59, 0.6, 0.65, 0.7, 1.0])
profiles = st.dictionaries(st.sampled_from([label.value for label in TurnLabel]), st.tuples(shares, rewards)).map(
    lambda labels: profile(**labels)
)


@settings(deadline=None)
@given(st.lists(profiles, max_size=6))
def test_updates_of_any_history(history):
    states = [after(*history[:end]) for end in range(len(history) + 1)]
    for (before, state), batch in zip(pairwise(states), history, strict=True):
        assert len(state.guidelines) <= SETTINGS.at_most
        assert InterfaceState.model_validate_json(state.model_dump_json()) == state
        again = update(state, batch, SETTINGS)
        assert (again.guidelines, again.retired) == (state.guidelines, state.retired)
        pressures = [batch.of(label).pressure for label in state.guidelines]
        assert pressures == sorted(pressures, reverse=True)
        for label in set(state.guidelines) - set(before.guidelines):
            assert batch.of(label).prevalence >= 0.1
            assert batch.of(label).mean_reward < 0.6


@pytest.mark.parametrize(
    ("given_state", "message"),
    [
        ({"guidelines": ["pass"]}, "the label pass has no guideline"),
        ({"guidelines": ["state_mismatch"], "retired": ["state_mismatch"]}, "given twice"),
    ],
)
def test_states_that_cannot_be_are_refused(given_state, message):
    with pytest.raises(ValidationError, match=message):
        InterfaceState.model_validate(given_state)


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"schema_cues": False, "recovery_hints": False, "constraint_cues": False}, "every cue is off"),
        ({"retire_prevalence": 0.2}, "'retire_prevalence' is above"),
        ({"retire_mean_reward": 0.5}, "'retire_mean_reward' is below"),
        ({"constraint_cues": False, "at_most": 2}, "'at_most' is for constraint cues"),
        ({"schema": True}, "schema"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given_settings, message):
    with pytest.raises(ValidationError, match=message):
        InterfaceSettings.model_validate(given_settings)


def test_tasks_that_cannot_be_opened_are_refused_by_the_environment_inside():
    interface = LearningInterface(BFCLEnvironment(), SETTINGS)
    assert interface.name == "bfcl"
    assert interface.starts() == BFCLEnvironment().starts()
    with closing(interface.open(task_of((LIGHTS,)))) as episode:
        assert episode.start().text == "turn 0"
        assert episode.step(LIGHTS).status is ObservationStatus.OK
