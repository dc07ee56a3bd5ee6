"""Opens AppWorld's dev, test_normal and test_challenge.

Nothing else in the project opens a test split; each opening is a line in a ledger (``evaluation.test_access``). Ids and
figures may be written down, the benchmark's licence forbids it for instructions and for what its apps answer: outcomes
hold neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from environments.appworld.installation import find_installation
from environments.appworld.panels import (
    Panel,
    PanelEnvironment,
    PanelTask,
    held_out,
    panel_tasks,
    read_panel,
)
from environments.base import InputError, Record
from environments.command import check_output
from evaluation.baselines import BASELINES
from evaluation.outcomes import TaskOutcome
from evaluation.panels import Item
from evaluation.test_access import log_split_access
from memory.records import Task

if TYPE_CHECKING:
    from environments.base import Environment

UNTOLD = "the environment failed; its words are on stderr alone"


class OpenedPanel(Record):
    """A panel that may be scored: its items, and the ids that its environment opens worlds for."""

    panel: Panel
    items: tuple[Item, ...]

    def environment(self, max_actions: int, *, trust_agent_code: bool = False) -> Environment:
        """The environment that opens this panel's worlds."""
        return PanelEnvironment(self.panel, max_actions, trust_agent_code=trust_agent_code)


def open_appworld_panel(name: str, limit: int | None, openings: Path | None, model: str) -> OpenedPanel:
    """The tasks of a panel, the first ``limit`` only if given; for a test split after its opening by ``model`` is
    noted in the ledger ``openings``.

    Raises InputError for an unknown panel, a test split without a ledger, a ledger with a panel that is not held out,
    a path that cannot be a model's, and a world without such tasks.
    """
    from training.rollout.policy_path import check_policy_path

    if held_out(name) and openings is None:
        raise InputError(
            f"--evaluation-set {name}: it is held out: add --access-log FILE, to which this access is added"
        )
    if not held_out(name) and openings is not None:
        raise InputError(f"--access-log is for held-out evaluation sets, and {name} is open: leave it out")
    if model not in BASELINES:
        check_policy_path(model)
    installation = find_installation()
    panel = read_panel(installation, name)
    if openings is not None:
        check_output("--access-log", openings, "ledger")
        log_split_access(openings, name, panel.sha256, len(panel.ids[:limit]), model)
    return OpenedPanel(panel=panel, items=tuple(_item(name, one) for one in panel_tasks(installation, panel, limit)))


def publishable(outcome: TaskOutcome) -> TaskOutcome:
    """The outcome without the words of an infrastructure error: they hold a log, and so perhaps what apps answered."""
    return (
        outcome if outcome.infrastructure_error is None else outcome.model_copy(update={"infrastructure_error": UNTOLD})
    )


def _item(panel: str, one: PanelTask) -> Item:
    return Item(
        task=Task(id=one.id, origin="official", **dict(one.spec)),
        group=panel,
        cluster=one.scenario,
        reference_calls=one.api_calls,
        strata={} if one.difficulty is None else {"difficulty": str(one.difficulty)},
    )
