"""What a supervised start learns from, as tokens: references of tasks, and a benchmark's single-turn questions (ours).

References are played through the policy's own rendering. A question has documentation and the call that answers it, and
nothing that executes it: what is learnt is the message with the call.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from environments.base import Environment, InputError, Record, UserTurn
from environments.registry import benchmark_of, is_import_path
from environments.verification.canonical import canonical
from memory.files import sha256_of
from memory.jsonl import derive_seed
from memory.records import Task
from memory.run import read_jsonl
from training.device_memory import Dtype
from training.rendering.base import Unwritable
from training.rollout.episodes import LEARNABLE, EpisodeLimits, TokenRow, play_references, token_row
from training.rollout.policy import Policy
from training.settings import MOST_TOKENS, RenderingOptions

QUESTIONS = "questions"
"""What the benchmark's single-turn questions are called in the record."""

_OFFERED = 5  # tools that a question is shown among (ours)


class StartSettings(RenderingOptions, Record):
    """What a supervised start does, as the command's help says, and how its model's chat template renders.

    ``tokens`` reach to the end of a row. ``max_tokens`` are never more than the model has positions; a policy that is
    made has as many, and a rate for random weights where ``learning_rate`` is None. Weights stay float32.
    """

    passes: int = Field(1, ge=1, le=100_000)
    tokens: int | None = Field(None, ge=1, le=10**12)
    order: Literal["given", "mixed"] = "given"
    learning_rate: float | None = Field(None, gt=0, le=1.0)
    seed: int = Field(0, ge=0, lt=2**63)
    dtype: Dtype = "float32"
    max_tokens: int = Field(4096, ge=16, le=MOST_TOKENS)
    tag_synthesised: bool = False
    questions: int = Field(0, ge=0, le=100_000)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(1, ge=1, le=1024)


class LearntFile(Record):
    """A file of tasks that was learnt from, or the benchmark's questions (``QUESTIONS``).

    ``parts``: single turns that are not learnt from, because the whole task is. ``left_out``: references that did not
    succeed within ``max_tokens``. ``rows``: references that went through the model, passes counted, of ``tokens`` in
    all.
    """

    file: str
    sha256: str
    tasks: int
    parts: int
    left_out: int
    rows: int = 0
    tokens: int = 0


def start_rows(
    policy: Policy,
    environment: Environment,
    files: Sequence[Path],
    tasks: Sequence[Sequence[Task]],
    settings: StartSettings,
) -> tuple[list[list[TokenRow]], list[LearntFile]]:
    """Return the rows of the questions, where some are asked for, and of each file of ``tasks``; and their records.

    Raises InputError for a file without a row.
    """
    from training.supervised import without_parts

    limit = min(settings.max_tokens, policy.positions or settings.max_tokens)
    tag = settings.tag_synthesised
    fitting = [played(policy, environment, some, file, limit, tag=tag) for file, some in zip(files, tasks, strict=True)]
    whole = {id(task) for task in without_parts([task for some in fitting for task, _ in some])}
    rows, learnt = [], []
    if settings.questions:
        asked, about = question_rows(policy, environment, settings, limit)
        rows.append(asked)
        learnt.append(about)
    for file, given, some in zip(files, tasks, fitting, strict=True):
        kept = [row for task, row in some if id(task) in whole]
        if not kept:
            raise InputError(f"{file} has nothing but single turns of tasks that are learnt from whole: leave it out")
        rows.append(kept)
        learnt.append(
            LearntFile(
                file=file.name,
                sha256=sha256_of(file),
                tasks=len(given),
                parts=len(some) - len(kept),
                left_out=len(given) - len(some),
            )
        )
    return rows, learnt


def read_learnable(file: Path, environment: str) -> list[Task]:
    """Read the tasks to learn from. Raises InputError naming the first that must not be learnt from, and why."""
    tasks = read_jsonl(file, Task)
    if not tasks:
        raise InputError(f"{file} holds no task: give one or more")
    for number, task in enumerate(tasks, start=1):
        where = f"{file}, line {number}: task {task.id}"
        if task.split != "train":
            raise InputError(f"{where} is of the {task.split} split: give train only")
        if task.origin not in LEARNABLE:
            raise InputError(f"{where} is held out (its origin is {task.origin}): remove it")
        if task.environment != environment and not is_import_path(environment):
            raise InputError(f"{where} is of the environment {task.environment!r}: name it with --environment")
    return tasks


def refuse_held_out(path: Path, tasks: Iterable[Task], environment: Environment) -> None:
    """Raise InputError naming the first task of ``path`` whose content is that of a held-out task."""
    sets = benchmark_of(environment).held_out()
    for task in tasks:
        try:
            same = sets.match(task, canonical(environment, task))
        except RecursionError:
            same = "Its state contains itself."
        if same is not None:
            raise InputError(f"{path}: task {task.id} is held out: {same} Remove it")


def played(
    policy: Policy, environment: Environment, tasks: Sequence[Task], file: Path, limit: int, *, tag: bool
) -> list[tuple[Task, TokenRow]]:
    """Return the tasks whose references succeed within ``limit`` tokens, in their order, with these tokens.

    ``tag``: the system messages of synthesised ones say so. Raises InputError when none does.
    """
    limits = EpisodeLimits(max_new_tokens=limit, max_tokens=limit, max_actions=10_000, tag_synthesised=tag)
    rows = []
    for task, result in zip(tasks, play_references(policy, environment, tasks, limits), strict=True):
        # One that is cut off in its last message may succeed, and would teach a turn that does not end.
        if result.outcome is not None and result.outcome.success and result.turns[-1].ended:
            rows.append((task, token_row(result, filler=0)))
    if not rows:
        raise InputError(
            f"{file}: none of {len(tasks)} references succeeds within {limit} tokens: raise --max-tokens, or give a "
            "model with more positions"
        )
    return rows


def question_rows(
    policy: Policy, environment: Environment, settings: StartSettings, limit: int
) -> tuple[list[TokenRow], LearntFile]:
    """Return drawn questions of the benchmark that one call answers, each among tools of others, and their record.

    Nothing is executed: the message with the call is learnt, and no answer or end follows. Raises InputError where the
    benchmark has too few, and for a format that cannot write a call.
    """
    written = benchmark_of(environment).written_turns(environment)
    turns = [one for one in written if not (one.held_out or one.answers[0]) and len(one.calls) == 1]
    if len(turns) < settings.questions:
        raise InputError(f"--questions: {environment.name} has {len(turns)} of one call to learn from: give no more")
    rng = random.Random(derive_seed(settings.seed, "warm_start", "questions"))
    rows, told = [], hashlib.sha256()
    for turn in rng.sample(turns, settings.questions):
        tools = {tool.name: tool for tool in (*turn.tools, *turn.others)}
        while len(tools) < _OFFERED:
            (other,) = rng.choice(turns).tools
            tools.setdefault(other.name, other)
        offered = rng.sample([*tools.values()], len(tools))
        dialogue = policy.rendering.begin()
        asked = UserTurn(index=0, text=turn.words, tools=tuple(tool.name for tool in offered))
        prompt = dialogue.first(asked, offered)
        try:
            ids = dialogue.demonstrate(turn.calls[0])
        except Unwritable:
            continue
        if len(prompt) + len(ids) <= limit:
            rows.append(TokenRow(prompt, ids, [0.0] * len(ids), [1] * len(ids)))
            told.update(turn.model_dump_json().encode())
    if not rows:
        raise InputError(f"--questions: none is within {limit} tokens: raise --max-tokens")
    left_out = settings.questions - len(rows)
    about = LearntFile(file=QUESTIONS, sha256=told.hexdigest(), tasks=settings.questions, parts=0, left_out=left_out)
    return rows, about
