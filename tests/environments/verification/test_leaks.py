"""The leak suite: held-out tasks in whatever form are refused, honest drafts are not."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from support import ROOT
from support.changed_tasks import CHANGES, changed, held_out_tasks, human_wordings, shingles
from support.templated_calls import TEMPLATED_CLASSES

from environments.base import TaskSpec, ToolCall
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import CLASSES, load_category
from environments.verification.canonical import canonical, part_digest, words
from environments.verification.decontamination import held_out
from environments.verification.verify import Refusal, can_train, verify

pytestmark = pytest.mark.slow

ENVIRONMENT = BFCLEnvironment()
SETS = ("panel", "dev", "test", "reserved")
EACH = 2
"""Tasks of each set for a change, where as many can be changed so."""

PAIRS = 50
OTHER_CALLS = {"setup_played", "first_call_in_setup", "change_more"}
"""Changes of what is asked for: another task, and of training where training begins in the same state."""

SUPPORT = ROOT / "tests" / "support"
HONEST = (
    (SUPPORT / "honest_drafts.jsonl.gz", TEMPLATED_CLASSES, 0.01),
    (SUPPORT / "honest_world_drafts.jsonl.gz", CLASSES, 0.02),
)
"""Files of 700 drafts of graph.seed_tasks each, unguided and guided, before decontamination (start state, setup,
reference, turns); the classes of their starts; the share that may be refused wrongly. The second is of
recipes/world.yaml, whose held-out sets have tasks of one call: a draft that contains one is refused, too."""


@cache
def attacks() -> list[tuple[str, str, TaskSpec]]:
    """(kind, id, changed task): each change alone, each on reworded text, and pairs of changes on reworded text."""
    rng = random.Random("leaks")
    members = {name: [(task_id, task) for found, task_id, task in held_out_tasks() if found == name] for name in SETS}
    single = [(name, (name,)) for name in CHANGES] + [(f"{name}, reworded", ("reworded", name)) for name in CHANGES]
    pairs = [("two changes", ("reworded", *rng.sample(sorted(CHANGES), 2))) for _ in range(PAIRS)]
    found = []
    for kind, names in (*single, *pairs):
        for members_of in members.values():
            wanted = 1 if kind == "two changes" else EACH
            for task_id, task in rng.sample(members_of, min(40, len(members_of))):
                if not wanted:
                    break
                if OTHER_CALLS & set(names) and begins_in_training(task):
                    continue
                other = changed(task, names, rng)
                if other is not None:
                    found.append((kind, task_id, other))
                    wanted -= 1
    return found


@cache
def training_parts() -> frozenset[tuple[str, str]]:
    (record,) = held_out("bfcl").records
    return frozenset((start.part, start.digest) for start in record.training)


def begins_in_training(task: TaskSpec) -> bool:
    return _digests(canonical(ENVIRONMENT, task)) <= training_parts()


def test_no_changed_held_out_task_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    sets = held_out("bfcl")
    refused: Counter[str] = Counter()
    passed = []
    tried = attacks()
    for kind, task_id, task in tried:
        result = can_train(task, ENVIRONMENT, (), sets)
        if result.reason is Refusal.HELD_OUT:
            refused[kind] += 1
        else:
            passed.append(f"{kind}: {task_id}: {result.reason}: {result.detail}")
    with capsys.disabled():
        print(
            f"\n{len(tried)} changed held-out tasks, {len(passed)} not refused as held out; by change:", dict(refused)
        )
    assert not passed, "\n".join(passed)
    assert len(tried) >= 500
    assert refused.keys() >= {*CHANGES, *(f"{name}, reworded" for name in CHANGES), "two changes"}
    assert min(refused.values()) >= EACH


def test_verification_refuses_what_training_refuses() -> None:
    sets = held_out("bfcl")
    for _, _, task in attacks()[::40]:
        result = verify(task, ENVIRONMENT, (), sets)
        assert not result.accepted


def honest(file: Path, classes: tuple[str, ...]) -> list[TaskSpec]:
    starts = {start.id: start for start in BFCLEnvironment(classes).starts()}

    def calls(given: list[tuple[str, dict]]) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(name=name, arguments=arguments) for name, arguments in given)

    return [
        TaskSpec(
            **starts[start].model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
            setup=calls(setup),
            reference=tuple(map(calls, reference)),
            turns=tuple(turns),
        )
        for start, setup, reference, turns in map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
    ]


@pytest.mark.parametrize(("file", "classes", "most"), HONEST, ids=["two classes", "all classes"])
def test_honest_drafts_are_refused_only_for_what_a_held_out_task_is(
    file: Path, classes: tuple[str, ...], most: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two configurations that training and test share, a task can be both: those are refused, and rightly."""
    drafts, sets = honest(file, classes), held_out("bfcl")
    assert len(drafts) >= 500
    wrong, same = [], 0
    for draft in drafts:
        form = canonical(ENVIRONMENT, draft)
        why = sets.match(draft, form)
        if why is None:
            continue
        twins = [task for record in sets.records for task in record.tasks if task.changes == form.changes]
        if any(set(task.reads) == form.reads and task.starts.items() <= _digests(form) for task in twins):
            same += 1
        else:
            wrong.append(f"{why} {draft.turns}")
    with capsys.disabled():
        print(f"\n{len(drafts)} honest drafts: {same} are a held-out task, {len(wrong)} refused wrongly")
    assert len(wrong) < most * len(drafts), "\n".join(wrong)
    assert same < 0.01 * len(drafts)


def _digests(form) -> set[tuple[str, str]]:
    return {(part, part_digest(value)) for part, value in form.parts.items()}


def test_official_training_tasks_are_none_of_the_held_out_ones() -> None:
    sets = held_out("bfcl")
    for task in load_category("base", ("train",)):
        assert sets.match(task.spec, canonical(ENVIRONMENT, task.spec)) is None, task.id


def test_no_explorer_starts_in_a_held_out_state() -> None:
    (record,) = held_out("bfcl").records
    held = {(start.part, start.digest) for start in record.held_out}
    assert len(held) > 150
    for start in ENVIRONMENT.starts():
        task = TaskSpec(
            **start.model_dump(include={"environment", "split", "classes", "initial_state", "tools"}),
            turns=("",),
            reference=((),),
        )
        assert not _digests(canonical(ENVIRONMENT, task)) & held, start.id


def test_texts_of_honest_drafts_hold_no_held_out_wording() -> None:
    sets = {" ".join(words(text)) for found, _, task in held_out_tasks() if found == "panel" for text in task.turns}
    texts = [text for file, classes, _ in HONEST for draft in honest(file, classes) for text in draft.turns]
    assert len(human_wordings()) > 5000
    assert not sets & {" ".join(words(text)) for text in texts}
    assert not human_wordings() & {run for text in texts for run in shingles(text)}
