"""Writes the page of a run: one HTML file with its records, which opens from disk and asks no network.

Charts are drawn by the page's own script as SVG: at most a few dozen points of a few series each, whose marks are
links into the run and follow the colours of the page. A charting library would add 0.8 MB to every page and code that
compiles code, which the page's policy forbids.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from environments.base import InputError
from graph.report.lineage import History
from graph.report.page.data import Json, overview
from graph.report.page.records import LONGEST_TEXT, in_order_of_worth, rollouts, stage_block, table, trajectory
from memory.run import SEED_STAGE, RunDirectory

LARGEST = 13_000_000
"""Bytes of records in the page; rollouts get what the others leave (ours)."""
STAGES_SHARE = 0.6
"""Share of that for chains and tasks: what explorers observed is cut shorter until they keep to it (ours)."""
LENGTHS = (LONGEST_TEXT, 1000, 250, 60)
"""Characters that a text of an exploration is cut to, in the order in which they are tried (ours)."""
ROLLOUTS_SHARE = 0.15
"""Share for rollouts where the others leave less (ours)."""
_BATCH = 32  # rollouts between two looks at the size
_GZIP = 31  # window bits of zlib that write a gzip header
_ASSETS = files("graph.report.page")
_SCRIPTS = ("core.js", "overview.js", "table.js", "lineage.js", "start.js")


class Page(NamedTuple):
    """A page: its bytes in UTF-8, how many of the run's rollouts it holds with their turns, and why it stays private.

    ``unpublishable`` is the benchmark's sentence, None where tasks and rollouts may be published.
    """

    html: bytes
    kept: int
    rollouts: int
    unpublishable: str | None


def make_page(run: RunDirectory, *, largest: int = LARGEST) -> Page:
    """Return the page of ``run`` with at most about ``largest`` bytes of records.

    Raises InputError that names the file and line of a damaged record.
    """
    history = History.read(run)
    if not history.tasks and not history.iterations:
        raise InputError(f"{run.root} has no task and no iteration yet: begin it first")
    parts = {"table": _packed(table(history)), "rollouts": _packed(rollouts(history))}
    stages, length = _stages_within(history, int(STAGES_SHARE * largest))
    parts |= stages
    left = max(int(ROLLOUTS_SHARE * largest), largest - sum(map(len, parts.values())))
    page_data = overview(history)
    turns, kept = _turns(history, left, diagnosed=page_data["seal"])
    page_data["kept"] = {"rollouts": kept, "of": len(history.rollouts), "length": length}
    return Page(_document(page_data, parts | turns), kept, len(history.rollouts), page_data["unpublishable"])


def _stages_within(history: History, limit: int) -> tuple[dict[str, bytes], int]:
    """Return the blocks of the stages, and the length of texts for the ``limit``; no chain or task is left out."""
    for length in LENGTHS:
        blocks = {f"stage-{name}": _packed(block) for name, block in _stages(history, length)}
        if sum(map(len, blocks.values())) <= limit:
            break
    return blocks, length


def _stages(history: History, length: int) -> Iterator[tuple[str, Json]]:
    stages: list[tuple[str, int | None]] = [(SEED_STAGE, None)]
    stages += [(f"{number:03d}", number) for number in history.iterations]
    for name, number in stages:
        tasks = [task for task in history.tasks.values() if task.admitted_at == number]
        yield name, stage_block(history, history.chains_in(number), tasks, length)


def _turns(history: History, limit: int, *, diagnosed: bool) -> tuple[dict[str, bytes], int]:
    """Return the rollouts with their turns in a block per iteration, and their number.

    The blocks have about ``limit`` bytes together: rollouts are compressed in the order of their worth until then.
    """
    blocks = {number: _Block() for number in history.iterations}
    kept = 0
    for one in history.trajectories(in_order_of_worth(history)):
        blocks[one.iteration].add(one.id, trajectory(history, one, diagnosed=diagnosed))
        kept += 1
        if kept % _BATCH == 0 and sum(block.flush() for block in blocks.values()) >= limit:
            break
    return {f"turns-{number:03d}": block.packed() for number, block in blocks.items()}, kept


class _Block:
    """A JSON object that grows by one entry at a time, compressed, in base64 at last."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
        self._packed = bytearray(self._packer.compress(b"{"))
        self._entries = 0
        self._fresh = False

    def add(self, key: str, value: list[Any]) -> None:
        comma = "," if self._entries else ""
        self._packed += self._packer.compress(f"{comma}{_json(key)}:{_json(value)}".encode())
        self._entries += 1
        self._fresh = True

    def flush(self) -> int:
        """Return the length in base64 so far."""
        if self._fresh:
            self._packed += self._packer.flush(zlib.Z_SYNC_FLUSH)
            self._fresh = False
        return len(self._packed) * 4 // 3

    def packed(self) -> bytes:
        return base64.b64encode(bytes(self._packed) + self._packer.compress(b"}") + self._packer.flush())


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return JSON in ASCII: half surrogates and control characters of foreign texts are escapes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _packed(value: Any) -> bytes:  # noqa: ANN401 - as above
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return base64.b64encode(packer.compress(_json(value).encode()) + packer.flush())


def _document(page_data: Json, parts: Mapping[str, bytes]) -> bytes:
    """Return the HTML. Its policy allows this one script and style by their hashes, and nothing else."""
    style = _asset("page.css")
    script = "".join(map(_asset, _SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    blocks = {"run": _packed(page_data), **parts}
    values = {
        "policy": policy.encode(),
        "title": html.escape(page_data["name"]).encode(),
        "style": style.encode(),
        "script": script.encode(),
        "parts": b"".join(
            f'<script type="text/plain" id="part-{name}">'.encode() + data + b"</script>\n"
            for name, data in blocks.items()
        ),
    }
    # The template is split once, before anything is put into it: no name or text is read as a place of the template.
    text = re.split(r"\{\{(\w+)\}\}", _asset("page.html"))
    return b"".join(values[one] if place % 2 else one.encode() for place, one in enumerate(text))


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
