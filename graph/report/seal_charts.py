"""Draws SEAL's records as SVG: the weight of every turn of a group of rollouts, and an interface over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from environments.drawing import COLOURS, svg, text
from graph.report.charts import WIDTH, Chart
from training.seal.diagnosis import EXCLUDED, Diagnosis, TurnLabel
from training.seal.interface import GUIDELINES
from training.seal.seal import SealStep

__all__ = ["WeightedRollout", "interface_chart", "label_words", "weight_chart"]

_TOP, _BOTTOM = 66, 34
_TINTS = {
    TurnLabel.PASS: "#d5ecdf",
    TurnLabel.CORRECT_ABSTENTION: "#dcebf7",
    TurnLabel.SPURIOUS_TOOL_CALL: "#f6d9c6",
    TurnLabel.EMPTY_TURN: "#f9e3b8",
    TurnLabel.INSTANCE_MISMATCH: "#ead9ee",
    TurnLabel.STATE_MISMATCH: "#f3d3e4",
    TurnLabel.RESPONSE_MISMATCH: "#fbe3ea",
}
_PLAIN, _GRID, _SHOWN = "#eeeeee", "#dddddd", COLOURS[1]


class WeightedRollout(NamedTuple):
    """One row: a rollout's diagnosis, rho of each labelled turn, its weight, and its advantage without the weight."""

    diagnosis: Diagnosis
    rho: tuple[float, ...]
    weight: float
    advantage: float


def weight_chart(title: str, rows: Sequence[WeightedRollout]) -> Chart:
    """Draw a row per rollout: a box per turn with its label and rho, the weight, and the advantage before and after.

    Raises ValueError for no row, and where the numbers of turns and of rho differ.
    """
    if not rows or any(len(row.rho) != len(row.diagnosis.turns) for row in rows):
        raise ValueError("a chart of weights needs rows with one rho per labelled turn")
    turns = max(len(row.diagnosis.turns) for row in rows)
    left, right, tall = 84, WIDTH - 214, 34
    wide = (right - left) / turns
    height = _TOP + tall * len(rows) + _BOTTOM
    parts = [text(10, 22, title, size=14, role="label")]
    heads = [(left + wide * (number + 0.5), f"turn {number + 1}") for number in range(turns)]
    heads += [(right + 40, "weight"), (right + 104, "advantage"), (right + 176, "weighted")]
    parts += [text(x, _TOP - 10, words, anchor="middle", role="label") for x, words in heads]
    for number, row in enumerate(rows):
        y = _TOP + tall * number
        parts.append(text(10, y + 21, "success" if row.diagnosis.success else "failure"))
        for place, (label, rho) in enumerate(zip(row.diagnosis.turns, row.rho, strict=True)):
            x = left + wide * place
            tint = _TINTS.get(label, _PLAIN)
            parts.append(
                f'<rect x="{x + 2:.1f}" y="{y + 2}" width="{wide - 4:.1f}" height="{tall - 4}" fill="{tint}"/>'
            )
            value = "left out" if label in EXCLUDED else f"{rho:.2f}"
            parts.append(text(x + wide / 2, y + 15, label_words(label), size=11, anchor="middle"))
            parts.append(text(x + wide / 2, y + 28, value, size=11, anchor="middle"))
        for x, words in ((40, f"{row.weight:.2f}"), (104, f"{row.advantage:+.2f}")):
            parts.append(text(right + x, y + 21, words, anchor="middle"))
        parts.append(text(right + 176, y + 21, f"{row.weight * row.advantage:+.2f}", anchor="middle", fill=_SHOWN))
    parts.append(text(WIDTH / 2, height - 10, "under each label: its rho", anchor="middle", role="label"))
    words = "; ".join(
        f"{'success' if row.diagnosis.success else 'failure'}: "
        f"{', '.join(map(label_words, row.diagnosis.turns))}, weight {row.weight:.2f}, "
        f"advantage {row.advantage:+.2f} becomes {row.weight * row.advantage:+.2f}"
        for row in rows
    )
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}")


def interface_chart(title: str, steps: Sequence[SealStep]) -> Chart:
    """Draw a row per label that failed or had a guideline, a column per step: failed turns, and when it was shown.

    A guideline that a step's profile brings is shown from the next step on. Raises ValueError for no step.
    """
    if not steps:
        raise ValueError("no step to draw")
    shown = [frozenset[TurnLabel](), *(_guidelines(step) for step in steps)]
    labels = [label for label in GUIDELINES if any(step.profile.of(label).count for step in steps)]
    labels += [label for label in GUIDELINES if label not in labels and any(label in read for read in shown)]
    left, tall = 190, 30
    wide = (WIDTH - left - 16) / len(steps)
    height = _TOP + tall * len(labels) + _BOTTOM
    parts = [text(10, 22, title, size=14, role="label"), text(10, _TOP - 10, "label", role="label")]
    parts += [text(left + wide * (n + 0.5), _TOP - 10, str(step.step), anchor="middle") for n, step in enumerate(steps)]
    for number, label in enumerate(labels):
        y = _TOP + tall * number
        parts.append(text(10, y + 20, label_words(label)))
        for column, step in enumerate(steps):
            x, is_shown = left + wide * column, label in shown[column]
            fill = _SHOWN if is_shown else "#ffffff"
            parts.append(
                f'<rect x="{x + 2:.1f}" y="{y + 2}" width="{wide - 4:.1f}" height="{tall - 4}" fill="{fill}" '
                f'stroke="{_GRID}"/>'
            )
            count = str(step.profile.of(label).count)
            parts.append(text(x + wide / 2, y + 20, count, anchor="middle", fill="#ffffff" if is_shown else "#222222"))
    legend = "number: the step's turns with this label; blue: its guideline is shown in this step"
    parts.append(text(WIDTH / 2, height - 10, legend, anchor="middle", role="label"))
    words = "; ".join(
        f"{label_words(label)}: shown in steps "
        f"{', '.join(str(step.step) for step, read in zip(steps, shown, strict=False) if label in read) or 'none'}"
        for label in labels
    )
    return Chart(svg(WIDTH, height, parts), f"{title}. {words}")


def _guidelines(step: SealStep) -> frozenset[TurnLabel]:
    return frozenset() if step.state.interface is None else frozenset(step.state.interface.guidelines)


def label_words(label: TurnLabel) -> str:
    """Return a label in words, such as ``empty turn``."""
    return label.value.removesuffix("_model_response").replace("_", " ")
