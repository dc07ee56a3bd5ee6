"""The devices at hand, their memory and instructions, and how much goes through a model at once.

Torch is not imported where there is no GPU.

The sizes are here because memory is planned with them (``training.plan``), and what keeps to them imports torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil  # type: ignore[import-untyped]

ROWS_TOGETHER = 8
"""Rows that go through the model at once, sorted by length (our choice, measured: a step of 64 rollouts of the tiny
policy took 2.5 s of CPU time in one piece, 1.2 s by sixteens, 0.8 s by eights)."""

TOKENS_TOGETHER = 1024
"""Tokens that go through the model together at most with a gradient, padding included, where parts of a batch may be
computed apart (our choice): a token of a model of 135 M parameters keeps 1 MB for the backward pass in bfloat16."""

PREFILL_TOKENS = 8192
"""Tokens of one pass of the sampler in process at most, padding included, which bounds the memory of its activations; a
longer piece goes alone (our choice)."""

Dtype = Literal["auto", "float32", "bfloat16"]
"""Type of matrix products; auto: bfloat16 where the device has instructions for it."""

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of processors with these instructions: of x86, and of ARM, where no speed was measured."""

LARGE_VOCABULARY = 8192
"""Tokens of a vocabulary from which on the head is worth avoiding on a CPU (our choice). Below it rows are scored
whole."""


def device_at_hand(stated: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """Return the device that ``policy.device`` means on this machine."""
    if stated != "auto":
        return stated
    return "cuda" if gpu_bytes() else "cpu"


def memory_at_hand(device: Literal["cpu", "cuda"]) -> int | None:
    """Return the bytes of each such device here: the smallest GPU's, or the machine's; None for a GPU without one."""
    return gpu_bytes() if device == "cuda" else machine_bytes()


def bfloat16_at_hand(device: Literal["auto", "cpu", "cuda"], root: Path = Path("/")) -> bool:
    """Return whether the device has instructions for bfloat16; False where that cannot be known.

    A GPU: compute capability 8. A CPU: the flags in Linux's ``/proc/cpuinfo``. Without them torch converts to float32
    and back: sampling took 3 times, learning 8 times as long as in float32 (docs/models.md). ``root`` is where the
    files of the kernel are, for tests.
    """
    if device_at_hand(device) == "cuda":
        import torch

        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return not BFLOAT16_FLAGS.isdisjoint(line.split())
    return False


def known_dtype(stated: Dtype, device: Literal["auto", "cpu", "cuda"]) -> Literal["float32", "bfloat16"]:
    """Return the type of matrix products that ``stated`` means on this machine."""
    if stated != "auto":
        return stated
    return "bfloat16" if bfloat16_at_hand(device) else "float32"


def dtype_sentence(stated: Dtype, device: Literal["auto", "cpu", "cuda"]) -> str | None:
    """Return a line on the type of matrix products where this machine decides it, or is slow with it; else None."""
    has, what = bfloat16_at_hand(device), "processor" if device_at_hand(device) == "cpu" else "GPU"
    if stated == "auto":
        return (
            f"matrix products in {known_dtype(stated, device)}: this {what} has {'' if has else 'no '}bfloat16 "
            "instructions"
        )
    if stated == "bfloat16" and what == "processor" and not has:
        return "matrix products in bfloat16, as stated: this processor has no instructions for it, and is slow with it"
    return None


def gpu_bytes() -> int | None:
    """Return the memory of this machine's smallest GPU, None where there is none; torch is imported only with a GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    return min(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))


def free_bytes(device: str) -> int:
    """Return the bytes that nothing uses now: the current GPU's, or the machine's within its control groups' limit."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return min(int(psutil.virtual_memory().available), machine_bytes())


def give_back_freed(device: str) -> None:
    """Give freed memory of this process back to the system, where ``device`` is the CPU.

    The C library has to be able to (glibc's ``malloc_trim``); with another one nothing is done.

    Activations of a pass lie between gradients and moments that stay, so that glibc keeps most of what they leave: a
    round of a model of 135 M parameters held 4 GB of free memory. A call takes 0.1 s and what is given back has to be
    mapped again: a few percent of the time after each update, half as much time again after each of its passes
    (measured).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if device == "cpu" and trim is not None:
        trim(0)


_MALLOC_TRIM_THRESHOLD, _MALLOC_MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed() -> None:
    """Keep the memory that this process frees, for its next allocations.

    glibc gives large pieces back at once, and maps new ones: learning from rows of different lengths on a CPU spent
    half of its time on that (measured). With another library of C nothing is done.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MALLOC_MMAP_MAX, 0)
        set_option(_MALLOC_TRIM_THRESHOLD, _LARGEST)


def machine_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process may use: the machine's memory, or the limit of its control groups if lower.

    Swap is not counted. ``root`` is where the files of the kernel are, for tests.
    """
    return min([int(psutil.virtual_memory().total), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups and of the groups around them (version 2 and 1 of Linux)."""
    groups: list[str] = []
    with suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    mounted = root / "sys/fs/cgroup"
    for line in groups:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (mounted / "memory", "memory.limit_in_bytes") if controllers else (mounted, "memory.max")
        # A container may see its group at the top, under a path of the machine around it.
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            with suppress(OSError):
                if folder.is_relative_to(top) and (said := (folder / name).read_text().strip()).isdecimal():
                    yield int(said)  # "max" where there is no limit
