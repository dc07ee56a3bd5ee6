"""Keeps the outcomes of a paid evaluation as they come, so that a stopped one goes on without paying twice.

Beside the outcomes' file FILE.jsonl lie FILE.settings.json, with everything that decides an outcome, and
FILE.requests.jsonl, with one line per request. Attempts that an infrastructure error ended are made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.base import InputError
from environments.command import check_output
from evaluation.outcomes import TaskOutcome
from evaluation.sets import Item
from evaluation.settings import EndpointSettings, ScoringSettings
from memory.jsonl import append_jsonl, read_json, read_jsonl, write_json, write_jsonl

_FREE = (set(EndpointSettings.model_fields) - {"base_url", "temperature"}) | {"limit", "batch", "access_log"}
"""Settings that a resumed evaluation may change: they decide no outcome."""


class KeptOutcomes:
    """The outcomes so far, by group and task.

    Args:
        output: the outcomes' file; None keeps nothing.
        settings: with the endpoint's model and base URL, as they were resolved.
        resume: go on with the file of an evaluation that was stopped; without it the files must be new.

    Raises InputError for files that exist or are missing, that another evaluation wrote, or that are corrupt.
    """

    def __init__(self, output: Path | None, settings: ScoringSettings, resume: bool) -> None:
        self.output = output
        self._done: dict[tuple[str, str], TaskOutcome] = {}
        if output is None:
            self.spending: Path | None = None
            return
        self.spending = output.with_suffix(".requests.jsonl")
        stated = output.with_suffix(".settings.json")
        if resume and stated.exists():
            _check_equal(stated, settings)
            self._take(output)
            return
        if resume and output.exists():
            raise InputError(f"--resume: {stated} is missing, so that {output} cannot be gone on with: choose another")
        if not resume and stated.exists():
            raise InputError(f"{output}: an evaluation began here: go on with --resume, or choose another --output")
        for path in (output, self.spending, stated):
            check_output("--output", path)
        write_json(stated, settings)

    def _take(self, output: Path) -> None:
        """Read the outcomes of the stopped evaluation; half a line at the end, of a killed one, is left out."""
        if not output.exists():
            return
        content = output.read_bytes()
        if not content.endswith(b"\n"):
            whole = content[: content.rfind(b"\n") + 1]
            output.write_bytes(whole)
        evaluated = [one for one in read_jsonl(output, TaskOutcome) if one.infrastructure_error is None]
        write_jsonl(output, evaluated)
        self._done = {(one.group, one.task_id): one for one in evaluated}

    def successes(self, items: Sequence[Item]) -> int:
        """Return how many of ``items`` were solved so far."""
        done = (self._done.get((item.group, item.task.id)) for item in items)
        return sum(one is not None and one.success for one in done)

    def missing(self, items: Sequence[Item]) -> tuple[Item, ...]:
        """Return the items without an outcome."""
        return tuple(item for item in items if (item.group, item.task.id) not in self._done)

    def add(self, outcome: TaskOutcome, published: TaskOutcome) -> None:
        """Keep an outcome; ``published`` is what may be written of it."""
        self._done[outcome.group, outcome.task_id] = outcome
        if self.output is not None:
            append_jsonl(self.output, [published])

    def of(self, items: Sequence[Item]) -> tuple[TaskOutcome, ...]:
        """Return the outcomes of all ``items``, in their order."""
        return tuple(self._done[item.group, item.task.id] for item in items)


def _check_equal(path: Path, settings: ScoringSettings) -> None:
    before = read_json(path, ScoringSettings)
    for name in ScoringSettings.model_fields:
        if name not in _FREE and getattr(before, name) != getattr(settings, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"--resume: {path} has {option} {getattr(before, name)}, this command {getattr(settings, name)}: give "
                "the same, or choose another --output"
            )
