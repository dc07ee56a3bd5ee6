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


def export_policy(run: RunDirectory, settings: RunSettings, folder: Path) -> RoundRecord:
    """Copy the policy of the newest finished round into ``folder``, with a card.

    Raises InputError where no round is finished, and for a policy that was removed or cannot be read.
    """
    record = _newest(run)
    source = run.root / record.policy
    if not source.is_dir():
        raise InputError(f"{source} is gone: restore it")
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
    )
    (folder / README).write_text(text, encoding="utf-8")
    return record


def _newest(run: RunDirectory) -> RoundRecord:
    finished = 0
    while run.iteration(finished).round.exists():
        finished += 1
    if not finished:
        raise InputError(f"{run.root} has no finished round: there is no policy to export yet")
    return read_json(run.iteration(finished - 1).round, RoundRecord)
