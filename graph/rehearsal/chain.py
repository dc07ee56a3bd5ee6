"""Runs the whole chain of a recipe at toy size: the project's own commands as children, one of them killed and resumed.

Everything is in one temporary folder, which a broken step leaves and a whole rehearsal removes. What was exercised is
read from the records of the run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel

from agents.spending import read_requests
from environments.base import InputError
from environments.command import MISTAKE, NOTHING, say
from environments.registry import find_benchmark, packaged_names
from evaluation.settings import ScoringSettings
from graph.rehearsal.toy import CALLS, OTHER_SOURCES, TAUGHT, WEIGHTS, machine_at_hand, options, toy, weights_left_out
from graph.run.stages import scoring_settings
from graph.settings import RunSettings, load_recipe
from memory.processes import ChildFailure, end_of_log, reason_in, run_child
from memory.records import KINDS, Task
from memory.run import IterationDirectory, PolicyDirectory, RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from memory.run_files import Evolution, ExtractionRecord, RunFile
from training.grpo.record import RoundRecord
from training.rollout.policy import policy_folder
from training.settings import IN_PROCESS

STEP_SECONDS = 1800.0
"""Deadline of one step."""

SERVER_SECONDS = 900.0
"""Deadline of a server's start."""

FEW = 4
"""Tasks that a stand-in learns (ours): so few that a tiny model writes each of their references now and then."""

SHORT_CALLS = 2
"""Calls of such a task at most (ours)."""

SHARED = "0.3"
"""Share of a GPU's memory for a server beside a trainer."""

KILLED = -signal.SIGKILL

CHECK = "the check of the recipe itself, as coevolve check makes it"
KILL = "a kill in the second round, and --resume"

NOT_AT_TOY_SIZE = {
    "memory, lengths and hours of the recipe's own sizes": "sizes are toy ones: coevolve plan counts",
    "a checkpoint inside a round": "one is written every 10 steps, and a round had fewer",
}

Made = TypeVar("Made", bound=BaseModel)
Row = tuple[str, str, str]
"""What, how it was exercised, and the reason where it was not, else ""."""


async def rehearse(recipe: Path, given: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Run the chain of ``recipe`` with the overrides ``given``.

    Returns what was exercised, with how, and what was not, with the reason. Raises InputError for a recipe that is
    wrong, and for a broken step with its cause; its folder is then kept. After a signal it is removed.
    """
    chain = _Chain(recipe, given)
    say(f"rehearsing {recipe} in {chain.folder}, which is kept if a step breaks")
    try:
        await chain.go_through()
    except asyncio.CancelledError:
        shutil.rmtree(chain.folder, ignore_errors=True)
        raise
    shutil.rmtree(chain.folder)
    return chain.done, chain.left_out | NOT_AT_TOY_SIZE


def table(done: Mapping[str, str], left_out: Mapping[str, str]) -> str:
    """Return what was exercised and what was not, a line each."""
    lines = ["exercised", *(f"  {what}: {how}" for what, how in done.items())]
    return "\n".join([*lines, "not exercised", *(f"  {what}: {reason}" for what, reason in left_out.items())])


class _Chain:
    """One rehearsal: the settings to change by dotted key, and what was exercised and left out until now."""

    def __init__(self, recipe: Path, given: Sequence[str]) -> None:
        self.recipe, self.given = recipe, list(given)
        self.stated = load_recipe(recipe, given)
        self.machine = machine_at_hand(self.stated)
        self.changes, self.left_out = toy(self.stated, self.machine)
        self.done: dict[str, str] = {}
        self.folder = Path(mkdtemp(prefix="rehearsal-"))
        self.run = RunDirectory(self.folder / "run")
        self.began = time.monotonic()

    @property
    def settings(self) -> RunSettings:
        return load_recipe(self.recipe, [*self.given, *options(self.changes)])

    def row(self, what: str, how: str, reason: str = "") -> None:
        (self.left_out if reason else self.done)[what] = reason or how

    async def go_through(self) -> None:
        await self._optional(CHECK, "passed", "check", "graph.check_recipe", str(self.recipe), *_set(self.given))
        await self._policy()
        if self.stated.tasks.initial is None and self.stated.roles.by_chat() and not self.machine.silent:
            self.left_out["D_0 by the chat model"] = f"{CALLS} requests are kept for contexts"
            if "tasks.initial" not in self.changes:  # few requests may not give one task
                self.changes |= {"tasks.initial": str(await self._short_tasks()), **OTHER_SOURCES}
        async with self._servers():
            await self._loop()
            for what, how, reason in (*self._of_the_run(), *asked_rows(self.run.spending_path, self.settings)):
                self.row(what, how, reason)
            own = None if self.stated.evaluation.set is None else self.stated.environment.name
            for name in packaged_names():
                if name != own and find_benchmark(name).evaluation_sets:
                    await self._scored(name)

    async def _policy(self) -> None:
        """Replace a policy whose weights are not rehearsed by a stand-in, and D_0 by tasks that it has learnt."""
        path = self.stated.policy.path
        if not (why := weights_left_out(self.settings, self.folder)):
            self.done["the policy's weights"] = f"{path}, {self.stated.policy.known_dtype}"
            untaught = not PolicyDirectory(Path(policy_folder(path))).card.is_file()
            if untaught and self.stated.training.expert is not None:  # or no rollout succeeds, and there is no signal
                few = str(await self._short_tasks())
                self.changes |= {"tasks.initial": few, **OTHER_SOURCES, "training.expert.tokens": TAUGHT}
                self.done["tasks that are solved"] = f"D_0 is {FEW} short tasks, which the expert step teaches"
            return
        self.left_out[f"the weights of {path}, in place of a tiny model like it"] = why
        tasks, made = await self._short_tasks(), self.folder / "stand-in"
        how = f"it has learnt the references of {FEW} short tasks, which are D_0"
        words = (str(self.recipe), str(tasks), str(made), *self.given, *options(self.changes))
        await self._optional("tasks that are solved", how, "stand-in", "graph.rehearsal.toy", *words)
        if not (made / WEIGHTS).exists():
            raise self._broken("stand-in")
        self.changes |= {"policy.path": str(made), "tasks.initial": str(tasks), **OTHER_SOURCES}

    async def _short_tasks(self) -> Path:
        """Make tasks by unguided exploration and rules, whatever the recipe's D_0 is, and keep the shortest."""
        ruled, _ = toy(self.stated, self.machine.model_copy(update={"silent": "by rules"}))
        ruled = {"tasks": {}, **{key: value for key, value in ruled.items() if not key.startswith("tasks.")}}
        ruled["roles.exploration.max_reference_calls"] = min(
            SHORT_CALLS, self.stated.roles.exploration.max_reference_calls
        )
        all_of_them, kept = self.folder / "made.jsonl", self.folder / "d0.jsonl"
        out = ("--output", str(all_of_them), "--count", str(4 * FEW))
        await self._step("D_0", "graph.seed_tasks", *self._over(ruled), *out)
        by_length = sorted(read_jsonl(all_of_them, Task), key=lambda task: len(str(task.reference)), reverse=True)
        write_jsonl(kept, [*{str(task.reference): task for task in by_length}.values()][-FEW:])
        return kept

    def _over(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the options that name the recipe and what is set on top of it."""
        return ["--recipe", str(self.recipe), *_set([*self.given, *options(changes)])]

    async def _loop(self) -> None:
        """Run the loop, kill it in its second round, and resume it."""
        command = ("graph.run_iteration", "--run", str(self.run.root), *self._over(self.changes))
        second = self.run.iteration(1)
        killer = asyncio.create_task(_kill_once(second.metrics, command[0]))
        try:
            status = await self._step("loop", *command, accept=(0, NOTHING, KILLED))
        finally:
            killer.cancel()
        if status != KILLED or second.round.exists():
            ended = "the run ended before its second round had a step" if status != KILLED else ""
            self.left_out[KILL] = ended or "the round was over before it was killed"
        if status == KILLED:
            await self._step("resume", *command, "--resume", accept=(0, NOTHING))
        if KILL not in self.left_out:
            first, *_, last = (step.step for step in read_json(second.round, RoundRecord).steps)
            self.done[KILL] = f"SIGKILL after step {first}; from the first round's checkpoint to step {last}"

    def _records(self, file: RunFile, kind: type[Made]) -> list[Made]:
        return [read_json(one, kind) for one in sorted(self.run.iterations_path.glob(f"*/{file.name}"))]

    def _of_the_run(self) -> Iterator[Row]:
        """Yield a row for each part of the loop, by the records of the run."""
        settings = self.settings
        rounds = self._records(IterationDirectory.round, RoundRecord)
        made = self._records(IterationDirectory.evolution, Evolution)
        steps = [step for one in rounds for step in one.steps]
        yield "sampling", f"{settings.sampling.engine}, {sum(step.sampled_tokens for step in steps)} tokens", ""
        if settings.sampling.engine == "vllm_server":
            way = "whole, by a folder" if settings.policy.lora is None else "an adapter, by name"
            tokens = sum(one.measured.engine.tokens for one in rounds if one.measured.engine is not None)
            yield "new weights for vLLM servers", f"{way}; {tokens} tokens sampled by them", ""
        among = f" in {settings.training.processes} processes" if settings.training.launch is not None else ""
        rollouts = sum(step.rollouts for step in steps)
        yield "GRPO", f"{len(rounds)} rounds, {len(steps)} steps, {rollouts} rollouts{among}", ""
        mixed = sum(step.mixed_groups > 0 for step in steps)
        gradients = f"gradients to {max(step.grad_norm or 0 for step in steps):.2g}"
        solved = f"{sum(step.success * step.rollouts for step in steps) / rollouts:.0%} of rollouts succeeded"
        why = "" if mixed else f"all rollouts of each group ended alike, so that advantages were 0; {solved}"
        yield "a success signal", f"groups of both results in {mixed} steps, {solved}, {gradients}", why
        if settings.training.expert is not None:
            learnt = sum(one.expert.references for one in rounds if one.expert is not None)
            yield "expert step", f"{learnt} references", "" if learnt else "no reference was learnt"
        if settings.training.seal is not None:
            yield "SEAL", f"{sum(one.seal is not None for one in rounds)} rounds", ""
        if settings.tasks.uses_evolved:
            grown = rounds[-1].tasks - rounds[0].tasks
            why = "" if grown else "none was admitted before the last round"
            yield "a round on evolved tasks", f"{grown} of them", why
        found = [one.signals for one in self._records(IterationDirectory.extraction, ExtractionRecord)]
        for kind in settings.signals.kinds if settings.signals.contexts == "signals" else ():
            count = sum(one.get(kind, 0) for one in found)
            yield f"signals of {kind}", f"{count}", "" if count else KINDS[kind].absent
        new, drafts = sum(one.new for one in made), sum(one.drafts for one in made)
        yield "reflection, contexts", f"{new} new ones", "" if new else "there was no signal whose context is new"
        admitted = f"{drafts} drafts, {sum(len(one.admitted) for one in made)} admitted"
        why = "" if drafts else "there was no draft" if new else "there was no context"
        yield "exploration, abstraction, verification", admitted, why
        if (scored := settings.evaluation.scored) is not None:
            yield f"scoring on {scored}", f"before and after each of {len(rounds)} rounds", ""

    async def _scored(self, benchmark: str) -> None:
        """Score the last checkpoint on two tasks of a benchmark's first development set."""
        settings = self.settings
        chosen = next(name for name, held_out in find_benchmark(benchmark).evaluation_sets.items() if not held_out)
        own = benchmark == settings.environment.name
        change: dict[str, Any] = {"environment": benchmark, "evaluation_set": (chosen,), "tasks": None, "limit": 2}
        change |= {} if own else {"options": {}, "max_actions": None, "max_tokens": None, "sampling": IN_PROCESS}
        stated = ScoringSettings.model_validate(scoring_settings(settings).model_dump() | change)
        step, file = f"scoring {benchmark}", self.folder / f"{benchmark}.json"
        write_json(file, stated)
        policy = self.run.root / self._records(IterationDirectory.round, RoundRecord)[-1].policy
        words = ("evaluation.run", "--settings", str(file), "--model", str(policy))
        await self._optional(f"{step} on {chosen}", "2 tasks", step, *words, accept=(0,) if own else (0, MISTAKE))

    @asynccontextmanager
    async def _servers(self) -> AsyncIterator[None]:
        """Start the vLLM servers of the recipe, two at most, one without a GPU; end them after the block."""
        settings = self.settings
        if settings.sampling.engine != "vllm_server":
            yield
            return
        trainers = settings.training.processes
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.machine.gpus)))
        free = seen.split(",")[trainers:] or seen.split(",")[:1]
        beside = ["--gpu-memory-utilization", SHARED] if 0 < self.machine.gpus <= trainers else []
        servers: dict[str, asyncio.Task[int]] = {}
        for port, gpu in zip(_free_ports(min(len(settings.sampling.servers) or 1, 2)), free, strict=False):
            words = [str(self.recipe), *self._over(self.changes)[2:], "--port", str(port), *beside]
            env = {"CUDA_VISIBLE_DEVICES": gpu} if self.machine.gpus else {}
            serving = self._step(f"server {len(servers)}", "graph.serve", *words, env=env, deadline=24 * STEP_SECONDS)
            servers[f"http://127.0.0.1:{port}"] = asyncio.create_task(serving)
        try:
            for url, task in servers.items():
                await _wait_healthy(task, url)
            self.changes["sampling.servers"] = [*servers]
            self.done["vLLM servers"] = f"{len(servers)} started by graph.serve"
            yield
        finally:
            for task in servers.values():
                task.cancel()
            await asyncio.gather(*servers.values(), return_exceptions=True)

    async def _optional(
        self, what: str, how: str, step: str, *words: str, accept: Sequence[int] = (0, MISTAKE)
    ) -> None:
        """Run a command whose refusal, where it is accepted, is the reason why ``what`` was not exercised."""
        status = await self._step(step, *words, accept=accept)
        self.row(what, how, self._cause(step) if status else "")

    async def _step(
        self,
        name: str,
        module: str,
        *arguments: str,
        accept: Sequence[int] = (0,),
        env: dict[str, str] | None = None,
        deadline: float = STEP_SECONDS,
    ) -> int:
        """Run a command of the project; return its exit status. Raises InputError with the cause where it breaks."""
        say(f"{time.monotonic() - self.began:5.0f} s  {name}")
        argv = [sys.executable, "-m", module, *arguments]
        try:
            return await run_child(argv, log_path=self._log(name), deadline=deadline, accept=accept, env=env)
        except ChildFailure as failure:
            raise self._broken(name, None if failure.status is not None else "it took too long") from None

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def _cause(self, name: str) -> str:
        return reason_in(self._log(name)) or "it said nothing"

    def _broken(self, name: str, cause: str | None = None) -> InputError:
        cause, end = cause or self._cause(name), end_of_log(self._log(name), 0)
        if end != f"error: {cause}":
            say(end)
        return InputError(f"{self.recipe}: the step '{name}' broke: {cause}: see {self._log(name)}")


def asked_rows(ledger: Path, settings: RunSettings) -> Iterator[Row]:
    """Yield a row for each chat role, by the requests in ``ledger``."""
    requests = read_requests(ledger)
    for role in settings.roles.by_chat():
        own = [one for one in requests if one.role == role]
        answered = sum(one.outcome == "answered" for one in own)
        why = f"no reply could be used: {(own[-1].faults or ('refused',))[-1]}" if own else "nothing came to it"
        tokens = sum(one.measured.prompt_tokens + one.measured.completion_tokens for one in own)
        yield f"chat model: {role}", f"{answered} of {len(own)} answered, {tokens} tokens", "" if answered else why


def _set(values: Sequence[str]) -> list[str]:
    return [word for one in values for word in ("--set", one)]


async def _kill_once(file: Path, module: str) -> None:
    """Kill this process's child that runs ``module`` as soon as there is such a file."""
    while not file.exists():
        await asyncio.sleep(0.01)
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if module in child.cmdline():
                child.kill()


def _free_ports(count: int) -> list[int]:
    """Return free ports of this machine, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


async def _wait_healthy(server: asyncio.Task[int], url: str) -> None:
    """Wait until a server answers. Raises what its process ended with, and InputError after ``SERVER_SECONDS``."""
    from training.rollout.vllm_client import VllmServer

    client, end = VllmServer(url), time.monotonic() + SERVER_SECONDS
    try:
        while not server.done() and time.monotonic() < end:
            with suppress(Exception):
                if await client.healthy():
                    return
            await asyncio.sleep(0.5)
    finally:
        await client.close()
    late = f"did not answer within {SERVER_SECONDS:g} s: see its log"
    raise InputError(f"the vLLM server at {url} {f'ended with status {await server}' if server.done() else late}")
