"""Adds SEAL's diagnosis of the turn that went wrong to a failure context, so that it tells contexts apart."""

from __future__ import annotations

from environments.base import Environment
from memory.records import Evidence, FailureContext
from training.diagnosis import FAILED, diagnose


def diagnosed(context: FailureContext, evidence: Evidence, environment: Environment) -> FailureContext:
    """``context`` with label and cause of the turn of its ``where``, else of the first turn that failed.

    As it is where no turn has a label that says the policy did something wrong (a success that is rare).
    """
    tools = {tool.name: tool for tool in environment.tools(evidence.task.tools)}
    found = diagnose(evidence.trajectory, evidence.task, tools)
    failed = [turn for turn in found.turns if turn.label in FAILED] if found is not None else []
    if not failed:
        return context
    turn = next((one for one in failed if one.turn == context.where[0]), failed[0])
    return context.model_copy(update={"label": turn.label, "turn_cause": turn.cause})
