"""`python -m benchmarks.studio_tour RUN`: does every action of docs/studio.md in the real server, and says what it saw.

RUN should be a copy: the graph of the loop adds an iteration to it, and RUN@THREAD, the copies, are left beside it.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.studio_server import Studio, serving, start_without
from environments.command import FAILURE, OneSentence, exit_statuses
from graph.checkpoints import thread_id
from graph.digests import BRANCHES, LINE
from graph.records import Evolution
from graph.report.digest import number_words, one_line
from memory.records import Draft, DraftVerification, FailureContext
from memory.run import IterationDirectory, RunDirectory, read_json, read_jsonl

FEW = 6  # signals that most actions keep: they show the same as all of them, sooner
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, expected {expected!r}")


class _Tour:
    """The actions, in order: each does what its docstring says, and returns what was seen."""

    def __init__(self, studio: Studio) -> None:
        from graph.resumption import is_done
        from graph.studio.forks import newest

        self._studio, self._client, self._run = studio, studio.client, studio.run
        self._newest = newest(self._run)
        self._done = is_done(self._run, self._newest)  # calls of a finished iteration work in copies
        self._files = _files(self._run)
        self._whole = self._few = self._retried = ""  # threads of all signals, and of a few

    def _at(self, thread: str) -> IterationDirectory:
        return self._studio.at(thread).iteration(self._newest)

    def _results(self, thread: str) -> dict[str, DraftVerification]:
        return {one.draft_id: one for one in read_jsonl(self._at(thread).verdicts, DraftVerification)}

    def _ended(self, thread: str) -> str:
        found = read_json(self._at(thread).evolution, Evolution)
        return f"{len(found.admitted)} of {number_words(found.drafts, 'draft')} admitted"

    def _begin_few(self, **options: object) -> str:
        """Stop before ``reflect``, keep a few signals, and go on with ``options``."""
        thread = self._studio.thread("iteration")
        self._studio.go(thread, input={"iteration": self._newest}, interrupt_before=["reflect"])
        _expect(self._client.threads.get_state(thread)["next"], ["reflect"], "next node")
        self._client.threads.update_state(thread, {"signals": self._studio.values(thread)["signals"][:FEW]})
        self._studio.go(thread, **options)
        return thread

    def _changed_below(self, folder: str) -> list[str]:
        return [name for name, _ in {*self._files.items()} ^ {*_files(self._run).items()} if name.startswith(folder)]

    def threads(self) -> str:
        """List the command's threads, read the newest."""
        rows = self._client.threads.search(metadata={"graph_id": "iteration"}, limit=1000)
        names = {str(row["thread_id"]): (row["metadata"] or {})["name"] for row in rows}
        for number in range(self._newest + self._done):
            _expect(names.get(thread_id(number)), f"{self._run.root.name}, iteration {number}", "name")
        number = self._newest - (not self._done)
        digest = self._studio.values(thread_id(number))["digest"]
        found = read_json(self._run.iteration(number).evolution, Evolution)
        _expect(digest["deduplicate"][0], f"{found.new} new, {found.known} known", "digest of deduplicate")
        return f"{len(rows)}; '{names[thread_id(number)]}': '{digest['update'][0]}'"

    def form(self) -> str:
        """Ask for the forms."""
        asked, context = self._studio.forms("iteration")
        _expect(([*asked], sorted(context)), (["iteration"], ["pause", "run"]), "forms")
        _expect([name for name, one in {**asked, **context}.items() if not one["description"]], [], "undescribed")
        return f"iteration alone, {asked['iteration']['default']} by default; context: run, pause; all described"

    def drawing(self) -> str:
        """Draw the graph."""
        drawn = self._studio.drawing("iteration")
        ends = {str(end) for edge in drawn["edges"] for end in (edge["source"], edge["target"])}
        _expect({str(one["id"]) for one in drawn["nodes"]} - ends, set(), "loose nodes")
        inner = [one["metadata"] for one in drawn["nodes"] if "__" not in str(one["id"])]
        _expect(all(one["description"] for one in inner), True, "every node is described")
        return f"{len(inner)} described nodes, {len(drawn['edges'])} edges, no loose node"

    def wrong(self) -> str:
        """Start a wrong iteration."""
        thread, said, told = self._studio.thread("iteration"), "", f"give one from 0 to {self._newest}, or -1"
        try:
            self._studio.go(thread, input={"iteration": self._newest + 95})
        except Exception as error:  # noqa: BLE001 - the library's class depends on the server's answer
            said = str(error)
        _expect(f"has no trajectories: {told}" in said, True, f"refused with '{said}'")
        self._studio.go(thread, input={"iteration": 0}, interrupt_before=["reflect"])
        return f"'... {told} ...'; then the thread reads iteration {self._studio.values(thread)['iteration']}"

    def default(self) -> str:
        """Start the default, streamed."""
        self._whole = self._studio.thread("iteration")
        told = self._studio.streamed(self._whole, "iteration", {"iteration": -1})
        evolution = read_json(self._at(self._whole).evolution, Evolution)
        for step in ("explored", "abstracted", "verified"):
            counts = [line.split(" contexts")[0] for line in told if f" contexts {step}: " in line]
            _expect(counts, [f"{n + 1} of {evolution.new}" for n in range(evolution.new)], f"counts of {step}")
        if self._done:
            former = read_json(self._run.iteration(self._newest).evolution, Evolution)
            _expect(sorted(evolution.admitted), sorted(former.admitted), "tasks")
        else:
            self._files = _files(self._run)  # it was the run's own call: what it wrote must stay from now on
        whose = "the command's" if self._done else "new"
        return f"{len(told)} events to '{counts[-1]} contexts verified'; {whose} {len(evolution.admitted)} tasks"

    def digests(self) -> str:
        """Read its digests."""
        values = self._studio.values(self._whole)
        _expect([*values["digest"]], ["extract", "reflect", "deduplicate", "update"], "nodes with a digest")
        _expect(len(values["branches"]), min(len(values["new"]), BRANCHES), "lines on branches")
        _expect(max(map(len, sum(values["digest"].values(), values["branches"]))) <= LINE, True, "short lines")
        told = " + ".join(str(len(digest)) for digest in values["digest"].values())
        return f"{told} lines, {len(values['branches'])} on branches; '{self._studio.name(self._whole)}'"

    def paused(self) -> str:
        """Keep 6 signals, pause before verify."""
        self._few = self._begin_few(context={"pause": "verify"})
        inside = self._studio.inside(self._few)
        _expect(len(inside), len(self._studio.values(self._few)["new"]), "paused branches")
        _expect([one for one in inside if [*one["digest"]] != ["explore", "abstract"]], [], "branches without digests")
        return f"{len(inside)} branches, the first is '{one_line(inside[0]['weakness'], 44)}'"

    def resumed(self) -> str:
        """Resume the branches."""
        self._studio.go(self._few)
        return self._ended(self._few)

    def edited_draft(self) -> str:
        """Edit a draft before verification."""
        results, drafts = self._results(self._few), read_jsonl(self._at(self._few).drafts, Draft)
        draft = next(one for one in drafts if results[one.id].accepted and one.reference[0][0].arguments)
        thread = self._begin_few(context={"pause": "verify"})
        self._studio.changed(thread, {"edits": {draft.id: {"turns": ["do it"] * len(draft.turns)}}})
        reason = self._results(thread)[draft.id].reason
        _expect(reason is None, False, f"{draft.id} accepted")
        return f"'do it' for one that was accepted: {reason}; {self._ended(thread)}"

    def edited_context(self) -> str:
        """Edit a context."""
        context = self._studio.values(self._few)["new"][0]
        tools = read_json(self._at(self._few).branch(context).context, FailureContext).explore[:1]
        self._studio.changed(self._few, {"edits": {context: {"explore": tools}}})
        made = read_json(self._at(self._few).branch(context).context, FailureContext)
        _expect(made.explore, tools, "explore")
        return f"{tools[0]} alone is to be explored; {self._ended(self._few)}"

    def retried(self) -> str:
        """Retry a branch that failed."""
        thread = self._retried = self._begin_few(interrupt_before=["dispatch"])
        first, *others = self._studio.values(thread)["new"]
        path = self._at(thread).branch(first).context
        whole = path.read_text()
        path.write_text("{")
        self._studio.go(thread)
        _expect(self._studio.values(thread)["failed"], [first], "failed")
        path.write_text(whole)
        self._studio.changed(thread, {"again": [first]})
        values = self._studio.values(thread)
        _expect((values["failed"], values["finished"]), ([], [first]), "failed and finished again")
        return f"1 failed, {len(others)} finished; then 1 finished, alone; {self._ended(thread)}"

    def replayed(self) -> str:
        """Replay from reflect."""
        former = self._results(self._retried)
        self._studio.go(self._retried, checkpoint=self._studio.before(self._retried, "reflect"))
        _expect(self._results(self._retried) == former, True, "equal results")
        return f"{len(former)} equal verification results; {self._ended(self._retried)}"

    def seed(self) -> str:
        """Run the graph seed on 2 start states."""
        thread = self._studio.thread("seed")
        told = self._studio.streamed(thread, "seed", {"start_states": 2})
        values = self._studio.values(thread)
        _expect(len(values["finished"]), 2, "branches")
        return f"{number_words(len(told), 'event')}; {values['digest']['join'][0]}"

    def unchanged(self) -> str:
        """Compare the run's files, byte for byte."""
        _expect(self._changed_below(""), [], "changed files")
        return f"{len(self._files)} files as before"

    def loop(self) -> str:
        """Run the graph loop: a further iteration."""
        thread = self._studio.thread("loop")
        told = self._studio.streamed(thread, "loop", {"iterations": 1})
        values = self._studio.values(thread)
        _expect([*values["digest"]], ["tasks", "train", "evaluate", "evolve"], "stages with a digest")
        name = self._studio.name(thread_id(values["iteration"]))
        _expect(name, f"{self._run.root.name}, iteration {values['iteration']}", "name")
        return f"{len(told)} events; '{name}': '{values['digest']['evolve'][1]}'"

    def kept(self) -> str:
        """Compare the iterations that were finished before."""
        ends = [Path(name) for name in self._files if Path(name).name == IterationDirectory.summary.name]
        _expect([name for end in ends for name in self._changed_below(f"{end.parent}/")], [], "changed files")
        return f"every file of {number_words(len(ends), 'iteration')} as before"

    def without(self) -> str:
        """Start without a run."""
        ended = start_without()
        _expect((ended.returncode, ended.stderr.count("\n")), (2, 1), "exit status and lines")
        return f"status 2, '{ended.stderr.strip().removeprefix('error: ')}'"


def _files(run: RunDirectory) -> dict[str, str]:
    """Return the hash of every file of a run but its locks and LangGraph's database, which the server writes."""
    files = (path for path in run.root.rglob("*") if path.is_file() and ".lock" not in path.name)
    found = {str(path.relative_to(run.root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {name: one for name, one in found.items() if not name.startswith(run.checkpoints_path.name)}


@app.command(cls=OneSentence)
def main(run: Annotated[Path, typer.Argument(help="a copy of a run")]) -> None:
    """Do every action of docs/studio.md. Exit status: 0, 1 where one was not as documented, 2 for a wrong RUN."""
    actions = {(one.__doc__ or name).rstrip("."): one for name, one in vars(_Tour).items() if not name.startswith("_")}
    failed, began = 0, time.perf_counter()
    with exit_statuses(RuntimeError), serving(RunDirectory.open(run.resolve())) as studio:
        print(f"{time.perf_counter() - began:5.1f} s  Start the server: {studio.run.root.name} answers", flush=True)
        state = _Tour(studio)
        for words, action in actions.items():
            began = time.perf_counter()
            try:
                seen = action(state)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other actions are still of interest
                failed += 1
                seen = f"NOT AS DOCUMENTED: {one_line(f'{type(error).__name__}: {error}', 4 * LINE)}"
            print(f"{time.perf_counter() - began:5.1f} s  {words}: {seen}", flush=True)
    print(f"{len(actions) - failed} of {len(actions)} actions as documented")
    raise typer.Exit(FAILURE if failed else 0)


if __name__ == "__main__":
    app()
