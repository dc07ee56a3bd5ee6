"""Files of anybody: nothing outside their folder is read or written, nothing waits, and nothing fills memory."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments.base import InputError
from memory.files import (
    LONGEST,
    append,
    check_kept,
    cut,
    keep,
    mend,
    opened,
    read_end,
    read_lines,
    read_packed,
    read_text,
    read_whole,
    remove_leftovers,
    sha256_of,
    write_atomically,
)

SECRET = b"a line of somebody else's\n"


def link(at: Path, target: Path) -> None:
    at.symlink_to(target)


def dangling(at: Path, target: Path) -> None:
    at.symlink_to(target.with_name("nowhere"))


def pipe(at: Path, target: Path) -> None:
    os.mkfifo(at)


def listening(at: Path, target: Path) -> None:
    here = os.open(at.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:  # the name of a socket is short
        one.bind(f"/proc/self/fd/{here}/{at.name}")
    os.close(here)


def device(at: Path, target: Path) -> None:
    at.symlink_to("/dev/zero")


def terminal(at: Path, target: Path) -> None:
    at.symlink_to("/dev/tty")


def circle(at: Path, target: Path) -> None:
    at.symlink_to(at)


Plant = Callable[[Path, Path], None]
STRANGE: tuple[Plant, ...] = (link, dangling, pipe, listening, device, terminal, circle)
"""What may be in the place of a file, besides a hard link, which a copy of a run may have."""

READ: tuple[Callable[[Path], object], ...] = (
    read_whole,
    read_text,
    read_end,
    sha256_of,
    lambda path: list(read_lines(path)),
    lambda path: list(read_packed(path)),
)
CHANGED: tuple[Callable[[Path], object], ...] = (
    lambda path: append(path, b"{}\n"),
    lambda path: cut(path, 0),
    mend,
)


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file outside, which is the same afterwards."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    yield path
    assert path.read_bytes() == SECRET
    assert not path.with_name("nowhere").exists()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    keep(folder)
    return folder


@pytest.mark.parametrize("plant", STRANGE)
def test_what_is_no_file_of_a_kept_folder_is_neither_read_nor_changed(secret: Path, kept: Path, plant: Plant) -> None:
    path = kept / "records.jsonl"
    plant(path, secret)
    for act in READ + CHANGED:
        if act is mend and not path.exists():
            continue
        with pytest.raises(InputError, match=r"records\.jsonl is (a link|a pipe|a folder, a pipe)"):
            act(path)
    with pytest.raises(InputError, match=r"records\.jsonl is (a link|a pipe)"):
        check_kept(kept)
    write_atomically(path, [b"new"])  # takes the name, and leaves what had it
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_folder_on_the_way_is_no_link(secret: Path, kept: Path, tmp_path: Path, depth: int) -> None:
    names = ["a", "b", "c", "records.jsonl"]
    outside = tmp_path / "outside"
    target = outside.joinpath(*names[depth:])
    target.parent.mkdir(parents=True)
    target.write_bytes(SECRET)
    at = kept.joinpath(*names[:depth])
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(outside)
    path = kept.joinpath(*names)
    for act in (*READ, *CHANGED, lambda one: write_atomically(one, [b"new"])):
        with pytest.raises(InputError, match=f"{at} is a link"):
            act(path)
    assert target.read_bytes() == SECRET
    assert [one.name for one in target.parent.iterdir()] == ["records.jsonl"]


def test_the_folder_that_is_kept_may_be_a_link_and_be_named_in_any_way(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "run").mkdir(parents=True)
    (tmp_path / "mine").symlink_to("elsewhere/run")
    monkeypatch.chdir(tmp_path)
    keep(Path("mine"))
    for path in (Path("mine/new"), tmp_path / "mine" / "new", Path("mine/../mine/./new")):
        append(path, b"{}\n")
    assert read_whole(Path("mine/new")) == b"{}\n" * 3
    Path("mine/stolen").symlink_to(secret)
    for path in (Path("mine/stolen"), tmp_path / "mine/stolen", Path("mine/../mine/stolen")):
        with pytest.raises(InputError, match="stolen is a link"):
            read_whole(path)


def test_a_file_may_be_kept_alone(secret: Path, tmp_path: Path) -> None:
    kept, mine = tmp_path / "outcomes.jsonl", tmp_path / "mine.jsonl"
    for path in (kept, mine):
        path.symlink_to(secret)
    keep(kept)
    with pytest.raises(InputError, match=r"outcomes\.jsonl is a link"):
        append(kept, b"{}\n")
    assert read_whole(mine) == SECRET, "a user's own file may be a link"


def test_a_second_name_of_a_file_is_read_and_replaced_but_not_changed(secret: Path, kept: Path) -> None:
    path = kept / "spending.jsonl"
    path.hardlink_to(secret)
    assert read_whole(path) == SECRET
    for act in CHANGED:
        with pytest.raises(InputError, match=r"spending\.jsonl is a hard link"):
            act(path)
    write_atomically(path, [b"new"])
    append(path, b"er\n") if read_whole(path).endswith(b"\n") else cut(path, 0)
    assert path.read_bytes() == b""


def test_a_name_of_two_lines_is_told_in_one(kept: Path) -> None:
    (kept / "a\nb").symlink_to("nowhere")
    with pytest.raises(InputError) as refused:
        check_kept(kept)
    assert "\n" not in str(refused.value)


def test_a_folder_for_a_file_and_a_file_for_a_folder_are_told(kept: Path) -> None:
    (kept / "report.html").mkdir()
    (kept / "iterations").write_bytes(b"")
    for act in (lambda path: write_atomically(path, [b""]), lambda path: append(path, b"")):
        with pytest.raises(InputError, match=r"report\.html is a folder where a file belongs"):
            act(kept / "report.html")
        with pytest.raises(InputError, match="iterations is a file where a folder belongs"):
            act(kept / "iterations" / "000")
    assert sorted(one.name for one in kept.iterdir()) == ["iterations", "report.html"]


def test_a_temporary_file_that_was_put_there_before_is_not_followed(
    secret: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.get_ident", lambda: 7)
    (kept / f".summary.json.{os.getpid()}-7.tmp").symlink_to(secret)
    write_atomically(kept / "summary.json", [b"{}"])
    assert [one.name for one in kept.iterdir()] == ["summary.json"]


def test_leftovers_are_not_looked_for_behind_a_link(secret: Path, kept: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".secret.999999999-1.tmp").write_bytes(SECRET)
    (kept / "in").symlink_to(outside)
    (kept / ".mine.999999999-1.tmp").write_bytes(b"")
    assert remove_leftovers(kept) == (kept / ".mine.999999999-1.tmp",)
    assert [one.name for one in outside.iterdir()] == [".secret.999999999-1.tmp"]


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def packed(content: bytes) -> bytes:
    packing = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return packing.compress(content) + packing.flush()


def test_a_file_without_an_end_of_line_is_read_up_to_the_limit(kept: Path) -> None:
    path = kept / "records.jsonl"
    sparse(path, 2**40)
    for act in (read_whole, lambda one: list(read_lines(one))):
        with pytest.raises(InputError, match=f"more than {LONGEST} bytes"):
            act(path)
    assert read_end(path) == "\0" * 2**18, "the end of a log, however long it is"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not a whole gzip file"),
        (b"{}\n", "not a whole gzip file"),
        (packed(b"{}\n")[:-9], "not a whole gzip file"),
        (packed(b"{}\n") + b"more", "not a whole gzip file"),
        (packed(b"{}\n") * 2, "not a whole gzip file"),
        (packed(b"{}\n")[:-8] + b"\0" * 8, "not a whole gzip file"),  # another checksum
        (packed(b"\n" * (LONGEST + 1)), f"unpacks to more than {LONGEST} bytes"),
    ],
)
def test_a_damaged_gzip_file_and_a_bomb_are_refused(kept: Path, content: bytes, told: str) -> None:
    path = kept / "grpo-0.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        next(read_packed(path))


def test_packed_lines_are_read(kept: Path) -> None:
    path = kept / "grpo-0.jsonl.gz"
    path.write_bytes(packed(b"{}\n[]\n1"))
    assert list(read_packed(path)) == [(1, b"{}\n"), (2, b"[]\n"), (3, b"1")]


def test_half_a_line_is_left_out_and_cut_off(kept: Path) -> None:
    path = kept / "spending.jsonl"
    append(path, b"{}\n[]\n")
    with path.open("ab") as file:
        file.write(b'{"half')
    assert [line for _, line in read_lines(path, whole=True)] == [b"{}\n", b"[]\n"]
    assert [line for _, line in read_lines(path, start=3, whole=True)] == [b"[]\n"]
    mend(path)
    assert append(path, b"1\n") == 8
    with opened(path) as file:
        assert file.read() == b"{}\n[]\n1\n"


def test_a_deep_folder_is_walked_and_one_that_is_gone_left_out(kept: Path) -> None:
    at = os.open(kept, os.O_RDONLY)
    for _ in range(17):  # longer than a path may be
        os.mkdir("d" * 255, dir_fd=at)
        below = os.open("d" * 255, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with pytest.raises(InputError, match="cannot be looked through"):
        check_kept(kept)
    check_kept(kept / "gone")
