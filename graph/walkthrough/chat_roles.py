"""Plays the small scene of the notebook on chat roles: one failed attempt, recorded replies, hostile ones, and costs.

It belongs to the parcel depot (``environments.example``), whose prompts are short enough to read.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from agents.chat.recorded import RecordedReply, open_recorded
from agents.chat.reflector import ChatReflector
from agents.roles import RoleRefused
from agents.settings import BudgetSettings, ExplorationSettings
from agents.spending import Ledger, read_requests
from environments.base import Environment, ToolCall
from environments.checkout import ROOT
from environments.example import depot
from graph.report.charts import Bar, Chart, bar_chart
from graph.report.tables import Table, table
from graph.walkthrough.small_run import acted_out, temporary_folder
from memory.jsonl import read_jsonl
from memory.records import Evidence, Measured, Signal, SignalKind, Task
from memory.run import RunDirectory

RECORDED = ROOT / "notebooks" / "recorded" / "chat_roles.jsonl"
"""The replies of reflector, explorer and abstractor; written by hand."""
HOSTILE = ROOT / "notebooks" / "recorded" / "hostile_replies.jsonl"
"""Replies that a broken or hostile model might give, by name; written by hand."""

LIMITS = ExplorationSettings(rounds=1, steps=8, drafts_per_context=4, max_reference_calls=4)
"""How long the explorer acts and how many drafts are made (ours: one short round)."""


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


async def hostile_table(scene: Scene, ledger: Ledger) -> Table:
    """Let the reflector read each hostile reply, and show what becomes of it."""
    rows: list[tuple[str, str, str, int, str]] = []
    for said in read_jsonl(HOSTILE, RecordedReply):
        if said.role in ("explorer", "abstractor") or any(row[0] == said.role for row in rows):
            continue
        before = ledger.spent().calls
        try:
            reflector = ChatReflector(open_recorded(HOSTILE, said.role, ledger))
            context = await reflector.reflect(scene.evidence, scene.environment)
            became = f"used, with a summary of {len(context.summary)} characters"
        except RoleRefused as refusal:
            became = f"refused: {refusal}"
        requests = ledger.spent().calls - before
        if requests > 1:
            became = became.replace("used,", "used after the repair turn,")
        rows.append((said.role, f"{said.text[:60]!r}", f"{len(said.text):,}", requests, became))
    return table(("reply", "begins with", "characters", "requests", "what becomes of it"), rows, width=200)


def spending_table(path: Path) -> Table:
    """Show a ledger's lines: a question of a role each, with its repair turn."""
    rows = [
        (one.role, one.subject[:16], one.outcome, one.measured.calls, _tokens(one.measured), "; ".join(one.faults))
        for one in read_requests(path)
    ]
    return table(("role", "about", "outcome", "requests", "tokens", "faults"), rows, width=90)


def spending_chart(path: Path, budget: int) -> Chart:
    """Draw the tokens of each role, and a line at the tokens that all roles together may spend."""
    tokens = Counter[str]()
    for one in read_requests(path):
        tokens[one.role] += _tokens(one.measured)
    bars = [*(Bar(*one) for one in tokens.items()), Bar("together", tokens.total(), marked=True)]
    return bar_chart("Tokens by role", "tokens (estimated)", bars, (float(budget), f"budget {budget:,}"))


def _tokens(cost: Measured) -> int:
    return cost.prompt_tokens + cost.completion_tokens
