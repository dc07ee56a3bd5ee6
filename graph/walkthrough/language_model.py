"""Reads a recorded run of the language model for a notebook, and what the model wrote before and after it.

    python -m graph.walkthrough.language_model RUN

records it anew from a run of recipes/lm.yaml: the run's records without its weights, and the messages of greedy
decoding on a few of the turns that it trained on, of the model before the run and after its last round. The run and
this command take minutes and 5 GB; reading takes neither, nor the model.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from environments.base import InputError, Record
from environments.checkout import ROOT
from environments.command import OneSentence, exit_statuses
from graph.recipe import load_recipe
from graph.report.digest import calls_words, kind_words, task_words
from graph.report.lineage import Chain, History
from graph.report.tables import Table, table
from graph.settings import RunSettings, dotted
from graph.walkthrough.small_run import temporary_folder
from memory.jsonl import read_jsonl, write_jsonl
from memory.records import PAPER_SHARES, SignalKind, Task
from memory.run import RunDirectory, read_json
from memory.tasks import load_tasks
from training.grpo.record import RoundRecord
from training.rollout.settings import IN_PROCESS

if TYPE_CHECKING:
    from training.rollout.episodes import EpisodeResult
    from training.rollout.policy import Policy

VARIABLE = "COEVOLVE_NOTEBOOK_LM_RUN"
"""The environment variable that names a run of the language model, such as runs/lm, in place of the recorded one."""

RECIPE = ROOT / "recipes" / "lm.yaml"
RECORDED = ROOT / "notebooks" / "recorded" / "language_model.tar.gz"
ANSWERS = "answers.jsonl"  # beside the recorded run

BEFORE, AFTER = "before", "after"
TURNS = 6  # of D_0, whose answers are recorded
_LEFT_OUT = ("policy", "failures", "served")
_NEVER = (".lock", ".log", ".sqlite", "lock.json")


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


def record(run: RunDirectory) -> None:
    """Write the recorded run and its answers anew. Raises InputError for a run without a finished round."""
    settings = run.settings(RunSettings)
    turns = [task for task in load_tasks(run) if task.admitted_at is None]
    turns = turns[:: max(1, len(turns) // TURNS)][:TURNS]
    last = [number for number in range(settings.iterations) if run.iteration(number).round.exists()][-1]
    trained = run.root / read_json(run.iteration(last).round, RoundRecord).policy
    found = list(_answers(settings, settings.policy.path, BEFORE, turns))
    found += _answers(settings, str(trained), AFTER, turns)
    order = {task.id: place for place, task in enumerate(turns)}
    answers = temporary_folder() / ANSWERS
    found.sort(key=lambda one: order[one.task_id])
    write_jsonl(answers, found)
    with tarfile.open(RECORDED, "w:gz", compresslevel=9) as archive:
        archive.add(answers, ANSWERS, filter=_without_machine)
        for path in sorted(run.root.rglob("*")):
            inside = path.relative_to(run.root)
            if path.is_file() and inside.parts[0] not in _LEFT_OUT and not path.name.endswith(_NEVER):
                archive.add(path, Path("run") / inside, filter=_without_machine)


def _without_machine(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _answers(settings: RunSettings, path: str, name: str, turns: Sequence[Task]) -> Iterator[WrittenTurn]:
    import torch

    from training.rollout.engines import open_sampler
    from training.rollout.episodes import EpisodeLimits, EpisodeRequest, run_episodes
    from training.rollout.policy import load_policy

    training = settings.training
    torch.set_num_threads(training.threads)
    policy = load_policy(path, "cpu", settings.policy.dtype, settings.policy)
    limits = EpisodeLimits(
        max_new_tokens=training.max_new_tokens,
        max_tokens=training.max_tokens,
        max_actions=training.max_actions,
        max_steps=training.max_episode_steps,
    )
    requests = [EpisodeRequest(task=task, seed=0) for task in turns]
    environment = settings.environment.open()
    sampler = open_sampler(
        IN_PROCESS,
        policy,
        Path(path),
        bfloat16=settings.policy.dtype == "bfloat16",
        adapter=policy.adapter,
        stored=True,
    )
    played = run_episodes(policy, sampler, environment, requests, limits, 0.0)
    for one in played:
        success = one.outcome is not None and one.outcome.success
        yield WrittenTurn(task_id=one.task.id, policy=name, wrote=_messages(policy, one), success=success)


def _messages(policy: Policy, played: EpisodeResult) -> tuple[str, ...]:
    messages = []
    for sampled, part in groupby(zip(played.completion_ids, played.mask, strict=True), lambda pair: pair[1]):
        if sampled:
            messages.append(str(policy.tokenizer.decode([token for token, _ in part], skip_special_tokens=True)))
    return tuple(messages)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=OneSentence)
def main(run: Annotated[Path, typer.Argument(help="a run of recipes/lm.yaml")]) -> None:
    """Record a run of the language model for the notebook."""
    with exit_statuses():
        record(RunDirectory.open(run))


if __name__ == "__main__":
    app()
