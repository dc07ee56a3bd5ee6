"""SEAL through whole iterations: a guideline appears, makes the policy do what is asked, and retires.

That a killed run with SEAL equals an undisturbed one is shown by graph/test_kill_matrix.py.

The policy was taught to end its turn at once, and to do what is asked where it reads the token of the guideline for
empty turns. It is so sure of both that no draw matters; that it passes shows that the token was in its prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.killing import command, finish
from support.small_policy import make_guided_policy, small_tasks
from typer.testing import CliRunner

from environments.base import UserTurn
from environments.bfcl.benchmark import BFCLEnvironment
from evaluation.run import app
from graph.report.figures import facts_of
from graph.report.summary import Summary
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_jsonl
from training.embedded.compact import CompactDialogue
from training.rollout.policy import load_policy
from training.seal.diagnosis import TurnLabel
from training.seal.seal import GUIDELINES, InterfaceState, SealStep, guideline

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("preloaded")]

EMPTY = TurnLabel.EMPTY_TURN
TASKS = [task for task in small_tasks() if task.id in ("task-make", "task-read", "task-enter")]
RECIPE = """
seed: 3
iterations: 3
environment: {{options: {{classes: [GorillaFileSystem]}}}}
policy: {{path: {folder}/policy, device: cpu}}
tasks: {{initial: {folder}/tasks.jsonl, evolved_share: 0.0}}
training:
  {{steps: 1, tasks_per_step: 2, rollouts_per_task: 8, learning_rate: 1.0e-6,
   max_new_tokens: 16, max_tokens: 120, max_actions: 3,
   seal: {{weights: {{dynamic: true}}, interface: {{schema_cues: false}}}}}}
signals: {{contexts_per_iteration: 1}}
roles: {{exploration: {{rounds: 1, steps: 3, drafts_per_context: 1}}}}
evaluation: {{set: null}}
"""
"""The thresholds are those of the paper; a step has 16 turns."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Three iterations."""
    folder = tmp_path_factory.mktemp("seal")
    make_guided_policy(folder / "policy", TASKS, EMPTY)
    write_jsonl(folder / "tasks.jsonl", TASKS)
    recipe, log = folder / "recipe.yaml", folder / "log"
    recipe.write_text(RECIPE.format(folder=folder))
    assert finish(command(folder / "run", recipe), log) == 0, log.read_text()
    return SimpleNamespace(folder=folder, run=folder / "run")


def steps(root: Path, iteration: int) -> list[SealStep]:
    return read_jsonl(RunDirectory(root).iteration(iteration).seal, SealStep)


def rollouts(root: Path, iteration: int) -> list[Trajectory]:
    return read_jsonl(root / "iterations" / f"{iteration:03d}" / "trajectories.jsonl", Trajectory)


def test_a_guideline_appears_past_its_thresholds_and_retires_once_mastered(runs: SimpleNamespace) -> None:
    found = [steps(runs.run, iteration) for iteration in range(3)]
    assert [[one.step for one in steps] for steps in found] == [[1], [2], [3]]
    assert [steps[0].state.interface for steps in found] == [
        InterfaceState(updates=1, guidelines=(EMPTY,)),
        InterfaceState(updates=2, retired=(EMPTY,)),
        InterfaceState(updates=3, guidelines=(EMPTY,)),
    ]
    profiles = [steps[0].profile for steps in found]
    assert [(profile.of(EMPTY).prevalence, profile.of(TurnLabel.PASS).prevalence) for profile in profiles] == [
        (1.0, 0.0),
        (0.0, 1.0),
        (1.0, 0.0),
    ]
    assert [steps[0].state.rho.updates for steps in found if steps[0].state.rho] == [1, 2, 3]


def test_training_reads_the_cue_in_the_iteration_after_it_appeared_and_no_longer(runs: SimpleNamespace) -> None:
    policy = load_policy(str(runs.folder / "policy"), "cpu")
    vocabulary, environment = policy.tokenizer.get_vocab(), BFCLEnvironment(("GorillaFileSystem",))
    tools = environment.tools(TASKS[0].tools)
    told = {task.id: task.turns[0] for task in TASKS}
    for iteration, cue in enumerate([False, True, False]):
        played = rollouts(runs.run, iteration)
        assert len(played) == 16
        for one in played:
            said = one.turns[0]
            assert (said.text, said.guidelines) == (told[one.task_id], (guideline(EMPTY),) if cue else ())
            turn = UserTurn(index=0, text=said.text, tools=TASKS[0].tools, guidelines=said.guidelines)
            ids = policy.rendering.begin().first(turn, tools)
            assert (vocabulary[f"!{EMPTY} "] in ids) == cue
            assert one.success == cue, "the policy does what is asked exactly where it reads the token"


def test_an_evaluation_reads_no_cue_whatever_the_history(
    runs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy of the round with the cue is scored; its prompts are those of the policy without any history."""
    prompts: list[list[int]] = []
    real = CompactDialogue.first

    def watched(self, turn, tools):
        prompts.append(real(self, turn, tools))
        return prompts[-1]

    monkeypatch.setattr(CompactDialogue, "first", watched)
    options = ["--tasks", str(runs.folder / "tasks.jsonl"), "--max-actions", "3", "--json"]
    for model in (runs.folder / "policy", runs.run / "policy" / "checkpoint-2"):
        done = CliRunner().invoke(app, [*options, "--model", str(model), "--device", "cpu"])
        assert done.exit_code == 0, done.output
        (score,) = json.loads(done.stdout)["scores"]
        assert (score["n"], score["successes"]) == (3, 0), "without its cue the policy does nothing"
    assert len(prompts) == 6
    assert prompts[:3] == prompts[3:]
    vocabulary = load_policy(str(runs.folder / "policy"), "cpu").tokenizer.get_vocab()
    cues = {vocabulary[f"!{label} "] for label in GUIDELINES}
    assert all(cues.isdisjoint(prompt) for prompt in prompts)


def test_summaries_tell_what_was_shown_and_what_it_cost(runs: SimpleNamespace) -> None:
    found = [read_json(runs.run / "iterations" / f"{n:03d}" / "summary.json", Summary).seal for n in range(3)]
    figures = [one.figures for one in found if one is not None]
    assert [one.labels for one in figures] == [{EMPTY: 16}, {TurnLabel.PASS: 16}, {EMPTY: 16}]
    assert [(one.guidelines, one.retired) for one in figures] == [({}, {}), ({EMPTY: 1}, {EMPTY: 1}), ({}, {})]
    for one in found:
        assert one is not None
        assert one.measured.seal > 0.0
    facts = facts_of(read_json(runs.run / "iterations" / "001" / "summary.json", Summary))
    figures = "seal figures"
    empty = str(EMPTY).replace("_", " ")
    for told in ("steps", f"guidelines {empty}", f"retired {empty}"):
        assert facts[f"{figures} {told}"] == "1"
    assert facts[f"{figures} labels pass"] == "16"
    assert float(facts["seal measured seal"]) > 0
