"""A policy on disk and in memory: model, tokenizer and the rendering that they were trained with.

A folder that this project wrote names its rendering in ``coevolve.json``; any other model uses its own chat template.
A folder with a LoRA adapter loads as its base model with the adapter in place. Torch is imported with the weights.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from environments.base import InputError, Record
from environments.checkout import OURS, PACKAGED_MODEL, ROOT, heavy_imports, shipped_policy
from memory.run import PolicyDirectory, read_json, write_json
from training.embedded.compact import CompactSettings
from training.policy_files import ADAPTER, ADAPTER_WEIGHTS, Shapes, check_folder, first_line, generation, read_adapter
from training.rendering.base import Rendering
from training.settings import LoraSettings, PolicySettings, RenderingOptions

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HUB_ID = re.compile(r"(?=.{3,96}$)(?!.*(--|\.\.|\.git$))\w([\w.-]*\w)?/\w([\w.-]*\w)?", re.ASCII)
"""As the hub's own library checks an id; ``./folder`` is none."""
SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a configuration, a tokenizer and its template on the hub."""

WEIGHTS = ("model.safetensors", "model-*.safetensors")

PROBES = ("the words " * 20, *(f"{one * 200}!" for one in ("a", " ", "\n", "1", "-+*/", "'")))
"""Texts that a tokenizer must be able to read (ours): long runs, of which a regular expression may make too much."""

LONGEST_NAME = 255  # bytes of a file's name on Linux

MOST_BUFFERS = 2**26
"""Values that a model has beside its weights at most, such as the mask of its positions (ours)."""

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

ANSWER_WITHIN = 10.0
"""Timeout of the hub in seconds; without an answer it counts as out of reach (ours)."""


class PolicyCard(RenderingOptions, Record):
    """``coevolve.json``: the rendering that a policy was trained with, its options where it is a chat template.

    ``compact`` are the limits of the compact rendering.
    """

    rendering: Literal["compact", "chat_template"]
    compact: CompactSettings | None = None


@dataclass(frozen=True)
class Policy:
    """A loaded policy. ``path`` is where it came from; ``card`` is None for a model that this project did not write.

    ``adapter``: the path holds a LoRA adapter, and the model is its base with the adapter in place.
    """

    path: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    rendering: Rendering
    card: PolicyCard | None
    adapter: bool = False

    @property
    def positions(self) -> int | None:
        """Return the tokens of one episode that the model was made for, None if its configuration has no number."""
        positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return positions if isinstance(positions, int) and positions > 0 else None


def policy_folder(path: str) -> str:
    """Return the shipped policy that ``path`` names, else ``path`` where it is a folder, else the hub id.

    Policies that ship with the project (``recipes/starter``) and the model of ``make model`` have their name in every
    working directory; any other relative path is looked up in the working directory, and in the checkout where it
    begins with one of its folders. Raises InputError for a path that is none of these. A hub id is accepted only where
    it is not a mistyped folder.
    """
    folder = Path(path)
    if any(len(part.encode(errors="surrogatepass")) > LONGEST_NAME for part in folder.parts):
        raise InputError(f"the policy {path:.100} does not exist, its name is too long: name a folder or a hub id")
    shipped = shipped_policy(path)
    if shipped is not None and not (folder.is_dir() and folder.samefile(shipped)):
        return str(shipped)
    if path == PACKAGED_MODEL and shipped is None:
        raise InputError(f"the policy {path} is not made here yet: run make model in {ROOT}")
    if folder.is_dir():
        return path
    if folder.exists():
        raise InputError(f"{path} is a file: name the policy's folder")
    # An account on the hub may have the name of any folder of this project, and its models are not what was meant.
    ours = not folder.is_absolute() and folder.parts[:1] and folder.parts[0] in OURS
    if ours and (ROOT / folder).is_dir():
        return str(ROOT / folder)
    beside_folders = folder.parent.is_dir() and folder.parent != Path(".")
    if ours or beside_folders or not _HUB_ID.fullmatch(path):
        raise InputError(
            f"the policy {path} does not exist: name a folder or a hub id, or make an initial policy with "
            "python -m training.warm_start --model embedded"
        )
    return path


def check_policy_path(path: str) -> None:
    """Raise InputError like ``policy_folder``."""
    policy_folder(path)


@functools.cache
def hub_trouble(path: str) -> str | None:
    """Return why the hub cannot be asked for the model ``path``, in a few words; None if it answers, and for a folder.

    Raises InputError when the hub answers that it has no such model.
    """
    # One short request instead of the libraries' retries for every file.
    if Path(path).is_dir():
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(path, timeout=ANSWER_WITHIN)
    except RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no model {path} that may be read: check the name, or log in where it is private"
        ) from error
    except Exception as error:  # noqa: BLE001 - whatever the trouble is, the cache may hold the model
        said = (str(error).strip().splitlines() or [""])[0]
        return f"{type(error).__name__}: {said}"
    return None


@heavy_imports()
def load_policy(
    path: str, device: str = "auto", dtype: str = "float32", options: RenderingOptions | None = None
) -> Policy:
    """Load the folder or hub id ``path``; ``device`` auto takes a GPU if there is one. A folder may be a LoRA adapter.

    ``options`` are of a chat template; what they leave open is taken from the policy's card.
    Raises InputError for a path that is neither, a folder without a model, a model that is not a causal language model,
    one without a chat template or ``coevolve.json``, one whose chat template cannot be used, and for an option that
    would be ignored.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    place = chosen_device(device)
    path = policy_folder(path)
    base = adapter_base(path)
    card, tokenizer, rendering = load_rendering(path, options)
    weights = base or path
    folder = fetched(weights, with_weights=True)
    shapes = check_folder(folder)
    if (folder / ADAPTER).is_file():
        raise InputError(f"{weights} is a LoRA adapter, and a whole model is needed: save the merged model")
    with _found(weights, "causal language model"):
        _check_sizes(folder, shapes)
        # Without use_safetensors a folder of pickles would be read too.
        read: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **_LOCAL
        )
        model, loaded = read
    _check_all_loaded(weights, loaded)
    model.config._name_or_path = model.name_or_path = weights  # as it is recorded, not where the hub's cache has it
    rows = model.config.get_text_config().vocab_size
    if (largest := max(tokenizer.get_vocab().values())) >= rows:
        raise InputError(f"the tokenizer of {path} has ids up to {largest}, its model knows {rows}: they do not match")
    for name, buffer in model.named_buffers():
        if not torch.isfinite(buffer).all():
            raise InputError(
                f"{weights}: {name} is not a finite number by its config.json (rope_parameters): restore it"
            )
    if base is not None:
        load_adapter(model, path)
    torch.nn.Module.to(model, place)
    model.train(False)
    return Policy(path, model, tokenizer, rendering, card, adapter=base is not None)


def _check_sizes(folder: Path, shapes: Shapes) -> None:
    """Raise InputError for a ``config.json`` whose model has more values than the weights in ``folder``.

    The library would make room for all of them before it compares them.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if not shapes:
        raise OSError("it has neither model.safetensors nor shards with an index")
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        config = AutoConfig.from_pretrained(folder, **_LOCAL)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    needed, there = sum(one.numel() for one in model.parameters()), sum(map(math.prod, shapes.values()))
    buffers = sum(one.numel() for one in model.buffers())
    if needed > there or buffers > MOST_BUFFERS:
        raise InputError(
            f"{folder}/config.json describes a model of {needed:,} values and {buffers:,} beside them, and its weights "
            f"have {there:,}: restore the file that was saved with them"
        )


def _check_all_loaded(path: str, loaded: Mapping[str, Any]) -> None:
    """Raise InputError for weights that the folder lacks, and for those of layers that the configuration lacks."""
    for name in sorted(loaded["missing_keys"]):
        raise InputError(f"{path} lacks the weights {name}, which its config.json describes: restore the folder")
    for name in sorted(loaded["unexpected_keys"]):
        if re.search(r"\b(layers|h)\.\d+\.", name):
            raise InputError(
                f"{path} has the weights {name}, which its config.json does not describe: restore the folder"
            )


def chosen_device(device: str) -> torch.device:
    """Return where a model goes; auto: to a GPU if there is one. Raises InputError for cuda where there is none."""
    import torch

    name = "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device cuda was asked for and this machine has none: set the device to auto or cpu")
    return torch.device(name)


def load_initial_policy(settings: PolicySettings) -> Policy:
    """Load the initial policy of a run, with its weights in the type in which training keeps them.

    Raises InputError like ``load_policy`` and ``refuse_adapter``.
    """
    refuse_adapter(settings.path)
    # Steps of a small learning rate vanish in bfloat16's seven bits: weights that are trained stay float32.
    dtype = "float32" if settings.lora is None else settings.known_dtype
    return load_policy(settings.path, settings.device, dtype, settings)


def refuse_adapter(path: str) -> None:
    """Raise InputError for the path of an initial policy that holds a LoRA adapter."""
    if (Path(policy_folder(path)) / ADAPTER).is_file():
        raise InputError(
            f"policy.path: {path} is a LoRA adapter and a round starts from a whole model: save the merged model "
            "(peft's merge_and_unload) and name that"
        )


def load_rendering(
    path: str, options: RenderingOptions | None = None
) -> tuple[PolicyCard | None, PreTrainedTokenizerBase, Rendering]:
    """Load card, tokenizer and rendering of the policy at ``path``, not its weights. Raises like ``load_policy``."""
    from transformers import AutoTokenizer

    path = policy_folder(path)
    folder = fetched(path)
    check_folder(folder)
    written = PolicyDirectory(folder).card
    card = read_json(written, PolicyCard) if written.is_file() else None
    with _found(path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
        for text in PROBES:
            tokenizer.encode(text)
    if card is not None and card.rendering == "compact":
        from training.embedded.compact import CompactRendering

        if options is not None:
            options.check_compact(path)
        return card, tokenizer, CompactRendering(tokenizer, card.compact or CompactSettings())
    from training.rendering.chat_template import ChatTemplateRendering

    chosen = (options or RenderingOptions()).else_of(card)
    if chosen.given_options:
        card = PolicyCard(rendering="chat_template", **chosen.given_options)
    return card, tokenizer, ChatTemplateRendering(tokenizer, _stop_ids(adapter_base(path) or path), chosen)


def adapter_base(path: str) -> str | None:
    """Return the base model of the LoRA adapter in the folder ``path``, None when the folder is not an adapter.

    Raises InputError for an adapter that names no base, or one that does not exist.
    """
    file = Path(path) / ADAPTER
    if not file.is_file():
        return None
    try:
        return policy_folder(read_adapter(Path(path)).base_model_name_or_path)
    except InputError as error:
        if str(error).startswith(str(file.parent)):
            raise
        raise InputError(f"{file} names a base model that does not exist: {error}") from error


def _stop_ids(path: str) -> tuple[int, ...]:
    """Return the ids that end a message by the model's generation config; none when it has no such file."""
    eos = generation(fetched(path)).eos_token_id
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


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


def load_adapter(base: PreTrainedModel, path: str) -> PeftModel:
    """Put the adapter in the folder ``path`` into the layers of ``base``, not merged: it rounds as in training.

    Return the two as one model. Raises InputError for a folder without an adapter that fits.
    """
    from peft import PeftModel

    if not (Path(path) / ADAPTER_WEIGHTS).is_file():  # peft would ask the hub for it
        raise InputError(f"{path} holds no {ADAPTER_WEIGHTS}: name the folder of an adapter")
    try:
        return PeftModel.from_pretrained(base, path)
    except Exception as error:
        raise InputError(f"{path} holds no adapter that fits its base model: {first_line(error)}") from error


def save_policy(
    path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: PolicyCard | None
) -> None:
    """Write a policy that ``load_policy`` reads; the card names its rendering."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if card is not None:
        write_json(PolicyDirectory(path).card, card)


def fetched(path: str, *, with_weights: bool = False) -> Path:
    """Return the folder of the policy that ``policy_folder`` returned; of a hub's model that of its cache.

    What the cache lacks is fetched from the hub, weights where they are asked for. Raises InputError where neither has
    it.
    """
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    trouble = hub_trouble(path)
    patterns = [*SMALL, *(WEIGHTS if with_weights else ())]
    try:
        return Path(snapshot_download(path, allow_patterns=patterns, local_files_only=trouble is not None))
    except Exception as error:
        if trouble is not None:
            raise InputError(
                f"{path} is not a folder, the hub is out of reach ({trouble}), and its cache here does not hold the "
                f"model: name a folder, or start again when the hub can be reached"
            ) from error
        raise InputError(f"{path} cannot be fetched from the hub: {first_line(error)}") from error


@contextmanager
def _found(path: str, what: str) -> Iterator[None]:
    """Raise InputError in one sentence for whatever a library raises while it reads ``what`` of a policy."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        raise InputError(f"{path} holds no {what}: {first_line(error)}") from error
