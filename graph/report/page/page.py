"""Writes the page of a run: one HTML file with its records, which opens from disk and asks no network.

Jinja fills the figures into ``page.html``, every text escaped. Records are JSON in compressed blocks of the page, which
its script decodes when they are looked at. What agents, tools and models wrote is foreign: a text is cut to a length
here, and the page shows it as text only.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from environments.base import InputError, ToolCall
from environments.command import printable
from graph.report.digest import named_weakness, one_line, result_of, spoken, task_words, weakness_words
from graph.report.lineage import Chain, History, Rollout
from graph.report.page.figures import Json, overview, stage_name
from graph.report.stories import rollout_story
from graph.report.story import Chapter, Row, chain_steps, effect_steps, rollout_words, share_words, task_steps, written
from memory.records import Task
from memory.run import RunDirectory

LARGEST = 13_000_000
"""Bytes of records in the page: texts of explorations are shortened, then rollouts left out, until it keeps to it."""
STAGES_SHARE = 0.6
"""Share of that for chains and tasks, none of which is left out (ours)."""
ROLLOUTS_SHARE = 0.15
"""Share for rollouts where chains and tasks leave less (ours)."""
LONGEST_TEXT = 4000
"""Characters of a foreign text that the page holds (ours)."""
SHORTEST_TEXT = 60
"""Characters that a text of an exploration keeps at least (ours)."""
MOST_ROLLOUTS = 5000
"""Rollouts that the page holds with their turns (ours)."""
_ASSETS = files("graph.report.page")


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
    shown = overview(history)
    length = LONGEST_TEXT
    while _size(stages := _stages(history, length)) > STAGES_SHARE * largest and length > SHORTEST_TEXT:
        length //= 4
    left = max(ROLLOUTS_SHARE * largest, largest - _size(stages))
    order = list(in_order_of_worth(history))[:MOST_ROLLOUTS]
    while _size(turns := _turns(history, order, diagnosed=shown["seal"])) > left and len(order) > 1:
        order = order[: len(order) // 2]
    blocks = stages | turns
    index = {record: name for name, (ids, _) in blocks.items() for record in ids}
    parts = {"table": _packed(table(history)), "index": _packed(index)}
    parts |= {name: packed for name, (_, packed) in blocks.items()}
    every = len(history.rollouts)
    return Page(_document(shown, parts, _kept(len(order), every, length)), len(order), every, shown["unpublishable"])


Blocks = dict[str, tuple[tuple[str, ...], str]]
"""Stories as the page holds them, by the name of their block: the ids of their records, and all of them compressed."""


def _kept(rollouts: int, of: int, length: int) -> str:
    words = f"{rollouts:,} of {of:,} rollouts are here with their turns: first those that contexts come from, with "
    words += "their counterparts and nearest successes, then failures, then successes, later iterations first"
    shorter = f", those of explorations after {length:,}" if length < LONGEST_TEXT else ""
    return f"{words}. Texts of more than {LONGEST_TEXT:,} characters are cut{shorter}."


def _size(blocks: Blocks) -> int:
    return sum(len(packed) for _, packed in blocks.values())


def cut(text: str, length: int = LONGEST_TEXT) -> str:
    """Return ``text``, the beginning of a longer one with a line that says so."""
    if len(text) <= length:
        return text
    return f"{text[:length]}\n[cut: {length:,} of {len(text):,} characters]"


def table(history: History) -> Json:
    """Return a row for each context and each task: its id, its tools, and cells, the newest first."""
    contexts = [_context_row(chain) for chain in reversed(history.chains.values())]
    tasks = [_task_row(history, task) for task in reversed(history.tasks.values())]
    return {
        "context": {
            "columns": ["Iteration", "Weakness", "Memory", "Drafts", "Admitted", "Refused"],
            "rows": contexts,
        },
        "task": {"columns": ["Iteration", "Task", "Origin", "Groups", "Success by iteration"], "rows": tasks},
    }


def _task_row(history: History, task: Task) -> list[Any]:
    course = history.course(task.id).items()
    success = ", ".join(f"{share_words(share, count)} ({number})" for number, (share, count) in course)
    groups = len(history.groups.get(task.id, ()))
    return [
        task.id,
        _named(task.reference),
        stage_name(task.admitted_at),
        task_words(task),
        task.origin,
        groups,
        success,
    ]


def _context_row(chain: Chain) -> list[Any]:
    context = chain.context
    refused = [result_of(one.verification) for one in chain.outcomes if one.verification and one.task is None]
    drafted = [name for one in chain.outcomes for name in _named(one.draft.reference)]
    known = "explored" if chain.deduplication is None else chain.deduplication.status
    return [
        context.id,
        list(dict.fromkeys([*([one_line(context.tool)] if context.tool else []), *drafted])),
        stage_name(chain.iteration),
        named_weakness(context, chain.signal, chain.weak),
        "failed" if chain.failure is not None else known,
        len(chain.outcomes),
        len(chain.admitted),
        ", ".join(map(spoken, dict.fromkeys(refused))),
    ]


def _named(reference: Iterable[Iterable[ToolCall]]) -> list[str]:
    return list(dict.fromkeys(one_line(call.name) for turn in reference for call in turn))


def _stages(history: History, length: int) -> Blocks:
    """Return the stories of each stage's contexts and tasks; texts behind a row have at most ``length`` characters."""
    blocks = {}
    for number in (None, *history.iterations):
        stories = {chain.context.id: _chain(history, chain, length) for chain in history.chains_in(number)}
        stories |= {one.id: _task(history, one, length) for one in history.tasks.values() if one.admitted_at == number}
        blocks["stage-seed" if number is None else f"stage-{number:03d}"] = (tuple(stories), _packed(stories))
    return blocks


def _chain(history: History, chain: Chain, length: int) -> Json:
    return {
        "title": weakness_words(chain.context),
        "steps": _steps(chain_steps(history, chain), length),
        "after": _steps(effect_steps(history, chain), length),
    }


def _task(history: History, task: Task, length: int) -> Json:
    """Return a task's story, which its chain's comes ``before``; its start is behind the row of its tools."""
    chain = history.chain_of(task.id)
    start = Row("start", json.dumps(task.initial_state, indent=1), code=True)
    setup = (Row("before", written(call), code=True) for call in task.setup)
    tools = Row("tools", ", ".join(task.tools), more=(start, *setup))
    asks, *rest = task_steps(history, task)
    steps = _steps([asks._replace(rows=(*asks.rows, tools)), *rest], length)
    return {"title": task_words(task), "before": None if chain is None else chain.context.id, "steps": steps}


def _turns(history: History, rollouts: Sequence[Rollout], *, diagnosed: bool) -> Blocks:
    """Return the stories of rollouts by iteration; ``diagnosed``: with SEAL's label of each turn."""
    blocks: dict[str, Json] = {f"turns-{number:03d}": {} for number in history.iterations}
    for one in history.trajectories(rollouts):
        task = history.tasks.get(one.task_id)
        steps = _steps(rollout_story(history, one, diagnosed=diagnosed), LONGEST_TEXT)
        blocks[f"turns-{one.iteration:03d}"][one.id] = {"title": task_words(task) if task else one.id, "steps": steps}
    return {name: (tuple(stories), _packed(stories)) for name, stories in blocks.items()}


def _steps(steps: Iterable[Chapter], length: int) -> list[Any]:
    return [[step.name, step.id, step.about, [_row(one, LONGEST_TEXT, length) for one in step.rows]] for step in steps]


def _row(row: Row, longest: int, behind: int) -> Json:
    """Return what a row has; each rollout of its groups as id, result, and words."""
    found: Json = {"label": row.label, "text": cut(row.text, longest), "tone": row.tone, "to": row.to, "code": row.code}
    found |= {"groups": [[_dot(one) for one in group.rollouts] for group in row.groups], "marked": row.marked}
    found["more"] = [_row(one, behind, behind) for one in row.more]
    return {name: value for name, value in found.items() if value and value != "plain"}


def _dot(one: Rollout) -> list[str]:
    result, words = {True: ("good", "success"), False: ("bad", "failure"), None: ("fault", "fault")}[one.success]
    return [one.id, result, f"{rollout_words(one)}: {words}"]


def in_order_of_worth(history: History) -> Iterator[Rollout]:
    """Yield all rollouts, those that the page must not lack first.

    The rollouts that contexts come from, with their counterparts and nearest successful siblings; then failures, then
    successes, later iterations first.
    """
    first: dict[str, Rollout] = {}
    for chain in (one for one in history.chains.values() if one.rollout is not None):
        assert chain.rollout is not None
        counterpart = history.rollouts.get(chain.signal.counterpart_id) if chain.signal is not None else None
        for one in (chain.rollout, counterpart, history.sibling(chain.rollout, success=True)):
            if one is not None:
                first[one.id] = one
    yield from first.values()
    rest = (one for one in history.rollouts.values() if one.id not in first)
    yield from sorted(rest, key=lambda one: (bool(one.success), -one.iteration, one.start))


def _packed(value: object) -> str:
    """Return compressed JSON in base64; half surrogates and control characters of foreign texts are escapes in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _document(shown: Json, parts: Mapping[str, str], kept: str) -> bytes:
    """Return the HTML. Its policy allows this one script and style by their hashes, and nothing else."""
    template, style, script = (_ASSETS.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
    environment = Environment(
        autoescape=True,
        finalize=lambda one: one if hasattr(one, "__html__") else printable(str(one), "\n\t"),  # markup is ours
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.from_string(template).render(
        **shown,
        kept=kept,
        policy=f"{policy}base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        parts=parts,
    )
    return page.lstrip().encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
