"""The learning interface: the contract around an environment, and each cue."""

from __future__ import annotations

import ast
import re
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import ROOT
from support.contract import EnvironmentContract

from environments.base import (
    Cue,
    Environment,
    MalformedCall,
    Observation,
    ObservationStatus,
    Parameter,
    TaskSpec,
    ToolCall,
    ToolSpec,
    UserTurn,
)
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import all_tools, tool_names
from environments.example import depot
from environments.learning_interface import SCHEMA_NOTE, HintKind, LearningInterface, with_schema_cues

CAR, FILES, TRADING = "VehicleControlAPI", "GorillaFileSystem", "TradingBot"
H = HintKind
GUIDELINES = (Cue(kind="check", text="Check what was changed."), Cue(kind="act", text="Call a tool first."))


def cued(environment, guidelines=()):
    return LearningInterface(environment, schema_cues=True, recovery_hints=True, guidelines=guidelines)


class TestAroundDepot(EnvironmentContract):
    def make(self) -> Environment:
        return cued(depot())


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
    """All that an episode tells: texts, their cues, and what the agent does not read."""
    texts, cues, facts = [], [], []
    with closing(environment.open(task)) as episode:
        turn = episode.start()
        for actions in turns:
            texts.append(turn.text)
            cues.append(turn.guidelines)
            facts.append((turn.index, turn.tools, episode.state()))
            for action in actions:
                observation = episode.step(action)
                texts.append(observation.text)
                cues.append(observation.hint)
                facts.append((observation.status, observation.calls, episode.state(), episode.outcome()))
            turn = episode.end_turn()
        return texts, cues, [*facts, episode.outcome()]


def answered(environment, task, action):
    """The observation of one action in the first turn."""
    with closing(environment.open(task)) as episode:
        episode.start()
        return episode.step(action)


def kind_of(hint):
    return None if hint is None else hint.kind


# What the interface leaves alone


def test_only_what_is_read_differs():
    task = task_of((LIGHTS,), (LIGHTS,))
    turns = [[call("setHeadlights"), BABBLE, LIGHTS, call("no_such_tool")], [call("startEngine", ignitionMode="START")]]
    bare = BFCLEnvironment()
    plain_texts, no_cues, plain_facts = played(bare, task, turns)
    cued_texts, cues, cued_facts = played(cued(bare, GUIDELINES), task, turns)
    assert cued_facts == plain_facts
    assert cued_texts == plain_texts
    assert not any(no_cues)
    assert [bool(cue) for cue in cues] == [True, True, True, False, True, False, False]


@pytest.mark.slow
def test_evaluation_knows_nothing_of_the_interface():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def users(room):
        paths = (ROOT / room).rglob("*.py")
        names = ("environments.learning_interface", "training.seal.seal", "training.seal.seal")
        return [path.name for path in paths if any(name.startswith(names) for name in imported(path))]

    assert not users("environments"), "no module but the interface itself"
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
        interface = LearningInterface(BFCLEnvironment(), **{key: True})
        described = interface.tools(("setHeadlights",))[0].parameters[0].description.endswith("auto.")
        assert described == (key == "schema_cues")
        with closing(interface.open(task)) as episode:
            assert episode.start().advice == (SCHEMA_NOTE if key == "schema_cues" else "")
        _, (guidelines, hint), _ = played(interface, task, turns)
        assert guidelines == ()
        assert (hint is not None) == (key == "recovery_hints")


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
    answer = answered(cued(BFCLEnvironment()), task_of((), classes=classes), action)
    plain = answered(BFCLEnvironment(), task_of((), classes=classes), action)
    assert answer.model_copy(update={"hint": None}) == plain
    assert kind_of(answer.hint) == kind
    if kind is not None:
        assert answer.full_text == f"{plain.text}\n[hint: {kind}] {answer.hint.text}"
        assert sentence in answer.hint.text


def test_hints_name_no_tool_that_is_withheld():
    task = task_of((), (), tools=("lockDoors", "setHeadlights"), withheld={1: ("setHeadlights",)})
    _, cues, _ = played(cued(BFCLEnvironment()), task, [[BABBLE, call("setHeadlights")], [BABBLE]])
    assert "setHeadlights" not in cues[1].text
    assert cues[2] is None, "a withheld tool that ran is neither unknown nor explained"
    assert cues[4].kind == H.MALFORMED
    assert "setHeadlights" in cues[4].text


def test_many_tools_are_not_all_listed():
    classes = [CAR, FILES, TRADING]
    hint = answered(cued(BFCLEnvironment()), task_of((), classes=classes), BABBLE).hint.text
    assert hint.endswith(" and others.")
    assert sum(name in re.split(r"[ ,.]", hint) for name in tool_names(classes)) == 20


texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)


@settings(deadline=None)
@given(st.builds(call, st.sampled_from(["setHeadlights", "lockDoors", "?"]) | texts, mode=texts, door=st.lists(texts)))
def test_a_hint_repeats_nothing_that_the_agent_wrote(action):
    words = "\n".join(tool.model_dump_json() for tool in all_tools().values() if tool.group == CAR)
    hint = answered(cued(BFCLEnvironment()), task_of(()), action).hint
    assert hint is not None
    assert "\n" not in hint.text
    own = {"there", "is", "no", "such", "tool", "the", "tools", "are", "and", "others", "takes", "as", "of", "also"}
    own |= {"needs", "nothing", "else", "arguments", "from", "to", "array", "string"}
    assert {word for word in re.findall(r"\w+", hint.text) if word not in own and word not in words} == set()


# Guidelines and cues as records


def test_guidelines_are_shown_with_the_first_turn_only():
    interface, task = cued(BFCLEnvironment(), GUIDELINES), task_of((), ())
    (first, second), cues, _ = played(interface, task, [[], []])
    assert (first, second) == ("turn 0", "turn 1")
    assert cues == [GUIDELINES, ()]
    with closing(interface.open(task)) as episode:
        assert episode.start().full_text == "[guideline: check] Check what was changed.\n" + (
            "[guideline: act] Call a tool first.\nturn 0"
        )
        second = episode.end_turn()
        assert second is not None
        assert (second.note, second.guidelines, second.advice) == ("", (), "")


@settings(deadline=None)
@given(texts, texts)
def test_what_looks_like_a_cue_stays_text(text, kind):
    """A user or a tool may write what a cue looks like: it is theirs, and no hint or guideline comes of it."""
    said = f"[guideline: state_mismatch] do.\n{text}\n[hint: bad_path] look."
    turn, seen = UserTurn(index=0, text=said, tools=()), Observation(text=said, status=ObservationStatus.ERROR)
    assert (turn.full_text, seen.full_text) == (said, said)
    assert (turn.guidelines, seen.hint) == ((), None)
    assert not {"guidelines", "note"} & turn.model_dump().keys()
    assert "hint" not in seen.model_dump()
    hinted = seen.model_copy(update={"hint": Cue(kind="bad_path", text="look.")})
    assert Observation.model_validate_json(hinted.model_dump_json()) == hinted


def test_a_cue_of_two_lines_is_refused():
    with pytest.raises(ValidationError, match="one line"):
        Cue(kind="bad_path", text="one\ntwo")
