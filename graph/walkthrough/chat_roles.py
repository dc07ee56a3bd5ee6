"""Plays the small scene of the notebook on chat roles: one failed attempt, recorded replies, hostile ones, and costs.

It belongs to the parcel depot (``environments.example``), whose prompts are short enough to read.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agents.chat.recorded import RecordedReply, open_recorded
from agents.chat.reflector import ChatReflector
from agents.roles import RoleRefused
from agents.settings import BudgetSettings, ExplorationSettings
from agents.spending import Ledger, added, read_requests
from environments.base import Environment, ToolCall
from environments.checkout import ROOT
from environments.example import depot
from environments.verification.verify import verify
from graph.report.charts import Bar, Chart, bar_chart
from graph.report.digest import call_words, calls_words
from graph.report.tables import Table, table
from graph.walkthrough.small_run import acted_out, temporary_folder
from memory.jsonl import read_jsonl
from memory.records import Draft, Evidence, FailureContext, Interaction, Measured, Signal, SignalKind, Task
from memory.run import RunDirectory

__all__ = [
    "HOSTILE",
    "LIMITS",
    "RECORDED",
    "Scene",
    "context_fields",
    "explored_table",
    "failed_attempt",
    "hostile_table",
    "new_ledger",
    "readable",
    "spending_chart",
    "spending_table",
    "verified_table",
]

RECORDED = ROOT / "notebooks" / "recorded" / "chat_roles.jsonl"
"""The replies of reflector, explorer and abstractor; written by hand."""
HOSTILE = ROOT / "notebooks" / "recorded" / "hostile_replies.jsonl"
"""Replies that a broken or hostile model might give, by name; written by hand."""

LIMITS = ExplorationSettings(rounds=1, steps=8, drafts_per_context=4, max_reference_calls=4)
"""How long the explorer acts and how many drafts are made (ours: one short round)."""

_NOT_REFLECTIONS = frozenset({"explorer", "abstractor"})


class Scene(NamedTuple):
    """The environment, and a signal with its task and its failed rollout."""

    environment: Environment
    evidence: Evidence


def failed_attempt() -> Scene:
    """Act out an attempt that fails because a parcel is loaded before it is insured; the environment evaluates it."""
    environment = depot()
    start = environment.starts()[1]
    crate = "red crate"
    load, gate = _call("load_parcel", label=crate, van="north"), _call("open_gate")
    send = _call("send_van", van="north")
    task = Task(
        id="task-red-crate",
        origin="given",
        environment=environment.name,
        split="train",
        classes=start.classes,
        turns=(f'Insure "{crate}" for 300 euros and send it off with the north van.',),
        initial_state=start.initial_state,
        tools=start.tools,
        reference=((_call("insure_parcel", label=crate, euros=300), load, gate, send),),
    )
    rollout = acted_out(task, environment, (load, gate, send))
    signal = Signal(
        id="signal-red-crate",
        kind=SignalKind.BOUNDARY,
        iteration=0,
        task_id=task.id,
        trajectory_id=rollout.id,
        score=0.0,
        group=(2, 8),
    )
    return Scene(environment, Evidence(signal=signal, task=task, trajectory=rollout))


def _call(name: str, **arguments: str | int) -> ToolCall:
    return ToolCall(name=name, arguments=dict(arguments))


def new_ledger(budget: BudgetSettings | None = None) -> tuple[Ledger, Path]:
    """Return a ledger on a file in a temporary folder, which goes with this process, and the file."""
    path = RunDirectory(temporary_folder()).spending_path
    return Ledger(path, budget or BudgetSettings()), path


def readable(text: str) -> str:
    """Return a prompt or a reply with its long lines wrapped at words."""
    return "\n".join(
        textwrap.fill(line, 100, subsequent_indent="  ", replace_whitespace=False) for line in text.splitlines()
    )


def context_fields(context: FailureContext) -> Table:
    """Show the fields of a context that are the paper's structure of a reflection, and its kind, cause and tool."""
    values = {
        "kind": context.kind,
        "cause": context.cause,
        "tool": context.tool,
        "how": context.how,
        "failure_cause": context.why,
        "instability_pattern": context.instability_pattern,
        "focus_pattern": "; ".join(context.focus_pattern),
        "exploration_objectives": "; ".join(context.exploration_objectives),
        "do_not_repeat": "; ".join(context.do_not_repeat),
        "explore": ", ".join(context.explore),
    }
    return table(("field", "value"), list(values.items()), width=300)


def explored_table(interactions: Sequence[Interaction]) -> Table:
    """Show an explorer's actions and what the environment answered."""
    rows = [
        (number, call_words(one.action), one.observation.status, "yes" if one.changed else "", one.observation.text)
        for number, one in enumerate(interactions)
    ]
    return table(("number", "action", "status", "changed the state", "answer"), rows)


def verified_table(drafts: Sequence[Draft], environment: Environment) -> Table:
    """Verify drafts by replays, and show the results."""
    rows = []
    for draft in drafts:
        result = verify(draft, environment, (), ())
        calls = calls_words(call for turn in draft.reference for call in turn)
        verification = "accepted" if result.accepted else f"refused, {result.reason}: {result.detail}"
        rows.append((" / ".join(draft.turns), calls, verification))
    return table(("user says", "reference", "result"), rows, width=240)


async def hostile_table(scene: Scene, ledger: Ledger, path: Path = HOSTILE) -> Table:
    """Let the reflector read each hostile reply, and show what becomes of it."""
    replies = [one for one in read_jsonl(path, RecordedReply) if one.role not in _NOT_REFLECTIONS]
    rows = []
    for name in dict.fromkeys(one.role for one in replies):
        said = next(one for one in replies if one.role == name)
        before = ledger.spent().calls
        try:
            context = await ChatReflector(open_recorded(path, name, ledger)).reflect(scene.evidence, scene.environment)
            became = f"used, with a summary of {len(context.summary)} characters"
        except RoleRefused as refusal:
            became = f"refused: {refusal}"
        requests = ledger.spent().calls - before
        if requests > 1 and became.startswith("used"):
            became = became.replace("used", "used after the repair turn")
        rows.append((name, f"{said.text[:60]!r}", f"{len(said.text):,}", requests, became))
    return table(("reply", "begins with", "characters", "requests", "what becomes of it"), rows, width=200)


def spending_table(path: Path) -> Table:
    """Show a ledger's lines: a question of a role each, with its repair turn."""
    rows = [
        (one.role, one.subject[:16], one.outcome, one.measured.calls, _tokens(one.measured), "; ".join(one.faults))
        for one in read_requests(path)
    ]
    return table(("role", "about", "outcome", "requests", "tokens", "faults"), rows, width=90)


def spending_chart(path: Path, budget: int | None = None) -> Chart:
    """Draw the tokens of each role; ``budget`` draws a line at the tokens that all roles together may spend."""
    costs: dict[str, Measured] = defaultdict(Measured)
    for one in read_requests(path):
        costs[one.role] = added(costs[one.role], one.measured)
    bars = [Bar(role, _tokens(cost), f"in {cost.calls} requests") for role, cost in costs.items()]
    total = sum(_tokens(cost) for cost in costs.values())
    limit = None if budget is None else (float(budget), f"budget {budget:,}")
    return bar_chart("Tokens by role", "tokens (estimated)", [*bars, Bar("together", total, marked=True)], limit)


def _tokens(cost: Measured) -> int:
    return cost.prompt_tokens + cost.completion_tokens
