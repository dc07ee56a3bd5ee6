"""`coevolve show`: a task, context, signal, rollout or tool in the terminal, from real and from hostile records."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.commands import run_here
from support.hostile_run import HALF_PAIR, make_hostile_run

from graph.nodes.new_tasks import misread
from graph.report.digest import writing_figures, writing_words
from graph.report.lineage import History
from graph.report.page import make_page
from graph.report.stories import first_story, story_of, tools_of
from memory.records import Draft, DraftVerification, Writing
from memory.run import RunDirectory, read_jsonl, write_jsonl

Show = Callable[..., str]


@pytest.fixture(scope="module")
def history(grown_run: RunDirectory) -> History:
    return History.read(grown_run)


@pytest.fixture
def show(grown_run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Show:
    monkeypatch.setenv("COLUMNS", "80")

    def told(*arguments: str, run: Path = grown_run.root) -> str:
        done = run_here("graph.show", *arguments, "--run", str(run))
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout, "no colour in a pipe"
        assert all(cell_len(line) <= 80 for line in done.stdout.splitlines())
        return done.stdout

    return told


def words(text: str) -> str:
    """The text without line breaks and columns."""
    return " ".join(text.split())


def test_a_task_is_followed_from_the_rollout_to_its_effect(history: History, show: Show) -> None:
    task = next(
        task for task in history.tasks.values() if task.admitted_at == 0 and any(history.groups.get(task.id, ()))
    )
    chain = history.chain_of(task.id)
    assert chain is not None
    assert chain.signal is not None
    assert chain.weak is not None
    assert chain.rollout is not None
    text = show(task.id[:15])
    order = [
        f"task {task.id}",
        f"rollout {chain.rollout.id}",
        "wrong >",
        f"signal {chain.signal.id}",
        f"reflection {chain.context.id}",
        "exploration",
        "drafts",
        "this task",
        "effect",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    trajectory = history.trajectory(chain.rollout.id)
    turn, position = chain.context.where
    if position < len(trajectory.turns[turn].steps):
        assert "answer" in text[text.index("wrong >") : text.index("signal")]
    for group in history.groups[task.id]:
        assert "".join("●" if one.success else "○" for one in group.rollouts) in text
    before = history.course(chain.weak.id).get(0)
    if before is not None:
        assert f"{chain.weak.id}: {before[0]:.0%} of {before[1]} until iteration 0" in words(text)
    for one in chain.outcomes:
        assert one.draft.id in text


def test_contexts_signals_and_drafts_show_their_chain(history: History, show: Show) -> None:
    chain = next(chain for chain in history.chains.values() if chain.admitted and chain.signal is not None)
    assert chain.signal is not None
    told = show(chain.context.id)
    assert all(task.id in told for task in chain.admitted)
    assert show(chain.outcomes[0].draft.id) == told
    assert show(chain.signal.id) == told
    left_out = next(one for one in history.signals.values() if not history.chains_from(one.id))
    assert show(left_out.id) == show(left_out.trajectory_id), "the story of its rollout, which names its signals"


def test_a_rollout_stands_beside_its_reference(history: History, show: Show) -> None:
    chain = next(
        one
        for one in history.chains.values()
        if one.rollout is not None
        and one.context.where[1] < len(history.trajectory(one.rollout.id).turns[one.context.where[0]].steps)
    )
    assert chain.rollout is not None
    assert chain.weak is not None
    text = show(chain.rollout.id)
    for call in chain.weak.reference[0]:
        assert call.name in text
    assert "[○]" in text
    assert "wrong >" in text
    assert chain.context.id in text
    sibling = history.sibling(chain.rollout, success=True)
    assert sibling is None or sibling.id in text
    for part in ("checks", "stopped", "result     failed"):
        assert part in text


def test_observations_are_folded_and_whole_on_demand(history: History, show: Show) -> None:
    texts = {
        name: step.observation.text
        for name in list(history.rollouts)[:80]
        for turn in history.trajectory(name).turns
        for step in turn.steps
        if len(step.observation.text) > 100
    }
    name, text = next(iter(texts.items()))
    folded, whole = show(name), show(name, "--full")
    assert f"(1 line, {len(text)} characters)" in words(folded)
    assert "".join(text.split()) in "".join(whole.split())
    assert "".join(text.split()) not in "".join(folded.split())


def test_a_tool_names_its_tasks_and_weaknesses(history: History, show: Show) -> None:
    tool = next(chain.context.tool for chain in history.chains.values() if chain.context.tool)
    text = show(tool)
    assert f"{len(history.using(tool))} whose reference calls it" in text
    contexts = sum(chain.context.tool == tool for chain in history.chains.values())
    assert f"contexts {contexts} weaknesses at it" in text
    acts = [
        one
        for chain in history.chains.values()
        for one in chain.interactions
        if tool in {call.name for call in one.observation.calls}
    ]
    failed = sum(one.observation.failed for one in acts)
    assert f"explored {len(acts)} actions of explorations, {failed} failed" in words(text)
    drafts = [one for chain in history.chains.values() for one in chain.outcomes]
    made = [one for one in drafts if tool in {call.name for turn in one.draft.reference for call in turn}]
    assert f"drafts {sum(one.task is not None for one in made)} accepted" in words(text)
    results = [
        result
        for task in history.using(tool)
        for group in history.groups.get(task.id, ())
        if group.iteration == 2
        for result in group.results
    ]
    if results:
        assert f"{sum(results) / len(results):.0%} of {len(results)}" in text
    rolled = {group.iteration for task in history.using(tool) for group in history.groups.get(task.id, ())}
    assert ("not a measure of progress" in text) == (len(rolled) > 1)


def test_without_a_name_the_newest_tasks_of_each_iteration_are_listed(history: History, show: Show) -> None:
    text = show()
    for number in range(3):
        newest = [task.id for task in history.tasks.values() if task.admitted_at == number][-1]
        assert newest in text
    assert text.index("iteration 2") < text.index("iteration 0")
    story = first_story(history)
    assert story is not None
    assert text.index("begin with this task") < text.index(story.task.id) < text.index("iteration 2")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("task-", "ids, such as task-"),
        ("nothing-at-all", "no record and no tool nothing-at-all: coevolve show without a name lists some"),
        ("lockDors", "did you mean lockDoors?"),
    ],
)
def test_unknown_names_are_refused(grown_run: RunDirectory, name: str, says: str) -> None:
    done = run_here("graph.show", name, "--run", str(grown_run.root))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_near_ids_are_proposed_and_runs_that_are_none_refused(history: History, tmp_path: Path) -> None:
    known = next(iter(history.tasks))
    wrong = known[:-1] + ("0" if known[-1] != "0" else "1")
    done = run_here("graph.show", wrong, "--run", str(history.run.root))
    assert (done.returncode, f"did you mean {known}?" in done.stderr) == (2, True)
    done = run_here("graph.show", "--run", str(tmp_path))
    assert (done.returncode, "is not a run" in done.stderr) == (2, True)


@pytest.mark.slow
def test_hostile_records_are_shown_as_text(grown_run: RunDirectory, show: Show, tmp_path: Path) -> None:
    run = make_hostile_run(tmp_path / "hostile", grown_run)
    history = History.read(run)
    for name in (*history.tasks, *history.chains, *list(history.rollouts)[:40], *tools_of(history)):
        assert story_of(history, name)
    chain = next(iter(history.chains.values()))
    assert chain.rollout is not None
    shown = ("", 'task-"', chain.context.id, chain.rollout.id, next(iter(history.rollouts)), "__proto__")
    texts = [show(name, run=run.root) for name in (*shown, *tools_of(history))]
    for text in texts:
        assert text
        assert all(letter.isprintable() or letter == "\n" for letter in text)
        assert "\nerror: forged" not in text
        assert len(text) < 20_000
    assert any("[bold red]markup[/]" in text for text in texts), "text is no markup"
    path = run.iteration(0).trajectories
    whole = path.read_text()
    path.write_text(whole.replace('"text": "__proto__"', f'"text": {HALF_PAIR}', 1))
    assert path.read_text() != whole
    done = run_here("graph.show", "--run", str(run.root))
    assert (done.returncode, "trajectories.jsonl, line" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("read", "said"), [("", "it reads the calls exactly"), ('ls(a="x")', 'it reads other calls: ls(a="x")')]
)
def test_what_an_endpoint_worded_has_no_figures(read: str, said: str) -> None:
    writing = Writing(drawn=2, wordings=2, round_trip=not read, read=read, understood=not read)
    assert writing_words(writing).endswith(said)
    assert writing_figures(writing) == ""
    assert misread(writing) == (
        "the reader returns the calls" if not read else f"the reader does not return the calls, but {read}"
    )


def test_what_a_local_model_worded_is_told_on_the_page_too(grown_run: RunDirectory, show: Show, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(grown_run.root, run.root)
    folder = run.iteration(0)
    first, *others = read_jsonl(folder.drafts, Draft)
    figures = {"drawn": 6, "realism": -1.5, "difference": 0.25}
    exact = Writing(wordings=2, round_trip=True, margin=1.0, understood=True, **figures)
    vague = Writing(wordings=1, round_trip=False, margin=-0.5, understood=False, **figures)
    write_jsonl(
        folder.drafts,
        [first.model_copy(update={"writing": exact}), others[0].model_copy(update={"writing": vague}), *others[1:]],
    )
    verdicts = {one.draft_id: one for one in read_jsonl(folder.verdicts, DraftVerification)}
    refused = {"accepted": False, "reason": "misread", "detail": "unclear"}
    verdicts[others[0].id] = verdicts[others[0].id].model_copy(update=refused)
    write_jsonl(folder.verdicts, [*verdicts.values()])

    said = "of 2 drafts whose calls a language model worded, 50% are read back exactly, 1 refused as misread"
    assert f"wording {said}" in words(show(run=run.root))
    page = make_page(run).html
    assert f"Wording: {said}." in page.decode()
    assert "Wording:" not in make_page(grown_run).html.decode()

    best = "wording by a language model, the best of 2 usable wordings out of 6; from these words a second model writes"
    told = words(show(first.id, run=run.root))
    assert f"{best} exactly the calls (which become 2.72 times as likely per token)" in told
    assert "nats" not in told
    told = words(show(others[0].id, run=run.root))
    assert "the best of 1 usable wording out of 6" in told
    assert "writes other calls (the right ones become 0.607 times as likely per token)" in told
    chapters = story_of(History.read(run), first.id)
    (row,) = (row for chapter in chapters for row in chapter.rows if row.label == "wording" and "2.72" in row.text)
    assert row.more[0].text == (
        "in nats per token: the words add 1.00 to the calls for the reader; the calls have -1.50 for the writer; "
        "teaching it added 0.25 to the words"
    )
