"""Values that people gave to a tool's parameters in the training split and that no state or documentation holds.

Values that stand in the task's own initial state or in an earlier call are left out: they mean something there only.
Which cities have a zipcode stands nowhere in BFCL's states or documents; a language model knows or guesses such names,
a rule-based explorer has to be told. Only training indices are read. Both scripted explorers are told, so that they
differ in what they aim at and not in what they know (our choice).
"""

from __future__ import annotations

import json
from functools import cache
from typing import NamedTuple

from agents.scripted.values import Scalar
from environments.settings import BFCL


class TrainingValue(NamedTuple):
    """A value given to ``parameter`` of ``tool``, and the other values of the same call."""

    tool: str
    parameter: str
    value: Scalar
    near: frozenset[Scalar]


@cache
def training_values(environment: str) -> tuple[TrainingValue, ...]:
    """Distinct text values of the human training references of ``environment``; empty where there are none.

    Raises InputError when the environment's package is not installed.
    """
    if environment != BFCL:
        return ()
    from environments.bfcl.official import load_category

    found: dict[tuple[str, str, Scalar], set[Scalar]] = {}
    for task in load_category("base", ("train",)):
        known = json.dumps(task.spec.initial_state)
        for call in (call for turn in task.spec.reference for call in turn):
            texts = {name: value for name, value in call.arguments.items() if isinstance(value, str)}
            for name, value in texts.items():
                if value not in known:
                    found.setdefault((call.name, name, value), set()).update(set(texts.values()) - {value})
            known += json.dumps(list(texts.values()))
    return tuple(TrainingValue(*key, frozenset(near)) for key, near in found.items())
