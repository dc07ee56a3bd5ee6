"""A served model on the official tasks and on sets: results, hostile replies, faults, budgets and resumption."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from support.commands import run_here
from support.faulty_server import KEY, Answer, ChatRequest, Fault, FaultyServer, Raw, completion
from support.official_runs import official_result, texts_of
from support.scripted_sampler import ScriptedSampler
from support.served_policy import Script, message, player, script_of

from agents.chat.endpoint import resolve
from agents.chat.models import ChatReply, ToolCallingModel, WrittenCall
from agents.chat.replies import LONGEST_REPLY
from agents.settings import BudgetSettings, ChatSettings
from agents.spending import Ledger, RepeatedFailure, read_requests
from environments.base import (
    Action,
    MalformedCall,
    Observation,
    ObservationStatus,
    Outcome,
    Parameter,
    ToolCall,
    ToolSpec,
    TurnOutcome,
    UserTurn,
)
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import CATEGORIES, VERSION
from environments.registry import named_benchmark
from evaluation import endpoint as endpoint_module
from evaluation.attempts import attempt
from evaluation.outcomes import Report, TaskOutcome
from evaluation.served import Offered, attempt_served, read_reply
from evaluation.sets import Item, open_set
from evaluation.test_access import Access, commit_changed, current_commit
from memory.jsonl import read_jsonl
from memory.records import StopReason, Task
from training.rendering.base import EndTurn
from training.rollout.episodes import EpisodeLimits

pytestmark = pytest.mark.slow

FIRST = 2
PLAIN = {"type", "description", "properties", "required", "items", "enum"}
LIMITS = EpisodeLimits(max_new_tokens=1024, max_tokens=10**6, max_actions=20, batch=4)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COEVOLVE_CHAT_MODEL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    # The commit of the card, without git's processes (``test_the_card_has_the_commit`` starts them).
    monkeypatch.setattr(endpoint_module, "current_commit", lambda folder: "c0ffee")
    monkeypatch.setattr(endpoint_module, "commit_changed", lambda folder: True)


@pytest.fixture(scope="module")
def items() -> tuple[Item, ...]:
    """The first two development tasks of each official category."""
    return tuple(item for name in CATEGORIES for item in open_set(f"{name}@dev", FIRST))


def first_words(item: Item) -> str:
    return item.task.turns[0]


def scripts(items: Sequence[Item]) -> dict[str, Script]:
    """By first user message. Categories share some: their references up to the last turn are then equal too."""
    return {first_words(item): script_of(item.task) for item in items}


def evaluate(server: FaultyServer, *options: str) -> subprocess.CompletedProcess[str]:
    # One episode at a time, so that what is sent until a stop is known.
    fixed = ("--model", "openai:some-model", "--base-url", server.url, "--batch", "1")
    return run_here("evaluation.run", *fixed, *options)


BASE = ("--evaluation-set", "base@dev", "--limit", str(FIRST))


def base(items: Sequence[Item]) -> list[Item]:
    return [item for item in items if item.group == "base@dev"]


@pytest.mark.parametrize("category", CATEGORIES)
def test_references_through_the_endpoint_succeed_in_every_official_category(
    items: tuple[Item, ...], category: str, tmp_path: Path
) -> None:
    chosen = [item for item in items if item.group == f"{category}@dev"]
    output = tmp_path / "outcomes.jsonl"
    with FaultyServer(player(scripts(chosen))) as server:
        options = (
            "--evaluation-set",
            f"{category}@dev",
            *BASE[2:],
            "--output",
            str(output),
            "--json",
            "--max-tokens",
            "900000",
        )
        done = evaluate(server, *options)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert (report.scores[0].success, report.scores[0].n, report.rendering) == (1.0, FIRST, "endpoint")
    assert report.decoding == "temperature 0, one attempt a task"
    assert report.spent is not None
    assert report.spent.calls == len(server.requests)
    assert min(report.spent.prompt_tokens, report.spent.completion_tokens) > 0
    assert any(note.startswith(f"{len(server.requests)} requests, ") for note in report.notes)
    assert [one.task_id for one in read_jsonl(output, TaskOutcome)] == [item.task.id for item in chosen]
    lines = read_requests(tmp_path / "outcomes.requests.jsonl")
    assert (len(lines), {one.role for one in lines}) == (len(server.requests), {"policy"})
    body = server.requests[0].body
    assert (body["temperature"], body["max_completion_tokens"], body["model"]) == (0.0, 1024, "some-model")
    assert not any(KEY in path.read_text() for path in tmp_path.iterdir())
    known = named_benchmark("bfcl").evaluation_set(f"{category}@dev")
    text = (tmp_path / "outcomes.card.md").read_text()
    assert f"| model | {report.model} |" in text
    assert f"| {category}@dev | {FIRST} of {known.tasks} | False | {known.sha256} |" in text
    low = 100 * report.scores[0].interval[0]
    for name in (f"{category}@dev", f"category={category}", "split=dev"):
        assert f"| {name} | {FIRST} | 100.0% | {low:.1f} to 100.0 |" in text
    assert "actions 20" in text
    assert "tokens 900000" in text
    assert f"bfcl-eval {VERSION}" in text
    assert "equal to its multi_turn_checker" in text
    assert "commit c0ffee, with changed files |" in text
    assert f"| cost | {report.spent.calls:,} requests, {report.spent.prompt_tokens:,} prompt and " in text
    assert "127.0.0.1" not in text, "nothing of the endpoint's address"
    if category == "miss_func":
        spec = chosen[0].task
        (turn, (name, *_)), *_ = spec.withheld.items()
        offered = [name in {tool["function"]["name"] for tool in one.body["tools"]} for one in server.requests]
        assert not offered[0]
        assert any(offered), f"{name} is offered from turn {turn} on"


class Plain:
    """A rendering whose ids are the bytes of JSON: the local path without a model's format."""

    name, stop_ids = "plain", frozenset({10})

    def begin(self) -> Plain:
        return self

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        return [1]

    next_turn = first

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        return [1]

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        told = message([*map(written, json.loads(bytes(ids)))])
        calls = tuple(
            WrittenCall(c["function"]["name"], c["function"]["arguments"]) for c in told.get("tool_calls", ())
        )
        read = read_reply(ChatReply(told["content"] or "", calls, None, False, None), Offered(()))
        return read if isinstance(read, EndTurn) else read.actions


def written(one: Any) -> Any:
    return one if isinstance(one, str) else tuple(one)


def locally(item: Item, script: Script, limits: EpisodeLimits) -> TaskOutcome:
    texts = []
    for turn in script:
        for one in (*turn, ["All is done."]):
            plain = [(c.name, json.dumps(c.arguments)) if isinstance(c, ToolCall) else c for c in one]
            texts.append(json.dumps(plain) + "\n")
    sampler = ScriptedSampler(lambda text: list(text.encode()), *texts)
    policy: Any = SimpleNamespace(rendering=Plain(), positions=None, path="none")
    wide = limits.model_copy(update={"max_new_tokens": 10**5})
    return attempt([item], policy, sampler, BFCLEnvironment(), wide, 1)[0]


CHANGES: dict[str, Callable[[list[Any]], Script]] = {
    "reference": lambda script: script,
    "one call a message": lambda script: [[[call] for one in turn for call in one] for turn in script],
    "a call is left out": lambda script: [[script[0][0][1:]], *script[1:]],
    "a call that is malformed": lambda script: [[[("ls", '{"a": '), *script[0][0]]], *script[1:]],
    "an unknown tool": lambda script: [[[ToolCall(name="self_destruct"), *script[0][0]]], *script[1:]],
    "nothing at all": lambda script: [[] for _ in script],
    "calls without end": lambda script: [[[ToolCall(name="ls")] * 3] * 9, *script[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_results_are_those_of_the_local_path_for_the_same_calls(
    items: tuple[Item, ...], change: str, tmp_path: Path
) -> None:
    chosen = base(items)
    made = {first_words(item): CHANGES[change](script_of(item.task)) for item in chosen}
    served = await outcomes_of(player(made), chosen)
    for item, found in zip(chosen, served, strict=True):
        expected = locally(item, made[first_words(item)], LIMITS)
        assert found.model_copy(update={"sampled_tokens": 0}) == expected.model_copy(update={"sampled_tokens": 0})
        if change in ("reference", "a call is left out"):
            turns = [[call for one in turn for call in one] for turn in made[first_words(item)]]
            official = official_result(item.task, texts_of(item.task.reference), texts_of(turns))
            assert found.success == official["valid"]
    if change == "calls without end":
        assert all(one.stop_reasons == {StopReason.ACTIONS: 1} and one.calls == 20 for one in served)


async def outcomes_of(
    answer: Callable[[ChatRequest], Answer],
    items: Sequence[Item],
    environment: Any = None,
    limits: EpisodeLimits = LIMITS,
    **changes: Any,
) -> list[TaskOutcome]:
    found: dict[str, TaskOutcome] = {}
    fields = {"timeout": 10.0, "max_retries": 1} | changes
    with FaultyServer(answer) as server:
        settings = ChatSettings(model="m", base_url=server.url, **fields)
        endpoint = resolve(settings, "policy", commanded=True)
        model = ToolCallingModel(endpoint, Ledger(None, BudgetSettings()), 4)
        opened = environment or BFCLEnvironment()
        await attempt_served(items, model, opened, limits, lambda one: found.setdefault(one.task_id, one) and None)
    return [found[item.task.id] for item in items]


def first_time(
    answer: Callable[[ChatRequest], Answer] | Answer, then: Callable[[ChatRequest], Answer]
) -> Callable[[ChatRequest], Answer]:
    """``answer`` to the first message of each episode, whatever comes after it by the table."""

    def reply(request: ChatRequest) -> Answer:
        if any(one["role"] == "assistant" for one in request.messages):
            return then(request)
        return answer(request) if callable(answer) else answer

    return reply


def said(content: str | None, finish: str = "stop", **fields: Any) -> Callable[[ChatRequest], Raw]:
    return lambda request: Raw(200, completion(request, {"content": content, **fields}, finish))


def called(arguments: str, name: str = "ls") -> Callable[[ChatRequest], Raw]:
    return lambda request: Raw(200, completion(request, message([(name, arguments)])))


@pytest.mark.parametrize(
    ("answer", "malformed"),
    [
        (called('{"a": tr'), 1),
        (called('{"a": NaN}'), 1),
        (called('["a"]'), 1),
        (called('{"a": true} and so on'), 1),
        (called('{"a": "\\ud800"}'), 1),
        (called("[" * 100_000), 1),
        (called(json.dumps({"a": "x" * LONGEST_REPLY})), 1),
        (said("x" * (LONGEST_REPLY + 1)), 1),
        (said("I was about to", "length"), 1),
        (said('<tool_call>{"name": "ls", "arguments": {}}</tool_call>'), 1),
        (called("", "weird name.of\u2028a tool" * 9), 0),
        (said("", refusal="I will not."), 0),
        (said(None, "content_filter"), 0),
        (said(""), 0),
        (lambda request: Raw(200, completion(request, {"tool_calls": [{"function": {"arguments": {}}}]})), 1),
        (lambda request: Raw(200, completion(request, {"tool_calls": [{"function": {"name": "ls"}}]})), 0),
    ],
)
async def test_what_a_model_writes_is_never_an_infrastructure_error(
    items: tuple[Item, ...], answer: Callable[[ChatRequest], Raw], malformed: int
) -> None:
    (item, *_) = base(items)
    sent: list[ChatRequest] = []

    def reply(request: ChatRequest) -> Answer:
        sent.append(request)
        return first_time(answer, said("Done."))(request)

    (found,) = await outcomes_of(reply, [item])
    assert (found.infrastructure_error, found.malformed, found.success) == (None, malformed, False)
    assert len(json.dumps(sent[-1].body)) < LONGEST_REPLY, "nothing of that length is sent back"
    for request in sent[1:]:
        for one in request.messages:
            for call in one.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict), "endpoints refuse anything else"
                assert call["function"]["name"].isascii()
                assert len(call["function"]["name"]) <= 64


async def test_an_episode_that_outgrows_the_models_context_is_evaluated(items: tuple[Item, ...]) -> None:
    (item, *_) = base(items)
    full = Raw(400, {"error": {"message": "This model's maximum context length is 4096 tokens."}})
    (found,) = await outcomes_of(first_time(called("{}", "pwd"), lambda request: full), [item])
    assert (found.infrastructure_error, found.success) == (None, False), "leaving it out would raise the score"
    assert found.stop_reasons == {StopReason.EPISODE_TOKENS: 1}
    (found,) = await outcomes_of(called("{}", "pwd"), [item], limits=LIMITS.model_copy(update={"max_tokens": 90}))
    assert found.stop_reasons == {StopReason.EPISODE_TOKENS: 1}
    (found,) = await outcomes_of(called("{}", "pwd"), [item], limits=LIMITS.model_copy(update={"max_steps": 3}))
    assert (found.stop_reasons, found.calls) == ({StopReason.EPISODE_STEPS: 1}, 3)


@pytest.mark.parametrize(
    ("refused", "stop"),
    [
        (Raw(403, {"error": {"code": 403, "message": "Your input was flagged"}}), StopReason.REFUSED),
        (Raw(200, {"choices": None, "promptFeedback": {"blockReason": "OTHER"}}), StopReason.REFUSED),
        (Raw(500, {"error": {"message": "Context size has been exceeded."}}), StopReason.EPISODE_TOKENS),
        (Raw(200, {"error": "The input is longer than the context"}), StopReason.EPISODE_TOKENS),
        (lambda r: Raw(200, completion(r, {"content": "x"}, "model_length")), StopReason.EPISODE_TOKENS),
    ],
)
async def test_what_an_endpoint_refuses_for_its_messages_counts(
    items: tuple[Item, ...], refused: Any, stop: StopReason
) -> None:
    """Masked, these attempts would be in no rate; and none of them ends the evaluation."""
    found = await outcomes_of(lambda request: refused(request) if callable(refused) else refused, items)
    for one in found:
        assert (one.infrastructure_error, one.success, one.stop_reasons) == (None, False, {stop: 1})


def test_what_was_changed_for_an_endpoint_is_in_the_report(items: tuple[Item, ...], tmp_path: Path) -> None:
    table = player(scripts(base(items)))

    def answer(request: ChatRequest) -> Answer:
        if "temperature" in request.body:
            told = "Unsupported value: 'temperature' does not support 0.0. Only the default (1) value is supported."
            return Raw(400, {"error": {"message": told, "param": "temperature"}})
        if "JSON schema of the arguments" not in json.dumps(request.body["tools"]):
            return Raw(400, {"error": {"message": "Failed to initialize samplers: failed to parse grammar"}})
        assert all(tool["function"]["parameters"].keys() <= PLAIN for tool in request.body["tools"])
        return table(request)

    with FaultyServer(answer) as server:
        done = evaluate(server, *BASE, "--output", str(tmp_path / "out.jsonl"), "--json")
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert (report.scores[0].success, report.decoding.partition(";")[0]) == (
        1.0,
        "the endpoint's temperature, one attempt a task",
    )
    assert "the endpoint does not take the tools' schemas: it gets plain ones" in report.decoding
    assert report.decoding in (tmp_path / "out.card.md").read_text()


async def test_a_strict_message_of_a_served_model_runs_whole_or_not_at_all(items: tuple[Item, ...]) -> None:
    """As of a local one. Off, each call is answered for itself; a tool that does not exist is no call."""
    (item, *_) = base(items)
    both = [("pwd", "{}"), ("self_destruct", "{}")]
    answer = first_time(lambda request: Raw(200, completion(request, message(both))), said("Done."))
    for strict, (ran, malformed) in ((False, (1, 0)), (True, (0, 2))):
        (found,) = await outcomes_of(answer, [item], limits=LIMITS.model_copy(update={"strict_messages": strict}))
        assert (found.calls, found.malformed) == (ran, malformed)


@pytest.mark.parametrize("fault", [Fault.LIMIT, Fault.ERROR, Fault.RESET, Fault.GARBAGE, Fault.EMPTY, Fault.STALL])
async def test_a_fault_that_passes_changes_nothing(items: tuple[Item, ...], fault: Fault) -> None:
    (item, *_) = base(items)
    table = player(scripts([item]))

    def once(request: ChatRequest) -> Answer:
        return table(request) if request.attempt else fault

    # A short timeout only where nothing answers: on a busy machine it would be a fault of its own.
    timeout = {"timeout": 1.0, "max_retries": 8} if fault is Fault.STALL else {}
    (found,) = await outcomes_of(once, [item], **timeout)
    assert (found.success, found.infrastructure_error) == (True, None)


async def test_an_endpoint_that_does_not_answer_masks_the_attempt(items: tuple[Item, ...]) -> None:
    one, other = base(items)
    table = player(scripts([one, other]))

    def answer(request: ChatRequest) -> Answer:
        return Fault.ERROR if request.messages[0]["content"] == first_words(one) else table(request)

    broken, fine = await outcomes_of(answer, [one, other])
    assert broken.infrastructure_error is not None
    assert "HTTP 500" in broken.infrastructure_error
    assert broken.stop_reasons == {StopReason.FAULT: 1}
    assert fine.success


async def test_equal_failures_stop_the_evaluation_early(items: tuple[Item, ...]) -> None:
    sent = []

    def refuse(request: ChatRequest) -> Answer:
        sent.append(request)
        return Raw(400, {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}})

    with pytest.raises(RepeatedFailure, match=r"5 questions in a row.*enable-auto-tool-choice.*--base-url"):
        await outcomes_of(refuse, items)
    assert len(sent) <= LIMITS.batch + 4, "each of the four failures before the last may have let another episode begin"


def test_a_spent_budget_is_gone_on_with_and_nothing_is_paid_twice(items: tuple[Item, ...], tmp_path: Path) -> None:
    output = tmp_path / "outcomes.jsonl"
    table = player(scripts(base(items)))
    with FaultyServer(table) as server:
        first = evaluate(server, *BASE, "--output", str(output), "--json")
        whole = [request.body for request in server.requests]
    assert first.returncode == 0, first.stderr
    of_one = sum(body["messages"][0]["content"] == first_words(base(items)[0]) for body in whole)
    kept, output = output.read_text(), tmp_path / "again.jsonl"
    with FaultyServer(table) as server:
        options = (*BASE, "--output", str(output), "--json", "--base-url", server.url)
        stopped = evaluate(server, *options, "--budget-calls", str(of_one + 1))
        assert (stopped.returncode, stopped.stdout) == (1, "")
        assert f"--budget-calls ({of_one + 1}) is spent: raise it and go on with --resume" in stopped.stderr
        assert len(read_jsonl(output, TaskOutcome)) == 1
        with output.open("a") as file:
            file.write('{"task_id": "of a kill')
        refused = evaluate(server, *options)
        assert (refused.returncode, "go on with --resume, or choose another" in refused.stderr) == (2, True)
        other = evaluate(server, *options, "--resume", "--max-new-tokens", "7")
        assert (other.returncode, "--max-new-tokens None, this command 7" in other.stderr) == (2, True)
        sent = len(server.requests)
        done = evaluate(server, *options, "--resume", "--budget-calls", "1000")
        assert done.returncode == 0, done.stderr
        again = [request.body["messages"][0]["content"] for request in server.requests[sent:]]
    assert first_words(base(items)[0]) not in again
    assert output.read_text() == kept, "the records of an evaluation that was not stopped"
    report = Report.model_validate_json(done.stdout)
    assert report.spent is not None
    assert report.spent.calls == len(server.requests), "the costs of both commands"


def test_a_dead_endpoint_has_no_score(tmp_path: Path) -> None:
    output = tmp_path / "outcomes.jsonl"
    with FaultyServer(lambda request: Raw(503, {"error": {"message": "away"}})) as server:
        dead = evaluate(server, *BASE, "--limit", "2", "--output", str(output), "--json")
    assert (dead.returncode, dead.stdout) == (1, "")
    assert "error: none of 2 attempts could be evaluated, and there is no score: EndpointFailed" in dead.stderr
    assert len(output.read_text().splitlines()) == 2, "kept for --resume"


def test_two_evaluations_into_one_file_do_not_run_at_once(items: tuple[Item, ...], tmp_path: Path) -> None:
    output = tmp_path / "outcomes.jsonl"
    with FaultyServer(player(scripts(base(items)))) as server:
        options = (*BASE, "--output", str(output), "--json")
        with FileLock(tmp_path / ".outcomes.jsonl.lock"):  # of another process, as far as the kernel can tell
            for more in ((), ("--resume",)):
                second = evaluate(server, *options, *more)
                assert (second.returncode, server.requests, output.exists()) == (2, [], False)
                assert f"another process uses the evaluation {output}: wait until it ends" in second.stderr
        assert evaluate(server, *options).returncode == 0


def test_an_attempt_that_was_masked_is_made_again(items: tuple[Item, ...], tmp_path: Path) -> None:
    output, works = tmp_path / "outcomes.jsonl", [False]
    table = player(scripts(base(items)))

    def answer(request: ChatRequest) -> Answer:
        broken = not works[0] and request.messages[0]["content"] == first_words(base(items)[0])
        return Raw(400, {"error": {"message": "broken"}}) if broken else table(request)

    with FaultyServer(answer) as server:
        options = (*BASE, "--output", str(output), "--json")
        first = evaluate(server, *options)
        assert "could not be evaluated: EndpointFailed: the endpoint rejected the request: HTTP 400" in first.stderr
        report = json.loads(first.stdout)
        assert report["scores"][0]["infrastructure_errors"] == 1
        assert rows_of(tmp_path / "outcomes.card.md", "base@dev")[1][-2:] == ["1", "none"]
        assert f"1 of {len(base(items))} attempts could not be evaluated and count in no rate" in " ".join(
            report["notes"]
        )
        works[0] = True
        second = evaluate(server, *options, "--resume")
    report = json.loads(second.stdout)
    assert report["scores"][0]["successes"] == FIRST
    assert "could not be evaluated" not in " ".join(report["notes"])
    row = rows_of(tmp_path / "outcomes.card.md", "base@dev")[1]
    assert (row[1], row[-2]) == (str(FIRST), "0")


def rows_of(card: Path, name: str) -> list[list[str]]:
    """The rows of a card that begin with ``name``: of the set, then of its score."""
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in card.read_text().splitlines())
    return [row for row in rows if row[0] == name]


@pytest.mark.process
def test_the_card_has_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        said = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()

    assert current_commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    assert (current_commit(tmp_path), commit_changed(tmp_path)) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2")
    assert commit_changed(tmp_path)


def test_a_card_counts_failures_and_quotes_a_model_as_one_cell(items: tuple[Item, ...], tmp_path: Path) -> None:
    nothing = {first_words(item): [[] for _ in script_of(item.task)] for item in base(items)}
    with FaultyServer(player(nothing)) as server:
        done = evaluate(server, *BASE, "--model", "openai:a|b\n<c>", "--output", str(tmp_path / "out.jsonl"))
        assert done.returncode == 0, done.stderr
        (tmp_path / "out.settings.json").unlink()
        for name in ("out.jsonl", "out.requests.jsonl"):
            (tmp_path / name).unlink()
        again = evaluate(server, *BASE, "--output", str(tmp_path / "out.jsonl"))
    assert rows_of(tmp_path / "out.card.md", "base@dev")[1][-1] == f"multi_turn:empty_turn_model_response {FIRST}"
    assert (tmp_path / "out.card.md").read_text().startswith("# openai:a\\|b &lt;c> on bfcl\n")
    assert (again.returncode, "out.card.md exists" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--base-url", "http://localhost:1/v1"), "--base-url is for --model openai:NAME"),
        (("--model", "openai:"), "--model names no model: write it behind the colon"),
        (
            ("--model", "openai:m", "--base-url", "localhost"),
            "--base-url must be an address such as http://host:8000/v1",
        ),
        (("--model", "openai:m", "--dtype", "bfloat16"), "--dtype decides how a local model runs"),
        (("--model", "openai:m", "--resume"), "--resume goes on with the --output"),
        (("--resume",), "--resume goes on with the --output"),
    ],
)
def test_a_mistake_is_one_sentence(options: tuple[str, ...], says: str) -> None:
    done = run_here("evaluation.run", *BASE, *options)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert says in line


def test_a_file_of_settings_cannot_choose_where_a_key_goes(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: openai:m\nbase_url: https://evil.example/v1\n")
    done = run_here("evaluation.run", *BASE, "--settings", str(file))
    assert (done.returncode, f"{file}: base_url decides where a key goes, which no file may" in done.stderr) == (
        2,
        True,
    )


@pytest.mark.process
def test_a_held_out_set_opens_for_its_log_once_the_endpoint_is_known(tmp_path: Path) -> None:
    depots = "support.tiny_benchmark:BENCHMARK"
    log, test = tmp_path / "log.jsonl", named_benchmark(depots).open_evaluation_set("test", 2)
    options = ("--environment", depots, "--evaluation-set", "test", "--limit", "2")
    with FaultyServer(player({one.spec.turns[0]: script_of(one.spec) for one in test})) as server:
        refused = evaluate(server, *options)
        assert (refused.returncode, "add --access-log FILE" in refused.stderr) == (2, True)
        assert evaluate(server, *options, "--model", "openai:", "--access-log", str(log)).returncode == 2
        assert not log.exists(), "nothing could have been scored"
        done = evaluate(server, *options, "--access-log", str(log), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scores"][0]["metrics"] == {"success": 1.0, "whole_depots": 1.0}
    (access,) = read_jsonl(log, Access)
    assert (list(access.panels), access.tasks, access.model) == (["test"], 2, "openai:some-model")


class Worlds:
    """An environment with a tool that runs programs, and a preface; a program that says ``right`` solves the task."""

    name = "worlds"

    def __init__(self) -> None:
        self.programs: list[str] = []

    def open(self, task: Task) -> Worlds:
        return self

    def tools(self, names: Sequence[str]) -> tuple[ToolSpec, ...]:
        code = Parameter(name="code", type="code", description="a program", required=True)
        return tuple(ToolSpec(name=name, group="g", description="d", parameters=(code,)) for name in names)

    def start(self) -> UserTurn:
        return UserTurn(index=0, text="Do it.", tools=("python",), preface="You act by writing Python.")

    def step(self, action: Action) -> Observation:
        if isinstance(action, MalformedCall):
            return Observation(text=action.reason, status=ObservationStatus.MALFORMED)
        self.programs.append(str(action.arguments["code"]))
        return Observation(text="it printed this", status=ObservationStatus.OK, calls=(action,))

    def end_turn(self) -> None:
        return None

    def outcome(self) -> Outcome:
        return Outcome(success="right()" in self.programs, turns=(TurnOutcome(calls=1, reference_calls=1),))

    def close(self) -> None:
        pass


async def test_programs_are_written_as_blocks_and_no_tool_is_offered() -> None:
    task = Task(
        id="w", origin="given", environment="worlds", split="dev", classes=(), turns=("Do it.",), initial_state={},
        tools=("python",), reference=((),),
    )  # fmt: skip
    item = Item(task=task, group="g", cluster="w", reference_calls=None)
    sent: list[ChatRequest] = []
    replies = iter(
        [
            "<think>```python\nwrong()\n```</think>Two:\n```python\na()\n```\n```python\nb()\n```",
            "```python\nright()\n```",
            "Done.",
        ]
    )

    def answer(request: ChatRequest) -> Answer:
        sent.append(request)
        return next(replies)

    worlds = Worlds()
    (found,) = await outcomes_of(answer, [item], worlds)
    assert (found.success, found.malformed, worlds.programs) == (True, 1, ["right()"])
    assert not any("tools" in request.body for request in sent)
    assert [one["role"] for one in sent[0].messages] == ["system", "user"]
    last = sent[-1].messages[-3:]
    assert "2 blocks of Python" in last[0]["content"]
    assert last[2] == {"role": "user", "content": "it printed this"}


def test_names_with_a_dot_are_offered_in_letters_and_read_back() -> None:
    tools = [ToolSpec(name=name, group="g", description="d") for name in ("music.play", "music_play", "x" * 80)]
    offered = Offered(tools)
    assert [tool["function"]["name"] for tool in offered.schemas] == ["music_play", "music_play_2", "x" * 64]
    read = read_reply(ChatReply("", (WrittenCall("music_play", "{}"),), None, False, None), offered)
    assert not isinstance(read, EndTurn)
    assert read.actions == (ToolCall(name="music.play"),)
