"""The policy of a run as a folder that others load: weights, tokenizer, and a card filled from the records."""

from __future__ import annotations

import shutil
from pathlib import Path

from environments.base import InputError
from graph.export.cards import policy_card
from graph.settings import RunSettings
from memory.run import PolicyDirectory, RunDirectory, read_json
from training.grpo.record import RoundRecord
from training.rollout.policy import ADAPTER, PolicyCard, check_weights

_LEFT_BEHIND = (
    "optimizer*",
    "scheduler.pt",
    "rng_state*",
    "scaler.pt",
    "trainer_state.json",
    "training_args.bin",
    "*.pth",
    "global_step*",
    "latest",
    "zero_to_fp32.py",
    "pytorch_model*.bin",
    "adapter_model.bin",
)
"""Files of a checkpoint that only its trainer needs, and pickles, which are unsafe to load."""

README = "README.md"


def export_policy(
    run: RunDirectory, settings: RunSettings, folder: Path, iteration: int | None, licence: str | None, title: str
) -> RoundRecord:
    """Copy the policy of the round of ``iteration`` (None: of the newest finished one) into ``folder``, with a card.

    Raises InputError for a round that is not finished, and for a policy that was removed or cannot be read.
    """
    record = _record(run, iteration)
    source = run.root / record.policy
    if not source.is_dir():
        raise InputError(
            f"{source} is gone, a run keeps the policies of its last rounds: name a later --iteration, or none"
        )
    check_weights(source)
    adapter = (source / ADAPTER).is_file()
    if not any(source.glob("*.safetensors")):
        raise InputError(f"{source} holds no weights (*.safetensors): restore it")
    card = PolicyDirectory(source).card
    mark = PolicyDirectory(source).mark.name
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_BEHIND, mark, README))
    text = policy_card(
        run,
        settings,
        record,
        adapter=adapter,
        compact=card.is_file() and read_json(card, PolicyCard).rendering == "compact",
        licence=licence,
        title=title,
    )
    (folder / README).write_text(text, encoding="utf-8")
    return record


def _record(run: RunDirectory, iteration: int | None) -> RoundRecord:
    newest = -1
    while run.iteration(newest + 1).round.exists():
        newest += 1
    if newest < 0:
        raise InputError(f"{run.root} has no finished round: there is no policy to export yet")
    if iteration is not None and iteration > newest:
        raise InputError(f"--iteration {iteration}: its round is not finished, the last one that is: {newest}")
    return read_json(run.iteration(newest if iteration is None else iteration).round, RoundRecord)
