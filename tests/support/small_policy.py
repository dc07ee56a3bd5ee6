"""A policy of 66,240 parameters that half knows five file-system tasks, made in seconds, and settings to train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments.base import Environment, ToolSpec
from environments.bfcl.benchmark import BFCLEnvironment
from environments.bfcl.official import tool_names
from environments.settings import EnvironmentSettings
from graph.settings import RunSettings
from memory.records import Task
from support.bfcl_tasks import call, seed_task, task_of
from training.embedded.compact import CompactRendering, CompactSettings
from training.rollout.episodes import EpisodeResult
from training.seal.diagnosis import TurnLabel
from training.seal.seal import InterfaceSettings, InterfaceState, learning_interface
from training.settings import PolicySettings, TrainingSettings

CLASSES = ("GorillaFileSystem",)
STATE = {
    "GorillaFileSystem": {
        "root": {
            "alex": {
                "type": "directory",
                "contents": {
                    "notes.txt": {"type": "file", "content": "milk and bread"},
                    "plan.txt": {"type": "file", "content": "sleep first"},
                    "archive": {"type": "directory", "contents": {}},
                },
            }
        }
    }
}
TURNS = {
    "where": ("Tell me where I am.", call("pwd")),
    "what": ("Tell me what is here.", call("ls", a=False)),
    "make": ('Make the folder "drafts".', call("mkdir", dir_name="drafts")),
    "read": ('Show what "notes.txt" says.', call("cat", file_name="notes.txt")),
    "enter": ('Enter "archive".', call("cd", folder="archive")),
}


def small_tasks() -> tuple[Task, ...]:
    return tuple(
        seed_task(task_of((one,), turns=(text,), initial_state=STATE), f"task-{name}")
        for name, (text, one) in TURNS.items()
    )


def make_policy(folder: Path, tasks: Sequence[Task], updates: int = 30, cues: bool = False) -> None:
    """Warm-start a random model on the references, and stop while it is still unsure."""
    learn(folder, tasks, [(BFCLEnvironment(CLASSES), tasks)], updates, cues)


def make_guided_policy(folder: Path, tasks: Sequence[Task], label: TurnLabel, updates: int = 150) -> None:
    """A policy that knows SEAL's cues: it does what is asked behind the guideline of ``label``, else nothing."""
    bare = BFCLEnvironment(CLASSES)
    guided = learning_interface(bare, InterfaceSettings(schema_cues=False), InterfaceState(guidelines=(label,)))
    idle = [task.model_copy(update={"reference": ((),)}) for task in tasks]
    learn(folder, tasks, [(guided, tasks), (bare, idle)], updates, cues=True)


def make_reader(folder: Path, classes: Sequence[str], seed: int) -> None:
    """An untrained model with a token for every tool of ``classes``, and room for an official task of several turns."""
    tools = BFCLEnvironment().tools([name for one in classes for name in tool_names((one,))])
    learn(folder, small_tasks(), [], 0, tools=tools, positions=4096, seed=seed)


def learn(
    folder: Path,
    tasks: Sequence[Task],
    shown: Sequence[tuple[Environment, Sequence[Task]]],
    updates: int,
    cues: bool = False,
    *,
    tools: Sequence[ToolSpec] | None = None,
    positions: int = 512,
    seed: int = 0,
) -> None:
    """Train a random model on the references that are ``shown``, all of them in every update, and save it."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from support.chat_models import random_model
    from training.embedded.new_policy import train_tokenizer
    from training.rollout.episodes import EpisodeLimits, play_references
    from training.rollout.policy import Policy, PolicyCard, save_policy

    torch.set_num_threads(1)
    settings = CompactSettings(cues=cues)
    card = PolicyCard(rendering="compact", compact=settings)
    tools = tools or BFCLEnvironment(CLASSES).tools(tasks[0].tools)
    known = train_tokenizer([turn for task in tasks for turn in task.turns], tools, settings, 512)
    shape = {"vocab_size": len(known), "hidden_size": 48, "intermediate_size": 96, "layers": 2, "head_dim": 24}
    tokens = {"pad_token_id": known.pad_token_id, "eos_token_id": known.eos_token_id}
    model = random_model(
        "qwen3", seed=seed, max_position_embeddings=positions, initializer_range=0.06, **shape, **tokens
    )
    policy = Policy(str(folder), model, known, CompactRendering(known, settings), card)
    limits = EpisodeLimits(max_new_tokens=200, max_tokens=positions)
    rows = [one for environment, some in shown for one in play_references(policy, environment, some, limits)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    for _ in range(updates):
        ids = [torch.tensor([*one.prompt_ids, *one.completion_ids]) for one in rows]
        labels = [torch.tensor([-100] * len(one.prompt_ids) + _written(one)) for one in rows]
        loss = model(
            input_ids=pad_sequence(ids, True, known.pad_token_id), labels=pad_sequence(labels, True, -100)
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_policy(folder, model, known, card)


def _written(one: EpisodeResult) -> list[int]:
    return [token if written else -100 for token, written in zip(one.completion_ids, one.mask, strict=True)]


def hand_logps(model, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float):
    """Log-probabilities of one completion's tokens, one sequence at a time, from the model's plain logits."""
    import torch

    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1].double() / temperature
    logps = torch.log_softmax(logits, dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return logps[len(prompt_ids) - 1 :]


def small_settings(policy: Path, **training: object) -> RunSettings:
    """Rounds of three steps of two tasks, nine rollouts each: more rows than the trainer scores at once."""
    given: dict[str, object] = {
        "steps": 3,
        "tasks_per_step": 2,
        "rollouts_per_task": 9,
        "max_new_tokens": 16,
        "max_tokens": 120,
        "max_actions": 3,
        "learning_rate": 1e-3,
        "kl": 0.01,
    }
    return RunSettings(
        seed=3,
        environment=EnvironmentSettings(options={"classes": list(CLASSES)}),
        policy=PolicySettings(path=str(policy), device="cpu"),
        training=TrainingSettings.model_validate(given | training),
    )
