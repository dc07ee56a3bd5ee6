"""Hypotheses of a study: differences that its recipe expects before a test set is opened, and what came of each.

A hypothesis is tested on the study's main score: that of each mode's first evaluation set, the mean over call shapes
where they are known, else success. The rule of a conclusion is ours:

- **p** is that of the paired t test over seeds, two-sided. It covers seeds alone: how much the difference varies when
  an arm is trained again. It says nothing of other tasks.
- **Holm's p** corrects it for the number of hypotheses that were written down, run or not.
- **The interval** covers other seeds, start states and functions together, and so other tasks, but knows of no other
  hypotheses.

A difference is shown where both agree. Where a recipe states a margin of equality, equality is shown where the interval
is within it, which is stricter than two one-sided tests at 5 % (Schuirmann, Journal of Pharmacokinetics and
Biopharmaceutics 15, 1987).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from evaluation.settings import LOOKUP
from evaluation.statistics import holm, t_test

if TYPE_CHECKING:
    from evaluation.outcomes import Interval
    from evaluation.study.summary import Comparison, Estimate

Conclusion = Literal["shown", "difference shown", "opposite shown", "equality shown", "not shown", "not run yet"]

LEVEL = 0.05
"""Holm's p below which a difference is shown, where the interval agrees."""

MOST = 50
"""The largest number of hypotheses of a study."""


class Hypothesis(BaseModel):
    """A difference between two arms that is expected, with its size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str = Field(description="the arm that is expected to differ")
    against: str = Field(description="the arm that it is compared with; lookup: the lookup over the arm's own tasks")
    expected: float = Field(
        ge=-100,
        le=100,
        allow_inf_nan=False,
        description="size of arm minus against that is expected, in percent points of the main score; 0: none, which "
        "a study may refute but cannot show",
    )
    margin: float | None = Field(
        None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="where no difference is expected: percent points within which two arms count as equal; equality is "
        "shown where the whole interval is within them",
    )
    why: str = Field(min_length=1, max_length=500, description="one sentence of the report: why it is expected")

    @model_validator(mode="after")
    def _claims_equality(self) -> Self:
        if self.margin is not None and self.expected != 0:
            raise ValueError(f"margin is for arms that are expected to be equal, and expected is {self.expected:g}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The arms that have to run: the arm, and the one it is compared with."""
        return (self.arm,) if self.against == LOOKUP else (self.arm, self.against)

    @property
    def row(self) -> str:
        """The row of the report that the arm is compared with."""
        return lookup_row(self.arm) if self.against == LOOKUP else self.against


class HypothesisFinding(NamedTuple):
    """A hypothesis and what came of it.

    ``score`` is the paired difference over the seeds of both arms, of ``planned`` ones; None without any.
    ``functions_drawn`` is False where its interval does not cover other functions, because call shapes are not known.
    ``p`` is that of the paired t test over seeds, ``holm`` the same corrected for the number of all hypotheses; None
    for fewer than two seeds.
    """

    stated: Hypothesis
    score: Estimate | None
    planned: int
    functions_drawn: bool
    p: float | None
    holm: float | None

    @property
    def seeds(self) -> int:
        """The number of paired seeds."""
        return 0 if self.score is None else len(self.score.by_seed)

    @property
    def verdict(self) -> Conclusion:
        """The conclusion; none before all seeds are there, as it would invite to stop at a good one."""
        if self.score is None or self.seeds < self.planned:
            return "not run yet"
        margin = None if self.stated.margin is None else self.stated.margin / 100
        return conclusion(self.stated.expected / 100, self.score.mean, self.score.interval, self.holm, margin)


class Findings(NamedTuple):
    """All hypotheses of a study with what came of them on the evaluation set ``set_name``.

    ``by_shape``: the score is the mean over call shapes, else success. ``other_results`` and ``other_openings`` count
    the arms and seeds that were scored, and the accesses to test sets, by another text of the recipe than today's; what
    is written in it now may have been written after them.
    """

    set_name: str
    by_shape: bool
    findings: tuple[HypothesisFinding, ...]
    other_results: int
    other_openings: int


def lookup_row(arm: str) -> str:
    """Return the name of the report's row with the lookup over the tasks of ``arm``."""
    return f"{arm} ({LOOKUP})"


def check_hypotheses(
    hypotheses: Sequence[Hypothesis], seeds: Mapping[str, int], untrained: Collection[str], lookup: bool
) -> None:
    """Raise ValueError for a hypothesis that cannot be tested, and for one that is stated twice.

    ``seeds`` has the number of seeds of every arm, ``untrained`` the names of those that are not trained. ``lookup``:
    the study scores lookups.
    """
    stated: set[frozenset[str]] = set()
    for one in hypotheses:
        names = f"'{one.arm}' against '{one.against}'"
        if unknown := [name for name in one.names if name not in seeds]:
            raise ValueError(f"hypotheses name '{unknown[0]}', which is not an arm: choose from {', '.join(seeds)}")
        if one.arm == one.against:
            raise ValueError(f"hypotheses compare '{one.arm}' with itself: name another arm")
        if one.against == LOOKUP and (not lookup or one.arm in untrained):
            raise ValueError(f"hypotheses state {names}, which is not scored: set lookup, and name a trained arm")
        if frozenset((one.arm, one.row)) in stated:
            raise ValueError(f"hypotheses state {names} twice, in one order or the other: remove one")
        stated.add(frozenset((one.arm, one.row)))
        if all(name in untrained for name in one.names):
            raise ValueError(f"hypotheses state {names}, whose seeds are alike as neither is trained: use compare")
        if few := [name for name in one.names if seeds[name] < 2]:
            raise ValueError(f"hypotheses state {names}, but '{few[0]}' has one seed: a test needs at least 2")


def findings_of(
    hypotheses: Sequence[Hypothesis],
    differences: Sequence[Comparison | None],
    planned: Sequence[int],
    *,
    by_shape: bool = True,
) -> tuple[HypothesisFinding, ...]:
    """Return what came of each hypothesis.

    ``differences`` has the paired difference of each, None without a seed of both arms, and ``planned`` its number of
    seeds in the recipe. ``by_shape``: the score is the mean over call shapes where they are known, else success.
    """
    scores = [None if one is None else one.macro if one.macro and by_shape else one.success for one in differences]
    p_values = [None if one is None else t_test(list(one.by_seed.values())) for one in scores]
    return tuple(
        HypothesisFinding(stated, score, number, versus is not None and versus.macro is not None, p, corrected)
        for stated, score, number, versus, p, corrected in zip(
            hypotheses, scores, planned, differences, p_values, holm(p_values), strict=True
        )
    )


def conclusion(
    expected: float,
    found: float,
    interval: Interval | None,
    corrected: float | None,
    margin: float | None = None,
) -> Conclusion:
    """Return the conclusion on a difference whose seeds are all there.

    It is shown where Holm's p (``corrected``) is below 0.05 and the interval excludes zero on the side of the
    difference, which is the expected one; on the other side the opposite is shown, and where none was expected a
    difference. With a ``margin`` equality is shown where the whole interval is within it, whatever else it excludes.
    """
    if margin is not None and interval is not None and -margin < interval[0] and interval[1] < margin:
        return "equality shown"
    if corrected is None or corrected >= LEVEL or interval is None:
        return "not shown"
    low, high = interval
    if not (low > 0 and found > 0) and not (high < 0 and found < 0):
        return "not shown"
    if expected == 0:
        return "difference shown"
    return "shown" if found * expected > 0 else "opposite shown"


def hypothesis_table(findings: Sequence[HypothesisFinding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the head and the rows of a report's table of hypotheses. Percent points."""
    head = ("hypothesis", "expected", "found", "95 %", "expected in it")
    rows: list[tuple[str, ...]] = []
    for one in findings:
        stated, expected = one.stated, one.stated.expected / 100
        interval = None if one.score is None else one.score.interval
        inside = "" if interval is None else "yes" if interval[0] <= expected <= interval[1] else "no"
        rows.append(
            (
                f"{stated.arm} minus {stated.against}",
                points(expected) if stated.margin is None else f"within {stated.margin:g}",
                "" if one.score is None else points(one.score.mean),
                "" if interval is None else " to ".join(points(end).removeprefix("+") for end in interval),
                inside,
                _p_value(one.p),
                _p_value(one.holm),
                f"{one.seeds} of {one.planned}" if one.seeds < one.planned else str(one.seeds),
                one.verdict,
                stated.why,
            )
        )
    return (*head, "p", "Holm's p", "n seeds", "conclusion", "why"), rows


def rule(findings: Findings) -> list[str]:
    """Return the sentences of a report that say how its conclusions were reached, and what they do not cover."""
    each = findings.findings
    drawn = "seeds, start states and functions"
    sentences = [
        f"{len(each)} {'hypothesis was' if len(each) == 1 else 'hypotheses were'} written down; Holm's correction is "
        "for all of them, run or not. p is two-sided, of the paired t test over seeds: it covers other seeds, not "
        f"other tasks. 95 % covers other {drawn}, so other tasks; it is not corrected for the number of hypotheses. "
        f"A difference is shown where Holm's p is below {LEVEL} and the interval excludes zero on the expected side; "
        "opposite shown: on the other side; difference shown: none was expected. There is no conclusion before all "
        "seeds are there."
    ]
    if any(one.stated.margin is not None for one in each):
        sentences.append("Equality is shown where the whole of 95 % is within the margin, whatever p is.")
    plain = [one.stated for one in each if one.score and one.score.interval and not one.functions_drawn]
    if plain:
        names = ", ".join(f"{one.arm} minus {one.against}" for one in plain)
        sentences.append(f"95 % without functions, as call shapes are not known: {names}.")
    if findings.other_results or findings.other_openings:
        sentences.append(
            f"**Written down before?** {findings.other_results} results were made, and the held-out sets accessed "
            f"{findings.other_openings} times, by another text of the recipe than this one: its history says what was "
            "expected then."
        )
    return sentences


def points(rate: float) -> str:
    """Return a difference of two rates in percent points, with its sign."""
    return f"{round(100 * rate, 1) + 0.0:+.1f}"  # never -0.0


def _p_value(p: float | None) -> str:
    if p is None:
        return ""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"
