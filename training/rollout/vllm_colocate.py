"""Samples with vLLM in the trainer's own process: no server, no copy over a network, one GPU for both.

The messages are those of ``training.rollout.vllm_requests``, as for servers. Weights are handed over as tensors, an
adapter as a folder, and the canary compares what was loaded with the trainer's forward pass. On a GPU the engine sleeps
while the trainer computes: its weights wait in the host's memory and its KV cache is given back. Of several processes
that train together each has an engine of its own, on its own GPU. Only the CPU build was run. All of this is our
choice. Import this module late: it needs torch and vLLM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal

import torch

from environments.base import InputError
from training.rollout.policy import adapter_base
from training.rollout.sampling import EngineFailure, EngineFigures, EpisodeDriver, Sampled, Sampler
from training.rollout.serving import CPU_PROMPT_BUDGET, EXTENSION, LORA_RANKS
from training.rollout.vllm_requests import (
    Aborted,
    BadAnswer,
    Conversation,
    EngineAnswer,
    MessageRequest,
    canaries,
    check,
    largest_difference,
)
from training.rollout.vllm_weights import PolicyWeights

__all__ = ["VllmInProcess"]

ATTEMPTS = 4
"""Attempts at one message that the engine gives up (ours)."""


class VllmInProcess(Sampler):
    """Samples with an engine that is made from the policy's folder and holds a copy of the policy's weights.

    Args:
        weights: what the engine is loaded with.
        tolerance: of the canary, in nats.
        positions: tokens of an episode at most.
        dtype: of the engine's weights.
        memory: share of the GPU's memory for weights and KV cache.
        lora_rank: rank of the policy's adapter, None where it has none.
        processes: those that train together, each with a whole policy and an engine.
        first: of them, this one writes adapters.
        by_first: calls a function in that process alone, and returns its result in all.

    Raises InputError where vLLM cannot be imported.
    """

    def __init__(
        self,
        weights: PolicyWeights,
        tolerance: float,
        *,
        positions: int,
        dtype: Literal["float32", "bfloat16"],
        memory: float,
        lora_rank: int | None = None,
        processes: int = 1,
        first: bool = True,
        by_first: Callable[[Callable[[], Any]], Any] = lambda act: act(),
    ) -> None:
        self._first = first
        self._by_first = by_first
        self._weights = weights
        self._tolerance = tolerance
        self._on_gpu = weights.policy.model.device.type == "cuda"
        self._asleep = False
        self._loads = 0
        self._adapter: Any = None
        self._counts = EngineFigures()
        self._since: float | None = None
        # One process: the trainer's tensors are handed over as they are, and the trainer keeps its threads.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if not self._on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # the first log-probabilities would compile for minutes
        try:
            self._vllm = import_module("vllm")
        except ImportError as error:
            raise InputError(
                f"sampling.engine: vllm_colocate needs vLLM in the trainer's own environment ({error}): use "
                "vllm_server, whose servers have an environment of their own, or in_process"
            ) from None
        lora: dict[str, Any] = {}
        if lora_rank is not None:
            rank = min((rank for rank in LORA_RANKS if rank >= lora_rank), default=lora_rank)
            lora = {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1, "max_cpu_loras": 1}
        where: dict[str, Any] = {"gpu_memory_utilization": memory, "enable_sleep_mode": True}
        if not self._on_gpu:
            # A prompt that is computed in parts ends a CPU build whose requests have seeds.
            budget = max(CPU_PROMPT_BUDGET, positions)
            where = {"enforce_eager": True, "max_num_batched_tokens": budget, "block_size": 32}
        self._llm = self._vllm.LLM(
            model=adapter_base(weights.policy.path) or weights.policy.path,
            dtype=dtype,
            seed=0,
            max_model_len=positions,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=EXTENSION,
            # "uni" takes the machine's first GPU, whichever process it is in; this one takes that of LOCAL_RANK.
            distributed_executor_backend="uni" if processes == 1 else "external_launcher",
            **where,
            **lora,
        )
        self._sleep()

    def run(self, drivers: Sequence[EpisodeDriver], *, temperature: float, concurrency: int) -> None:
        """Drive every episode to its end (see Sampler). Raises EngineFailure for what the engine cannot sample."""
        if temperature < 0:
            raise InputError(f"sampling temperature is {temperature:g}: make it 0 (greedy) or more")
        began = self._waited()
        self._wake()
        waiting = iter(drivers)
        asked: dict[str, tuple[Conversation, MessageRequest, int]] = {}

        def ask(conversation: Conversation, attempt: int = 0) -> None:
            request = conversation.request(temperature)
            # Two episodes may have one seed.
            key = f"{request.key}-{attempt}-{id(conversation)}"
            asked[key] = conversation, request, attempt
            self._add_request(key, request)

        def over(key: str, answer: EngineAnswer) -> None:
            conversation, request, attempt = asked.pop(key)
            try:
                message = check(answer, request, self._weights.vocabulary, None)
            except Aborted as fault:
                if attempt + 1 >= ATTEMPTS:
                    raise EngineFailure(f"vLLM gave up a message {ATTEMPTS} times: {fault}") from None
                self._add(resampled=1)
                ask(conversation, attempt + 1)
                return
            except BadAnswer as fault:
                raise EngineFailure(f"vLLM answered what cannot be: {fault}") from None
            self._add(messages=1, tokens=len(message.ids))
            if conversation.take(message):
                ask(conversation)

        try:
            while True:
                while len(asked) < concurrency and (driver := next(waiting, None)) is not None:
                    conversation = Conversation.open(driver)
                    if conversation is not None:
                        ask(conversation)
                if not asked:
                    return
                self._step(over)
        finally:
            if asked:
                self._llm.llm_engine.abort_request(list(asked))
            self._sleep()
            self._rest(began, "sampling")

    def load_weights(self, version: int) -> None:
        """Hand the policy's weights to the engine and compare it with the trainer's forward pass by the canary."""
        began = self._waited()
        self._wake()
        self._loads += 1
        if self._weights.adapter:
            name = f"step-{version}-{self._loads}"
            path = str(self._by_first(lambda: self._weights.write(name)))
            self._adapter = self._lora_request(name, path)
        else:
            tensors = [(name, value.detach()) for name, value in self._weights.policy.model.named_parameters()]
            self._llm.collective_rpc("load_tensors", args=(tensors,))
        if not self._llm.llm_engine.reset_prefix_cache():
            raise EngineFailure("vLLM could not forget what it computed with other weights")
        self._compare()
        if self._weights.adapter and self._first:
            # The other processes may read this version still. They have read the former one: they were asked for this.
            self._weights.discard({name})
        self._sleep()
        self._rest(began, "load")

    def figures(self) -> EngineFigures:
        """Return what the engine did so far."""
        return self._counts

    def _lora_request(self, name: str, path: str) -> Any:  # noqa: ANN401 - vLLM's own type
        return import_module("vllm.lora.request").LoRARequest(name, self._loads, path)

    def _add_request(self, key: str, request: MessageRequest) -> None:
        given = request.sampling_params()
        # 2 is FINAL_ONLY, which only the HTTP interface takes as a number.
        given["output_kind"] = import_module("vllm.sampling_params").RequestOutputKind(given["output_kind"])
        parameters = self._vllm.SamplingParams(**given)
        prompt = {"prompt_token_ids": request.token_ids}
        self._llm.llm_engine.add_request(key, prompt, parameters, lora_request=self._adapter)

    def _step(self, over: Callable[[str, EngineAnswer], None]) -> None:
        """Let the engine compute one step, and hand on the messages that ended in it."""
        try:
            outputs = self._llm.llm_engine.step()
        except Exception as error:
            raise EngineFailure(f"vLLM in this process failed: {type(error).__name__}: {error}") from error
        for output in outputs:
            if not output.finished:
                continue
            one = output.outputs[0]
            ids = list(one.token_ids)
            logprobs = [float(place[drawn].logprob) for place, drawn in zip(one.logprobs or (), ids, strict=False)]
            over(output.request_id, EngineAnswer(ids, logprobs, str(one.finish_reason)))

    def _compare(self) -> None:
        """Run the canary. Raises EngineFailure where the engine answers unlike the trainer's forward pass."""
        began, worst = time.perf_counter(), 0.0
        answers: dict[str, EngineAnswer] = {}
        asked = canaries(self._weights.vocabulary, str(self._loads), first=self._loads == 1)
        for request in asked:
            self._add_request(request.key, request)
        while len(answers) < len(asked):
            self._step(answers.__setitem__)
        for request in asked:
            try:
                message: Sampled = check(answers[request.key], request, self._weights.vocabulary, None)
            except BadAnswer as fault:
                raise EngineFailure(f"vLLM's answer to the canary cannot be used: {fault}") from None
            scores = self._weights.score(request.token_ids, message.ids, request.temperature)
            worst = max(worst, largest_difference(message, scores, request.temperature))
        self._add(canary=time.perf_counter() - began, gap=worst)
        if worst > self._tolerance:
            raise EngineFailure(
                f"vLLM in this process answers as other weights would: its log-probabilities differ from the trainer's "
                f"by up to {worst:.3g} nats, sampling.tolerance is {self._tolerance:g}; raise the tolerance, or use "
                "vllm_server, which loads whole files"
            )

    def _sleep(self) -> None:
        """Give the GPU to the trainer."""
        if self._on_gpu and not self._asleep:
            self._llm.sleep(level=1)
            torch.cuda.empty_cache()
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def _waited(self) -> float:
        """Count the time in which the engine waited for the trainer; return the time now."""
        now = time.perf_counter()
        if self._since is not None:
            self._add(idle=now - self._since)
        return now

    def _rest(self, began: float, what: Literal["sampling", "load"]) -> None:
        """Count a stretch of work that ends now."""
        self._since = time.perf_counter()
        self._add(**{what: self._since - began})

    def _add(self, **counts: float) -> None:
        self._counts = self._counts.plus(EngineFigures.model_validate(counts))
