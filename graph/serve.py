"""``python -m graph.serve RECIPE``: become a vLLM server of the recipe's policy, started as a round needs it.

The process turns into vLLM's own server, so that whoever started it ends it. vLLM has an environment of its own
(``make vllm``) and is never imported here. The options of the CPU build are workarounds, each with its reason below; a
GPU gets none of them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from environments.base import InputError
from environments.checkout import ROOT
from environments.command import OneSentence, Overrides, exit_statuses
from graph.settings import RunSettings

SERVED_NAME = "policy"
"""Name of the served model in requests; a LoRA adapter has a name of its own for each version."""

VLLM = ROOT / ".venvs" / "vllm"
"""vLLM's environment, made by ``make vllm``, which leaves a file there that names the build."""

EXTENSION = "training.rollout.vllm_extension.PolicyWorker"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks that vLLM accepts; a rank between two is served with the next one."""

CPU_PROMPT_BUDGET = 16_384
"""Prompt tokens of one step of the engine on CPU (ours): more make its start slow."""

CPU_SEQUENCES = 64

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def main(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="recipe or settings.yaml of a run: its policy is served")],
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8000,
    host: Annotated[
        str, typer.Option(help="address to listen on; anyone who can connect controls the server without a password")
    ] = "127.0.0.1",
) -> None:
    """Serve a recipe's policy by vLLM until the process is ended. Further options go to vLLM, and win over ours.

    Exit status: vLLM's, or 2 for a user's mistake.
    """
    with exit_statuses():
        from graph.settings import load_recipe
        from memory.processes import end_with_parent

        end_with_parent()
        argv, variables = server_command(load_recipe(recipe, overrides or ()), host, port)
        os.execve(argv[0], [*argv, *context.args], {**os.environ, **variables})


def server_command(settings: RunSettings, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command of a server for a run with ``settings``, and the variables that it needs.

    Raises InputError where vLLM is not installed, and for an adapter in place of a base model.
    """
    from training.policy_files import check_folder
    from training.rollout.policy import policy_folder

    python = VLLM / "bin" / "python"
    if not python.exists():
        raise InputError(f"there is no Python at {python}: run make vllm")
    path = policy_folder(settings.policy.path)
    folder, lora = Path(path), settings.policy.lora
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"policy.path: {path} is a LoRA adapter: name its base model, and set policy.lora")
    if folder.is_dir():
        check_folder(folder)
    length = max(settings.training.max_tokens, settings.evaluation.max_tokens or 0)
    # Not `vllm serve`: it looks for its own version under the name vllm, which the CPU build does not have.
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(folder.absolute()) if folder.is_dir() else path, "--served-model-name", SERVED_NAME]
    argv += ["--host", host, "--port", str(port), "--dtype", settings.policy.known_dtype, "--seed", "0"]
    # Token in, token out with weight versions; log-probabilities after the temperature, as the trainer defines them.
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    argv += ["--worker-extension-cls", EXTENSION, "--max-model-len", str(length)]
    variables = {
        # The interface that loads weights: without it a server can only be restarted.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(ROOT),
        # The working directory is not searched: a package of the user's must not replace one of vLLM's.
        "PYTHONSAFEPATH": "1",
    }
    if lora is not None:
        rank = next((rank for rank in LORA_RANKS if rank >= lora.rank), None)
        if rank is None:
            raise InputError(f"policy.lora.rank: vLLM serves adapters of rank {LORA_RANKS[-1]} at most: lower it")
        # Two: the one that is sampled from, and the next one, which is loaded before the last is removed.
        argv += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2", "--max-cpu-loras", "2"]
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if folder.is_dir():
        # Else a wrong path inside the model's files costs 25 seconds of the hub's retries.
        variables["HF_HUB_OFFLINE"] = "1"
    if (VLLM / ".installed-cpu").exists():
        # A seeded request whose prompt is computed in parts ends the engine ("CPU Generator does not use offset"). So
        # the budget of a step holds as many prompts of full length as are sampled at once: none is computed in parts.
        sequences = max(1, min(CPU_SEQUENCES, CPU_PROMPT_BUDGET // length))
        argv += ["--enforce-eager"]  # compiling takes minutes on CPU
        argv += ["--max-num-seqs", str(sequences), "--max-num-batched-tokens", str(sequences * length)]
        # 128 by default on CPU: with 32 the prefixes of short episodes are found twice as often.
        argv += ["--block-size", "32"]
        variables |= {
            # Log-probabilities are compiled in spite of --enforce-eager, which took 96 seconds.
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            # By default vLLM takes every core for itself, also those of the trainer beside it.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
        }
    return argv, variables


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
