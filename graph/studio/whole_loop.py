"""The loop of a run as a graph: LangGraph Studio starts iterations as the command does, stage by stage.

Each node does one stage of ``graph.run.loop`` on the run that the server holds, and leaves the command's records: a
round and an evaluation start their processes, the graph of an iteration runs on its own thread. A node does the next
thing that the run lacks, whatever the state says, so that a replayed or edited thread changes no finished iteration.

Stages read and write files between their awaits: they work on an event loop in a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypedDict, TypeVar

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from agents.spending import BudgetReached
from environments.base import InputError
from evaluation.outcomes import Score
from graph.checkpoints import thread_id
from graph.digests import Digest, joined, lines, of_update
from graph.iteration import described
from graph.recipe import load_recipe
from graph.records import Evolution
from graph.report.digest import number_words, one_line
from graph.report.summary import Summary
from graph.resumption import refuse_unfinished
from graph.run.interruption import Interruption
from graph.run.loop import check_tasks, end_iteration, train_iteration
from graph.run.progress import Progress
from graph.run.stages import Run, make_tasks, score_after
from graph.run_iteration import open_run
from graph.state import RunContext
from graph.studio.forks import held, named_run
from graph.studio.thread_names import list_iteration, name_thread
from memory.run import RunDirectory, read_json
from memory.tasks import load_tasks
from training.grpo.record import RoundRecord

MOST = 1000
"""Iterations that one call may ask for."""

Done = TypeVar("Done")


class LoopInput(BaseModel):
    """The input of the loop."""

    model_config = ConfigDict(extra="forbid")

    iterations: SkipValidation[Annotated[int, Field(ge=1, le=MOST)]] = Field(
        1, description="iterations to do, from the first one that is not finished; a finished run gets further ones"
    )


class LoopState(BaseModel):
    """A run in progress: what was asked for, the iteration that is worked on, and what each stage did."""

    model_config = ConfigDict(extra="forbid")

    iterations: SkipValidation[int] = Field(1, description="iterations to do")
    digest: Annotated[SkipValidation[Digest], joined] = Field({}, description="what each stage did, in a few lines")
    iteration: SkipValidation[int] = Field(-1, description="iteration that is worked on, from 0")
    until: SkipValidation[int] = Field(-1, description="the first iteration that is not done any more")


class LoopUpdate(TypedDict, total=False):
    """The keys that a stage may write."""

    digest: Digest
    iteration: int
    until: int


LoopGraph = StateGraph[LoopState, RunContext, LoopInput, LoopState]
Stage = Callable[[LoopState, Run], Coroutine[Any, Any, LoopUpdate]]


def loop_graph() -> LoopGraph:
    """Wire the loop: tasks, then for each iteration a round, its evaluation, and the graph of the iteration."""
    graph = LoopGraph(LoopState, context_schema=RunContext, input_schema=LoopInput)
    for stage in (tasks, train, evaluate, evolve):
        graph.add_node(stage.__name__, on_the_run(stage), metadata=described(stage))
    graph.add_edge(START, "tasks")
    graph.add_edge("tasks", "train")
    graph.add_edge("train", "evaluate")
    graph.add_edge("evaluate", "evolve")
    graph.add_conditional_edges("evolve", following, ["train", END])
    return graph


async def tasks(state: LoopState, run: Run) -> LoopUpdate:
    """Make the first tasks of the run (D_0), where it has none, and see which iteration is next."""
    await make_tasks(run)
    first = unfinished(run.directory)
    count = len(load_tasks(run.directory))
    digest = [f"{run.directory.root.name}: {number_words(count, 'task')}", f"next is iteration {first}"]
    return {"iteration": first, "until": first + state.iterations, "digest": {"tasks": lines(digest)}}


async def train(state: LoopState, run: Run) -> LoopUpdate:
    """Train the policy on the tasks with GRPO, in a process of its own; the first policy is scored before."""
    iteration = unfinished(run.directory)
    await train_iteration(run, iteration)
    record = read_json(run.directory.iteration(iteration).round, RoundRecord)
    tasks, success = number_words(record.tasks, "task"), f"{record.success:.0%} of rollouts succeeded"
    digest = f"iteration {iteration}: trained on {tasks}, {success}"
    return {"iteration": iteration, "digest": {"train": lines([digest, f"policy: {record.policy}"])}}


async def evaluate(state: LoopState, run: Run) -> LoopUpdate:
    """Score the trained policy on held-out tasks, in a process of its own."""
    iteration = _trained(run)
    await score_after(run, iteration)
    folder = run.directory.iteration(iteration)
    if not folder.evaluation_after.exists():
        return {"digest": {"evaluate": [f"iteration {iteration}: no tasks are scored (evaluation.set)"]}}
    before, after = (read_json(path, Score) for path in (folder.evaluation_before, folder.evaluation_after))
    digest = (
        f"iteration {iteration}: success {before.success:.3f} before, {after.success:.3f} after, of {after.n} tasks"
    )
    return {"digest": {"evaluate": lines([digest])}}


async def evolve(state: LoopState, run: Run) -> LoopUpdate:
    """Turn weaknesses into tasks: run the graph of the iteration on its own thread, and write the summary."""
    iteration = _trained(run)
    await end_iteration(run, iteration)
    folder = run.directory.iteration(iteration)
    summary, evolution = read_json(folder.summary, Summary), read_json(folder.evolution, Evolution)
    digest = [
        f"iteration {iteration}: its thread is {thread_id(iteration)}",
        *of_update(evolution, ()),
        *summary.warnings,
    ]
    return {"iteration": iteration, "digest": {"evolve": lines(digest)}}


def following(state: LoopState) -> str:
    """Return the next stage after an iteration."""
    asked = isinstance(state.iteration, int) and isinstance(state.until, int)
    return "train" if asked and state.iteration + 1 < state.until else END


def unfinished(run: RunDirectory) -> int:
    """Return the first iteration without a summary."""
    found = 0
    while run.iteration(found).summary.exists():
        found += 1
    return found


def _trained(run: Run) -> int:
    iteration = unfinished(run.directory)
    if not run.directory.iteration(iteration).round.exists():
        raise InputError(
            f"iteration {iteration} has no finished round of training: begin with the node tasks, or train"
        )
    return iteration


def on_the_run(stage: Stage) -> Callable[..., Coroutine[Any, Any, LoopUpdate]]:
    """Return ``stage`` as LangGraph calls it, on the run that the server holds, under its lock.

    Progress goes to the custom stream. Raises InputError for a run that cannot be worked on, and where a budget is
    spent.
    """

    async def resolved(state: LoopState, runtime: Runtime[RunContext]) -> LoopUpdate:
        directory = await asyncio.to_thread(named_run, runtime.context)
        here = contextvars.copy_context()

        def say(line: str) -> None:
            event = {"text": one_line(line), "node": stage.__name__}
            here.copy().run(runtime.stream_writer, event)

        async with held(directory):
            update = await _in_a_thread(lambda: _work(stage, state, directory, say))
        if runtime.server_info is not None and runtime.execution_info is not None:
            if stage is tasks:
                await name_thread(directory, runtime.execution_info.thread_id, "loop", {})
            if stage is evolve:
                await list_iteration(directory, update["iteration"])
        return update

    resolved.__name__ = resolved.__qualname__ = stage.__name__
    return resolved


async def _work(stage: Stage, state: LoopState, directory: RunDirectory, say: Callable[[str], None]) -> LoopUpdate:
    count = state.iterations
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
        raise InputError(f"iterations: {count!r:.80} is not a number of iterations: give one from 1 to {MOST}")
    first = unfinished(directory)
    refuse_unfinished(directory, first)
    # As --iterations does: the number of iterations that the run is made for is raised, never lowered.
    longer = stage is tasks and first + count > load_recipe(directory.settings_path).iterations
    _, settings, resumed = open_run(directory.root, None, [], first + count if longer else None, resume=True)
    if longer:
        directory.save_settings(settings)
    with Progress(say) as progress:
        run = Run(directory, settings, progress, Interruption(), resumed)
        if stage is tasks:
            check_tasks(run)
        try:
            return await stage(state, run)
        except BudgetReached as reached:
            raise InputError(f"{directory.root}: stopped before iteration {first}: {reached}") from None


async def _in_a_thread(work: Callable[[], Coroutine[Any, Any, Done]]) -> Done:
    """Do ``work`` on an event loop in a thread, outside of the calling graph; a cancelled call cancels it there.

    Without the calling graph's context: a graph that ``work`` runs would count as part of it.
    """
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def noted() -> Done:
        task = asyncio.current_task()
        assert task is not None
        begun.append((asyncio.get_running_loop(), task))
        return await work()

    thread = asyncio.ensure_future(asyncio.to_thread(lambda: contextvars.Context().run(asyncio.run, noted())))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not begun and not thread.done():
            await asyncio.sleep(0.01)
        for loop, task in begun:
            loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([thread])
        raise
