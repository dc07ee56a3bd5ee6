"""The trainer's weights for servers that hold their own: written to a folder under a name.

A folder is written under a temporary name and renamed, so that whoever sees it sees all of it. Import this module late:
it needs torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from environments.command import writing
from training.rollout.policy import Policy

PROMPT_LENGTH = 16
"""Ids of the prompt by which a server is compared with the trainer (ours)."""

PROMPT_TEMPERATURE = 0.7
"""Temperature of the token that it answers (ours).

Not 0: likely ids hardly move with the weights. Not 1: an engine may report log-probabilities before the temperature.
"""


def fixed_prompt(vocabulary: int) -> list[int]:
    """Return the ids of the prompt by which a server is compared with the trainer."""
    return [(7919 * place + 31) % vocabulary for place in range(PROMPT_LENGTH)]


class PolicyWeights:
    """The weights of ``policy`` as they are now, while it is trained.

    Args:
        folder: where versions are written, one folder each; nothing else is in it.
        adapter: the policy's layers hold a LoRA adapter, which alone is written.
        autocast: matrix products are computed in bfloat16, as the trainer does.
        stored: a folder that holds these weights already and is never removed; nothing is written then.
        gather: with weights that are divided among the processes of a round (FSDP2): returns the whole tensors
            of a model by name in the first process, and nothing in the others.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        *,
        adapter: bool,
        autocast: bool = False,
        stored: Path | None = None,
        gather: Callable[[torch.nn.Module], dict[str, torch.Tensor]] | None = None,
    ) -> None:
        self.policy = policy
        self.folder = folder
        self.adapter = adapter
        self.autocast = autocast
        self.stored = stored
        self._gather = gather
        self._whole: dict[str, torch.Tensor] | None = None
        self.expected: list[float] = []
        """Of each id after ``fixed_prompt``, its log-probability in nats by the weights that ``prepare`` found."""

    @property
    def vocabulary(self) -> int:
        """Return the number of ids that the policy knows."""
        return int(self.policy.model.config.get_text_config().vocab_size)

    def prepare(self) -> None:
        """Compute ``expected`` and gather the weights: with divided ones it takes all processes of a round."""
        model = self.policy.model
        ids = torch.tensor([fixed_prompt(self.vocabulary)], device=model.device)
        was_training = model.training
        model.train(False)
        try:
            with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=self.autocast):
                logits = model(input_ids=ids).logits[0, -1].float()
        finally:
            model.train(was_training)
        self.expected = torch.log_softmax(logits / PROMPT_TEMPERATURE, dim=-1).tolist()
        if self._gather is not None:
            self._whole = self._gather(model)

    def write(self, name: str) -> Path:
        """Write the weights as the folder ``name`` and return its absolute path. Raises StorageError."""
        if self.stored is not None:
            return self.stored.resolve()
        folder = (self.folder / name).resolve()
        unfinished = folder.with_name(f".{name}")
        try:
            with writing(folder):
                unfinished.mkdir(parents=True)
                if self.adapter:
                    self._write_adapter(unfinished)
                else:
                    self.policy.model.save_pretrained(unfinished, state_dict=self._whole)
                unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._whole = None
        return folder

    def _write_adapter(self, folder: Path) -> None:
        # peft puts its layers into the policy's model in place: the model has its configuration, and the state of its
        # layers under the names that the wrapped model's have behind base_model.model.
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        model = self.policy.model
        config = model.peft_config["default"]
        state = get_peft_model_state_dict(model, self._whole, adapter_name="default")
        save_file(
            {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in state.items()},
            folder / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )
        trained, config.inference_mode = config.inference_mode, True
        config.save_pretrained(folder)
        config.inference_mode = trained

    def discard(self, kept: Collection[str]) -> None:
        """Remove every version but ``kept``, also those that a killed trainer left behind."""
        if self.stored is not None or not self.folder.is_dir():
            return
        for other in self.folder.iterdir():
            if other.name not in kept and other.is_dir() and not other.is_symlink():
                shutil.rmtree(other, ignore_errors=True)
