"""LoRA through peft: the adapter that a round trains, and the one that a checkpoint holds. Import it late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from environments.base import InputError
from training.settings import LoraSettings

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel


def lora_config(settings: LoraSettings, model: PreTrainedModel) -> LoraConfig:
    """Return peft's configuration of the adapter. Raises InputError for target modules that ``model`` does not have."""
    from peft import LoraConfig, TaskType

    names = [f".{name}" for name, _ in model.named_modules()]
    for target in settings.target_modules or ():
        if not any(name.endswith(f".{target}") for name in names):
            raise InputError(
                f"policy.lora.target_modules: {model.config.model_type} has no module {target}: name some of its "
                "linear layers, such as q_proj, or give null for every one"
            )
    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules="all-linear" if settings.target_modules is None else list(settings.target_modules),
    )


def load_adapter(base: PreTrainedModel, path: str) -> None:
    """Put the adapter in the folder ``path`` into the layers of ``base``, not merged: it rounds as in training.

    Raises InputError for a folder without adapter weights, and for an adapter of another model.
    """
    from peft import PeftModel

    try:
        PeftModel.from_pretrained(base, path)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} holds no adapter that fits its base model: {reason}") from error
