"""The baseline without a model: what a lookup takes from training tasks, and that they act in the real environment."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from environments.base import EnvironmentFault, InputError, ToolCall, UserTurn
from environments.bfcl.benchmark import BENCHMARK
from environments.example import depot
from environments.registry import open_named
from evaluation.baselines import Clause, Lookup, RankedFunction, clauses, control, known_clauses, play
from evaluation.outcomes import Report, score
from evaluation.run import app
from evaluation.sets import open_set, open_tasks
from evaluation.settings import CONTROLS
from memory.records import Task
from memory.run import write_jsonl


def training(turn: str, *calls: tuple[str, dict], environment: str = "bfcl") -> Task:
    """A training task of one user turn."""
    reference = (tuple({"name": name, "arguments": arguments} for name, arguments in calls),)
    fields = {"environment": environment, "split": "train", "classes": ("C",), "turns": (turn,), "initial_state": {}}
    tools = tuple(name for name, _ in calls)
    return Task(id="t", origin="seed", reference=reference, tools=tools, parents=(), **fields)


def turn(text: str, *tools: str) -> UserTurn:
    return UserTurn(index=0, text=text, tools=tools)


def made(driver, text: str, *tools: str) -> list[tuple[str, dict]]:
    return [(call.name, call.arguments) for call in driver.act(turn(text, *tools))]


def test_a_text_is_cut_at_its_connectives_and_not_inside_values() -> None:
    found = clauses('rename "this and that" to "b", then wait 2.5 hours and wait -3 days')
    assert found == (
        Clause(frozenset({"rename", "to"}), ("this and that", "b")),
        Clause(frozenset({"wait", "hours"}), ("2.5",)),
        Clause(frozenset({"wait", "days"}), ("-3",)),
    )


def test_a_turn_teaches_where_calls_can_be_told_apart() -> None:
    two = training("open it and lock it", ("open", {}), ("lock", {}))
    assert [[call.name for call in known.calls] for known in known_clauses(two)] == [["open"], ["lock"]]
    chain = training("start", ("lock", {}), ("start", {}))
    assert [[call.name for call in known.calls] for known in known_clauses(chain)] == [["lock", "start"]]
    unclear = training("start and drive", ("lock", {}), ("start", {}), ("drive", {}))
    assert list(known_clauses(unclear)) == []


def test_values_are_in_double_or_single_quotes_and_no_apostrophe_is_one() -> None:
    (found,) = clauses("don't move 'a.txt' next to \"it's\" in 2 days, I'd say")
    assert found.values == ("a.txt", "it's", "2")


def test_the_lookup_puts_the_values_into_the_nearest_clauses_calls() -> None:
    known = Lookup(
        [
            training('move "a.txt" into "old"', ("mv", {"source": "a.txt", "destination": "old"})),
            training("fill in 20 gallons", ("fill", {"amount": 20, "full": False})),
            training('show "x" and "y"', ("show", {"messages": ["x"]}), ("show", {"messages": ["y"]})),
        ]
    )
    text = 'move "b and c.md" into "new", after that fill in 7.5 gallons'
    assert made(known, text, "mv", "fill", "show") == [
        ("mv", {"source": "b and c.md", "destination": "new"}),
        ("fill", {"amount": 7.5, "full": False}),
    ]
    assert made(known, 'show "z"', "mv", "show") == [("show", {"messages": ["z"]})]
    assert made(known, "fill in 3 gallons", "mv")[0][0] == "mv", "a tool that is not offered is not called"
    assert made(known, "fill in 3 gallons", "rm") == []


def test_the_lookup_puts_values_into_lists_and_objects() -> None:
    updates = {"ticket_id": 1, "updates": {"title": "a"}}
    driver = Lookup([training('change ticket 1 by title "a"', ("edit_ticket", updates))])
    changed = {"ticket_id": 2, "updates": {"title": "b"}}
    assert made(driver, 'change ticket 2 by title "b"', "edit_ticket") == [("edit_ticket", changed)]


def test_who_knows_the_tasks_solves_them_and_a_note_says_so(tmp_path) -> None:
    items = [item for item in open_set("templated-dev") if item.reference_calls == 1][:6]
    path = tmp_path / "train.jsonl"
    write_jsonl(path, [item.task for item in items])
    environment = open_named("bfcl")
    driver, notes = control("lookup", path, items, environment)
    outcomes = play(items, environment, driver, 20)
    assert score("templated-dev", outcomes).success == 1.0
    assert [one.calls for one in outcomes] == [1] * 6
    assert all(one.sampled_tokens == 0 and one.shape for one in outcomes)
    assert "6 of the 6 tasks are among the training tasks" in notes


def test_an_own_environment_has_its_lookup(tmp_path) -> None:
    """From the command to the outcome, and what a file of other tasks is told."""
    environment = depot(starts=4)
    start = next(one for one in environment.starts() if not one.initial_state["Depot"]["gate_open"])
    text = "open the gate"
    fields = {"turns": (text,), "initial_state": start.initial_state, "classes": start.classes, "tools": start.tools}
    task = training(text, ("open_gate", {}), environment=environment.name).model_copy(update=fields)
    path, other = tmp_path / "train.jsonl", tmp_path / "other.jsonl"
    write_jsonl(path, [task])
    write_jsonl(other, [training("x", ("x", {}))])
    options = ["--environment", "environments.example:depot", "--tasks", str(path), "--model", "lookup", "--json"]
    done = CliRunner().invoke(app, [*options, "--train", str(path)])
    assert done.exit_code == 0, done.output
    assert '"rendering":"none"' in done.stdout
    assert CliRunner().invoke(app, [*options, "--train", str(other)]).exit_code == 2
    options[4:6] = ["--controls"]
    done = CliRunner().invoke(app, [*options, "--train", str(path)])
    reports = [Report.model_validate_json(line) for line in done.stdout.splitlines() if line.startswith("{")]
    solved = {"success": 1.0, "checks_passed": 1.0}
    assert [(one.model, one.scores[0].metrics) for one in reports] == [(name, solved) for name in CONTROLS]
    table = CliRunner().invoke(app, [*options[:-1], "--train", str(path)]).stdout
    assert all(f"│ {name} " in table for name in CONTROLS)
    with pytest.raises(InputError, match="of bfcl"):
        control("lookup", other, open_tasks(path), environment)


def test_an_attempt_that_the_environment_fails_is_no_failure_of_the_baseline() -> None:
    class Broken:
        name = "bfcl"

        def open(self, task: object) -> None:
            raise EnvironmentFault("the worker died")

    (item,) = open_set("templated-dev", 1)
    (found,) = play([item], Broken(), Lookup([]), 20)
    assert (found.success, found.infrastructure_error) == (False, "EnvironmentFault: the worker died")


class ByHand:
    """Makes the reference's calls but for the first one of each attempt, which is of a tool that there is not."""

    def __init__(self, items) -> None:
        tasks = [item.task for item in items]
        self._calls = {text: calls for one in tasks for text, calls in zip(one.turns, one.reference, strict=True)}

    def act(self, turn: UserTurn) -> tuple[ToolCall, ...]:
        calls = self._calls[turn.text]
        return calls if turn.index else (ToolCall(name="no_such_tool"), *calls[1:])


def test_the_calls_of_human_tasks_are_scored_against_their_references() -> None:
    items = open_set("base@dev", 3)
    outcomes = play(items, open_named("bfcl"), ByHand(items), 20)
    found = score("base@dev", outcomes, BENCHMARK.metrics)
    wanted = sum(item.reference_calls for item in items)
    assert found.metrics == {
        "success": 0.0,
        "call_f1": pytest.approx(1 - len(items) / wanted),
        "name_f1": pytest.approx(1 - len(items) / wanted),
        "first_function": 0.0,
    }
    assert outcomes[0].calls == outcomes[0].reference_calls - 1, "a call that was refused did not run"
    assert [name for name, _ in outcomes[0].calls_wanted] == list(outcomes[0].shape)


def test_the_nearest_turn_gives_all_of_its_calls_or_none() -> None:
    known = Lookup(
        [
            training('Open "a.txt", sort it and start over', ("cd", {"folder": "a.txt"}), ("sort", {}), ("ls", {})),
            training("Thanks, that is all"),
            training("start the engine", ("start", {})),
        ],
        whole_turns=True,
    )
    text = 'Please open "b.txt" and sort it'
    assert made(known, text, "cd", "sort", "ls", "start") == [("cd", {"folder": "b.txt"}), ("sort", {}), ("ls", {})]
    assert made(known, text, "cd", "sort", "start") == [("start", {})], "of turns whose tools are all on offer"
    assert made(known, "thanks", "cd", "start") == []
    assert made(Lookup([], whole_turns=True), text, "cd") == []


def test_a_function_is_chosen_by_its_documentation_and_called_as_in_training() -> None:
    environment = open_named("bfcl")
    tools = ("mkdir", "cd", "fillFuelTank", "estimate_distance")
    task = training('put 30 gallons of fuel "x" in', ("fillFuelTank", {"fuelAmount": 30}))
    driver = RankedFunction([task, training("a and b", ("cd", {"folder": "f"}))], environment)
    assert made(driver, "fill the fuel tank of the car with 12.5 gallons", *tools) == [
        ("fillFuelTank", {"fuelAmount": 12.5})
    ]
    text = 'Create a new directory called "new", then estimate the distance between 94016 and 10001'
    assert made(RankedFunction([], environment), text, *tools)[:1] == [("mkdir", {"dir_name": "new"})]
    assert made(driver, "change the directory", *tools) == [("cd", {"folder": "f"})]
    assert made(driver, "anything") == []


def test_a_function_is_chosen_by_the_training_turns_that_ask_for_it() -> None:
    environment, tools = open_named("bfcl"), ("mkdir", "cd", "du")
    said = "Is my cupboard full by now?"
    assert made(RankedFunction([], environment), said, *tools)[0][0] != "du"
    known = training("How full is the cupboard?", ("du", {"human_readable": True}))
    assert made(RankedFunction([known, known], environment), said, *tools) == [("du", {"human_readable": True})]


def test_controls_act_in_the_agents_turns_alone() -> None:
    (item,) = open_set("base@dev", 1)
    task = item.task.model_copy(update={"played": len(item.task.turns) - 1})
    environment, wanted = open_named("bfcl"), len(item.task.reference[-1])
    for driver in (Lookup([task]), Lookup([task], whole_turns=True), RankedFunction([task], environment)):
        (found,) = play([item.model_copy(update={"task": task, "reference_calls": wanted})], environment, driver, 20)
        assert len(found.calls_wanted) == wanted
        assert found.infrastructure_error is None
    (right,) = play(
        [item.model_copy(update={"task": task})], environment, Lookup([task], whole_turns=True), 20, "nearest-turn"
    )
    assert (right.success, right.calls, right.baseline) == (True, wanted, "nearest-turn")
    assert right.calls_made == right.calls_wanted
