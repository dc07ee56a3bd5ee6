"""Tiny language models that know a few of BFCL's human turns: their groups have successes and failures."""

from __future__ import annotations

from pathlib import Path

from environments.bfcl.official import all_tools
from memory.records import Task
from memory.run import read_jsonl, write_jsonl
from support import ROOT
from support.chat_models import new_tokenizer, random_model, save, template
from support.commands import run_here

CLASS = "GorillaFileSystem"
RECIPE = ROOT / "recipes" / "lm.yaml"
TOY = {
    "policy.device": "cpu",
    "policy.dtype": "bfloat16",
    "environment.options.classes": f"[{CLASS}]",
    "training.threads": "1",
    "training.expert.learning_rate": "1e-3",
    "training.tasks_per_step": "4",
    "training.rollouts_per_task": "4",
    "training.micro_batch": "4",
    "signals.contexts_per_iteration": "4",
}
UNSCORED = {"iterations": "1", "evaluation.set": "null", "evaluation.limit": "null"}
VOCABULARY = 8192
"""Rows of the head, as many as make a round score written tokens alone; the tokenizer has fewer, as Qwen's does."""


def given(policy: Path | str, **sizes: str) -> list[str]:
    """Options of the recipe over a policy at these sizes."""
    return [
        word for key, value in {**sizes, "policy.path": str(policy)}.items() for word in ("--set", f"{key}={value}")
    ]


def save_taught(folder: Path, name: str) -> Path:
    """A Llama with the template of smollm2-135m, or a Qwen3 with its own, in ``folder``.

    It learns those turns of the recipe's D_0 that take one call, in half a minute.
    """
    from training.models.smollm2 import TEMPLATE
    from training.start_rows import StartSettings
    from training.warm_start import warm_start

    everything = folder / "human.jsonl"
    classes = f"environment.options.classes=[{CLASS}]"
    run_here("graph.seed_tasks", "--recipe", str(RECIPE), "--set", classes, "--output", str(everything))
    turns = [one for one in read_jsonl(everything, Task) if len(one.reference[-1]) == 1]
    words = [tool.description for tool in all_tools().values()]
    words += [f"{' '.join(turn.turns)} {turn.reference}" for turn in turns]
    known = new_tokenizer(TEMPLATE.read_text() if name == "smollm2" else template(name), words, VOCABULARY)
    shape = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    made = random_model("llama" if name == "smollm2" else name, layers=2, **shape, **heads)
    save(folder / "random", made, known)
    write_jsonl(folder / "turns.jsonl", turns)
    settings = StartSettings(
        passes=50,
        learning_rate=8e-3,
        max_tokens=2048,
        documentation="lines",
        tools_shown=5,
        thinking=None if name == "smollm2" else False,
    )
    warm_start(str(folder / "random"), [folder / "turns.jsonl"], folder / "taught", settings, report=lambda _: None)
    return folder / "taught"
