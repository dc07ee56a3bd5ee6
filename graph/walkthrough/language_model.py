"""Reads a recorded run of the language model for a notebook, and what the model wrote before and after it.

The archive has the records of a run of recipes/lm.yaml without its weights, and the messages of greedy decoding on a
few of the turns that it trained on, of the model before the run and after its last round.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from itertools import groupby
from pathlib import Path

from environments.base import InputError, Record
from environments.checkout import ROOT
from graph.recipe import load_recipe
from graph.report.digest import calls_words, kind_words, task_words
from graph.report.lineage import Chain, History
from graph.report.tables import Table, table
from graph.settings import RunSettings, dotted
from graph.walkthrough.small_run import temporary_folder
from memory.jsonl import read_json, read_jsonl
from memory.records import PAPER_SHARES, SignalKind, Task
from memory.run import RunDirectory
from training.grpo.record import RoundRecord

VARIABLE = "COEVOLVE_NOTEBOOK_LM_RUN"
"""The environment variable that names a run of the language model, such as runs/lm, in place of the recorded one."""

RECIPE = ROOT / "recipes" / "lm.yaml"
RECORDED = ROOT / "notebooks" / "recorded" / "language_model.tar.gz"
ANSWERS = "answers.jsonl"  # beside the recorded run


class WrittenTurn(Record):
    """What a policy wrote on a user turn, its messages in order, and whether the turn was done.

    ``policy``: before the run, or after its last round.
    """

    task_id: str
    policy: str
    wrote: tuple[str, ...]
    success: bool


def language_model_run() -> RunDirectory:
    """Return the run that COEVOLVE_NOTEBOOK_LM_RUN names, else the recorded one, unpacked in a temporary folder."""
    if named := os.environ.get(VARIABLE):
        return RunDirectory.open(Path(named).expanduser().resolve())
    folder = temporary_folder()
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return RunDirectory.open(folder / "run")


def changes_table(history: History) -> Table:
    """Return the settings of a run that are others than those of recipes/lm.yaml."""
    shipped, used = map(dotted, (load_recipe(RECIPE), _settings(history)))
    rows = [
        (key, shipped.get(key), used.get(key)) for key in sorted(shipped | used) if shipped.get(key) != used.get(key)
    ]
    return table(("setting", "recipes/lm.yaml", "this run"), rows)


def _settings(history: History) -> RunSettings:
    return history.run.settings(RunSettings)


def signals_table(history: History) -> Table:
    """Return the signals of a run by kind, with what each means, and their shares beside the paper's Figure 4."""
    counts = Counter(one.kind for one in history.signals.values())
    words, total = kind_words(_settings(history).signals), max(1, counts.total())
    rows = [
        (
            kind,
            words.get(kind, ""),
            counts[kind],
            f"{100 * counts[kind] / total:.0f}",
            *(f"{one[place]:.0f}" for one in PAPER_SHARES),
        )
        for place, kind in enumerate(SignalKind)
    ]
    return table(("kind", "meaning", "marks", "share, %", "the paper, AppWorld", "the paper, BFCL"), rows)


def contexts_table(history: History) -> Table:
    """Return each context of a run with its signal and cause, and what the tasks ask for that came of it."""
    rows = []
    for chain in history.chains.values():
        if chain.signal is None:
            continue
        asked = "; ".join(task_words(task, 80) for task in chain.admitted)
        refused = len(chain.outcomes) - len(chain.admitted)
        context = chain.context
        rows.append((chain.signal.kind, context.tool, context.cause, len(chain.admitted), refused, asked))
    return table(("signal", "tool", "cause", "admitted", "refused", "the new tasks ask"), rows, width=240)


def followed(history: History) -> tuple[Chain, Task]:
    """Return the first context that tasks came of, boundary and forgetting before rare, and the first of its tasks.

    Raises InputError for a run without one.
    """
    led = [chain for chain in history.chains.values() if chain.signal is not None and chain.admitted]
    if not led:
        raise InputError(f"no context of {history.run.root} led to a task: name another run")
    first = min(led, key=lambda chain: chain.signal is not None and chain.signal.kind is SignalKind.RARE)
    return first, first.admitted[0]


def rounds_table(history: History) -> Table:
    """Return for each round the references that its expert step learnt from, and what GRPO's rollouts came to."""
    rows = []
    for number in history.iterations:
        done = read_json(history.run.iteration(number).round, RoundRecord)
        learnt = "" if done.expert is None else f"{done.expert.references} new, {done.expert.replayed} older"
        gap = "" if done.gap is None else f"{done.gap.mean:.1e}, at most {done.gap.largest:.1e}"
        rows.append((number, done.tasks, learnt, f"{done.success:.0%}", f"{done.mixed_groups:.0%}", gap))
    names = ("round", "tasks", "references learnt", "rollouts that succeed", "groups that are mixed")
    return table((*names, "sampler and trainer differ by, nats"), rows)


def answers_table(history: History) -> Table:
    """Return what the recorded model wrote on some human turns before and after the run, beside their references.

    Of another run nothing is recorded: the table has no row.
    """
    rows: list[tuple[str, str, str]] = []
    path = history.run.root.parent / ANSWERS
    recorded = read_jsonl(path, WrittenTurn) if path.exists() else []
    for task_id, answers in groupby(recorded, lambda one: one.task_id):
        task = history.tasks[task_id]
        rows.append(("user", task_words(task, 400), ""))
        rows.append(("reference", calls_words(task.reference[-1], 400), ""))
        for one in answers:
            rows.append((one.policy, " ".join(one.wrote), "done" if one.success else "failed"))
    return table(("", "text", "result"), rows, width=400)
