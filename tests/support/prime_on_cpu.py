"""What prime-rl's orchestrator does with an environment, without its trainer: load, sample, dispatch to an env server.

Run by the Python of ``.venvs/verifiers``. prime-rl's own curriculum draws where ``COEVOLVE_PRIME_RL`` names its sources
(it is not on PyPI), else the iterator that it would call. It waits for a line on stdin after two draws.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

SOURCES = os.environ.get("COEVOLVE_PRIME_RL")
if SOURCES:
    sys.path += [f"{SOURCES}/src", f"{SOURCES}/packages/prime-rl-configs/src"]

import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.serve import EnvClient, EnvServer  # noqa: E402
from verifiers.v1.utils.loaders import resolve_env_config  # noqa: E402


async def main(url: str, endpoints: list[str], draws: int) -> None:
    config = resolve_env_config(
        {
            "taskset": {"id": "coevolve_stream", "refresh": 0.0, "task": {"url": url}},
            "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
        }
    )
    taskset = vf.load_taskset(config.taskset)
    assert type(taskset).INFINITE
    sampler = iter(taskset)
    if SOURCES:
        from prime_rl.orchestrator.curriculum import Curriculum

        sampler = Curriculum(None, sampler).sampler
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    serving = asyncio.create_task(server.run())
    client = EnvClient(server.address)
    await client.wait_for_server_startup(timeout=300)
    for number in range(draws):
        task = next(sampler)
        runs = [
            client.run(
                task_data=task.data.model_dump(mode="json"),
                client=vf.EvalClientConfig(base_url=endpoint, api_key_var="NO_KEY"),
                model="reference",
                sampling=vf.SamplingConfig(),
            )
            for endpoint in endpoints
        ]
        for episode in await asyncio.gather(*runs):
            assert (episode.task.key, episode.task.hash) == (task.key, task.hash)
            (trace,) = episode.traces
            print(json.dumps({"task": task.key, "reward": trace.reward, "ok": episode.ok}), flush=True)
        if number == 1:
            print(json.dumps("two draws are done"), flush=True)
            await asyncio.to_thread(sys.stdin.readline)
    await client.close()
    serving.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:-1], int(sys.argv[-1])))
