"""The contexts that earlier iterations explored, and the tasks admitted from each, read from the records.

The failure memory is rebuilt from this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from memory.failures import DeduplicationResult
from memory.records import DraftVerification, FailureContext
from memory.run import RunDirectory, read_jsonl


@dataclass(frozen=True)
class Explored:
    """Contexts that had a branch, and the number of tasks admitted from each, by context id."""

    contexts: tuple[FailureContext, ...]
    admitted: Mapping[str, int]

    @property
    def compared(self) -> tuple[FailureContext, ...]:
        """Those that the failure memory compares others with."""
        return tuple(context for context in self.contexts if context.comparable)


def explored_in(run: RunDirectory, iteration: int) -> Explored:
    """Return the contexts that one finished iteration explored."""
    folder = run.iteration(iteration)
    new = {one.context_id for one in read_jsonl(folder.judgements, DeduplicationResult) if one.status == "new"}
    contexts = (one for one in read_jsonl(folder.contexts, FailureContext) if one.id in new)
    verifications = read_jsonl(folder.verdicts, DraftVerification)
    return Explored(
        tuple(contexts), Counter(verification.context_id for verification in verifications if verification.accepted)
    )


def explored_before(run: RunDirectory, iteration: int, since: int) -> Explored:
    """Return the contexts that the iterations from ``since`` up to ``iteration``, exclusive, explored."""
    parts = [explored_in(run, number) for number in range(max(0, since), iteration)]
    admitted = {context_id: count for part in parts for context_id, count in part.admitted.items()}
    return Explored(tuple(context for part in parts for context in part.contexts), admitted)
