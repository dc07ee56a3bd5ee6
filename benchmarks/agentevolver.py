"""Measures AgentEvolver's environment service of BFCL (one Ray actor per episode behind FastAPI) against ours.

Opt-in: the service needs Ray and bfcl_eval with the clients of all its models, which do not fit into this project's
environment. It is in github.com/modelscope/AgentEvolver, whose ``env_service/environments/bfcl/setup.sh`` asks for
conda and clones BFCL. ``benchmarks/agentevolver.md`` was measured without either: in an environment of Python 3.11 with
the ``requirements.txt`` beside ``setup.sh`` but uuid, with soundfile, and with bfcl-eval 2026.3.23 and what it requires
but faiss-cpu and sentence-transformers; from that repository's root, ``DATA`` being the package's ``bfcl_eval/data``::

    cp -r $DATA env_service/environments/bfcl/bfcl_eval
    cd env_service/environments/bfcl
    python -c 'import bfcl_dataprocess as it; it.QwenFCHandler = dict; it.bfcl_task_preprocess(
        ["multi_turn_base"], output_dir="bfcl_data")'
    RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES=268435456 bash ../../launch_script/bfcl.sh

(``bfcl_dataprocess.py`` opens a model's handler, which it does not use, with the arguments of an earlier bfcl_eval.)
``COEVOLVE_AGENTEVOLVER=http://127.0.0.1:8080`` then names the service. What is sent follows the public client and test
script of that repository: a message of the turn's calls, then one without a call that ends the turn, until the episode
is over, then the evaluation.

Both play the same references of official tasks, one episode at a time. The note says how many episodes the service
evaluates as wrong: it drops turns without a call, so the two of the 180 base references that have one fail there.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from statistics import median
from typing import Any

import httpx

from benchmarks.environment_hosts import MAX_STEPS, replay
from benchmarks.host_processes import serving
from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.base import Environment, InputError, TaskSpec, ToolCall
from environments.bfcl.official import CategoryTask, load_category
from environments.hosts.environment import open_for_play
from environments.registry import open_environment
from environments.settings import EnvironmentSettings

__all__ = ["measure"]

SERVICE = "COEVOLVE_AGENTEVOLVER"
TASKS = 5  # an episode of the service takes seconds
ANSWER = 300.0  # seconds for one answer of the service
MESSAGES = 200  # that end an episode at the latest


def measure(repeats: int, limit: int = TASKS) -> Sequence[Measurement]:
    """Measure episodes per second of the service, of one host of ours, and of this process.

    Raises InputError where no service is named or it does not answer, RuntimeError where it answers with an error.
    """
    service = _Service(_named())
    tasks = [one for one in load_category("base") if service.has(one)][:limit]
    if not tasks:
        raise InputError(f"{SERVICE}: the service has none of the official tasks: start it with BFCL's multi_turn_base")
    specs = [one.spec for one in tasks]
    chosen = EnvironmentSettings(options={"max_steps": MAX_STEPS})
    here = open_environment(chosen)
    with serving(chosen, 1) as hosts:
        there = open_for_play(chosen.model_copy(update={"hosts": tuple(hosts.urls)}))
        theirs, served, local = [], [], []
        for _ in range(repeats):
            theirs.append(service.rate(tasks))
            served.append(_rate(there, specs))
            local.append(_rate(here, specs))
    opening, playing = median(service.opening), median(service.playing)
    note = (
        f"the service evaluates {service.wrong} of {len(service.playing)} episodes as wrong, ours none; its median "
        f"episode takes {opening:.2f} s to open (a new process imports bfcl_eval), {playing:.2f} s to play and evaluate"
    )
    compared = f"references of {len(tasks)} official tasks, one at a time"
    return [
        of_pairs(
            f"agentevolver: {what}", f"{compared}, {what} / AgentEvolver's service", pairs, "episodes/s", note=note
        )
        for what, pairs in (
            ("a host over HTTP", [Pair(*pair) for pair in zip(served, theirs, strict=True)]),
            ("this process", [Pair(*pair) for pair in zip(local, theirs, strict=True)]),
        )
    ]


def _named() -> str:
    url = os.environ.get(SERVICE, "").rstrip("/")
    if not url:
        raise InputError(
            f"{SERVICE} names no environment service of AgentEvolver: install its env_service in an environment of its "
            "own (Ray, bfcl_eval), start launch_script/bfcl.sh and set the variable to its URL"
        )
    return url


def _rate(environment: Environment, tasks: Sequence[TaskSpec]) -> float:
    began = time.perf_counter()
    for task in tasks:
        replay(environment, task)
    return len(tasks) / (time.perf_counter() - began)


class _Service:
    """AgentEvolver's environment service at ``url``; times its episodes, counts those evaluated as wrong."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=ANSWER)
        self.wrong = 0
        self.opening: list[float] = []  # seconds of each episode until its first message
        self.playing: list[float] = []  # and from there to its end
        try:
            listed = [self._ask("get_env_profile", params={"split": split}) for split in ("train", "val")]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise InputError(f"{SERVICE}={url} does not answer ({error}): start the service") from error
        self._ids = {str(name) for names in listed for name in names or ()}

    def has(self, task: CategoryTask) -> bool:
        """Return whether the service has the official task."""
        return _id(task) in self._ids

    def rate(self, tasks: Sequence[CategoryTask]) -> float:
        """Return the episodes per second of the references of ``tasks``."""
        began = time.perf_counter()
        for task in tasks:
            self._play(task)
        return len(tasks) / (time.perf_counter() - began)

    def _play(self, task: CategoryTask) -> None:
        instance = uuid.uuid4().hex
        began = time.perf_counter()
        self._ask("create", task_id=_id(task), instance_id=instance, params={"model_name": "reference"})
        opened = time.perf_counter()
        messages = [text for turn in task.spec.reference for text in (*_called(turn), "Done.")]
        for text in messages[:MESSAGES]:
            answer = self._ask("step", instance_id=instance, messages={"role": "assistant", "content": text})
            if answer["is_terminated"]:
                break
        score = self._ask("evaluate", instance_id=instance, params={"sparse": True})
        self._ask("release", instance_id=instance)
        self.opening.append(opened - began)
        self.playing.append(time.perf_counter() - opened)
        self.wrong += score != 1.0

    def _ask(self, what: str, **message: Any) -> Any:  # noqa: ANN401 - JSON
        response = self._client.post(f"/{what}", json={"env_type": "bfcl", "messages": {}, "params": {}, **message})
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(
                f"the service answered {what} with status {response.status_code}: {response.text[-500:]}"
            )
        return response.json()["data"]


def _id(task: CategoryTask) -> str:
    return f"multi_turn_base_{task.index}"


def _called(turn: Sequence[ToolCall]) -> list[str]:
    """Return the message that makes the calls of a turn; none for a turn without a call."""
    written = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in turn]
    return ["\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)] if written else []
