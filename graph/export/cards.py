"""The card of an exported data set, its README.md, with the front matter that the hub reads.

Everything in it is read from the run's records; what the records do not say is not in the card. The text is in the
template beside this module.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, DatasetCardData

from agents.chat.endpoint import model_of
from agents.settings import RolesSettings
from environments.command import table_cell
from graph.export.dataset import COLUMNS, TASKS, TRAJECTORIES, RunContent
from graph.report.digest import REASONS, counts_words, result_of
from graph.settings import RunSettings, changed
from memory.jsonl import dump_yaml

_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_VERIFIED = {
    "deterministic": "Each reference was replayed twice from fresh episodes, with equal results and states; no model "
    "decided what was admitted.",
    "agent": "Each draft was carried out by a chat model, as in the paper; it was not replayed.",
    "both": "Each reference was replayed twice from fresh episodes, and each draft carried out by a chat model.",
}


def dataset_card(content: RunContent, tables: Mapping[str, int]) -> str:
    """Return the README.md of a data set whose ``tables`` have so many rows; its licence is the benchmark's."""
    own, settings, title = content.benchmark.licence, content.settings, f"CoEvolve {content.run.root.resolve().name}"
    front = DatasetCardData(
        pretty_name=title,
        license=None if own is None else own.spdx,
        language=["en"],
        task_categories=["text-generation"],
        tags=["coevolve", "agent", "tool-use", "function-calling", "reinforcement-learning", "synthetic"],
        configs=[
            {"config_name": one, "data_files": [{"split": "train", "path": f"{one}.parquet"}], "default": one == TASKS}
            for one in COLUMNS
        ],
    )
    stated = stated_settings(settings)
    provenance = {
        "environment": settings.environment.name,
        "seed": settings.seed,
        "iterations finished": len(content.records),
        "steps of GRPO": content.records[max(content.records)].last_step,
        "initial policy": stated.get("policy.path", "the project's embedded one"),
        "tasks by origin": counts_words(sorted(Counter(task.origin for task in content.tasks).items())),
        **players(settings.roles),
        "exported with": f"coevolve {version('coevolve')}",
    }
    of_d0 = {"accepted": "those of the iterations are tasks; of D_0's, as many as it was asked for"}
    outcomes = (outcome for chain in content.history.chains.values() for outcome in chain.outcomes)
    counts = Counter(result_of(one.verification) for one in outcomes).most_common()
    unverified = "Verification was off: nothing checked that tasks are solvable."
    card = DatasetCard.from_template(
        front,
        template_str=files("graph.export").joinpath("dataset_card.md").read_text(encoding="utf-8"),
        title=title,
        provenance=[(name, table_cell(value)) for name, value in provenance.items()],
        settings=dump_yaml(stated).rstrip() if stated else "",
        verified=_VERIFIED[settings.verification.mode] if settings.verification.enabled else unverified,
        verification=[(table_cell(name), count, (REASONS | of_d0).get(name, "")) for name, count in counts],
        decontamination=_decontamination(content),
        licences=_licences(content),
        scripted=settings.roles.abstractor.kind == "scripted",
        tasks=tables[TASKS],
        trajectories=tables[TRAJECTORIES],
    )
    return f"{card}\n"


def _decontamination(content: RunContent) -> str:
    held_out, file, stated = content.held_out, content.held_out_file, content.settings.evaluation.tasks
    gone = stated is not None and file is None
    during = "Drafts that equal one were refused during the run (`sealed` above)."
    if not held_out.fingerprints and not held_out.records:
        if gone:
            return f"The run's own held-out file was not there at export, so that nothing was compared again. {during}"
        return "The environment holds no task out, so that nothing was compared."
    own = f", those of the run's own file {file} among them" if file else ""
    return (
        f"At export each of the {len(content.tasks)} tasks was compared by content with the held-out sets "
        f"({len(held_out.fingerprints)} fingerprints{own}): "
        f"none equals a held-out task. {during}{' The run has a held-out file that was not there.' if gone else ''}"
    )


def players(roles: RolesSettings) -> dict[str, str]:
    """Return what plays the roles: chat models, a language model on the run's machine, rules."""
    chat, local = roles.by_chat(), roles.by_local()
    named = ", ".join(f"{name}: {model_of(role, name)}" for name, role in chat.items())
    found = {"chat models of the roles": named or ("none" if local else "none (rules)")}
    return found | ({"roles of a small language model": ", ".join(local)} if local else {})


def _licences(content: RunContent) -> str:
    own = content.benchmark.licence
    words = [] if own is None else [own.notice]
    if own is None:
        words.append("The environment states no licence: ask who made it before you use this.")
    chat = content.settings.roles.by_chat()
    if chat:
        models = ", ".join(sorted({model_of(role, name) for name, role in chat.items()}))
        words.append(f"Texts of tasks and contexts were written by {models}, whose terms of use apply to them.")
    base = content.settings.policy.path
    if _REPOSITORY.fullmatch(base) and not base.startswith((".", "recipes/")):  # a name of the hub, not a folder
        words.append(f"Rollouts were written by {base} in training, whose licence may cover what it writes.")
    return " ".join(words)


def stated_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that are not their defaults, by dotted key, without paths and addresses of machines."""
    return {key: _without_places(value) for key, (value, _) in changed(settings).items()}


def _without_places(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    if isinstance(value, str) and "://" in value:
        return "(an address)"
    if isinstance(value, str) and (Path(value).is_absolute() or value.startswith(("~", ".."))):
        return Path(value).name
    return value
