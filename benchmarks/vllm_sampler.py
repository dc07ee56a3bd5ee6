"""Measures a vLLM server against the sampler in process, at three sizes of policy, and what loading weights costs.

Both sides write the same episodes: prompts of the same ids, several messages each, the same number of tokens, no stop
id. The server's CPU seconds are of all its processes and of its client here. One thread each. Shapes, not quality: the
larger policies are random. With less traffic than a GPU server sees, on a machine that is shared: read the ratios.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

from benchmarks.measurement import Measurement, Pair, of_pairs
from environments.checkout import ROOT
from training.rollout.policy import Policy, load_policy
from training.rollout.sampling import Sampled, Sampler, TokenPrompt
from training.rollout.serving import RunningServer, ServedPolicy, ServerSettings, check_servers, vllm_servers
from training.rollout.settings import SamplingSettings

__all__ = ["measure"]

INITIAL_POLICY = ROOT / "recipes" / "starter"
CONTEXT = 512
CONCURRENCY = 32
PROMPT, SUFFIX = 90, 30  # ids of the first prompt, and of each one after it


class Size(NamedTuple):
    """A policy to measure: ``layers`` of a random Qwen3 (none: the initial policy); episodes, messages, tokens."""

    name: str
    hidden: int
    inner: int
    layers: int
    episodes: int
    messages: int
    tokens: int


SIZES = (
    Size("0.6 M", 0, 0, 0, 64, 6, 11),
    Size("50 M", 512, 2048, 10, 16, 3, 12),
    Size("100 M", 768, 2304, 12, 16, 3, 12),
)


class FixedEpisode:
    """An episode of fixed shape whose ids follow from its seed."""

    def __init__(self, seed: int, size: Size) -> None:
        self.seed = seed
        self.stop_ids: frozenset[int] = frozenset()
        self.size = size
        self.written = 0
        self._ids = random.Random(seed // 4)  # four episodes of a group share their prompt
        self._next: TokenPrompt | None = self._prompt(PROMPT)

    def _prompt(self, length: int) -> TokenPrompt:
        return TokenPrompt(self._ids.choices(range(100, 900), k=length), self.size.tokens)

    def observe(self) -> TokenPrompt | None:
        """Return the next prompt, None after the last message."""
        return self._next

    def act(self, message: Sampled) -> None:
        """Take a message."""
        self.written += 1
        self._next = None if self.written == self.size.messages else self._prompt(SUFFIX)


def measure(repeats: int) -> Sequence[Measurement]:
    """Measure each size; interleaved pairs. Raises InputError where vLLM is not installed."""
    import torch

    torch.set_num_threads(1)
    settings = ServerSettings(start_timeout=1200)
    check_servers(settings, ServedPolicy(str(INITIAL_POLICY)))
    return [row for size in SIZES for row in _measure(size, settings, repeats)]


def _measure(size: Size, settings: ServerSettings, repeats: int) -> Iterator[Measurement]:
    from training.rollout.in_process import InProcessSampler
    from training.rollout.vllm_server import VllmServers
    from training.rollout.vllm_weights import PolicyWeights

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        policy = _policy(size, folder)
        served = ServedPolicy(str(folder), "float32", CONTEXT)
        with vllm_servers(settings, served, Path(name) / "logs") as servers:
            weights = PolicyWeights(policy, Path(name) / "weights", adapter=False, autocast=False)
            sampling = SamplingSettings(
                engine="vllm_server", servers=(servers[0].url,), concurrency=CONCURRENCY, request_timeout=600
            )
            own = InProcessSampler(policy.model)
            with closing(VllmServers(sampling, weights, 1e-3)) as theirs:
                theirs.load_weights(0)
                for sampler in (theirs, own):  # whatever either does once
                    _run(sampler, servers, size._replace(episodes=4), 10**6)
                wall, cpu, loads = [], [], []
                for repeat in range(repeats):
                    before = theirs.figures()
                    theirs.load_weights(repeat + 1)
                    after = theirs.figures()
                    loads.append((after.load - before.load, after.canary - before.canary))
                    there, here = (_run(sampler, servers, size, repeat * 1000) for sampler in (theirs, own))
                    wall.append(Pair(there[0], here[0]))
                    cpu.append(Pair(there[1], here[1]))
    count = sum(value.numel() for value in policy.model.parameters())
    what = (
        f"{count / 1e6:.1f} M parameters, {size.episodes} episodes of {size.messages} messages of {size.tokens} tokens"
    )
    yield of_pairs(
        f"sampling by a server, {size.name}, CPU time", "vLLM server / in process", cpu, "tokens/s", note=what
    )
    yield of_pairs(f"sampling by a server, {size.name}, wall clock", "vLLM server / in process", wall, "tokens/s")
    tokens = size.episodes * size.messages * size.tokens
    sampled = [tokens / pair.ours for pair in wall]
    update = _update(policy, size)
    for place, words in ((0, "loading weights by folder, with handshake and canary"), (1, "the canary alone")):
        steps = [load[0] + seconds + update for load, seconds in zip(loads, sampled, strict=True)]
        shares = [load[place] / step for load, step in zip(loads, steps, strict=True)]
        yield Measurement(
            name=f"{words}, {size.name}",
            compared="share of the wall seconds of loading, sampling these episodes, and one update with them",
            ours=sorted(shares)[len(shares) // 2],
            unit="share",
            spread=(min(shares), max(shares)),
            repeats=repeats,
            note=f"{sorted(load[place] for load in loads)[len(loads) // 2]:.3f} s, an update {update:.1f} s",
        )


def _policy(size: Size, folder: Path) -> Policy:
    """Return the policy of this size, whose files are in ``folder``."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shutil.copytree(INITIAL_POLICY, folder)
    if size.layers:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=16_384,
            hidden_size=size.hidden,
            intermediate_size=size.inner,
            num_hidden_layers=size.layers,
            num_attention_heads=size.hidden // 64,
            num_key_value_heads=size.hidden // 128,
            head_dim=64,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=915,
            eos_token_id=916,
        )
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return load_policy(str(folder), "cpu")


def _update(policy: Policy, size: Size) -> float:
    """Return the seconds of a forward and a backward pass over the episodes: less than an update of GRPO takes."""
    import torch

    length = PROMPT + (size.messages - 1) * SUFFIX + size.messages * size.tokens
    began = time.perf_counter()
    for begin in range(0, size.episodes, 8):  # as many rows as the trainer scores together
        ids = torch.randint(100, 900, (min(8, size.episodes - begin), length))
        policy.model(input_ids=ids, labels=ids).loss.backward()
    policy.model.zero_grad()
    return time.perf_counter() - began


def _run(sampler: Sampler, servers: Sequence[RunningServer], size: Size, seed: int) -> tuple[float, float]:
    """Return sampled tokens per wall and per CPU second."""
    drivers = [FixedEpisode(seed + number, size) for number in range(size.episodes)]
    with _clock(servers) as taken:
        sampler.run(drivers, temperature=0.9, concurrency=CONCURRENCY)
    tokens = size.episodes * size.messages * size.tokens
    return tokens / taken[0], tokens / taken[1]


@contextmanager
def _clock(servers: Sequence[RunningServer]) -> Iterator[list[float]]:
    """Yield a list that gets wall seconds and CPU seconds of this process and the servers' processes."""

    def cpu() -> float:
        processes = [one for server in servers for one in psutil.Process(server.pid).children(recursive=True)]
        return time.process_time() + sum(sum(one.cpu_times()[:2]) for one in processes)

    taken: list[float] = []
    wall, before = time.perf_counter(), cpu()
    yield taken
    taken += [time.perf_counter() - wall, cpu() - before]
