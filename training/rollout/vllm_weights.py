"""The trainer's weights for engines that hold their own: written to a folder, named, and scored for the canary.

A folder is written under a temporary name and renamed, so that whoever sees it sees all of it. Import this module late:
it needs torch.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from pathlib import Path

import torch

from environments.command import writing
from training.rollout.policy import Policy, adapter_base
from training.rollout.policy_path import policy_folder
from training.rollout.vllm_requests import CANARY_AGAIN, CANARY_TOKENS, Scores, canary_prompt

__all__ = ["DividedWeights", "PolicyWeights", "stored_folder"]


def stored_folder(path: str) -> Path:
    """Return the folder that holds the weights of the policy at ``path``, also of one on the hub that was loaded."""
    if Path(path).is_dir():
        return Path(path).resolve()
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, local_files_only=True))


class PolicyWeights:
    """The weights of ``policy`` as they are now, while it is trained.

    Args:
        folder: where versions are written, one folder each; nothing else is in it.
        adapter: the policy's layers hold a LoRA adapter, which alone is written.
        autocast: matrix products are computed in bfloat16, as the trainer does.
        stored: a folder that holds these weights already and is never removed; nothing is written then.
    """

    def __init__(
        self, policy: Policy, folder: Path, *, adapter: bool, autocast: bool, stored: Path | None = None
    ) -> None:
        self.policy = policy
        self.folder = folder
        self.adapter = adapter
        self.autocast = autocast
        self.stored = stored
        self._scoring = threading.Lock()

    @property
    def vocabulary(self) -> int:
        """Return the number of ids that the policy knows."""
        return int(self.policy.model.config.get_text_config().vocab_size)

    @property
    def base(self) -> Path:
        """Return the folder of the weights that the policy had before it was trained, or below its adapter."""
        path = adapter_base(self.policy.path) or policy_folder(self.policy.path)
        return stored_folder(path)

    def prepare(self) -> None:
        """Do what takes all processes of a round, before the first one writes and scores."""
        return

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
                    self.policy.model.save_pretrained(unfinished, state_dict=self._state())
                unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return folder

    def _state(self) -> dict[str, torch.Tensor] | None:
        """Return the model's whole tensors by name; None where the model has them."""
        return None

    def _write_adapter(self, folder: Path) -> None:
        # peft puts its layers into the policy's model in place: the model has its configuration, and the state of its
        # layers under the names that the wrapped model's have behind base_model.model.
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        model = self.policy.model
        config = model.peft_config["default"]
        state = get_peft_model_state_dict(model, self._state(), adapter_name="default")
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

    def score(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Scores:
        """Return what the trainer's forward pass says of ``ids`` after ``prompt``; temperature 0 is taken as 1."""
        return _scores(self._logits([*prompt, *ids])[len(prompt) - 1 : -1], ids, temperature)

    def _logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after each of ``ids``: (ids, vocabulary), float32."""
        model = self.policy.model
        device = model.device
        # Servers answer canaries at the same time, each scored from a thread. Two of them that switch the model's mode
        # would leave it in evaluation, in which TRL computes another update, or switch dropout on in the other's pass.
        with self._scoring:
            was_training = model.training
            model.train(False)
            try:
                with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
                    logits: torch.Tensor = model(input_ids=torch.tensor([ids], device=device)).logits[0]
            finally:
                model.train(was_training)
        return logits.float()


class DividedWeights(PolicyWeights):
    """The weights of a policy that is divided among the processes of a round (FSDP2, ZeRO-3).

    Every gathered tensor and every forward pass takes all processes. So all of them gather the weights, and write the
    likeliest answer to the canary's prompt, before the first one writes a folder and loads servers by itself.

    Args:
        gather: returns the whole tensors of a model by name in the first process, and nothing in the others.
    """

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        *,
        adapter: bool,
        autocast: bool,
        gather: Callable[[torch.nn.Module], dict[str, torch.Tensor]],
    ) -> None:
        super().__init__(policy, folder, adapter=adapter, autocast=autocast)
        self._gather = gather
        self._whole: dict[str, torch.Tensor] = {}
        self._greedy: list[int] = []
        self._rows = torch.empty(0)
        self._tokens = CANARY_TOKENS

    def prepare(self) -> None:
        """Gather the weights, and write the likeliest answer to the canary's prompt, in all processes."""
        prompt, self._greedy = canary_prompt(self.vocabulary), []
        rows = []
        # A server that comes back later is compared as far as these go.
        tokens, self._tokens = self._tokens, CANARY_AGAIN
        for _ in range(tokens):
            rows.append(self._logits([*prompt, *self._greedy])[-1].cpu())
            self._greedy.append(int(rows[-1].argmax()))
        self._rows = torch.stack(rows)
        self._whole = self._gather(self.policy.model)

    def write(self, name: str) -> Path:
        """Write the gathered weights as the folder ``name`` and return its absolute path. Raises StorageError."""
        folder = super().write(name)
        self._whole = {}
        return folder

    def score(self, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Scores:
        """Return the scores of ``ids`` as far as all ids before them are the likeliest: of one of them at least."""
        likely = zip(ids, self._greedy, strict=False)
        places = 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], likely))
        return _scores(self._rows[: min(places, len(ids))], ids, temperature)

    def _state(self) -> dict[str, torch.Tensor]:
        return self._whole


def _scores(logits: torch.Tensor, ids: Sequence[int], temperature: float) -> Scores:
    """Return the log-probabilities of the first of ``ids``, each by its row of logits."""
    logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(ids[: len(logprobs)], device=logprobs.device)[:, None])[:, 0]
    return Scores(tuple(chosen.tolist()), tuple(logprobs.amax(dim=-1).tolist()))
