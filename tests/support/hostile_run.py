"""A run whose records hold what a hostile model, tool or run directory may write into them.

Half a surrogate pair is not among it: no reader of records lets it in (``HALF_PAIR``, which a test refuses).
"""

from __future__ import annotations

import json
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

from memory.run import RunDirectory

DEPTH = 150
"""Levels of one argument; the records' parser takes 200."""
MEGABYTE = "x" * 2**20
HALF_PAIR = '"\\ud800"'
"""The JSON of a text that is half a character."""
TEXTS = (
    "</script><script>window.pwned = 1; alert(1)</script>",
    '<img src=x onerror="window.pwned = 1">',
    "<svg onload=window.pwned=1><!--<script>",
    "</style><style>* { display: none }</style><title>pwned</title>",
    '<meta http-equiv="refresh" content="0; url=http://pwned.invalid/"><base href="http://pwned.invalid/">',
    '<iframe src="http://pwned.invalid/"></iframe><link rel="stylesheet" href="http://pwned.invalid/">',
    "javascript:alert(1)//\"'`${alert(1)}{{7*7}}]]>&lt;b&gt;--></template></textarea>",
    "line\nerror: forged\r\x1b[2J\x1b[31mred\x1b]8;;http://pwned.invalid\x07link\x00\x07\x9b31m",
    "\u202eright to left\u2066 isolate\u200b\ufeff\u2028next\u2029\U000e0041tag",
    "[bold red]markup[/] [link=http://pwned.invalid]x[/link] :skull: \\ud800 \U0001f469\u200d\U0001f680",
    "__proto__",
    "constructor",
    '=HYPERLINK("http://pwned.invalid")',
    "%s %(x)s {0} {x!r}",
    "",
)
ID = "task-\"><img src=x onerror=window.pwned=1>&/../%00#'\x1b[2J\u202e"
"""The id of one task."""
_WRITTEN = {
    "text",
    "how",
    "why",
    "detail",
    "summary",
    "instability_pattern",
    "error_class",
    "reason",
    "failure",
    "tool",
    "nearest",
    "checker_error",
}
_LISTS = {
    "turns",
    "pattern",
    "facts",
    "explore",
    "tools",
    "classes",
    "focus_pattern",
    "exploration_objectives",
    "do_not_repeat",
}
_FILES = ("trajectories", "signals", "contexts", "interactions", "drafts", "verdicts", "judgements", "branch_failures")


def make_hostile_run(root: Path, of: RunDirectory) -> RunDirectory:
    """Copy the finished run ``of`` to ``root`` and put hostile texts, keys and arguments into all of its records."""
    shutil.copytree(of.root, root)
    run = RunDirectory(root)
    texts = cycle(TEXTS)
    paths = [run.tasks_path]
    paths += [getattr(run.iteration(n), name) for n in range(len([*run.iterations_path.glob("*")])) for name in _FILES]
    first = json.loads(run.tasks_path.read_text().splitlines()[0])["id"]
    deep: dict[str, Any] = {}
    for _ in range(DEPTH):
        deep = {"__proto__": deep}
    for path in paths:
        rows = [_hostile(json.loads(line), texts) for line in path.read_text().splitlines()] if path.exists() else []
        for row in rows[:1] if path.parent in (run.root, run.iteration(0).root) else ():
            _swell(row, deep)
        lines = (json.dumps(row).replace(json.dumps(first), json.dumps(ID)) for row in rows)
        path.write_text("".join(f"{line}\n" for line in lines))
    return run


def _hostile(value: Any, texts: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        changed = {name: _hostile(item, texts, name) for name, item in value.items()}
        if key in {"arguments", "initial_state"}:
            changed |= {next(texts): next(texts), "__proto__": {"polluted": True}, "toString": next(texts)}
        if "arguments" in changed:
            changed["name"] = next(texts)
        return changed
    if isinstance(value, list):
        if key in _LISTS and all(isinstance(item, str) for item in value):
            return [next(texts) for _ in value]
        return [_hostile(item, texts) for item in value]
    return next(texts) if key in _WRITTEN and isinstance(value, str) else value


def _swell(row: dict[str, Any], deep: dict[str, Any]) -> None:
    """Put a line of a megabyte and a deep argument into a record, where it has room for them."""
    if "how" in row:
        row["how"] = MEGABYTE
    if row.get("turns") and isinstance(row["turns"][0], str):
        row["turns"][0] = f"<b>{MEGABYTE}"
        row["reference"][0].append({"name": "deep", "arguments": deep})
    elif row.get("turns") and row["turns"][0]["steps"]:
        row["turns"][0]["steps"][0]["observation"]["text"] = f"{MEGABYTE}\n" * 3
        row["turns"][0]["steps"][0]["action"] = {"name": "deep", "arguments": deep}
