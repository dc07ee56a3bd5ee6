"""Makes drafts with one flaw each for a walkthrough of verification, and compares replays with an agent's run.

They belong to the parcel depot (``environments.example``), which is small enough to check a result by eye.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from agents.chat.structured import StructuredModel
from agents.chat.validator import ChatValidator
from environments.base import Environment, TaskSpec, ToolCall
from environments.example import Depot, Label
from environments.python_class.environment import PythonEnvironment
from environments.verification.decontamination import HeldOut
from environments.verification.fingerprints import fingerprint, record_of
from environments.verification.verify import Refusal, VerificationResult, verify
from graph.report.tables import Table, table
from memory.records import AgentValidation, Draft

CHECKS = {
    "calls": "tools, types",
    "held out": "and duplicates",
    "replays": "two are equal",
    "effect": "in every turn",
    "policies": "trivial: fail",
    "calls needed": "each of them",
    "values": "can be found",
}
"""The checks of ``verify`` in their order, for a drawing: what each looks at."""

_PARCELS = {"mirror": {"kilograms": 15}, "seeds": {"kilograms": 2}, "wine": {"kilograms": 8}}
_START = {"parcels": _PARCELS, "gate_open": False}
_ACTIONS = 8  # of an agent's run
_readings = count(1)


class UnsteadyDepot(Depot):
    """A depot whose scales never show the same weight twice."""

    def weigh_parcel(self, label: Label) -> dict[str, int]:
        """Weigh one parcel in the depot."""
        return {"kilograms": self._waiting(label)["kilograms"] + next(_readings)}


def _call(name: str, **arguments: str | int) -> ToolCall:
    return ToolCall(name=name, arguments=dict(arguments))


class FlawedDrafts:
    """One good draft and others with one flaw each, by a short name, and the environments that they belong to.

    ``held_out`` holds out one task of the depot, made for this walkthrough: no real held-out set is opened. ``known``
    are the fingerprints of tasks that exist.
    """

    def __init__(self) -> None:
        self._depot = PythonEnvironment("depot", Depot, [_START])
        self._unsteady = PythonEnvironment("depot", UnsteadyDepot, [_START])
        insured = [_call("insure_parcel", label="mirror", euros=300), _call("load_parcel", label="mirror", van="north")]
        wine, weigh = _call("load_parcel", label="wine", van="south"), _call("weigh_parcel", label="wine")
        good = "Insure the mirror for 300 euros and put it into the north van."
        self.drafts: Mapping[str, Draft] = {
            "good": self._draft("good", good, *insured),
            "hallucinated tool": self._draft(
                "tool", "Wrap the mirror, then load it into the north van.", _call("wrap_parcel", label="mirror")
            ),
            "hallucinated value": self._draft("value", "Insure the mirror and put it into the north van.", *insured),
            "wrong order": self._draft("order", good, *reversed(insured)),
            "idle call": self._draft(
                "idle",
                "Open the gate and put the wine into the north van.",
                _call("open_gate"),
                _call("load_parcel", label="wine", van="north"),
                _call("open_gate"),
            ),
            "trivial": self._draft("trivial", "What waits in the depot?", _call("list_parcels")),
            "not deterministic": self._draft("unsteady", "How heavy is the wine?", weigh, world="UnsteadyDepot"),
            "duplicate": self._draft("duplicate", "Open the gate.", _call("open_gate")),
            "leak": self._draft("leak", "The wine goes south.", wine),
            "disguised leak": self._draft("disguised", "Is the wine light? South with it.", weigh, wine),
        }
        self.known = frozenset({fingerprint(self.drafts["duplicate"])})
        secret: TaskSpec = self._draft("held-out", "Load the wine into the south van.", wine)
        self.held_out = HeldOut().joined([fingerprint(secret)], record_of(self._depot, [("held-out-1", secret)]))

    def environment(self, name: str) -> Environment:
        """Return the environment of a draft."""
        return self._unsteady if self.drafts[name].classes == ("UnsteadyDepot",) else self._depot

    def verified(self, name: str) -> VerificationResult:
        """Verify a draft by replays."""
        return verify(self.drafts[name], self.environment(name), self.known, self.held_out)

    async def carried_out(self, name: str, model: StructuredModel) -> AgentValidation | None:
        """Let an agent carry out a draft and judge it; None for one that is refused before an agent is asked."""
        if self.verified(name).reason in (Refusal.HELD_OUT, Refusal.DUPLICATE):
            return None
        return await ChatValidator(model, _ACTIONS, judges=True).validate(
            self.drafts[name], self.environment(name), None
        )

    def _draft(self, name: str, text: str, *calls: ToolCall, world: str = "Depot") -> Draft:
        start = self._depot.starts()[0]
        return Draft(
            id=f"draft-{name}",
            context_id="context-walkthrough",
            environment="depot",
            split="train",
            classes=(world,),
            turns=(text,),
            initial_state={world: start.initial_state["Depot"]},
            tools=start.tools,
            reference=(calls,),
        )


def agreement_table(flawed: FlawedDrafts, runs: Mapping[str, AgentValidation | None]) -> Table:
    """Show the result of the replays beside that of an agent's run, with the judge's reason."""
    rows = []
    for name, run in runs.items():
        replays = "accepted" if flawed.verified(name).accepted else "refused"
        if run is None:
            rows.append((name, replays, "not asked", "", "held-out tasks and duplicates are refused in every mode"))
            continue
        rows.append((name, replays, "accepted" if run.accepted else "refused", f"{run.reward:g}", run.detail))
    return table(("draft", "replays", "agent", "reward", "the judge's reason"), rows, width=220)
