"""The README.md of what is exported: a data set's card and a policy's, with the front matter that the hub reads.

Everything in them is read from the run's records; what the records do not say is not in the card.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version

from huggingface_hub import CardData, DatasetCardData, EvalResult, ModelCardData

from agents.chat.endpoint import model_of
from environments.base import InputError
from evaluation.outcomes import Score
from graph.export.content import RunContent, stated_settings
from graph.export.dataset import COLUMNS, TASKS, TRAJECTORIES
from graph.export.hub import REPOSITORY
from graph.report.digest import REASONS, counts_words
from graph.settings import RunSettings
from memory.run import RunDirectory, read_json
from memory.strict_yaml import dump_yaml
from training.grpo.record import RoundRecord

__all__ = ["check_licence", "dataset_card", "policy_card", "scores_of"]

_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_COLUMN_NOTES = {
    TASKS: "`reference` (calls, one list per user turn), `setup`, `initial_state`, `withheld` and "
    "`success_by_iteration` are JSON text. The columns from `parent_task` to `nearest_held_out_calls` are the task's "
    "lineage: the rollout that showed a weakness, its signal, the context that was explored, the draft and its "
    "verification; they are null for tasks of D_0 that nothing was explored for. `rollouts` and `success` are those of "
    "training.",
    TRAJECTORIES: "`messages` have OpenAI's form, with `arguments` as JSON text; `tools` is the JSON text of their "
    "function schemas. Each action is an assistant message of its own, and the words with which a policy ended a turn "
    "are not recorded. `signals` mark the rollout; `gave_rise_to` are the tasks that were made of its weakness.",
}


def check_licence(name: str | None) -> None:
    """Raise InputError for a licence that is not written as the hub's identifiers are."""
    if name is not None and not _LICENCE.fullmatch(name):
        raise InputError(f"--license {name!r} is not an identifier such as apache-2.0, mit or cc-by-4.0: write one")


def dataset_card(
    content: RunContent, tables: Mapping[str, int], licence: str | None, title: str, successes: bool
) -> str:
    """Return the README.md of a data set with these ``tables``.

    ``licence`` is the user's; without one it is that of the benchmark's content. ``successes``: trajectories are those
    that succeeded.
    """
    own = content.benchmark.licence
    stated = licence or (None if own is None else own.spdx)
    configs = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}.parquet"}], "default": name == TASKS}
        for name in COLUMNS
    ]
    front = DatasetCardData(
        pretty_name=title,
        license=stated,
        language=["en"],
        task_categories=["text-generation"],
        tags=["coevolve", "agent", "tool-use", "function-calling", "reinforcement-learning", "synthetic"],
        configs=configs,
    )
    sections = [
        f"# {title}",
        "Tasks that an agent and its training data evolved together on, and the agent's rollouts, made by one run of "
        "CoEvolve ([arXiv 2604.15840](https://arxiv.org/abs/2604.15840)): rollouts of a round of GRPO show where the "
        "agent is weak, each weakness is explored in the real environment and abstracted into drafts, and drafts that "
        "verification accepts are trained on in the next round.",
        "## Content",
        f"`{TASKS}` has {tables[TASKS]} tasks, `{TRAJECTORIES}` {tables[TRAJECTORIES]} rollouts"
        f"{' that met the official rule' if successes else ''}: `datasets.load_dataset(PATH_OR_REPOSITORY, "
        f'"{TASKS}", split="train")`.',
        *(f"**{name}.** {note}" for name, note in _COLUMN_NOTES.items()),
        "## Provenance",
        _provenance(content),
        "## Verification",
        _verification(content),
        "## Decontamination",
        _decontamination(content),
        "## Licences",
        _licences(content, licence),
        "## Limits",
        _limits(content),
    ]  # fmt: skip
    return _card(front, sections)


def policy_card(
    run: RunDirectory,
    settings: RunSettings,
    record: RoundRecord,
    *,
    adapter: bool,
    compact: bool,
    licence: str | None,
    title: str,
) -> str:
    """Return the README.md of the policy that the round of ``record`` made.

    ``adapter``: it is a LoRA adapter. ``compact``: it reads the project's own rendering.
    """
    path = settings.policy.path
    base = path if REPOSITORY.fullmatch(path) and not path.startswith((".", "recipes/")) else None
    scores = scores_of(run, record.iteration)
    front = ModelCardData(
        model_name=title,
        license=licence,
        base_model=base,
        base_model_relation=None if base is None else "adapter" if adapter else "finetune",
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        language=["en"],
        tags=["coevolve", "grpo", "trl", "agent", "tool-use", *(["lora"] if adapter else [])],
        eval_results=_eval_results(settings, scores[-1][1]) if scores else None,
    )
    stated = stated_settings(settings)
    shown = stated.get("policy.path", "the project's embedded initial policy")
    sections = [
        f"# {title}",
        f"A tool-using policy, trained with GRPO on tasks that evolved with it, by one run of CoEvolve "
        f"([arXiv 2604.15840](https://arxiv.org/abs/2604.15840)): {record.last_step} steps in {record.iteration + 1} "
        f"rounds, from {base or shown}.",
        *(["**It is not a general language model.** It reads a rendering of the project's own, in which calls point to "
           "values of the text, and knows the tools that it was trained on."] if compact else []),
        "## How to load it",
        _policy_loading(settings, adapter, compact),
        *(["Its `adapter_config.json` names the base as a folder of the machine that trained it: write there where "
           "yours is."] if adapter and base is None else []),
        "## Training",
        f"In {settings.environment.name}, with seed {settings.seed}. The last round had {record.tasks} tasks; "
        f"{record.success:.0%} of its rollouts succeeded."
        f"{' The weights are a LoRA adapter without its base.' if adapter else ''}",
        "Settings that are not defaults:",
        _code(dump_yaml(stated)) if stated else "none",
        "## Evaluation",
        _evaluation(scores, settings),
        "## Limits",
        "Scores are those of one seed, of greedy attempts at the evaluation set named above, and of nothing else. The "
        "policy was rewarded for success at generated tasks alone: it was not trained to refuse, to be safe or to "
        "talk. Tools that it calls can do harm in environments that are not simulated.",
        f"Exported with coevolve {version('coevolve')}.",
    ]  # fmt: skip
    return _card(front, sections)


def scores_of(run: RunDirectory, last: int) -> list[tuple[str, Score]]:
    """Return the scores on the run's evaluation set: before the first round, and after each up to ``last``."""
    found = []
    before = run.iteration(0).evaluation_before
    if before.exists():
        found.append(("before training", read_json(before, Score)))
    for iteration in range(last + 1):
        path = run.iteration(iteration).evaluation_after
        if path.exists():
            found.append((f"after round {iteration}", read_json(path, Score)))
    return found


def _policy_loading(settings: RunSettings, adapter: bool, compact: bool) -> str:
    if compact:
        scored = settings.evaluation.set
        what = "--tasks FILE" if scored is None else f"--evaluation-set {scored}"
        command = f"coevolve evaluate --environment {settings.environment.name} {what} --model path/of/this/folder"
        return "With the project installed:\n\n" + _code(command, "sh")
    loader = "peft.AutoPeftModelForCausalLM" if adapter else "transformers.AutoModelForCausalLM"
    return f"`{loader}` and `transformers.AutoTokenizer` load it by `from_pretrained`."


def _provenance(content: RunContent) -> str:
    settings, origins = content.settings, Counter(task.origin for task in content.tasks)
    stated = stated_settings(settings)
    records = content.records()
    chat = settings.roles.by_chat()
    roles = ", ".join(f"{name}: {model_of(role, name)}" for name, role in chat.items()) or "none (rules)"
    rows = [
        ("environment", settings.environment.name),
        ("seed", settings.seed),
        ("iterations finished", len(records)),
        ("steps of GRPO", records[-1].last_step),
        ("initial policy", stated.get("policy.path", "the project's embedded one")),
        ("tasks by origin", counts_words(sorted(origins.items()))),
        ("chat models of the roles", roles),
        ("exported with", f"coevolve {version('coevolve')}"),
    ]
    words = _table(("", ""), rows)
    return f"{words}\n\nSettings that are not defaults:\n\n{_code(dump_yaml(stated))}" if stated else words


def _verification(content: RunContent) -> str:
    settings, counts = content.settings.verification, content.verification_counts()
    how = {
        "deterministic": "Each reference was replayed twice from fresh episodes, with equal results and states; no "
        "model decided what was admitted.",
        "agent": "Each draft was carried out by a chat model, as in the paper; it was not replayed.",
        "both": "Each reference was replayed twice from fresh episodes, and each draft carried out by a chat model.",
    }
    words = how[settings.mode] if settings.enabled else "Verification was off: nothing checked that tasks are solvable."
    rows = [
        (
            name,
            number,
            "those of the iterations are tasks; of D_0's, as many as it was asked for"
            if name == "accepted"
            else REASONS.get(name, ""),
        )
        for name, number in counts.most_common()
    ]
    table = _table(("verification result", "drafts", ""), rows) if rows else "No draft is recorded."
    return f"{words} Drafts of the whole run:\n\n{table}"


def _decontamination(content: RunContent) -> str:
    held_out = content.benchmark.held_out()
    sets = content.benchmark.published_sets()
    if not held_out.fingerprints and not held_out.records:
        return "The environment holds no task out, so that nothing was compared."
    near = [
        one.verification.nearest
        for chain in content.history.chains.values()
        for one in chain.outcomes
        if one.task is not None and one.verification is not None and one.verification.nearest is not None
    ]
    words = (
        f"At export each of the {len(content.tasks)} tasks was compared by content with the held-out sets "
        f"({len(sets)} published sets, {len(held_out.fingerprints)} fingerprints): none equals a held-out task. Drafts "
        "that did were refused during the run (`sealed` above)."
    )
    if near:
        text, calls = (sorted(getattr(one, name) for one in near)[len(near) // 2] for name in ("text", "calls"))
        words += f" Median overlap with the nearest held-out task: text {text:.0%}, calls {calls:.0%}."
    return words


def _licences(content: RunContent, licence: str | None) -> str:
    own = content.benchmark.licence
    words = [] if own is None else [own.notice]
    if licence is not None:
        words.append(f"Whoever exported this publishes it under {licence}.")
    elif own is None:
        words.append("The environment states no licence, and none was given: ask who made it before you use this.")
    chat = content.settings.roles.by_chat()
    if chat:
        models = ", ".join(sorted({model_of(role, name) for name, role in chat.items()}))
        words.append(f"Texts of tasks and contexts were written by {models}, whose terms of use apply to them.")
    return " ".join(words)


def _limits(content: RunContent) -> str:
    scripted = not content.settings.roles.by_chat()
    words = [
        "Tasks are as narrow as the environment's start states and tools.",
        "User messages are made by templates, which people do not write like." if scripted else "",
        "Rollouts are those of a policy in training, another one after each step, and its successes are of tasks that "
        "it could do. Success is the environment's rule on state and answers, not an assessment of the way.",
        "Observations are text of simulated tools; treat them, like everything a policy wrote, as untrusted.",
    ]
    return " ".join(filter(None, words))


def _evaluation(scores: Sequence[tuple[str, Score]], settings: RunSettings) -> str:
    if not scores:
        return "The run scored no evaluation set."
    limited = settings.evaluation.limit
    what = f"{scores[0][1].group}, n={scores[-1][1].n}, greedy, one attempt per task"
    what += f", its first {limited} tasks only" if limited is not None else ""
    rows = [
        (when, f"{one.success:.3f}", f"{one.widest[0]:.3f} to {one.widest[1]:.3f}", one.infrastructure_errors)
        for when, one in scores
    ]
    return f"On {what}:\n\n" + _table(("", "success", "95 % interval", "not evaluated"), rows)


def _eval_results(settings: RunSettings, score: Score) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=settings.environment.name,
            dataset_name=score.group,
            metric_type=name,
            metric_name=name,
            metric_value=round(value, 4),
        )
        for name, value in score.metrics.items()
    ]


def _card(front: CardData, sections: Sequence[str]) -> str:
    return f"---\n{front.to_yaml()}\n---\n\n" + "\n\n".join(sections) + "\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows)])


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str, language: str = "yaml") -> str:
    return f"```{language}\n{text.rstrip()}\n```"
