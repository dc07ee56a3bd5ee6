"""Measures an iteration's graph at the scale of a large run: 10,000 tasks, 1,000 contexts, 64 environment hosts.

The graph, its checkpoints, the records and the hosts are real; what thinks is not. An explorer opens an episode at its
context and makes two calls, or none where the scheduler alone is measured; an abstractor makes no draft. The hosts are
64 servers in four processes of this machine, whose cores they share.
"""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from agents.live import live_run
from agents.roles import Abstractor, Explorer
from benchmarks.host_processes import HostProcesses, serving
from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.base import Environment, Observation, ObservationStatus, Outcome, StartState, ToolCall
from environments.hosts.environment import open_for_play
from environments.registry import open_environment
from environments.settings import EnvironmentSettings
from graph.assembly import RunServices, assemble
from graph.recipe import load_recipe
from graph.run.interruption import Interruption
from graph.run.progress import Progress
from graph.run.stages import evolve_once
from memory.jsonl import record_id
from memory.records import Draft, FailureContext, Interaction, Measured, Step, Task, Trajectory, TrajectoryTurn
from memory.run import RunDirectory, read_json, write_json, write_jsonl
from memory.tasks import admit
from training.grpo.record import RoundSeconds, round_record

__all__ = ["measure"]

TASKS = 10_000
CONTEXTS = 1_000
HOSTS = 64
PROCESSES = 4
CAPACITY = 4  # episodes of a host at a time
LEAST = 10.0  # contexts per second that the scheduler goes through, at least
MOST_MEMORY = 1024.0  # megabytes that the graph's process may grow by
LOOKS = (ToolCall(name="list_parcels"), ToolCall(name="open_gate"))
RECIPE = """
environment: {{name: "{environment}"}}
evaluation: {{set: null}}
signals: {{contexts: random, contexts_per_iteration: {contexts}}}
memory: {{deduplicate: false}}
"""
DEPOT = EnvironmentSettings(name="environments.example:depot")


class _Playing(Explorer):
    """Makes ``LOOKS`` at every context."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        return await asyncio.to_thread(_look, context, environment)


def _look(context: FailureContext, environment: Environment) -> tuple[Interaction, ...]:
    with live_run(environment, context, 0, len(LOOKS)) as run:
        return tuple(run.act(call) for call in LOOKS)


class _Idle(Explorer):
    """Records ``LOOKS`` as if they had been made."""

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        return tuple(
            Interaction(
                id=record_id("interaction", context.id, 0, position),
                context_id=context.id,
                run=0,
                position=position,
                action=call,
                observation=Observation(text="", status=ObservationStatus.OK, calls=(call,)),
                changed=False,
                measured=Measured(),
            )
            for position, call in enumerate(LOOKS)
        )


class _Draftless(Abstractor):
    """Makes no draft."""

    async def abstract(
        self, context: FailureContext, interactions: Sequence[Interaction], environment: Environment, seed: int
    ) -> tuple[Draft, ...]:
        return ()


class _Evolved(NamedTuple):
    """Wall and CPU seconds of the graph of one iteration, and the megabytes that its process held at most."""

    wall: float
    cpu: float
    memory: float


def measure(
    repeats: int, tasks: int = TASKS, contexts: int = CONTEXTS, hosts: int = HOSTS, processes: int = PROCESSES
) -> Sequence[Measurement]:
    """Measure one iteration's graph, by the scheduler alone and with an episode per context on ``hosts`` hosts.

    Raises RuntimeError where a branch did not end.
    """
    idle: list[_Evolved] = []
    pairs: list[tuple[_Evolved, _Evolved]] = []
    with tempfile.TemporaryDirectory() as folder, serving(DEPOT, processes, hosts // processes, CAPACITY) as servers:
        there = open_for_play(DEPOT.model_copy(update={"hosts": tuple(servers.urls)}))
        here = open_environment(DEPOT)
        made = _tasks(here, tasks)
        _evolve(Path(folder) / "first", made[:10], min(contexts, 10), here, _Idle())  # imports what a run imports
        before = _memory()
        for repeat in range(repeats):
            root = Path(folder) / str(repeat)
            idle.append(_evolve(root / "idle", made, contexts, here, _Idle()))
            hosted = _evolve(root / "hosts", made, contexts, there, _Playing())
            pairs.append((hosted, _evolve(root / "here", made, contexts, here, _Playing())))
        held = servers.memory()
        opened = _opened(servers)
    return [
        _scheduler(idle, tasks, contexts, before),
        _hosted(pairs, contexts, held, opened),
    ]


def _scheduler(idle: Sequence[_Evolved], tasks: int, contexts: int, before: float) -> Measurement:
    rates = [contexts / one.wall for one in idle]
    grown = idle[0].memory - before
    return Measurement(
        name=f"host-scale: {contexts:,} contexts",
        compared=f"the graph of one iteration, {contexts:,} contexts, {tasks:,} tasks, roles that do nothing",
        ours=median(rates),
        unit="contexts/s",
        spread=(min(rates), max(rates)),
        repeats=len(idle),
        expected=f"at least {LEAST:g} contexts/s, {MOST_MEMORY:,.0f} MB more memory at most",
        met=median(rates) >= LEAST and grown <= MOST_MEMORY,
        note=f"{median(1000 * one.cpu / contexts for one in idle):.1f} CPU ms per context; {grown:.0f} MB more memory",
    )


def _hosted(
    pairs: Sequence[tuple[_Evolved, _Evolved]], contexts: int, held: float, opened: Sequence[int]
) -> Measurement:
    row = of_pairs(
        f"host-scale: {len(opened)} hosts",
        f"the same with an episode of two calls per context, on {len(opened)} hosts / in this process",
        [Pair(contexts / there.wall, contexts / here.wall) for there, here in pairs],
        "contexts/s",
        expected=f"at least {LEAST:g} contexts/s, no host left out",
    )
    note = (
        f"CPU ms per context in the graph's process: {median(1000 * one.cpu / contexts for one, _ in pairs):.1f} / "
        f"{median(1000 * one.cpu / contexts for _, one in pairs):.1f}; "
        f"episodes per host {min(opened)} to {max(opened)}; all hosts hold {held:.0f} MB"
    )
    return row.model_copy(update={"met": row.ours >= LEAST and min(opened) > 0, "note": note})


def _evolve(root: Path, tasks: Sequence[Task], contexts: int, environment: Environment, explorer: Explorer) -> _Evolved:
    """Run the graph of the first iteration on a made round. Raises RuntimeError where a branch did not end."""
    services = _services(root, tasks, contexts, environment, explorer)
    interruption = Interruption()
    began, cpu = time.perf_counter(), time.process_time()
    with services.run.lock(), Progress() as progress, progress.stage("graph") as stage:
        interruption.run(evolve_once(services, 0, stage, interruption))
    evolved = _Evolved(time.perf_counter() - began, time.process_time() - cpu, _memory())
    from graph.records import Evolution

    done = read_json(services.run.iteration(0).evolution, Evolution)
    if done.new != contexts or done.failures:
        raise RuntimeError(f"{done.new} of {contexts} contexts were explored, failures: {done.failures}")
    return evolved


def _services(
    root: Path, tasks: Sequence[Task], contexts: int, environment: Environment, explorer: Explorer
) -> RunServices:
    recipe = root.with_suffix(".yaml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(RECIPE.format(environment=DEPOT.name, contexts=contexts))
    settings = load_recipe(recipe)
    run = RunDirectory.create(root, settings)
    admit(run, tasks)
    made = [_trajectory(task) for task in tasks[:contexts]]
    folder = run.iteration(0)
    write_jsonl(folder.trajectories, made)
    write_json(
        folder.round,
        round_record(iteration=0, policy="made", tasks=len(tasks), trajectories=made, logs={}, measured=RoundSeconds()),
    )
    services = assemble(RunDirectory.open(root.resolve()), settings)
    roles = dataclasses.replace(services.roles, explorer=explorer, abstractor=_Draftless())
    return dataclasses.replace(services, environment=environment, roles=roles)


def _tasks(environment: Environment, count: int) -> list[Task]:
    starts = environment.starts()
    return [_task(starts[number % len(starts)], number) for number in range(count)]


def _task(start: StartState, number: int) -> Task:
    return Task(
        id=record_id("scale", number),
        origin="seed",
        environment=start.environment,
        split=start.split,
        classes=start.classes,
        turns=(f"Look into the depot, request {number}.",),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((LOOKS[0],),),
    )


def _trajectory(task: Task) -> Trajectory:
    seen = Observation(text="[]", status=ObservationStatus.OK, calls=(LOOKS[0],))
    turn = TrajectoryTurn(text=task.turns[0], steps=(Step(action=LOOKS[0], observation=seen),), ended=True)
    return Trajectory(
        id=record_id("trajectory", task.id),
        task_id=task.id,
        iteration=0,
        step=1,
        sample=0,
        turns=(turn,),
        outcome=Outcome(success=False, turns=()),
        reward=0.0,
    )


def _opened(servers: HostProcesses) -> list[int]:
    """Return how many episodes each host has opened."""
    import httpx

    with httpx.Client(trust_env=False) as client:
        return [int(client.get(f"{url}/health").json()["opened"]) for url in servers.urls]


def _memory() -> float:
    """Return the most megabytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
