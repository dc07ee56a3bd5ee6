"""The report's page as data: every record has its place, figures agree with the records, nothing foreign is code."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.hostile_run import make_hostile_run

from environments.base import InputError, MalformedCall, ToolCall
from environments.bfcl.benchmark import BFCL
from environments.registry import packaged
from graph.report.digest import call_words, one_line
from graph.report.effect import tool_map, weak_tasks, went
from graph.report.figures import overview
from graph.report.lineage import Course, Group, History, Rollout
from graph.report.page import LONGEST_TEXT, cut, in_order_of_worth, make_page
from graph.report.stories import first_story, rollout_story
from graph.report.summary import Summary, summarise
from graph.settings import load_recipe
from memory.records import Draft, DraftVerification, FailureContext, Interaction, Signal, Trajectory
from memory.run import RunDirectory, read_json, read_jsonl, write_json
from memory.tasks import load_tasks
from training.seal.diagnosis import FAILED, turn_label

ASSETS = Path(make_page.__code__.co_filename).parent
PART = re.compile(rb'<script type="text/plain" id="part-([^"]+)">([A-Za-z0-9+/=]*)</script>')


def escaped(text: str) -> str:
    return html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def parts_of(page: bytes) -> dict[str, Any]:
    """Return the records of a page, as its script reads them."""
    return {name.decode(): json.loads(gzip.decompress(base64.b64decode(block))) for name, block in PART.findall(page)}


@pytest.fixture(scope="module")
def page(evolved: RunDirectory) -> bytes:
    return make_page(evolved).html


@pytest.fixture(scope="module")
def parts(page: bytes) -> dict[str, Any]:
    return parts_of(page)


def test_every_record_has_its_place(evolved: RunDirectory, parts: dict[str, Any]) -> None:
    folder = evolved.iteration(0)
    tasks = load_tasks(evolved)
    contexts = read_jsonl(folder.contexts, FailureContext)
    assert [row[0] for row in parts["table"]["task"]["rows"]] == [task.id for task in reversed(tasks)]
    assert {row[0] for row in parts["table"]["context"]["rows"]} == {one.id for one in contexts}
    assert {name for name, block in parts["index"].items() if block == "stage-000"} == set(parts["stage-000"])
    admitted = {task.id for task in tasks if task.admitted_at == 0}
    assert set(parts["stage-000"]) == admitted | {one.id for one in contexts}
    assert set(parts["stage-seed"]) >= {task.id for task in tasks if task.admitted_at is None}
    chains = {one.id: parts["stage-000"][one.id] for one in contexts}
    steps = {name: {step[0]: step[3] for step in chain["steps"]} for name, chain in chains.items()}
    verifications = {one.draft_id: one for one in read_jsonl(folder.verdicts, DraftVerification)}
    for draft in read_jsonl(folder.drafts, Draft):
        rows = steps[draft.context_id]["drafts"]
        place = next(at for at, row in enumerate(rows) if row.get("text", "").startswith(f"{draft.id}: "))
        assert rows[place - 1]["label"] == ("accepted" if verifications[draft.id].accepted else "refused")
        assert [row["text"] for row in rows[place - 1]["more"] if "user" in row["label"]] == list(draft.turns)
    for context in contexts:
        rows = steps[context.id].get("exploration", [])
        acts = [one for one in read_jsonl(folder.interactions, Interaction) if one.context_id == context.id]
        assert sum(len(row["more"]) for row in rows if row.get("label", "").startswith("episode")) == len(acts)
    rollouts = read_jsonl(folder.trajectories, Trajectory)
    assert set(parts["turns-000"]) == {one.id for one in rollouts}
    marked = [step[3] for one in parts["turns-000"].values() for step in one["steps"] if step[0] == "rollout"]
    shown = [row for rows in marked for row in rows if row.get("label") == "signal"]
    assert len(shown) == len(read_jsonl(folder.signals, Signal)) > 0


def test_a_task_leads_back_to_the_rollout(evolved: RunDirectory, parts: dict[str, Any]) -> None:
    for task in (one for one in load_tasks(evolved) if one.admitted_at == 0):
        draft, context, signal, rollout, weak = task.parents
        own, chain = parts["stage-000"][task.id], parts["stage-000"][context]
        assert own["before"] == context
        ids = {name: record for name, record, *_ in chain["steps"]}
        assert (ids["signal"], ids["rollout"]) == (signal, rollout)
        made = next(row for step in chain["steps"] for row in step[3] if row.get("to") == ["task", task.id])
        assert made["text"].startswith(f"{draft}: accepted")
        (said,) = (rows for name, _, _, rows in own["steps"] if name == "what it asks")
        assert [row["text"] for row in said if "user" in row["label"]] == list(task.turns)
        assert weak in parts["stage-seed"]
        assert said[-1]["text"] == ", ".join(task.tools)
        assert cut(json.dumps(task.initial_state, indent=1)) == said[-1]["more"][0]["text"]


def test_rollouts_and_their_turns_are_those_of_the_records(evolved: RunDirectory, parts: dict[str, Any]) -> None:
    for one in read_jsonl(evolved.iteration(0).trajectories, Trajectory):
        steps = parts["turns-000"][one.id]["steps"]
        (group,) = (row["groups"] for row in steps[0][3] if row.get("label") == "group")
        (dot,) = (dot for dot in group[0] if dot[0] == one.id)
        words = f"iteration 0, step {one.step}, sample {one.sample}: {'success' if one.success else 'failure'}"
        assert dot[1:] == ["good" if one.success else "bad", words]
        turns = [rows for name, _, _, rows in steps if name.startswith("turn")]
        assert [rows[0]["text"] for rows in turns[: len(one.turns)]] == [turn.full_text for turn in one.turns]
        for rows, turn in zip(turns, one.turns, strict=False):
            texts = [row.get("text") for row in rows]
            for step in turn.steps:
                assert call_words(step.action) in texts
                assert step.observation.full_text in texts
        assert one.outcome is not None
        assert sum(row.get("label") == "checks" for rows in turns for row in rows) == len(one.outcome.turns)
        assert not [row for rows in turns for row in rows if row.get("label") == "SEAL"], "a run without it"


def test_figures_agree_with_the_records(evolved: RunDirectory, page: bytes) -> None:
    history = History.read(evolved)
    shown = overview(history)
    told = shown["iterations"][0]
    groups = [group for of_task in history.groups.values() for group in of_task]
    assert told["groups"]["all"] == len(groups)
    assert told["groups"]["mixed"] == sum(group.carries_signal for group in groups)
    assert sum(told["groups"][name] for name in ("none", "mixed", "solved", "faulted")) == len(groups)
    signals = read_jsonl(evolved.iteration(0).signals, Signal)
    assert {kind: count for kind, count in told["signals"].items() if count} == Counter(one.kind for one in signals)
    verifications = read_jsonl(evolved.iteration(0).verdicts, DraftVerification)
    assert told["admitted"] == sum(one.accepted for one in verifications)
    assert sum(told["refused"].values()) == sum(not one.accepted for one in verifications)
    cells = [cell for _, row in shown["map"] for cell in row.values()]
    chains = [chain for chain in history.chains.values() if chain.context.tool]
    assert sum(cell.weak for cell in cells) == len(chains) > 0
    assert sum(cell.tasks for cell in cells) == sum(len(chain.admitted) for chain in chains)
    rows = shown["numbers"].rows
    assert len(rows) == evolved.iteration(0).summary.exists()
    for cell in (*(cell for row in rows for cell in row), *cells[0].made.split(", ")):
        assert escaped(str(cell)) in page.decode()
    assert page.count(b"<svg") == len(shown["charts"]) > 3


def made_history(courses: dict[str, dict[int, float]]) -> History:
    """A history without records whose tasks have a success by iteration."""

    class Made(History):
        def course(self, *task_ids: str) -> Course:
            (task_id,) = task_ids
            return {number: (share, 8) for number, share in courses[task_id].items()}

    history = Made(RunDirectory(Path("none")), [], [0, 1, 2])
    rollout = Rollout(id="r", task_id="t", iteration=0, step=1, sample=0, outcome={"success": True})
    history.groups = {task: (Group(task, 0, 1, (rollout,)),) for task in courses}
    return history


def test_weak_tasks_are_compared_with_those_that_were_not_followed() -> None:
    courses = {
        "weak": {0: 0.25, 2: 0.75},
        "other": {0: 0.5, 1: 0.5, 2: 1.0},
        "rare": {0: 0.5, 1: 0.5},
        "well": {0: 1.0},
    }
    history = made_history(courses)
    for number, (kind, task) in enumerate((("boundary", "weak"), ("rare", "rare"), ("forgetting", "other"))):
        signal = Signal.model_validate(
            {"id": str(number), "kind": kind, "iteration": 0, "task_id": task, "trajectory_id": "r"}
        )
        history.signals[signal.id] = signal
    words = weak_tasks(history)
    assert "were made: no pair yet;" in words
    assert "none was made: 38% to 62% (+25 points; 2 pairs)" in words
    assert went([(0.25, 0.75)]) == "25% to 75% (+50 points; 1 pair)"
    assert went([(0.0, 1.0), (1.0, 0.5)] * 4) == "50% to 75% (+25 points; 8 pairs)"
    assert went([(0.0, 1.0), (1.0, 0.5)] * 5) == "50% to 75% (+25 points, 95 %: -32 to 82; 10 pairs)"
    assert went([(0.0, 1.0)] * 9 + [(1.0, 0.0)]) == "10% to 90% (+80 points, 95 %: 35 to 100; 10 pairs)"


def test_the_map_has_what_was_weak_and_its_success_before_and_after(grown_run: RunDirectory) -> None:
    history = History.read(grown_run)
    told = tool_map(history)
    counts = [sum(cell.weak for cell in cells.values()) for _, cells in told]
    assert counts == sorted(counts, reverse=True)
    for tool, cells in told:
        for number, (weak, made, pairs) in cells.items():
            chains = [one for one in history.chains_in(number) if one.context.tool == tool]
            assert (weak, made) == (len(chains), sum(len(one.admitted) for one in chains))
            courses = [history.course(task) for task in {one.context.task_id for one in chains}]
            both = [one for one in courses if number in one and max(one) > number]
            nexts = [one[min(later for later in one if later > number)][0] for one in both]
            assert sorted(pairs) == sorted(zip((one[number][0] for one in both), nexts, strict=True))
    assert any(cell.pairs for _, cells in told for cell in cells.values())


def test_rollouts_over_the_budget_are_left_out_by_the_rule(grown_run: RunDirectory) -> None:
    history, whole = History.read(grown_run), make_page(grown_run)
    assert whole.kept == whole.rollouts == len(history.rollouts)
    order = [one.id for one in in_order_of_worth(history)]
    assert sorted(order) == sorted(history.rollouts)
    smaller = make_page(grown_run, most=len(order) // 2)
    assert 0 < smaller.kept == len(order) // 2
    assert len(smaller.html) < len(whole.html)
    parts = parts_of(smaller.html)
    kept = {one for name, block in parts.items() if name.startswith("turns-") for one in block}
    assert kept == set(order[: smaller.kept]) == {one for one, block in parts["index"].items() if "turns" in block}
    assert f"{smaller.kept:,} of {whole.rollouts:,} rollouts are here with their turns" in smaller.html.decode()


def test_evidence_comes_first_then_failures_of_later_iterations(grown_run: RunDirectory) -> None:
    history = History.read(grown_run)
    first = {chain.rollout.id for chain in history.chains.values() if chain.rollout is not None}
    marked = {one.trajectory_id for one in history.signals.values()}
    order = list(in_order_of_worth(history))
    assert {one.id for one in order[: len(first)]} == first
    assert {one.id for one in order[: len(first | marked)]} == first | marked
    rest = [(bool(one.success), -one.iteration) for one in order[len(first | marked) :]]
    assert rest == sorted(rest)


def test_the_page_allows_its_own_script_and_nothing_else(page: bytes) -> None:
    text = page.decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    allowed = dict(one.split(" ", 1) for one in policy[1].split("; "))
    assert allowed.pop("default-src") == allowed.pop("base-uri") == allowed.pop("form-action") == "'none'"
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed.pop(directive) == f"'sha256-{digest}'"
    assert not allowed
    assert not re.search(r"\ssrc=|<link|url\(|@import", text)


def test_the_script_makes_no_markup_and_asks_nobody() -> None:
    scripts = "".join(path.read_text() for path in ASSETS.glob("*.js"))
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|createContextualFragment|\beval\b|new Function"
    )
    assert not re.findall(forbidden, scripts)
    assert not re.findall(r"\bfetch\b|XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\(", scripts)


class Tags(HTMLParser):
    """The elements and attributes of a page, as a browser reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_hostile_records_are_data(evolved: RunDirectory, tmp_path: Path) -> None:
    hostile = make_page(make_hostile_run(tmp_path / "<script>alert(1)", evolved)).html
    plain = hostile.decode("ascii", errors="replace")
    assert plain.count("<script") == 1 + len(PART.findall(hostile))
    assert "<title>&lt;script&gt;alert(1) · CoEvolve</title>" in hostile.decode()
    tags = Tags()
    tags.feed(plain)
    assert not tags.seen & {"img", "iframe", "object", "embed", "link", "base", "form"}
    assert "svg" in tags.seen, "charts"
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert len(hostile) < 1_000_000, "texts of a megabyte are cut"
    parts = parts_of(hostile)
    rows = [row for one in parts["turns-000"].values() for step in one["steps"] for row in step[3]]
    longest = max(len(row.get("text", "")) for row in rows)
    assert LONGEST_TEXT < longest < LONGEST_TEXT + 100


@pytest.mark.parametrize(
    "name",
    [
        "{{parts}}",
        "{{parts}}{{script}}{{style}}{{policy}}{{title}}",
        "{{script}}",
        "{{nothing}} {{ {",
        r"\1\g<0>{0}%s%(x)s$x",
        "<html data-x='",
        "default-src 'none'; script-src 'unsafe-inline'",
        "half a character \udcff",
    ],
)
def test_no_name_of_a_run_is_a_place_of_the_template(evolved: RunDirectory, tmp_path: Path, name: str) -> None:
    shutil.copytree(evolved.root, tmp_path / name)
    page = make_page(RunDirectory.open(tmp_path / name)).html
    title = escaped(one_line(name))
    before, shown, after = page.decode().partition(f"<title>{title} · CoEvolve</title>")
    assert (bool(shown), after.count(f'<h1 id="name">{title}</h1>')) == (True, 1)
    plain = make_page(evolved).html.decode()
    assert before == plain[: plain.index("<title>")], "the policy is the same"
    assert [*parts_of(page)] == [*parts_of(plain.encode())]
    assert page.count(b"<script") == plain.count("<script")
    assert after.endswith(f"<script>{(ASSETS / 'page.js').read_text()}</script>\n</body>\n</html>\n")


def test_a_long_text_says_that_it_is_cut() -> None:
    assert cut("short") == "short"
    assert cut("x" * 5000) == f"{'x' * 4000}\n[cut: 4,000 of 5,000 characters]"


def test_a_program_keeps_its_lines() -> None:
    program = ToolCall(name="execute", arguments={"code": "a = 1\nprint(a)", "seconds": 3})
    assert call_words(program) == "execute(code=\na = 1\nprint(a)\n, seconds=3)"
    assert call_words(ToolCall(name="ls", arguments={"a": "b"})) == "ls(a='b')"
    assert call_words(MalformedCall(text="ls(\n", reason="unclosed")) == "ls(\n"


def test_its_first_story_is_that_of_the_end_of_a_run(grown_run: RunDirectory) -> None:
    told = overview(History.read(grown_run))
    story = first_story(History.read(grown_run))
    assert story is not None
    assert told["story"]["id"] == story.task.id


def test_words_of_the_page_are_those_that_the_run_has(evolved: RunDirectory) -> None:
    told = overview(History.read(evolved))
    assert {"context", "draft", "reference", "group"} <= set(told["terms"])
    assert told["reasons"] == {}, "no draft was refused"


def test_words_have_the_reasons_of_the_runs_refusals(evolved: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "copy")
    shutil.copytree(evolved.root, run.root)
    path = run.iteration(0).verdicts
    first, *others = read_jsonl(path, DraftVerification)
    refused = first.model_copy(update={"accepted": False, "reason": "unknown_tool"})
    path.write_text("".join(f"{one.model_dump_json()}\n" for one in (refused, *others)))
    assert list(overview(History.read(run))["reasons"]) == ["unknown tool"]


def test_settings_that_differ_from_the_defaults_are_named(evolved: RunDirectory) -> None:
    found = {key: rest for key, *rest in overview(History.read(evolved))["settings"]}
    assert found["training.rollouts_per_task"] == ["4", "8"]
    assert found["seed"] == ["3", "0"]
    assert "training.learning_rate" not in found


def test_turns_have_their_label_where_seal_is_on(evolved: RunDirectory) -> None:
    one = next(one for one in read_jsonl(evolved.iteration(0).trajectories, Trajectory) if not one.success)
    assert one.outcome is not None
    steps = rollout_story(History.read(evolved), one, diagnosed=True)
    labels = [row.text for step in steps if step.name.startswith("turn") for row in step.rows if row.label == "SEAL"]
    assert labels == [str(turn_label(check)).replace("_", " ") for check in one.outcome.turns]
    assert set(labels) & {str(label).replace("_", " ") for label in FAILED}


def test_a_run_that_goes_on_has_a_page(evolved: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "copy")
    shutil.copytree(evolved.root, run.root)
    for name in ("interactions", "drafts", "verdicts", "evolution", "round"):
        getattr(run.iteration(0), name).unlink()
    assert re.search(rb"0 of \d iterations are done", make_page(run).html)
    assert overview(History.read(run))["costs"] == []
    shutil.rmtree(run.iterations_path)
    run.tasks_path.unlink()
    with pytest.raises(InputError, match="no task and no iteration yet"):
        make_page(run)


def test_a_benchmark_that_forbids_publication_is_named_on_the_page(
    evolved: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_page(evolved).unpublishable is None

    class Private(BFCL):
        unpublishable: ClassVar[str | None] = "Its licence forbids it"

    monkeypatch.setattr(type(packaged("bfcl")), "unpublishable", Private.unpublishable)
    page = make_page(evolved)
    assert page.unpublishable == "Its licence forbids it"
    assert b"Not for publication: this page holds tasks and rollouts. Its licence forbids it." in page.html


def test_a_page_imports_nothing_that_the_runs_settings_name(
    evolved: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("open('ran', 'w')", "from environments.base import Environment", "def main() -> Environment: ...")
    (tmp_path / "of_a_stranger.py").write_text("\n".join(lines))
    shutil.copytree(evolved.root, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    named = ["environment.name=of_a_stranger:main", "environment.options={}", "evaluation.set=null"]
    settings = load_recipe(run.settings_path, named)
    run.save_settings(settings)
    page = make_page(run)
    assert b"<li>of_a_stranger:main</li>" in page.html
    assert page.unpublishable == "No iteration has recorded yet whether of_a_stranger:main allows it"
    write_json(run.iteration(0).summary, summarise(run, load_recipe(evolved.settings_path), 0))
    assert make_page(run).unpublishable is None
    summary = read_json(run.iteration(0).summary, Summary)
    private = summary.model_copy(update={"labels": ("own environment", "not for publication: its licence forbids it")})
    write_json(run.iteration(0).summary, private)
    assert make_page(run).unpublishable == "its licence forbids it"
    assert not (tmp_path / "ran").exists()
