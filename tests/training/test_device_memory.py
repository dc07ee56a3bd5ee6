"""How much memory this process may use: the machine's, or a control group's limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from training.device_memory import (
    bfloat16_at_hand,
    device_at_hand,
    dtype_sentence,
    give_back_freed,
    known_dtype,
    machine_bytes,
    memory_at_hand,
)

LIMIT = 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/\n", "memory.max"),  # a container
        ("0::/slice/job\n", "slice/job/memory.max"),
        ("0::/slice/job\n", "slice/memory.max"),  # the group around it
        ("5:cpu,cpuacct:/x\n4:memory:/docker/ab\n", "memory/docker/ab/memory.limit_in_bytes"),
        ("4:memory:/docker/ab\n", "memory/memory.limit_in_bytes"),  # the machine's path, seen inside
    ],
)
def test_the_limit_of_a_control_group_counts(tmp_path: Path, groups: str, file: str) -> None:
    write(tmp_path / "proc/self/cgroup", groups)
    write(tmp_path / "sys/fs/cgroup" / file, f"{LIMIT}\n")
    assert machine_bytes(tmp_path) == LIMIT


@pytest.mark.parametrize("said", ["max\n", f"{2**62}\n", ""])
def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path, said: str) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", said)
    assert machine_bytes(tmp_path) == psutil.virtual_memory().total
    assert machine_bytes(tmp_path / "none") == psutil.virtual_memory().total


def test_a_stated_device_is_taken_as_it_is() -> None:
    assert (device_at_hand("cpu"), device_at_hand("cuda")) == ("cpu", "cuda")
    assert memory_at_hand("cpu") == machine_bytes()


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("flags\t\t: fpu sse4_2 avx2 fma f16c", False),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni", True),
        ("flags\t\t: amx_tile amx_bf16 amx_int8", True),
        ("Features\t: fp asimd sve bf16 i8mm", True),
        ("Features\t: fp asimd svebf16x", False),
        ("model name\t: bf16", False),
        ("", False),
    ],
)
def test_bfloat16_is_chosen_by_the_processors_flags(tmp_path: Path, line: str, has: bool) -> None:
    write(tmp_path / "proc/cpuinfo", f"processor\t: 0\n{line}\nbugs\t\t: avx512_bf16\n")
    assert bfloat16_at_hand("cpu", tmp_path) is has
    assert not bfloat16_at_hand("cpu", tmp_path / "none")


@pytest.mark.parametrize("has", [True, False])
def test_a_stated_type_is_taken_as_it_is_and_said_where_it_is_slow(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    monkeypatch.setattr("training.device_memory.bfloat16_at_hand", lambda device: has)
    assert [known_dtype(one, "cpu") for one in ("float32", "bfloat16")] == ["float32", "bfloat16"]
    assert known_dtype("auto", "cpu") == ("bfloat16" if has else "float32")
    assert dtype_sentence("float32", "cpu") is None
    assert (dtype_sentence("bfloat16", "cpu") is None) is has


def test_freed_memory_goes_back_to_the_system() -> None:
    """Blocks of 100 kB between ones that stay are kept by the allocator; a library without the call is left alone."""
    process = psutil.Process()
    blocks = [bytearray(100_000) for _ in range(2_000)]
    held = blocks[::20]
    before = process.memory_info().rss
    del blocks
    give_back_freed("cpu")
    assert len(held) == 100
    assert before - process.memory_info().rss > 100_000_000
