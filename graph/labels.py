"""The words that say which arm of a study a run is: what it leaves out, or puts in place of the full loop's part."""

from __future__ import annotations

from graph.records import Evolution
from graph.settings import RunSettings
from memory.records import SignalKind


def arm_labels(settings: RunSettings, evolution: Evolution) -> list[str]:
    """A label for each deviation from the full loop in how tasks are made, and for SEAL; none for the full loop."""
    signals, verification = settings.signals, settings.verification
    labels = []
    if signals.contexts == "random":
        labels.append("random contexts")
    if signals.contexts == "unguided":
        labels.append("unguided exploration")
    left_out = [kind for kind in SignalKind if kind not in signals.kinds]
    if left_out:
        labels.append(f"without {' and '.join(left_out)} signals")
    if settings.training.seal is not None:
        labels.append("SEAL")
    if signals.novelty:
        labels.append("least explored contexts first")
    if not settings.memory.deduplicate:
        labels.append("without deduplication")
    if not verification.enabled:
        labels.append("verification off")
    if verification.perturbed:
        labels.append(f"{100 * verification.perturbed:g} % of drafts perturbed")
    if settings.tasks.admissions is not None:
        labels.append("tasks admitted by a quota")
    if evolution.shortfall:
        labels.append(f"iteration {evolution.iteration}: {evolution.shortfall} tasks short of its quota")
    return labels
