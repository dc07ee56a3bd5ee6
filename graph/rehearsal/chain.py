"""Runs the whole chain of a recipe at toy size: the project's own commands as children, one of them killed and resumed.

Everything is in one temporary folder, which a broken step leaves and a whole rehearsal removes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil  # type: ignore[import-untyped]

from agents.chat.endpoint import resolve
from agents.spending import read_requests
from environments.base import InputError
from environments.command import FAILURE, MISTAKE, NOTHING
from environments.registry import find_benchmark, packaged_names
from environments.terminal import say
from evaluation.settings import ScoringSettings
from graph.fit import config_of, in_gib
from graph.preflight import check_memory
from graph.recipe import load_recipe
from graph.rehearsal.exercised import NOT_AT_TOY_SIZE, asked_rows, rounds_of, run_rows, unlearnt
from graph.rehearsal.sizes import (
    CALLS,
    COURSES,
    LEARNT_TASKS,
    MOST,
    OTHER_SOURCES,
    SHORT_CALLS,
    Exercise,
    Machine,
    learning,
    options,
    toy,
)
from graph.run.stages import scoring_settings
from graph.serve import VLLM
from graph.settings import RunSettings
from memory.processes import ChildFailure, end_of_log, reason_in, run_child
from memory.records import Task
from memory.run import RunDirectory, read_json, read_jsonl, write_json, write_jsonl
from training.device_memory import device_at_hand
from training.grpo.record import RoundRecord
from training.rollout.policy_path import policy_folder
from training.rollout.settings import IN_PROCESS

STEP_SECONDS = 1800.0
"""Deadline of one step."""

SERVER_SECONDS = 900.0
"""Deadline of a server's start."""

CPU_PARAMETERS = 3e8
"""The largest policy that is rehearsed with its own weights without a GPU: a step takes seconds with it."""

SHARED = "0.3"
"""Share of a GPU's memory for a server beside a trainer."""

KILLED = -signal.SIGKILL

WEIGHTS = "model.safetensors"


def machine_at_hand(settings: RunSettings) -> Machine:
    """Return what a rehearsal finds here; a chat role whose endpoint or key is not there silences all of them."""
    gpus = 0
    if settings.policy.device != "cpu" and device_at_hand("auto") == "cuda":
        import torch

        gpus = torch.cuda.device_count()
    silent = ""
    try:
        for name, role in settings.roles.by_chat().items():
            resolve(role, name)
    except InputError as missing:
        silent = str(missing)
    return Machine(gpus=gpus, vllm=(VLLM / "bin" / "python").exists(), silent=silent)


async def rehearse(recipe: Path, given: Sequence[str]) -> list[Exercise]:
    """Run the chain of ``recipe`` with the overrides ``given``, and return what was exercised and what was not.

    Raises InputError for a recipe that is wrong, and for a broken step with its cause; its folder is then kept. After a
    signal it is removed.
    """
    settings = load_recipe(recipe, given)
    machine = machine_at_hand(settings)
    folder = Path(mkdtemp(prefix="rehearsal-"))
    say(f"rehearsing {recipe} in {folder}, which is kept if a step breaks")
    try:
        rows = await _Rehearsal(recipe, list(given), settings, machine, folder).rows()
    except asyncio.CancelledError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)
    return rows


def table(rows: Sequence[Exercise]) -> str:
    """Return what was exercised and what was not, a line each."""
    lines = []
    for title, some in (
        ("exercised", [(row.what, row.how) for row in rows if not row.reason]),
        ("not exercised", [(row.what, row.reason) for row in rows if row.reason]),
    ):
        lines += [title, *(f"  {what}: {words}" for what, words in some)]
    return "\n".join(lines)


class _Rehearsal:
    def __init__(self, recipe: Path, given: list[str], settings: RunSettings, machine: Machine, folder: Path) -> None:
        self.recipe, self.given, self.stated, self.machine, self.folder = recipe, given, settings, machine, folder
        self.began = time.monotonic()
        self.run = RunDirectory(folder / "run")

    async def rows(self) -> list[Exercise]:
        """Go through the chain."""
        changes, left_out = toy(self.stated, self.machine)
        found = [await self._as_it_is(), *await self._policy(changes)]
        if self.stated.tasks.initial is None and self.stated.roles.by_chat() and not self.machine.silent:
            if "tasks.initial" not in changes:
                changes |= {"tasks.initial": await self._first_tasks(changes), **OTHER_SOURCES}
            left_out.append(Exercise(what="D_0 by the chat model", reason=f"{CALLS} requests are kept for contexts"))
        async with self._servers(changes) as addresses:
            if addresses:
                changes |= {"sampling.servers": addresses}
                found.append(Exercise(what="vLLM servers", how=f"{len(addresses)} started by graph.serve"))
            settings = load_recipe(self.recipe, [*self.given, *options(changes)])
            found.append(await self._loop(options(changes)))
            found += [*run_rows(self.run, settings), *await self._asked(changes, settings)]
            found += [await self._scored(name, settings) for name in self._other_sets(settings)]
        return [*found, *left_out, *NOT_AT_TOY_SIZE]

    async def _as_it_is(self) -> Exercise:
        what = "the check of the recipe itself, as coevolve check makes it"
        given = [word for one in self.given for word in ("--set", one)]
        status = await self._step("check", "graph.check_recipe", str(self.recipe), *given, accept=(0, MISTAKE))
        return Exercise(what=what, how="passed", reason=self._cause("check") if status else "")

    async def _policy(self, changes: dict[str, Any]) -> list[Exercise]:
        """Change the policy where its weights are not rehearsed to a stand-in, and D_0 to tasks that it has learnt."""
        settings = load_recipe(self.recipe, [*self.given, *options(changes)])
        path = settings.policy.path
        if not (why := _left_out(settings, self.folder)):
            return [Exercise(what="the policy's weights", how=f"{path}, {settings.policy.dtype}")]
        config, made = self.folder / "config.json", self.folder / "stand-in"
        config.write_text(json.dumps(config_of(settings)))
        await self._step("stand-in", "training.models.stand_in", str(config), policy_folder(path), str(made))
        changes["policy.path"] = str(made)
        changes |= {"tasks.initial": await self._first_tasks(changes, short=True), **OTHER_SOURCES}
        given = learning(settings, changes["tasks.initial"])
        for number, course in enumerate(COURSES):
            out = self.folder / f"taught-{number}"
            words = ("--model", str(made), "--out", str(out), *given, *course)
            if status := await self._step(f"learning {number}", "training.warm_start", *words, accept=(0, MISTAKE)):
                break
            # The weights alone: the prompts of the first course are not the recipe's.
            (out / WEIGHTS).replace(made / WEIGHTS)
        learnt = f"it has learnt the references of {LEARNT_TASKS} short tasks, which are D_0"
        failed = self._cause(f"learning {number}") if status else ""
        return [
            Exercise(what=f"the weights of {path}, in place of a tiny model like it", reason=why),
            Exercise(what="tasks that are solved", how=learnt, reason=failed),
        ]

    async def _first_tasks(self, changes: Mapping[str, Any], *, short: bool = False) -> str:
        """Make D_0 by rules: few requests may not give one task. ``short``: few tasks, of few calls each."""
        ruled, _ = toy(self.stated, self.machine.model_copy(update={"silent": "by rules"}))
        ruled |= {key: changes[key] for key in ("policy.path",) if key in changes}
        made = self.folder / "d0.jsonl"
        if not short:
            await self._explored("D_0", made, ruled, MOST["tasks.initial_count"])
            return str(made)
        calls = min(SHORT_CALLS, self.stated.roles.exploration.max_reference_calls)
        ruled["roles.exploration.max_reference_calls"] = calls
        await self._explored("D_0", made, ruled, 4 * LEARNT_TASKS)
        by_length = sorted(read_jsonl(made, Task), key=lambda task: len(str(task.reference)), reverse=True)
        shortest = [*{str(task.reference): task for task in by_length}.values()][-LEARNT_TASKS:]
        write_jsonl(made.with_stem("d0-short"), shortest)
        return str(made.with_stem("d0-short"))

    async def _explored(
        self, name: str, file: Path, changes: Mapping[str, Any], count: int, accept: Sequence[int] = (0,)
    ) -> None:
        """Make tasks by unguided exploration, whatever the recipe's D_0 is."""
        unguided = {"tasks": {}, **{key: value for key, value in changes.items() if not key.startswith("tasks.")}}
        over = [*self._over(options(unguided)), "--output", str(file), "--count", str(count)]
        await self._step(name, "graph.seed_tasks", *over, accept=accept)

    def _over(self, changes: Sequence[str]) -> list[str]:
        """Return the options that name the recipe and what is set on top of it."""
        return ["--recipe", str(self.recipe), *(word for one in (*self.given, *changes) for word in ("--set", one))]

    async def _loop(self, changes: Sequence[str]) -> Exercise:
        """Run the loop, kill it in its second round, and resume it."""
        command = ("graph.run_iteration", "--run", str(self.run.root), *self._over(changes))
        second = self.run.iteration(1)
        killer = asyncio.create_task(_kill_once(second.metrics, command[0]))
        try:
            status = await self._step("loop", *command, accept=(0, NOTHING, KILLED))
        finally:
            killer.cancel()
        what = "a kill in the second round, and --resume"
        if status != KILLED:
            return Exercise(what=what, reason="the run ended before its second round had a step")
        if second.round.exists():
            return Exercise(what=what, reason="the round was over before it was killed")
        await self._step("resume", *command, "--resume", accept=(0, NOTHING))
        if unlearnt(self.run) and self.stated.tasks.admissions is None:
            more = ("--resume", "--iterations", str(MOST["iterations"] + 1))
            await self._step("further iteration", *command, *more, accept=(0, NOTHING))
        steps = read_json(second.round, RoundRecord).steps
        return Exercise(
            what=what,
            how=f"SIGKILL after step {steps[0].step}; from the first round's checkpoint to step {steps[-1].step}",
        )

    async def _asked(self, changes: dict[str, Any], settings: RunSettings) -> list[Exercise]:
        """Return the rows of the chat roles; where no context came to them they make one task without one."""
        ledger = self.run.spending_path
        if settings.roles.by_chat() and not read_requests(ledger):
            asked = self.folder / "asked.jsonl"
            await self._explored("chat roles", asked, changes, 1, accept=(0, FAILURE, MISTAKE))
            ledger = asked.with_name(f"{asked.name}.{ledger.name}")
            if not any(one.outcome == "answered" for one in read_requests(ledger)):
                raise self._broken("chat roles")
        return list(asked_rows(ledger, settings))

    def _other_sets(self, settings: RunSettings) -> list[str]:
        """Return the benchmarks of which the run scored nothing."""
        own = settings.environment.name if settings.evaluation.set is not None else None
        return [name for name in packaged_names() if name != own and find_benchmark(name).evaluation_sets]

    async def _scored(self, benchmark: str, settings: RunSettings) -> Exercise:
        """Score the last checkpoint on two tasks of a benchmark's first development set."""
        chosen = next(name for name, held_out in find_benchmark(benchmark).evaluation_sets.items() if not held_out)
        own = benchmark == settings.environment.name
        step, what = f"scoring {benchmark}", f"scoring {benchmark} on {chosen}"
        change: dict[str, Any] = {"environment": benchmark, "evaluation_set": (chosen,), "tasks": None, "limit": 2}
        change |= {} if own else {"options": {}, "max_actions": None, "max_tokens": None, "sampling": IN_PROCESS}
        stated = ScoringSettings.model_validate(scoring_settings(settings).model_dump() | change)
        file = self.folder / f"{benchmark}.json"
        write_json(file, stated)
        model = str(self.run.root / rounds_of(self.run)[-1].policy)
        command = ("evaluation.run", "--settings", str(file), "--model", model)
        status = await self._step(step, *command, accept=(0,) if own else (0, MISTAKE))
        return Exercise(what=what, how="2 tasks", reason=self._cause(step) if status else "")

    @asynccontextmanager
    async def _servers(self, changes: dict[str, Any]) -> AsyncIterator[list[str]]:
        """Start the vLLM servers of the recipe, two at most, one without a GPU; end them after the block."""
        settings = load_recipe(self.recipe, [*self.given, *options(changes)])
        if settings.sampling.engine != "vllm_server":
            yield []
            return
        trainers = settings.training.processes
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(self.machine.gpus)))
        free = seen.split(",")[trainers:] or seen.split(",")[:1]
        wanted = min(len(settings.sampling.servers) or 1, len(free), 2)
        tasks, urls = [], []
        for number, port in enumerate(_free_ports(wanted)):
            options_of = ["--gpu-memory-utilization", SHARED] if 0 < self.machine.gpus <= trainers else []
            over = self._over(options(changes))[2:]
            command = ["graph.serve", str(self.recipe), *over, "--port", str(port), *options_of]
            env = {"CUDA_VISIBLE_DEVICES": free[number]} if self.machine.gpus else {}
            serving = self._step(f"server {number}", *command, env=env, deadline=24 * STEP_SECONDS)
            tasks.append(asyncio.create_task(serving))
            urls.append(f"http://127.0.0.1:{port}")
        try:
            for task, url in zip(tasks, urls, strict=True):
                await _wait_healthy(task, url)
            yield urls
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        say(end_of_log(self._log(name), 0))
        return InputError(
            f"{self.recipe}: the step '{name}' broke: {cause or self._cause(name)}: see {self._log(name)}"
        )


def _left_out(settings: RunSettings, folder: Path) -> str:
    """Return why the policy's own weights are not rehearsed here, "" where they are."""
    place = Path(policy_folder(settings.policy.path))
    if not place.is_dir():
        from huggingface_hub import try_to_load_from_cache

        cached = (
            try_to_load_from_cache(str(place), name) for name in ("model.safetensors", "model.safetensors.index.json")
        )
        kept = next((one for one in cached if isinstance(one, str)), None)
        if kept is None:
            return "they are not in the hub's cache (hf download)"
        place = Path(kept).parent
    weights = [file.stat().st_size for file in place.glob("*.safetensors")]
    if not weights:
        return f"there are none in {place}"
    stated = config_of(settings)
    width = 4 if (stated.get("dtype") or stated.get("torch_dtype")) == "float32" else 2
    parameters = sum(weights) / width
    device = device_at_hand(settings.policy.device)
    if device == "cpu" and parameters > CPU_PARAMETERS:
        return f"without a GPU it takes more than minutes with {parameters / 1e9:.1f} billion parameters"
    # Two checkpoints with Adam's state, and the weights for servers.
    needed = 0 if settings.policy.lora is not None else parameters * 28
    if needed > (free := shutil.disk_usage(folder).free):
        return f"checkpoints take {in_gib(needed)} GiB and {folder.parent} has {in_gib(free)} (TMPDIR names another)"
    try:
        check_memory(settings)
    except InputError as refused:
        return str(refused)
    return ""


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
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def _wait_healthy(server: asyncio.Task[int], url: str) -> None:
    """Wait until a server answers. Raises what its process ended with, and InputError after ``SERVER_SECONDS``."""
    from training.rollout.vllm_client import VllmServer

    client = VllmServer(url)
    end = time.monotonic() + SERVER_SECONDS
    try:
        while True:
            if server.done():
                raise InputError(f"the vLLM server at {url} ended with status {await server}")
            with suppress(Exception):
                if await client.healthy():
                    return
            if time.monotonic() > end:
                raise InputError(f"the vLLM server at {url} did not answer within {SERVER_SECONDS:g} s: see its log")
            await asyncio.sleep(0.5)
    finally:
        await client.close()
