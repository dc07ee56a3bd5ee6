"""What prime-rl's orchestrator does with an environment, without its trainer: load, sample, dispatch to an env server.

Run by the Python of ``.venvs/verifiers``. Where ``COEVOLVE_PRIME_RL`` names its sources (it is not on PyPI; beside them
aiolimiter, msgspec, torch and wandb have to be importable), its own settings read docs/scale.md, and its own sources,
curriculum and dispatcher play; else the iterator and the client that it would call. It waits for a line on stdin after
two draws.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tomllib
import traceback
from collections.abc import AsyncIterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

ANSWERS, sys.stdout = sys.stdout, sys.stderr  # prime-rl logs on stdout
SOURCES = os.environ.get("COEVOLVE_PRIME_RL")
if SOURCES:
    sys.path += [f"{SOURCES}/src", f"{SOURCES}/packages/prime-rl-configs/src"]

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.serve import EnvClient, EnvServer  # noqa: E402
from verifiers.v1.utils.loaders import resolve_env_config  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def documented(url: str, rollouts: int) -> Any:
    """prime-rl's settings, as the page gives them, of the server at ``url`` and groups of ``rollouts``."""
    from prime_rl.configs.orchestrator import OrchestratorConfig

    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    given = tomllib.loads(block.replace("http://127.0.0.1:8770", url))["orchestrator"]
    given["train"]["source"][0]["env"]["taskset"]["refresh"] = 0.0
    return OrchestratorConfig.model_validate(given | {"group_size": rollouts, "batch_size": rollouts})


async def dispatched(config: Any, address: str, clients: Sequence[Any], wait: asyncio.Event) -> AsyncIterator[Any]:
    """Yield the episodes of prime-rl's dispatcher; ``clients`` play the rollouts of a group in turn."""
    from prime_rl.orchestrator.dispatcher import Dispatcher
    from prime_rl.orchestrator.envs import TrainEnvs
    from prime_rl.orchestrator.train_source import TrainSource
    from prime_rl.orchestrator.types import Policy, Progress

    class Pool:
        """In place of inference servers."""

        train_client = eval_client = clients[0]
        model_name = "reference"

    class Waiting(TrainSource):
        drawn = 0

        def next_task(self, *, step: int) -> Any:
            if self.drawn >= 2 and not wait.is_set():
                return None
            self.drawn += 1
            return super().next_task(step=step)

    (source,) = config.train.source
    envs = TrainEnvs([source], {("train", source.resolved_name): address}, policy_pool=Pool())
    await envs.start()
    (env,) = envs
    run, turns = env.run, cycle(clients)
    env.run = lambda **given: run(**{**given, "client": next(turns)})
    dispatcher = Dispatcher(
        train_envs=envs,
        eval_envs=None,
        train_source=Waiting(envs),
        eval_source=None,
        policy_pool=Pool(),
        policy=Policy(model_name="reference"),
        progress=Progress(),
        initial_max_inflight=1,
        max_inflight_ceiling=1,
        tasks_per_minute=None,
        max_off_policy_steps=8,
        run_id="run",
        run_name=None,
    )
    playing = asyncio.create_task(dispatcher.start())
    groups: dict[str, list[Any]] = {}
    try:
        while True:
            episode = await dispatcher.out_q.get()
            groups.setdefault(episode.group.id, []).append(episode)
            if len(group := groups[episode.group.id]) == source.group_size:
                for one in group:
                    await env.algorithm.finalize_episode(one)
                await env.algorithm.finalize_group(group)
            yield episode
    finally:
        playing.cancel()


async def called(config: Any, address: str, clients: Sequence[Any], wait: asyncio.Event) -> AsyncIterator[Any]:
    """Yield the episodes of draws, each played once by each client."""
    taskset = vf.load_taskset(config.taskset)
    assert type(taskset).INFINITE
    client = EnvClient(address)
    await client.wait_for_server_startup(timeout=300)
    for number, task in enumerate(taskset):
        if number == 2:
            await wait.wait()
        runs = [
            client.run(
                task_data=task.data.model_dump(mode="json"),
                client=one,
                model="reference",
                sampling=vf.SamplingConfig(),
            )
            for one in clients
        ]
        for episode in await asyncio.gather(*runs):
            assert (episode.task.key, episode.task.hash) == (task.key, task.hash)
            yield episode


async def main(url: str, endpoints: list[str], draws: int) -> None:
    clients = [vf.EvalClientConfig(base_url=endpoint, api_key_var="NO_KEY") for endpoint in endpoints]
    try:
        await evolved(url, clients, draws)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)  # asyncio would wait for the environment server, which outlives its cancelling


async def evolved(url: str, clients: Sequence[Any], draws: int) -> None:
    if SOURCES:
        config = documented(url, len(clients))
        env, play = config.train.source[0].env, dispatched
    else:
        env = config = resolve_env_config(
            {
                "taskset": {"id": "coevolve_stream", "refresh": 0.0, "task": {"url": url}},
                "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
            }
        )
        play = called
    server, wait = EnvServer(env, address="tcp://127.0.0.1:0"), asyncio.Event()
    serving = asyncio.create_task(server.run())
    number = 0
    async for episode in play(config, server.address, clients, wait):
        number += 1
        (trace,) = episode.traces
        print(
            json.dumps({"task": episode.task.key, "reward": trace.reward, "ok": episode.ok}), file=ANSWERS, flush=True
        )
        if number == 2 * len(clients):
            print(json.dumps("two draws are done"), file=ANSWERS, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            wait.set()
        if number == draws * len(clients):
            break
    serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:-1], int(sys.argv[-1])))
