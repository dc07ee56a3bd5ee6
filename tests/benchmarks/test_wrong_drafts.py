"""Drafts made wrong: one change of a reference, always the same, which verification mostly refuses."""

from __future__ import annotations

from collections import Counter

import pytest
from support.made_run import CAR, ENVIRONMENT, FILES, first_tasks

from benchmarks.wrong_drafts import Change, perturb
from environments.base import JsonValue, TaskSpec, ToolCall
from environments.verification.verify import verify
from memory.records import Draft

TASKS = {(task.classes[0], len(task.reference[0])): task for task in first_tasks()}


def draft(number: int = 0, like: tuple[str, int] = (CAR, 2), **changes: object) -> Draft:
    spec = {name: getattr(TASKS[like], name) for name in TaskSpec.model_fields}
    return Draft.model_validate(spec | {"id": f"draft-{number:016x}", "context_id": "context"} | changes)


@pytest.mark.parametrize("value", [True, 3, 2.5, 1e300, "x", "", [], ["a"], {}, {"a": 1}, None], ids=repr)
def test_a_value_of_any_type_becomes_another_one(value: JsonValue) -> None:
    call = ToolCall(name="cd", arguments={"folder": value})
    values = []
    for number in range(20):
        made = perturb(draft(number, (FILES, 2), reference=((call,),)), 1, ENVIRONMENT)
        assert made is not None
        change, changed = made
        if change is Change.ARGUMENT:
            values.append(changed.reference[0][0].arguments["folder"])
    assert values
    assert all(other != value for other in values)


def test_a_draft_without_anything_to_change_stays() -> None:
    assert perturb(draft(1, reference=((),)), 1, ENVIRONMENT) is None
    lonely = draft(1, reference=((ToolCall(name="pwd"),),), tools=("pwd",))
    assert perturb(lonely, 1, ENVIRONMENT) is None


def test_verification_refuses_most_changed_references() -> None:
    """What is left out is found by the text: a value that no call takes, a tool that it names, a step too few."""
    tried, refused = Counter[Change](), Counter[Change]()
    for like in ((CAR, 1), (CAR, 2), (CAR, 3), (FILES, 1), (FILES, 2)):
        assert verify(draft(0, like), ENVIRONMENT, (), ()).accepted
        for number in range(20):
            made = perturb(draft(number, like), 3, ENVIRONMENT)
            assert made is not None
            change, changed = made
            assert changed.model_copy(update={"reference": draft(number, like).reference}) == draft(number, like)
            assert made == perturb(draft(number, like), 3, ENVIRONMENT)
            tried[change] += 1
            refused[change] += not verify(changed, ENVIRONMENT, (), ()).accepted
    assert all(refused[change] > 0.6 * tried[change] > 0 for change in Change)
