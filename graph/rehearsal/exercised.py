"""Reads from the records of a rehearsed run what was exercised, and why the rest was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agents.spending import read_requests
from graph.records import Evolution, ExtractionRecord
from graph.rehearsal.sizes import Exercise
from graph.settings import RunSettings
from memory.records import SignalKind
from memory.run import IterationDirectory, RunDirectory, read_json
from training.grpo.record import RoundRecord

NOT_AT_TOY_SIZE = (
    Exercise(
        what="memory, lengths and hours of the recipe's own sizes", reason="sizes are toy ones: coevolve plan counts"
    ),
    Exercise(what="a checkpoint inside a round", reason="one is written every 10 steps, and a round had fewer"),
)


def rounds_of(run: RunDirectory) -> list[RoundRecord]:
    """Return the records of the finished rounds."""
    return [
        read_json(one, RoundRecord) for one in sorted(run.iterations_path.glob(f"*/{IterationDirectory.round.name}"))
    ]


def unlearnt(run: RunDirectory) -> bool:
    """Return whether tasks were admitted and no round has learnt from one."""
    sizes = [one.tasks for one in rounds_of(run)]
    return bool(sizes) and sizes[-1] == sizes[0] and any(one.admitted for one in _evolutions(run))


def _evolutions(run: RunDirectory) -> list[Evolution]:
    found = sorted(run.iterations_path.glob(f"*/{IterationDirectory.evolution.name}"))
    return [read_json(one, Evolution) for one in found]


def run_rows(run: RunDirectory, settings: RunSettings) -> Iterator[Exercise]:
    """Yield a row for each part of the loop that the run went through, or did not."""
    rounds, made = rounds_of(run), _evolutions(run)
    steps = [step for one in rounds for step in one.steps]
    counted = f"{len(rounds)} rounds, {len(steps)} steps, {sum(step.rollouts for step in steps)} rollouts"
    among = f" in {settings.training.processes} processes" if settings.training.launch is not None else ""
    engine = sum(one.measured.engine.tokens for one in rounds if one.measured.engine is not None)
    yield Exercise(
        what="sampling", how=f"{settings.sampling.engine}, {sum(step.sampled_tokens for step in steps)} tokens"
    )
    if settings.sampling.engine == "vllm_server":
        way = "whole, by a folder" if settings.policy.lora is None else "an adapter, by name"
        yield Exercise(what="new weights for vLLM servers", how=f"{way}; {engine} tokens sampled by them")
    yield Exercise(what="GRPO", how=counted + among)
    mixed = sum(step.mixed_groups > 0 for step in steps)
    yield Exercise(
        what="a success signal",
        how=f"groups of both results in {mixed} steps, gradients to {max(s.grad_norm or 0 for s in steps):.2g}",
        reason="" if mixed else "all rollouts of each group ended alike, so that advantages were 0",
    )
    if settings.training.expert is not None:
        learnt = sum(one.expert.references for one in rounds if one.expert is not None)
        yield Exercise(
            what="expert step", how=f"{learnt} references", reason="" if learnt else "no reference was learnt"
        )
    if settings.training.seal is not None:
        yield Exercise(what="SEAL", how=f"{sum(one.seal is not None for one in rounds)} rounds")
    if settings.tasks.uses_evolved:
        grown = rounds[-1].tasks - rounds[0].tasks
        why = "" if grown else "none was admitted before the last round"
        yield Exercise(what="a round on evolved tasks", how=f"{grown} of them", reason=why)
    files = run.iterations_path.glob(f"*/{IterationDirectory.extraction.name}")
    found = [read_json(one, ExtractionRecord).signals for one in files]
    signals = {kind: sum(each.get(kind, 0) for each in found) for kind in SignalKind}
    new, drafts = sum(one.new for one in made), sum(one.drafts for one in made)
    yield Exercise(
        what="signals, reflection, contexts",
        how=", ".join(f"{signals[kind]} {kind}" for kind in SignalKind) + f", {new} new contexts",
        reason="" if new else "no rollout had a signal that is new: such need tasks that are solved only sometimes",
    )
    yield Exercise(
        what="exploration, abstraction, verification",
        how=f"{drafts} drafts, {sum(len(one.admitted) for one in made)} admitted",
        reason="" if drafts else "there was no draft" if new else "there was no context",
    )
    if settings.evaluation.scored is not None:
        yield Exercise(
            what=f"scoring on {settings.evaluation.scored}", how=f"before and after each of {len(rounds)} rounds"
        )


def asked_rows(ledger: Path, settings: RunSettings) -> Iterator[Exercise]:
    """Yield a row for each chat role, by the requests in ``ledger``."""
    requests = read_requests(ledger)
    answered = Counter(one.role for one in requests if one.outcome == "answered")
    for role in settings.roles.by_chat():
        own = [one for one in requests if one.role == role]
        why = "nothing came to it" if not own else f"no reply could be used: {(own[-1].faults or ('refused',))[-1]}"
        tokens = sum(one.measured.prompt_tokens + one.measured.completion_tokens for one in own)
        how = f"{answered[role]} of {len(own)} answered, {tokens} tokens"
        yield Exercise(what=f"chat model: {role}", how=how, reason="" if answered[role] else why)
