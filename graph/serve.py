"""``coevolve serve``: start vLLM servers of a policy and hold them until the command is ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from environments.checkout import INITIAL_POLICY
from environments.command import OneSentence, exit_statuses
from environments.terminal import say

if TYPE_CHECKING:
    from types import FrameType

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(
    recipe: Annotated[
        Path | None,
        typer.Option(help="recipe or settings.yaml of a run that gives policy, dtype, context and LoRA rank"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"folder or hub id of the model that is served; without a recipe {INITIAL_POLICY}"),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="servers")] = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the first, the others follow; 0: free ones")] = 0,
    host: Annotated[
        str, typer.Option(help="address to listen on; anyone who can connect controls the servers without a password")
    ] = "127.0.0.1",
    device_ids: Annotated[str, typer.Option(help="GPUs shared out to the servers, as 0,1,2,3")] = "",
    lora_rank: Annotated[int | None, typer.Option(min=1, help="largest rank of LoRA adapters loaded by name")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=16, help="tokens of an episode at most; without a recipe the model's own limit")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="type of weights and products; without a recipe float32"),
    ] = None,
    python: Annotated[
        str, typer.Option(help="interpreter of vLLM's environment, which make vllm makes")
    ] = ".venvs/vllm/bin/python",
    kv_cache_gib: Annotated[int, typer.Option(min=1, help="CPU: GiB of each server's KV cache")] = 1,
    gpu_memory: Annotated[float, typer.Option(min=0.01, max=1.0, help="GPU: share of memory of each server")] = 0.9,
    weight_transfer: Annotated[
        Literal["none", "nccl", "ipc"], typer.Option(help="GPU: way in which a trainer may send weights")
    ] = "none",
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            help="form of the model's tool calls, for chat requests with tools: hermes for Qwen; none: refused"
        ),
    ] = None,
    start_timeout: Annotated[float, typer.Option(min=1, help="seconds until every server answers")] = 900.0,
    log_dir: Annotated[Path, typer.Option(help="folder of the servers' logs")] = Path("build/serve"),
) -> None:
    """Start vLLM servers of a policy, print one line per server when all of them answer, and hold them.

    A line has the server's URL, its process id and its log. They end with this command, however it ends. Exit status:
    0 after SIGINT, SIGTERM or SIGHUP; 1 when a server ended or did not answer in time; 2 for a user's mistake; 3 when
    the process that started the command is gone.
    """
    from pydantic import ValidationError

    from environments.base import InputError
    from environments.benchmark import explain
    from graph.recipe import load_recipe
    from graph.run.servers import served_policy
    from memory.processes import watch_parent
    from training.rollout.serving import (
        LOOPBACK,
        ServedPolicy,
        ServerFailure,
        ServerSettings,
        vllm_servers,
        watch_servers,
    )

    with exit_statuses(ServerFailure), _ended_by_signals():
        watch_parent()
        try:
            settings = ServerSettings(
                count=count,
                port=port,
                host=host,
                device_ids=_devices(device_ids),
                python=python,
                kv_cache_gib=kv_cache_gib,
                gpu_memory=gpu_memory,
                weight_transfer=weight_transfer,
                tool_call_parser=tool_call_parser,
                start_timeout=start_timeout,
            )
        except ValidationError as error:
            raise InputError(explain(error)) from None
        if host not in LOOPBACK:
            say(
                f"warning: servers on {host} load weights for whoever reaches them, without a password: "
                "let only the trainer's machines reach them"
            )
        served = ServedPolicy(INITIAL_POLICY) if recipe is None else served_policy(load_recipe(recipe))
        served = ServedPolicy(
            policy or served.path,
            dtype or served.dtype,
            max_model_len or served.max_model_len,
            lora_rank or served.lora_rank,
        )
        with vllm_servers(settings, served, log_dir) as servers:
            for server in servers:
                print(f"{server.url} pid {server.pid} log {server.log}", flush=True)
            watch_servers(servers)


def _devices(text: str) -> tuple[int, ...]:
    from environments.base import InputError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"--device-ids {text}: name GPUs by number, as 0,1,2,3") from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End with status 0 at the first signal that asks for it; a second one does not disturb the servers' end."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, frame: FrameType | None) -> None:
        for one in asked:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(0)

    before = [signal.signal(one, leave) for one in asked]
    try:
        yield
    finally:
        for one, handler in zip(asked, before, strict=True):
            signal.signal(one, handler)


if __name__ == "__main__":
    from memory.processes import run_to_end

    run_to_end(app)
