"""One side of the benchmark of the language model: vLLM samples the rows of a step, in its own environment.

Run by the Python of ``.venvs/vllm``, so that it imports nothing of this project. The engine is configured as
``python -m graph.serve`` does, on a GPU with a third of its memory, because the other sides are there too. Its cache of
prefixes is emptied before each measurement: the rows of a group share their prompt's keys and values, as ours do, and
nothing of the measurement before.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any


def main(path: str, shape: str) -> None:
    """Answer each line of the standard input with the wall seconds of sampling the rows."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed belongs to the errors
    on_cpu = (Path(sys.prefix) / ".installed-cpu").exists()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    options: dict[str, Any] = {"gpu_memory_utilization": 0.3}
    if on_cpu:
        os.environ |= {
            "TORCH_COMPILE_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        options = {"enforce_eager": True, "block_size": 32}
    vllm: Any = import_module("vllm")  # it is in no environment of this project's own

    rows: dict[str, int] = json.loads(shape)
    length = rows["prompt"] + rows["new"]
    engine: Any = vllm.LLM(
        path,
        dtype="bfloat16",
        max_model_len=length,
        max_num_seqs=rows["tasks"] * rows["rollouts"],
        max_num_batched_tokens=max(2048, 16 * length),
        **options,
        seed=0,
        skip_tokenizer_init=True,
    )
    rng, last = random.Random(0), engine.llm_engine.model_config.get_vocab_size()
    prompts = [
        {"prompt_token_ids": [rng.randrange(10, last) for _ in range(rows["prompt"])]} for _ in range(rows["tasks"])
    ]
    sampling = vllm.SamplingParams(
        n=rows["rollouts"], temperature=1.0, max_tokens=rows["new"], min_tokens=rows["new"], ignore_eos=True, logprobs=0
    )
    for _ in sys.stdin:
        engine.reset_prefix_cache()
        began = time.perf_counter()
        made = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        wrong = [one for out in made for one in out.outputs if len(one.token_ids) != rows["new"]]
        if wrong:
            raise SystemExit(f"vLLM ended {len(wrong)} rows early")
        print(json.dumps({"sampling": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
