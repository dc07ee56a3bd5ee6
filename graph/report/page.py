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
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from environments.base import InputError
from environments.terminal import printable
from graph.report.digest import call_words, named_weakness, one_line, result_of, spoken, task_words
from graph.report.figures import Json, overview, stage_name
from graph.report.lineage import Chain, History, Rollout, called
from graph.report.stories import rollout_story
from graph.report.story import Chapter, Row, chain_steps, effect_steps, rollout_words, share_words, task_steps
from memory.records import Task
from memory.run import RunDirectory

LONGEST_TEXT = 4000
"""Characters of a foreign text that the page holds (ours)."""
MOST_ROLLOUTS = 5000
"""Rollouts that the page holds with their turns (ours); contexts and tasks are all there."""


class Page(NamedTuple):
    """A page: its bytes in UTF-8, how many of the run's rollouts it holds with their turns, and why it stays private.

    ``unpublishable`` is the benchmark's sentence, None where tasks and rollouts may be published.
    """

    html: bytes
    kept: int
    rollouts: int
    unpublishable: str | None


def make_page(run: RunDirectory, *, most: int = MOST_ROLLOUTS) -> Page:
    """Return the page of ``run`` with the turns of at most ``most`` rollouts.

    Raises InputError that names the file and line of a damaged record.
    """
    history = History.read(run)
    if not history.tasks and not history.iterations:
        raise InputError(f"{run.root} has no task and no iteration yet: begin it first")
    shown = overview(history)
    order, every = in_order_of_worth(history)[:most], len(history.rollouts)
    blocks = _stages(history) | _turns(history, order, diagnosed=shown["seal"])
    index = {record: name for name, stories in blocks.items() for record in stories}
    kept = (
        f"{len(order):,} of {every:,} rollouts are here with their turns: first those that contexts come from, "
        "then those with a signal, then failures, later iterations first. Texts of more than "
        f"{LONGEST_TEXT:,} characters are cut."
    )
    html = _document(shown, {"table": table(history), "index": index, **blocks}, kept)
    return Page(html, len(order), every, shown["unpublishable"])


Blocks = dict[str, dict[str, Json]]
"""Stories by the id of their record, by the name of the block that holds them."""


def cut(text: str) -> str:
    """Return ``text``, the beginning of a longer one with a line that says so."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[cut: {LONGEST_TEXT:,} of {len(text):,} characters]"


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
    cells = [stage_name(task.admitted_at), task_words(task), task.origin, len(history.groups.get(task.id, ())), success]
    return [task.id, [*map(one_line, called(task.reference))], *cells]


def _context_row(chain: Chain) -> list[Any]:
    context = chain.context
    refused = [result_of(one.verification) for one in chain.outcomes if one.verification and one.task is None]
    tools = [context.tool, *(name for one in chain.outcomes for name in called(one.draft.reference))]
    known = "explored" if chain.deduplication is None else chain.deduplication.status
    return [
        context.id,
        list(dict.fromkeys(one_line(name) for name in tools if name)),
        stage_name(chain.iteration),
        named_weakness(context, chain.signal, chain.weak),
        "failed" if chain.failure is not None else known,
        len(chain.outcomes),
        len(chain.admitted),
        ", ".join(map(spoken, dict.fromkeys(refused))),
    ]


def _stages(history: History) -> Blocks:
    blocks = {}
    for number in (None, *history.iterations):
        stories = {chain.context.id: _chain(history, chain) for chain in history.chains_in(number)}
        stories |= {one.id: _task(history, one) for one in history.tasks.values() if one.admitted_at == number}
        blocks["stage-seed" if number is None else f"stage-{number:03d}"] = stories
    return blocks


def _chain(history: History, chain: Chain) -> Json:
    after = _steps(effect_steps(history, chain))
    return {"title": named_weakness(chain.context), "steps": _steps(chain_steps(history, chain)), "after": after}


def _task(history: History, task: Task) -> Json:
    """Return a task's story, which its chain's comes ``before``; its start is behind the row of its tools."""
    chain = history.chain_of(task.id)
    start = Row("start", json.dumps(task.initial_state, indent=1), code=True)
    setup = (Row("before", call_words(call), code=True) for call in task.setup)
    tools = Row("tools", ", ".join(task.tools), more=(start, *setup))
    asks, *rest = task_steps(history, task)
    steps = _steps([asks._replace(rows=(*asks.rows, tools)), *rest])
    return {"title": task_words(task), "before": None if chain is None else chain.context.id, "steps": steps}


def _turns(history: History, rollouts: Sequence[Rollout], *, diagnosed: bool) -> Blocks:
    """Return the stories of rollouts by iteration; ``diagnosed``: with SEAL's label of each turn."""
    blocks: Blocks = {f"turns-{number:03d}": {} for number in history.iterations}
    for one in history.trajectories(rollouts):
        task = history.tasks.get(one.task_id)
        steps = _steps(rollout_story(history, one, diagnosed=diagnosed))
        blocks[f"turns-{one.iteration:03d}"][one.id] = {"title": task_words(task) if task else one.id, "steps": steps}
    return blocks


def _steps(steps: Iterable[Chapter]) -> list[Any]:
    return [[step.name, step.id, step.about, [*map(_row, step.rows)]] for step in steps]


def _row(row: Row) -> Json:
    """Return what a row has; each rollout of its groups as id, result, and words."""
    found: Json = {"label": row.label, "text": cut(row.text), "tone": row.tone, "to": row.to, "code": row.code}
    found |= {"groups": [[_dot(one) for one in group.rollouts] for group in row.groups], "marked": row.marked}
    found["more"] = [*map(_row, row.more)]
    return {name: value for name, value in found.items() if value and value != "plain"}


def _dot(one: Rollout) -> list[str]:
    result, words = {True: ("good", "success"), False: ("bad", "failure"), None: ("fault", "fault")}[one.success]
    return [one.id, result, f"{rollout_words(one)}: {words}"]


def in_order_of_worth(history: History) -> list[Rollout]:
    """Return all rollouts, those that the page must not lack first.

    The rollouts that contexts come from, then those with a signal, then failures, later iterations first.
    """

    def worth(one: Rollout) -> tuple[bool, bool, bool, int, int]:
        led_on, marked = bool(history.chains_from(one.id)), one.id in history.marks
        return not led_on, not marked, bool(one.success), -one.iteration, one.start

    return sorted(history.rollouts.values(), key=worth)


def _packed(value: object) -> str:
    """Return compressed JSON in base64; half surrogates and control characters of foreign texts are escapes in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _document(shown: Json, parts: Mapping[str, Json], kept: str) -> bytes:
    """Return the HTML. Its policy allows this one script and style by their hashes, and nothing else."""
    assets = files("graph.report")
    template, style, script = (assets.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
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
        parts={name: _packed(part) for name, part in parts.items()},
    )
    return page.lstrip().encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
