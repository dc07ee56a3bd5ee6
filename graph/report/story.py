"""The story of a task: weakness, context, exploration, drafts with their verification, the task, its effect.

It is built once from a run's joined records (``lineage.History``) as steps of labelled rows. The terminal
(`coevolve show`) and the report's page draw the same steps. Rows hold foreign text whole: who draws them cuts it, and
shows it as text only.

The wrong call of a failed rollout has the expected one beside it. A context names the first error by turn and step, and
the tool that the error is about. The expected call is the first one of the turn's reference that calls this tool and
that no earlier step made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from agents.scripted.reflector import TurnComparison
from environments.base import ToolCall
from graph.report.digest import (
    REASONS,
    call_words,
    calls_words,
    draft_words,
    exploration_words,
    named_weakness,
    number_words,
    signal_words,
    spoken,
    task_words,
    verification_words,
    writing_figures,
    writing_words,
)
from graph.report.lineage import Chain, Drafted, Group, History, Rollout, pooled
from memory.records import Cause, Interaction, Signal, Step, Task, Trajectory, TrajectoryTurn

LONG = 240
"""Characters of a foreign text that a line names: three lines of a terminal with 80 columns."""
SHORT = 66
"""Characters of a foreign text in a list."""
LISTED = 12
"""Rows of a list, groups of an iteration."""
WRONG = "wrong >"
"""Label of the call that a reflector names as the first mistake."""

Tone = Literal["plain", "good", "bad", "quiet"]
Kind = Literal["task", "context", "rollout"]
"""Kinds of records that have a story of their own."""


@dataclass(frozen=True)
class Row:
    """One row of a step.

    Args:
        label: what the text is; an empty one continues the row before.
        text: foreign text, whole.
        tone: whether it tells of a success, a failure, or something beside the story.
        to: kind and id of the record that it leads to.
        code: the text is a call, or what the environment answered.
        groups: groups of rollouts of one task and iteration, drawn as a dot for each rollout.
        marked: id of the rollout among them that the row is about.
        listed: the row is one of a list, one line of a terminal.
        folded: a terminal shows the beginning of the text and its size.
        short: the row is one of the few that the end of a run prints.
        more: what is behind the row; a page folds it, a terminal leaves it out.
    """

    label: str
    text: str = ""
    tone: Tone = "plain"
    to: tuple[Kind, str] | None = None
    code: bool = False
    groups: tuple[Group, ...] = ()
    marked: str = ""
    listed: bool = False
    folded: bool = False
    short: bool = False
    more: tuple[Row, ...] = ()

    @property
    def line(self) -> str:
        """The groups as dots, and the text behind them."""
        return "  ".join(filter(None, (*(group.dots(self.marked) for group in self.groups), self.text)))


class Chapter(NamedTuple):
    """One step of a story: its name, the id of its record, words beside them, and its rows."""

    name: str
    id: str = ""
    about: str = ""
    rows: tuple[Row, ...] = ()


def task_story(history: History, task: Task) -> list[Chapter]:
    """Return the story of a task. Raises InputError for a damaged trajectory."""
    chain = history.chain_of(task.id)
    before = [] if chain is None else [*chain_steps(history, chain, task)]
    return [Chapter("task", task.id, came_words(task)), *before, *task_steps(history, task)]


def context_story(history: History, chain: Chain) -> list[Chapter]:
    """Return the story of a weakness. Raises InputError for a damaged trajectory."""
    head = Chapter("context", chain.context.id, f"{place_words(chain)}, {named_weakness(chain.context)}")
    return [head, *chain_steps(history, chain), *effect_steps(history, chain)]


def chain_steps(history: History, chain: Chain, this: Task | None = None) -> Iterator[Chapter]:
    """Yield rollout, signal, reflection, exploration and drafts of a chain, as far as it has them."""
    context = chain.context
    if chain.rollout is not None:
        yield _rollout_step(history, chain, chain.rollout)
    if chain.signal is not None:
        yield Chapter("signal", chain.signal.id, "", tuple(_marked_rows(history, chain.signal, chain.rollout)))
    reflection = tuple(_reflection_rows(chain))
    if len(reflection) > 1:  # nobody reflects where exploration has no guide
        yield Chapter("reflection", context.id, "", reflection)
    if chain.interactions or chain.failure is not None:
        about = () if len(reflection) > 1 else (Row("context", f"{context.id}, {named_weakness(context)}"),)
        yield Chapter("exploration", "", "", (*about, *_exploration_rows(chain)))
    rows = [row for one in chain.outcomes for row in _draft_rows(one, this)]
    yield Chapter("drafts", str(len(chain.outcomes)), "", tuple(rows) or (Row("", "none", "quiet"),))


def task_steps(history: History, task: Task) -> Iterator[Chapter]:
    """Yield what a task says, the success of its rollouts by iteration, and the weaknesses that were found at it."""
    chain = history.chain_of(task.id)
    said = tuple(replace(row, short=True) for row in _spoken_rows(task.turns, task.reference, task.played))
    yield Chapter("what it asks", "", came_words(task), said)
    rows = [*_group_rows(history, task.id)]
    if chain is not None:
        rows += _parent_rows(history, chain)
    yield Chapter("effect", "", "groups of rollouts by iteration", tuple(rows))
    if weak := history.chains_from(task.id):
        yield Chapter("weaknesses", f"{len(weak)} at this task", "", tuple(chain_rows(weak)))


def effect_steps(history: History, chain: Chain) -> Iterator[Chapter]:
    """Yield the success of the tasks that a chain led to, and of its weak task."""
    for task in chain.admitted:
        open_it = Row("task", task_words(task, LONG), to=("task", task.id))
        yield Chapter("effect", task.id, "groups by iteration", (open_it, *_group_rows(history, task.id)))
    if chain.weak is not None:
        yield Chapter("effect", chain.weak.id, "the weak task itself", tuple(_parent_rows(history, chain)))


def came_words(task: Task) -> str:
    came = "in D_0" if task.admitted_at is None else f"admitted by iteration {task.admitted_at}"
    return f"{task.origin}, {came}"


def place_words(chain: Chain) -> str:
    return "D_0" if chain.iteration is None else f"iteration {chain.iteration}"


def share_words(share: float, count: int) -> str:
    """Return a share in [0, 1] of a count."""
    return f"{share:.0%} of {count}"


def rollout_words(rollout: Rollout) -> str:
    return f"iteration {rollout.iteration}, step {rollout.step}, sample {rollout.sample}"


def result_row(trajectory: Trajectory) -> Row:
    if trajectory.outcome is None:
        return Row("result", f"infrastructure error: {trajectory.infrastructure_error}", "bad")
    if trajectory.outcome.success:
        return Row("result", "success", "good")
    turn = trajectory.outcome.failed_turn
    return Row("result", f"failed: {trajectory.outcome.failure}{'' if turn is None else f' in turn {turn + 1}'}", "bad")


class Mistake(NamedTuple):
    """What a failed rollout did first of all wrongly, and the call that the reference has there.

    ``wrong`` is None where the rollout ended the turn, or did not come to it.
    """

    wrong: Step | None
    expected: ToolCall


def mistake_of(history: History, chain: Chain) -> Mistake | None:
    """Return the mistake that a chain begins with; None where no call was expected in place of what was done.

    So it is for rollouts that succeeded, and where a call too many is the error. Raises InputError for a damaged
    trajectory.
    """
    context, weak = chain.context, chain.weak
    turn, place = context.where
    if weak is None or chain.rollout is None or chain.rollout.success is not False:
        return None
    if context.cause in (None, Cause.UNSTABLE, Cause.SUPERFLUOUS_CALL) or place < 0:
        return None
    if not 0 <= turn < len(weak.reference):
        return None
    turns = history.trajectory(chain.rollout.id).turns
    steps = turns[turn].steps if turn < len(turns) else ()
    before = TurnComparison(steps[:place], weak.reference[turn], {})
    missing = (weak.reference[turn][position] for position in before.missing)
    expected = next((call for call in missing if call.name == context.tool), None)
    wrong = steps[place] if place < len(steps) else None
    if expected is None or (wrong is not None and wrong.action == expected):
        return None
    return Mistake(wrong, expected)


def chain_rows(chains: Sequence[Chain]) -> Iterator[Row]:
    """Yield the newest of some weaknesses as a list."""
    for one in chains[-LISTED:]:
        words = f"{one.context.id}  {place_words(one)}, {len(one.admitted)} admitted, "
        yield Row("", words + named_weakness(one.context, width=SHORT), to=("context", one.context.id), listed=True)
    if len(chains) > LISTED:
        yield Row("", f"and {len(chains) - LISTED} before them", "quiet", listed=True)


Marks = Mapping[tuple[int, int], tuple[str, tuple[Row, ...]]]
"""The cause of a mistake by turn and step, with the row of the call that was expected there."""


def marks_of(history: History, chains: Iterable[Chain]) -> Marks:
    """Return the mistakes that chains of a rollout begin with. Raises InputError for a damaged trajectory."""
    found: dict[tuple[int, int], tuple[str, tuple[Row, ...]]] = {}
    for chain in chains:
        if chain.context.cause is not None:
            mistake = mistake_of(history, chain)
            call = "" if mistake is None else call_words(mistake.expected)
            expected = (Row("expected", call, "good", code=True, short=True),) if call else ()
            found[chain.context.where] = (spoken(chain.context.cause), expected)
    return found


def action_rows(index: int, turn: TrajectoryTurn | None, marks: Marks, *, whole: bool) -> Iterator[Row]:
    """Yield the actions of a turn, the wrong one marked and answered; ``whole``: each with what it ran and returned."""
    steps = () if turn is None else turn.steps
    label = "given" if turn is not None and turn.played else "agent"
    for position, step in enumerate(steps):
        cause, expected = marks.get((index, position), ("", ()))
        wrong, text = bool(cause), step.observation.full_text
        first = WRONG if wrong else label if position == 0 else ""
        yield Row(first, call_words(step.action), "bad" if wrong else "plain", code=True, short=wrong)
        if whole and step.observation.calls != (step.action,):
            yield from (Row("ran", call_words(call), "quiet", code=True) for call in step.observation.calls)
        if wrong:
            yield Row("answer", text, code=True, folded=whole, short=True)
        elif whole:
            yield Row("", text, "quiet", code=True, folded=True)
        if wrong and whole:
            yield Row("", cause, "bad")
        yield from expected
    if not steps and whole:
        yield Row(label, "not reached" if turn is None else "no action", "quiet")
    for (number, position), (cause, expected) in marks.items():
        if number == index and position >= len(steps):
            yield Row(WRONG, f"nothing more here: {cause}", "bad", short=True)
            yield from expected


def _rollout_step(history: History, chain: Chain, rollout: Rollout) -> Chapter:
    """Return the rollout that a chain begins with: the wrong call is marked, with the expected one beside it."""
    trajectory, weak, marks = history.trajectory(rollout.id), chain.weak, marks_of(history, [chain])
    rows = [Row("task", rollout.task_id, to=None if weak is None else ("task", rollout.task_id), short=True)]
    if weak is not None:
        rows.append(Row("", task_words(weak, LONG), short=True))
        rows.append(Row("reference", calls_words(joined(*weak.reference[weak.played :]), LONG), code=True))
    for index, turn in enumerate(trajectory.turns):
        if len(trajectory.turns) > 1:
            rows.append(Row(f"turn {index + 1}", turn.text, "quiet"))
        if turn.played:
            given = calls_words((call for step in turn.steps for call in step.observation.calls), LONG)
            rows.append(Row("given", given or "no call", "quiet", code=True))
        else:
            rows += action_rows(index, turn, marks, whole=False)
    rows = rows if len(rows) <= 2 * LISTED else [*rows[: 2 * LISTED], Row("", "...", "quiet")]
    return Chapter("rollout", rollout.id, rollout_words(rollout), (*rows, result_row(trajectory)))


def _marked_rows(history: History, signal: Signal, rollout: Rollout | None) -> Iterator[Row]:
    yield Row("", signal_words(signal, width=LONG), short=True)
    if rollout is not None:
        yield Row("group", groups=(history.group_of(rollout),), marked=rollout.id)
    if signal.counterpart_id:
        words = f"{signal.counterpart_id}, of the same group with the other result"
        yield Row("beside", words, to=("rollout", signal.counterpart_id))


def _reflection_rows(chain: Chain) -> Iterator[Row]:
    context = chain.context
    yield Row("weakness", named_weakness(context, width=LONG), short=True)
    texts = (
        ("how", context.how),
        ("why", context.why),
        ("summary", context.summary),
        ("unstable", context.instability_pattern),
        ("facts", "; ".join(context.facts)),
        ("focus", "; ".join(context.focus_pattern)),
        ("aims", "; ".join(context.exploration_objectives)),
        ("avoid", "; ".join(context.do_not_repeat)),
        ("diagnosis", context.label or ""),
        ("explore", ", ".join(context.explore)),
    )
    yield from (Row(label, text, short=label == "explore") for label, text in texts if text)
    if chain.deduplication is not None:
        known: str = chain.deduplication.status
        nearest = chain.deduplication.nearest
        if nearest is not None:
            known += f", nearest {nearest} (cosine {chain.deduplication.cosine})"
        yield Row("memory", known, to=("context", nearest) if nearest is not None else None)


def _exploration_rows(chain: Chain) -> Iterator[Row]:
    yield Row("actions", exploration_words(chain.interactions, LONG))
    used = {one for made in chain.outcomes if made.task is not None for one in made.draft.parents}
    for episode, acts in groupby(chain.interactions, key=attrgetter("run")):
        rows = tuple(_act_row(one, one.id in used) for one in acts)
        yield Row(f"episode {episode + 1}", number_words(len(rows), "action"), "quiet", more=rows)
    if chain.failure is not None:
        yield Row("gave up", f"{chain.failure.node}, {chain.failure.cause}: {chain.failure.detail}", "bad")


def _act_row(one: Interaction, used: bool) -> Row:
    ran = () if one.observation.calls == (one.action,) else one.observation.calls
    hint = one.observation.hint
    more = (
        *(Row("ran", call_words(call), code=True) for call in ran),
        Row("answer", one.observation.text, code=True),
        *((Row("hint", f"{hint.kind}: {hint.text}"),) if hint is not None else ()),
    )
    marks = filter(None, ("changed" if one.changed else "", "in a new task" if used else ""))
    tone: Tone = "good" if used else "bad" if one.observation.failed else "plain"
    return Row(", ".join(marks), call_words(one.action), tone, code=True, more=more)


def _draft_rows(one: Drafted, this: Task | None) -> Iterator[Row]:
    draft, verification = one.draft, one.verification
    accepted = verification is not None and verification.accepted
    label = "accepted" if accepted else "refused" if verification is not None else "draft"
    more = [*_spoken_rows(draft.turns, draft.reference)]
    if verification is not None and verification.reason and verification.detail:
        more.append(Row("means", REASONS.get(verification.reason, "")))
    if verification is not None and (agent := verification.agent) is not None:
        carried = f"{'accepted' if agent.accepted else 'not accepted'}, {number_words(agent.actions, 'action')}"
        more.append(Row("agent", f"{carried}. {agent.detail}"))
    yield Row(label, draft_words(draft, LONG), "good" if accepted else "bad", more=tuple(more))
    words = f"{draft.id}: {verification_words(verification, LONG)}"
    if one.task is not None and one.task != this:
        yield Row("", f"{words}: {one.task.id}", "quiet", to=("task", one.task.id))
    else:
        yield Row("", words if one.task is None else f"{words}: this task", "quiet")
    if draft.writing is not None:
        told = writing_figures(draft.writing)
        figures = (Row("figures", told, "quiet"),) if told else ()
        yield Row("wording", writing_words(draft.writing), "quiet", more=figures)


def _spoken_rows(turns: Sequence[str], reference: Iterable[Sequence[ToolCall]], played: int = 0) -> Iterator[Row]:
    for number, (turn, calls) in enumerate(zip(turns, reference, strict=True), start=1):
        yield Row("user" if len(turns) == 1 else f"user {number}", turn)
        label = "given" if number <= played else "reference"
        yield Row(label, "\n".join(map(call_words, calls)) or "no call", code=True)


def _group_rows(history: History, task_id: str) -> Iterator[Row]:
    groups, course = history.groups.get(task_id, ()), history.course(task_id)
    if not groups:
        yield Row("", "no rollout of it yet", "quiet")
    for number, found in groupby(groups, attrgetter("iteration")):
        shown = tuple(found)
        words = share_words(*course[number]) if number in course else ""
        if len(shown) > LISTED:
            words = f"and {len(shown) - LISTED} groups more, {words}"
        yield Row(f"iter. {number}", words, groups=shown[:LISTED], short=True)


def _parent_rows(history: History, chain: Chain) -> Iterator[Row]:
    if chain.weak is None or chain.iteration is None:
        return
    course, until = history.course(chain.weak.id), chain.iteration
    before = pooled(one for number, one in course.items() if number <= until)
    after = pooled(one for number, one in course.items() if number > until)
    tone: Tone = "plain"
    if before is not None and after is not None and before[0] != after[0]:
        tone = "good" if after[0] > before[0] else "bad"
    words = f"{chain.weak.id}: {share_words(*before) if before else 'no rollout'} until iteration {chain.iteration}, "
    words += f"{share_words(*after)} after it" if after else "no rollout after it yet"
    yield Row("parent", words, tone, to=("task", chain.weak.id), short=True)
    yield Row("", "a weak task was picked because it failed: it rises by regression to the mean alone", "quiet")
