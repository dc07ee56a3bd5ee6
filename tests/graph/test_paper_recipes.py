"""The shipped recipes of both papers go through two whole iterations at toy size, and what they record is checked.

A recipe is loaded as it ships; only sizes, the policy and the endpoint of the chat roles are overridden. Processes,
environments, templates, trainer, graph and endpoint (over HTTP, with a table of replies) are real. The policies are
tiny models of the recipes' own classes and chat templates whose weights are written by hand (``support.table_policy``):
a random model succeeds at nothing, so that no boundary and no forgetting could be seen. What is shown is that every
part does its work in the recipe's constellation, not that anything is learnt.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from support.commands import run_here
from support.faulty_server import FaultyServer
from support.made_run import CAR, FILES
from support.paper_table import FIGURE_11, NUMBER, OTHERS, car, files, note_program, reply
from support.table_policy import AFTER_TOOLS, ELSE, SILENCE, Table, calls, ending, save_table_policy

import graph.run.stages
from agents.spending import read_requests
from environments.base import MalformedCall, ToolCall
from environments.bfcl.benchmark import BENCHMARK
from environments.bfcl.docs import tool_names
from environments.bfcl.package import CLASSES
from environments.learning_interface.environment import SCHEMA_NOTE
from environments.registry import parse_options
from graph.recipe import load_recipe
from graph.records import Evolution, ExtractionRecord
from graph.report.closing import closing
from graph.report.summary import Summary
from graph.settings import RunSettings
from memory.jsonl import derive_seed
from memory.records import (
    PAPER_SHARES,
    Draft,
    DraftVerification,
    FailureContext,
    Interaction,
    Signal,
    SignalKind,
    StopReason,
    Task,
    Trajectory,
)
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import load_tasks, tasks_at
from training.grpo.record import RoundRecord
from training.grpo.task_sampler import draw_steps
from training.rendering.tool_calls import tool_schema
from training.seal.advantage_weights import first_rho
from training.seal.diagnosis import TurnLabel
from training.seal.interface import GUIDELINES
from training.seal.seal import SealStep
from training.signals import PatternCount

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.long]

KEY = "sk-made-up"
PER_STEP, K = 4, 2
SMALL = (
    "iterations=2",
    "policy.device=cpu",
    "policy.dtype=float32",
    "training.steps=1",
    f"training.tasks_per_step={PER_STEP}",
    f"training.rollouts_per_task={K}",
    "training.max_new_tokens=4",
    "training.micro_batch=2",
    "roles.concurrency=4",
)
# A third of a round on long prompts is the kernel's, which clears the pages of every large tensor anew (glibc).
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": "200000000"}
PAPER_BFCL, PAPER_APPWORLD = "recipes/paper-bfcl.yaml", "recipes/paper-appworld.yaml"
COEVOLVE_SEAL, AS_RELEASED = "recipes/seal-bfcl/coevolve-seal.yaml", "recipes/seal-bfcl/seal-as-released.yaml"
SEAL = "recipes/seal-bfcl/seal.yaml"
EXPLORATION = ("roles.exploration.rounds=2", "roles.exploration.steps=5")

LIMIT = "training.max_episode_steps=11"
SEAL_SIZES = (LIMIT, "signals.contexts_per_iteration=3", *EXPLORATION)

KNOWN_FILES = {calls(*files(number)): 2 for number in (NUMBER, *OTHERS)}
KNOWN_CARS = {calls(*car(number)): 1 for number in OTHERS}
LOOK = calls(ToolCall(name="ls", arguments={}))
STRANGE = calls(ToolCall(name="ls", arguments={}), ToolCall(name="self_destruct", arguments={}))
BROKEN = '<tool_call>\n{"name": "mkdir", "arguments": {"dir_name"\n</tool_call>'


@pytest.fixture(scope="module")
def table() -> Iterator[FaultyServer]:
    with FaultyServer(reply) as server:
        yield server


def documentation() -> list[str]:
    """Texts for the policies' tokenizers, so that prompts have about as many tokens as those of a real model."""
    tools = BENCHMARK.open(parse_options(BENCHMARK, {})).tools(tool_names(CLASSES))
    return [json.dumps(tool_schema(tool)) for tool in tools]


def evolve(folder: Path, recipe: str, template: str, says: Table, server: FaultyServer, *options: str) -> Any:
    """Both iterations by the command; rounds of training are processes whose first prompts are written down."""
    policy = save_table_policy(folder / "policy", template, says, documentation())
    chat = load_recipe(ROOT / recipe).roles.by_chat()
    given = [*SMALL, f"policy.path={policy}", *options, *(f"roles.{role}.base_url={server.url}" for role in chat)]
    if not chat:
        given.remove("roles.concurrency=4")
    arguments = ["--recipe", recipe, "--run", str(folder / "run"), "--json"]
    asked, prompts = len(server.requests), folder / "prompts.jsonl"
    real = graph.run.stages.run_child

    async def watched(argv: Sequence[str], **more: Any) -> int:
        if argv[2] == "training.run_round":
            argv = [sys.executable, "-m", "support.watched_round", str(prompts), *argv[3:]]
            more["env"] = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **KEEPS_MEMORY}
        return await real(argv, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph.run.stages, "run_child", watched)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("DASHSCOPE_API_KEY", KEY)
        patch.setenv("COEVOLVE_KEYS", f"{server.url}=DASHSCOPE_API_KEY")
        done = run_here("graph.run_iteration", *arguments, *(word for one in given for word in ("--set", one)))
    assert done.returncode == 0, done.stderr
    run = RunDirectory.open(folder / "run")
    return SimpleNamespace(
        run=run,
        settings=load_recipe(run.settings_path),
        shipped=load_recipe(ROOT / recipe),
        summaries=[Summary.model_validate_json(line) for line in done.stdout.splitlines()],
        prompts=[json.loads(line) for line in prompts.read_text().splitlines()],
        requests=server.requests[asked:],
    )


@pytest.fixture(scope="module")
def paper_bfcl(table: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """CoEvolve on BFCL: D_0 by the chat explorer, a context for every signal."""
    says = {
        ELSE: {**KNOWN_FILES, calls(*files(NUMBER)): 5, SILENCE: 1, BROKEN: 1, STRANGE: 2},
        AFTER_TOOLS: {SILENCE: 1, LOOK: 1},
    }
    sizes = ("tasks.initial_count=4", "training.max_episode_steps=3", *EXPLORATION)
    return evolve(tmp_path_factory.mktemp("bfcl"), PAPER_BFCL, "qwen3_instruct_2507", says, table, *sizes)


@pytest.fixture(scope="module")
def paper_appworld(installation: object, table: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """CoEvolve on AppWorld's engine; messages are blocks of Python."""
    programs = {f"```python\n{note_program(number)}\n```": 2 for number in (NUMBER, *OTHERS)}
    says = {
        ELSE: {**programs, "```python\nprint(len(apis.supervisor.show_account_passwords()))\n```": 1, SILENCE: 2},
        AFTER_TOOLS: {SILENCE: 1},
    }
    sizes = ["tasks.initial_count=2", "training.tasks_per_step=2", "signals.contexts_per_iteration=2"]
    sizes += ["roles.exploration.rounds=1", "roles.exploration.steps=3", "evaluation.limit=1"]
    return evolve(tmp_path_factory.mktemp("appworld"), PAPER_APPWORLD, "qwen3_instruct_2507", says, table, *sizes)


@pytest.fixture(scope="module")
def coevolve_seal(table: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """CoEvolve and SEAL together: official tasks as D_0, evolved ones drawn from the second iteration on."""
    return evolve(tmp_path_factory.mktemp("both"), COEVOLVE_SEAL, "qwen2_5", knows(COEVOLVE_SEAL), table, *SEAL_SIZES)


@pytest.fixture(scope="module")
def as_released(table: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """SEAL's main run: a rho that moves, the static annotation of schemas, scripted roles."""
    given = (AS_RELEASED, "qwen2_5", knows(AS_RELEASED), table, LIMIT)
    return evolve(tmp_path_factory.mktemp("released"), *given)


@pytest.fixture(scope="module")
def seal(table: FaultyServer, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """SEAL by the paper's text: a fixed rho, an interface that follows the failure profile, scripted roles."""
    return evolve(tmp_path_factory.mktemp("seal"), SEAL, "qwen2_5", knows(SEAL), table, LIMIT)


def knows(recipe: str) -> Table:
    """A table with the references of official tasks that the first step draws, said turn by turn.

    Those of two classes: their failures can be explored by the endpoint's table, too.
    """
    says: dict[str, dict[str, float]] = {
        ELSE: {**KNOWN_FILES, **KNOWN_CARS, LOOK: 1, SILENCE: 2, BROKEN: 1, STRANGE: 1},
        AFTER_TOOLS: {SILENCE: 9, LOOK: 1},
    }
    known = [task for task in first_draw(load_recipe(ROOT / recipe)) if {FILES, CAR} & set(task.classes)]
    assert 0 < len(known) < PER_STEP
    for task in known:
        for text, reference in zip(task.turns, task.reference, strict=True):
            messages = says.setdefault(ending(text), {SILENCE: 1})  # of tools that were added, all tasks say the same
            if reference:
                messages[calls(*reference)] = 6
    return says


def first_draw(shipped: RunSettings) -> tuple[Task, ...]:
    found = BENCHMARK.official_tasks(parse_options(BENCHMARK, shipped.environment.options))
    assert found is not None
    tasks = [Task(id=one.id, origin="official", **dict(one.spec)) for one in found.tasks]
    assert len(tasks) == 180
    seed = derive_seed(shipped.seed, 0, "draw")
    return draw_steps(tasks, 1, PER_STEP, shipped.tasks.evolved_share, seed)[0]


RUNS = ("paper_bfcl", "paper_appworld", "coevolve_seal", "as_released", "seal")
SCRIPTED = ("as_released", "seal")


@pytest.fixture(params=RUNS)
def made(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each of the runs in turn; AppWorld's is left out where its engine is not installed."""
    return request.getfixturevalue(request.param)


OVERRIDDEN = {
    "iterations",
    *("policy.path", "policy.device", "policy.dtype"),
    *(f"training.{key}" for key in ("steps", "tasks_per_step", "rollouts_per_task", "max_new_tokens", "micro_batch")),
    "training.max_episode_steps",
    "signals.contexts_per_iteration",
    "tasks.initial_count",
    "evaluation.limit",
    *("roles.exploration.rounds", "roles.exploration.steps", "roles.concurrency"),
    *(f"roles.{role}.base_url" for role in ("reflector", "explorer", "abstractor")),
}


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a tree of settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def rollouts(made: SimpleNamespace, iteration: int) -> list[Trajectory]:
    return read_jsonl(made.run.iteration(iteration).trajectories, Trajectory)


def test_nothing_but_sizes_and_places_differs_from_the_shipped_recipe(made: SimpleNamespace) -> None:
    shipped, used = (leaves(one.model_dump(mode="json")) for one in (made.shipped, made.settings))
    assert {key for key in shipped.keys() | used.keys() if shipped.get(key) != used.get(key)} <= OVERRIDDEN


def test_both_rounds_are_recorded_and_the_second_goes_on_from_the_first(made: SimpleNamespace) -> None:
    training = made.settings.training
    for iteration in (0, 1):
        record = read_json(made.run.iteration(iteration).round, RoundRecord)
        (step,) = record.steps
        assert (record.policy, step.step) == (f"policy/checkpoint-{iteration + 1}", iteration + 1)
        assert step.rollouts == len(rollouts(made, iteration)) == training.tasks_per_step * K
        assert step.infrastructure_errors == 0
        assert step.loss is not None
        assert step.kl is not None
        assert step.kl < 0.01
        assert (step.clipped is None) == (training.updates_per_step == 1), "the clip acts from the second update on"
        assert sum(record.stop_reasons.values()) == sum(len(one.turns) for one in rollouts(made, iteration))
    import torch
    from safetensors.torch import load_file

    weights = []
    for number in (1, 2):
        folder = made.run.root / f"policy/checkpoint-{number}"
        optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
        assert {int(entry["step"]) for entry in optimizer["state"].values()} == {number * training.updates_per_step}
        (file,) = folder.glob("*model.safetensors")
        assert file.name.startswith("adapter") == (made.settings.policy.lora is not None)
        weights.append(load_file(file))
    first, second = weights
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_there_is_something_to_learn_from(made: SimpleNamespace) -> None:
    """The policy's table gives successes and failures of one task in the first step: there is an advantage."""
    record = read_json(made.run.iteration(0).round, RoundRecord)
    assert 0.0 < record.success < 1.0
    assert record.mixed_groups > 0.0
    assert record.steps[0].grad_norm


def test_signals_are_those_of_the_definition_and_patterns_those_that_were_called(made: SimpleNamespace) -> None:
    marked = 0
    for iteration in (0, 1):
        folder = made.run.iteration(iteration)
        played = rollouts(made, iteration)
        signals = read_jsonl(folder.signals, Signal)
        groups: dict[str, list[Trajectory]] = {}
        for one in played:
            groups.setdefault(one.task_id, []).append(one)
        mixed = {one.id for own in groups.values() if len({one.success for one in own}) == 2 for one in own}
        assert {one.trajectory_id for one in signals if one.kind is SignalKind.BOUNDARY} == mixed
        solved = {one.task_id for one in rollouts(made, 0) if one.success} if iteration else set()
        forgotten = {one.id for one in played if one.task_id in solved and not one.success}
        assert {one.trajectory_id for one in signals if one.kind is SignalKind.FORGETTING} == forgotten
        assert not [one for one in signals if one.kind is SignalKind.RARE], "fewer patterns than rare_min_patterns"
        found = Counter(
            tuple(
                sorted(
                    {
                        call.name
                        for turn in one.turns
                        for step in turn.steps
                        if not step.observation.failed
                        for call in step.observation.calls
                    }
                )
            )
            for one in played
        )
        patterns = read_jsonl(folder.patterns, PatternCount)
        assert {one.pattern: one.count for one in patterns} == {key: n for key, n in found.items() if key}
        extraction = read_json(folder.extraction, ExtractionRecord)
        assert extraction.marked == len({one.trajectory_id for one in signals})
        limit = made.settings.signals.contexts_per_iteration
        assert set(extraction.chosen) <= {one.id for one in signals}
        if limit is None:
            assert len(extraction.chosen) == len(signals)
        else:
            assert len(extraction.chosen) <= limit
        assert Counter(made.summaries[iteration].signals) == Counter(one.kind for one in signals)
        marked += len(signals)
    assert marked


@pytest.mark.parametrize("name", [name for name in RUNS if name not in SCRIPTED])
def test_what_the_model_reflected_explored_and_drafted_is_recorded_and_verified(
    name: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(name)
    least = made.settings.roles.exploration.min_reference_calls
    for iteration in (0, 1):
        folder, summary = made.run.iteration(iteration), made.summaries[iteration]
        contexts = read_jsonl(folder.contexts, FailureContext)
        assert {one.signal_id for one in contexts} == set(read_json(folder.extraction, ExtractionRecord).chosen)
        for one in contexts:
            kept = {name: getattr(one, "why" if name == "failure_cause" else name) for name in FIGURE_11}
            assert kept == {name: tuple(v) if isinstance(v, list) else v for name, v in FIGURE_11.items()}
        explored = {one.context_id for one in read_jsonl(folder.interactions, Interaction)}
        assert len(explored) <= summary.contexts.new
        drafts = read_jsonl(folder.drafts, Draft)
        assert all(sum(map(len, one.reference)) >= max(least, 3) for one in drafts)
        verifications = read_jsonl(folder.verdicts, DraftVerification)
        assert {one.draft_id for one in verifications} == {one.id for one in drafts}
        evolution = read_json(folder.evolution, Evolution)
        assert Counter(one.reason for one in verifications if not one.accepted) == evolution.refused == summary.refused
        assert len(evolution.admitted) == summary.admitted == sum(one.accepted for one in verifications)
        grown = {one.id for one in tasks_at(load_tasks(made.run), iteration + 1)}
        assert grown == {one.id for one in tasks_at(load_tasks(made.run), iteration)} | set(evolution.admitted)
        assert not summary.failed
    assert sum(one.admitted for one in made.summaries) > 0
    refused = Counter[str]()
    for summary in made.summaries:
        refused.update(summary.refused)
    assert refused["ungrounded_argument"] > 0


def test_every_request_is_paid_by_the_roles_key_and_counted_by_stage(made: SimpleNamespace) -> None:
    if not made.settings.roles.by_chat():
        assert not made.requests
        assert not made.run.spending_path.exists()
        return
    ledger = read_requests(made.run.spending_path)
    assert {KEY in one.authorization for one in made.requests} == {True}
    assert {one.body["model"] for one in made.requests} == {"qwen3-max"}
    assert sum(one.measured.calls for one in ledger) == len(made.requests)
    seed = {None} if made.settings.tasks.initial is None else set()
    asking = {one.iteration for one in made.summaries if any(one.signals.values())}
    assert {one.iteration for one in ledger} == asking | seed
    assert sum(one.cost.model_calls for one in made.summaries) == len(made.requests)
    stages = {"reflect", "explore", "abstract"} | ({"seed"} if seed else set())
    assert made.summaries[0].cost.stages.keys() == stages


def test_shares_of_signals_are_printed_beside_the_papers_figure_4(made: SimpleNamespace) -> None:
    printed = " ".join(closing(made.run, made.settings, made.summaries).split())
    for shares in PAPER_SHARES:
        assert " / ".join(f"{share:.0f}" for share in shares) in printed
    assert printed.count("Figure 4") == 1, "once, not in every iteration"


@pytest.mark.parametrize("name", ["paper_bfcl", "paper_appworld"])
def test_d_0_is_the_chat_explorers(name: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(name)
    first = tasks_at(load_tasks(made.run), 0)
    assert len(first) == made.settings.tasks.initial_count
    assert {one.origin for one in first} == {"seed"}
    assert all(sum(map(len, one.reference)) >= 3 for one in first)
    assert read_jsonl(made.run.seed.interactions, Interaction)
    assert {one.role for one in read_requests(made.run.spending_path) if one.iteration is None} == {
        "explorer",
        "abstractor",
    }


@pytest.mark.parametrize("name", ["coevolve_seal", *SCRIPTED])
def test_d_0_is_the_official_tasks(name: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(name)
    assert Counter(one.origin for one in tasks_at(load_tasks(made.run), 0)) == {"official": 180}
    assert {one.task_id for one in rollouts(made, 0)} == {one.id for one in first_draw(made.shipped)}


@pytest.mark.parametrize("name", ["coevolve_seal", *SCRIPTED])
def test_up_to_half_of_the_second_step_is_of_evolved_tasks_and_none_in_seals_own_runs(
    name: str, request: pytest.FixtureRequest
) -> None:
    made, expected = request.getfixturevalue(name), 0
    if name == "coevolve_seal":
        assert made.summaries[0].admitted > 0
        expected = min(PER_STEP // 2, made.summaries[0].admitted)
    origins = {one.id: one.origin for one in load_tasks(made.run)}
    drawn = {one.task_id for one in rollouts(made, 1)}
    assert sum(origins[task] == "evolved" for task in drawn) == expected


def test_the_limit_of_steps_ends_episodes_and_says_so(made: SimpleNamespace) -> None:
    limit = made.settings.training.max_episode_steps
    ended = Counter[StopReason]()
    for one in (*rollouts(made, 0), *rollouts(made, 1)):
        *before, last = one.turns
        assert all(turn.stop_reason is StopReason.END_OF_TURN for turn in before)
        ended[last.stop_reason] += 1
        if last.stop_reason is StopReason.EPISODE_STEPS:
            assert sum(turn.ended for turn in one.turns) < limit
            assert one.outcome is not None
    assert ended[StopReason.END_OF_TURN] > 0
    if limit < 30:
        assert ended[StopReason.EPISODE_STEPS] > 0
    assert set(ended) <= {StopReason.END_OF_TURN, StopReason.EPISODE_STEPS}


def strange_messages(made: SimpleNamespace) -> list[tuple[bool, bool]]:
    """Of each message with a call of a tool that does not exist: whether its good call ran, whether it is malformed."""
    found = []
    for one in (*rollouts(made, 0), *rollouts(made, 1)):
        for turn in one.turns:
            for first, second in zip(turn.steps, turn.steps[1:], strict=False):
                if "self_destruct" in second.action.model_dump_json():
                    found.append((bool(first.observation.calls), isinstance(first.action, MalformedCall)))
    return found


@pytest.mark.parametrize("name", [name for name in RUNS if name != "paper_appworld"])
def test_a_message_with_one_wrong_call_is_refused_whole_in_seals_recipes_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(name)
    strict = made.settings.training.seal is not None
    assert set(strange_messages(made)) == {(not strict, strict)}


def test_prompts_have_seals_cues_where_the_recipe_has_them(made: SimpleNamespace) -> None:
    seal = made.settings.training.seal
    size = made.settings.training.tasks_per_step * K
    assert len(made.prompts) == 2 * size
    shown: tuple[TurnLabel, ...] = ()
    for iteration in (0, 1):
        for prompt in made.prompts[iteration * size : (iteration + 1) * size]:
            assert prompt.endswith("<|im_start|>assistant\n")
            assert (SCHEMA_NOTE in prompt) == ("[required]" in prompt) == (seal is not None)
            assert {label for label, text in GUIDELINES.items() if text in prompt} == set(shown)
        for one in rollouts(made, iteration):
            assert {cue.kind for cue in one.turns[0].guidelines} == set(shown)
        if seal is not None:
            shown = read_jsonl(made.run.iteration(iteration).seal, SealStep)[-1].state.interface.guidelines
    if made.settings.training.seal is not None:
        assert bool(shown) == seal.interface.constraint_cues


@pytest.mark.parametrize("name", ["coevolve_seal", *SCRIPTED])
def test_seals_labels_rho_and_interface_are_recorded_for_each_step(name: str, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(name)
    seal = made.settings.training.seal
    hints = 0
    tasks = {one.id: one for one in load_tasks(made.run)}
    for iteration in (0, 1):
        (step,) = read_jsonl(made.run.iteration(iteration).seal, SealStep)
        played = rollouts(made, iteration)
        assert (step.step, step.profile.trajectories, step.profile.left_out) == (iteration + 1, len(played), 0)
        padded = sum(len(tasks[one.task_id].turns) for one in played)
        assert sum(found.count for found in step.profile.labels.values()) == padded, "each turn of a task has a label"
        assert step.profile.of(TurnLabel.PASS).count > 0 or iteration
        assert step.profile.of(TurnLabel.EMPTY_TURN).count > 0
        assert step.state.rho is not None
        assert step.state.rho.updates == (iteration + 1 if seal.weights.dynamic else 0)
        fixed = first_rho(seal.weights).rho
        assert (bool(step.state.rho.total), step.state.rho.rho == fixed) == (
            seal.weights.dynamic,
            not seal.weights.dynamic,
        )
        assert step.state.interface.updates == iteration + 1
        figures = made.summaries[iteration].seal.figures
        assert figures.labels == {label: found.count for label, found in step.profile.labels.items()}
        hints += step.profile.errors.hinted
    assert bool(hints) == seal.interface.recovery_hints
    assert "SEAL" in made.summaries[0].labels


@pytest.mark.parametrize("name", SCRIPTED)
def test_without_a_chat_role_the_loop_of_seals_runs_admits_nothing_that_is_drawn(
    name: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(name)
    assert all("scripted roles" in one.labels for one in made.summaries)
    assert all(one.contexts.new <= 1 for one in made.summaries)


def test_the_development_set_is_scored_around_each_round_of_appworld(paper_appworld: SimpleNamespace) -> None:
    first, second = (one.evaluation for one in paper_appworld.summaries)
    assert first is not None
    assert second is not None
    assert first.after == second.before
    assert {first.before.n, first.after.n, second.after.n} == {1}
    assert "tgc" in first.after.metrics
