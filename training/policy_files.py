"""Look at a policy's folder before a library reads it, because the folder may come from a stranger.

Each file that decides what a library builds is read by a schema with limits: the model's and the adapter's
configuration, the tokenizer and its settings, the settings of generation, the index of the weights. The headers of the
weights bound what a configuration may ask for. No code is named (``auto_map``, kernels of the hub), no pickle lies
beside the weights, and no file is a link, but in the hub's own cache. Neither torch nor transformers is imported.
"""

from __future__ import annotations

import importlib.util
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt, ValidationError, model_validator

from environments.base import InputError
from memory.files import opened, read_whole
from memory.jsonl import complaint, parse_json

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_TEMPLATES = "additional_chat_templates"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_STATE = re.compile(r"(optimizer|scheduler|scaler)\.pt|(optimizer|training_args)\.bin|rng_state(_\d+)?\.pth")
"""What the trainer writes beside a checkpoint's weights: read when a round resumes, as tensors alone, or never."""

LONGEST_HEADER = 2**22
"""Bytes of a safetensors header at most (ours), some 40,000 weights; a shard of the largest models has a tenth."""

LONGEST_LIST = 4096  # entries of a list in a configuration
LONGEST_GROWTH = 64
"""Characters that a tokenizer's settings make of one at most (ours)."""

LONGEST_TEMPLATE = 2**20
LONGEST_PATTERN = 4096

LARGEST = 2**24
"""The largest integer of a configuration (ours): positions of the longest context, or values of a size."""

_LARGEST = {"theta": 2**40, "layer": 512, "num_block": 512, "experts": 4096, "head": 2**16, "label": 1024}
"""Others, by a part of the key."""

_CODE = ("auto_map", "custom_pipelines", "trust_remote_code", "custom_generate", "transformers_weights", "init_inputs")
_QUANTISED = ("quantization_config", "compression_config")
_TOKENIZER = re.compile(r"\w{0,64}Tokenizer\w{0,64}")

Model = TypeVar("Model", bound=BaseModel)
_Size = Annotated[StrictInt, Field(ge=1, le=LARGEST)]
_Type = Literal["float32", "float16", "bfloat16", "auto"]


class ModelConfig(BaseModel):
    """The part of a ``config.json`` that is checked here; the rest is the library's.

    Models of several parts keep their language model's under ``text_config``.
    """

    model_config = ConfigDict(extra="allow")
    model_type: str | None = Field(None, pattern=r"^[\w.-]{1,64}$")
    num_hidden_layers: _Size | None = None
    hidden_size: _Size | None = None
    num_attention_heads: _Size | None = None
    vocab_size: _Size | None = None
    max_position_embeddings: StrictInt | None = None
    dtype: _Type | None = None
    torch_dtype: _Type | None = None
    text_config: ModelConfig | None = None

    @property
    def text(self) -> ModelConfig:
        """The configuration of the language model."""
        return self.text_config or self


class AdapterConfig(BaseModel):
    """peft's ``adapter_config.json`` of a plain LoRA adapter, as rounds write it.

    A name of a layer that is a regular expression, layers that are repeated, and weights that are made from the base
    model's when they are loaded are options of other adapters: whatever is not named here must be empty.
    """

    model_config = ConfigDict(extra="allow")
    peft_type: Literal["LORA"]
    base_model_name_or_path: str = Field(min_length=1, max_length=4096)
    task_type: Literal["CAUSAL_LM"] | None = None
    r: StrictInt = Field(ge=1, le=4096)
    lora_alpha: float = Field(gt=0, le=65_536)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: (
        Literal["all-linear"]
        | Annotated[list[Annotated[str, Field(pattern=r"^[\w.]+$", max_length=256)]], Field(max_length=4096)]
    )
    layers_to_transform: Annotated[list[StrictInt], Field(max_length=4096)] | None = None
    bias: Literal["none"] = "none"
    init_lora_weights: bool | Literal["gaussian"] = True
    use_rslora: StrictBool = False
    use_dora: StrictBool = False
    fan_in_fan_out: StrictBool = False
    inference_mode: StrictBool = True
    peft_version: str | None = None
    revision: str | None = None
    megatron_core: str | None = None  # of megatron_config, which must be empty
    qalora_group_size: int | None = None  # of use_qalora

    @model_validator(mode="after")
    def _nothing_else(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if value not in (None, False, "", [], {}):
                raise ValueError(f"'{key}' is not an option of a plain LoRA adapter: save the merged model")
        return self


class Generation(BaseModel):
    """The part of a ``generation_config.json`` that is read: the tokens that end a message."""

    eos_token_id: StrictInt | list[StrictInt] | None = None


class _Index(BaseModel):
    weight_map: dict[str, Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.safetensors$")]]


Shapes = dict[str, tuple[int, ...]]


def check_folder(folder: Path) -> Shapes:
    """Check every file that a library would read of the policy in ``folder``; return the shapes of its weights.

    A file that is missing is not missed here. Raises InputError that names the file and what is wrong with it.
    """
    for place in (folder, folder / _TEMPLATES):
        _check_entries(place)
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if (folder / name).is_file():
            _tree(folder / name)
    _check_tokenizer(folder / "tokenizer.json")
    generation(folder)
    shapes = weights_of(folder)
    if (folder / CONFIG).is_file():
        read_config(folder / CONFIG, shapes)
    if (folder / ADAPTER).is_file():
        read_adapter(folder)
    return shapes


def read_config(file: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> tuple[ModelConfig, dict[str, Any]]:
    """Return a ``config.json`` as it is checked and as it is. Raises InputError that names the file and the key.

    With ``shapes`` of weights the configuration may not ask for more than they have.
    """
    tree, source = _tree(file), str(file)
    config = _validated(ModelConfig, tree, source)
    kind = config.model_type
    if kind is None or not (_library() / kind.replace("-", "_")).is_dir():
        raise InputError(f"{source}: model_type: {kind!r} is not one that transformers has here: name another model")
    if shapes:
        text = config.text
        numbers = [int(found[1]) for name in shapes if (found := re.search(r"\.(\d+)\.", name))]
        layers, values = max(numbers, default=-1) + 1, sum(map(math.prod, shapes.values()))
        if text.num_hidden_layers is not None and text.num_hidden_layers > layers:
            raise _unlike(source, f"num_hidden_layers is {text.num_hidden_layers}", f"have {layers} layers")
        sizes = {size for shape in shapes.values() for size in shape}
        for key, size in (("hidden_size", text.hidden_size), ("vocab_size", text.vocab_size)):
            if size is not None and size not in sizes:
                raise _unlike(source, f"{key} is {size}", "have no such size")
        if (text.vocab_size or 1) * (text.hidden_size or 1) > values:
            raise _unlike(
                source, f"vocab_size x hidden_size is {text.vocab_size} x {text.hidden_size}", f"are {values} values"
            )
    return config, tree


def _unlike(source: str, stated: str, there: str) -> InputError:
    return InputError(
        f"{source}: {stated} and the weights beside it {there}: restore the file that was saved with them"
    )


def read_adapter(folder: Path) -> AdapterConfig:
    """Return the configuration of the LoRA adapter in ``folder``. Raises InputError that names the file and the key."""
    file = folder / ADAPTER
    config = _validated(AdapterConfig, _tree(file), str(file))
    weights = folder / ADAPTER_WEIGHTS
    for name, shape in (header(weights) if weights.is_file() else {}).items():
        rank = shape[0] if name.endswith("lora_A.weight") else shape[-1] if name.endswith("lora_B.weight") else None
        if (rank is None and not name.endswith("lora_magnitude_vector")) or len(shape) not in (1, 2):
            raise InputError(f"{weights}: {name:.200} is not a weight of a LoRA adapter: save the adapter alone")
        if rank is not None and rank != config.r:
            raise InputError(f"{file}: r is {config.r} and {name:.200} has rank {rank}: restore the file saved with it")
    return config


def generation(folder: Path) -> Generation:
    """Return the settings of generation in ``folder``, without any where there is no such file."""
    file = folder / "generation_config.json"
    return _validated(Generation, _tree(file), str(file)) if file.is_file() else Generation()


def weights_of(folder: Path) -> Shapes:
    """Return the shapes of the model's weights in ``folder``, by name; none where it has none.

    Raises InputError that names a file which is cut or damaged, or that the index names and is not in the folder.
    """
    headers = {file.name: header(file) for file in sorted(folder.glob("*.safetensors"))}
    if WEIGHTS in headers or not (folder / INDEX).is_file():
        return headers.get(WEIGHTS, {})
    index = folder / INDEX
    shapes: Shapes = {}
    for name, file in _validated(_Index, _tree(index), str(index)).weight_map.items():
        if name not in headers.get(file, {}):
            raise InputError(f"{index}: {name:.200} is in {file}, and that has no such weight: restore both files")
        shapes[name] = headers[file][name]
    return shapes


def header(file: Path) -> Shapes:
    """Return the shapes in the header of a safetensors file, whose weights are not read. Raises InputError."""
    from safetensors import SafetensorError, safe_open

    try:
        with opened(file) as begun:
            if (length := int.from_bytes(begun.read(8), "little")) > LONGEST_HEADER:
                raise SafetensorError(f"its header would have {length} bytes")
        with safe_open(file, "np") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{file} is cut or damaged ({first_line(error)}): restore it from a copy") from error


def first_line(error: BaseException) -> str:
    """Return an error in one short line, with its kind where it says nothing else."""
    said = (str(error).strip().splitlines() or [""])[0][:300]
    return said if isinstance(error, OSError | ValueError) and said else f"{type(error).__name__}: {said}".rstrip(": ")


def _check_entries(folder: Path) -> None:
    """Raise InputError for an entry that is a link, a pipe, a device, a pickle or a template without end."""
    if not folder.is_dir():
        return
    # The hub's cache has a snapshot's files as links into a folder of its own.
    kept = folder.resolve().parents[1] / "blobs" if folder.resolve().parent.name == "snapshots" else None
    for file in sorted(folder.iterdir()):
        if file.is_symlink() and (kept is None or not file.resolve().is_relative_to(kept)):
            raise InputError(f"{file} is a link: put the file itself into the policy's folder")
        found = file.stat()
        if stat.S_ISDIR(found.st_mode):
            continue
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{file} is a pipe or a device: name the folder of a model")
        if file.suffix.lower() in _PICKLES and not _STATE.fullmatch(file.name):
            raise InputError(
                f"{file} holds pickled weights, which can run code and are never read: save the model as safetensors "
                "and remove it"
            )
        if file.suffix == ".jinja" and found.st_size > LONGEST_TEMPLATE:
            raise InputError(f"{file} has more than {LONGEST_TEMPLATE} bytes: it is not a chat template")


def _tree(file: Path) -> dict[str, Any]:
    """Return a JSON file of a policy, whose keys name no code and whose numbers have limits."""
    tree = _json(file)
    counted = file.name in (CONFIG, "generation_config.json")
    for key, value in _entries(tree):
        if key in _CODE and value:
            raise InputError(f"{file}: '{key}' names code or another file, which is never run or read: remove it")
        if key in _QUANTISED and value:
            raise InputError(f"{file}: '{key}': quantised weights cannot be trained here: name the model without it")
        kernel = not (value is None or (isinstance(value, str) and re.fullmatch(r"\w{1,64}", value)))
        if kernel and key.endswith(("attn_implementation", "experts_implementation")):
            raise InputError(f"{file}: '{key}' names a kernel of the hub, which is never fetched: remove it")
        if counted and isinstance(value, list | dict) and len(value) > LONGEST_LIST:
            raise InputError(f"{file}: '{key}' has more than {LONGEST_LIST} entries: it is not of a model")
        if counted and isinstance(value, int):
            largest = next((most for part, most in _LARGEST.items() if part in key), LARGEST)
            if abs(value) > largest:
                raise InputError(f"{file}: '{key}' is {value}, more than {largest}: it is not of a model")
        if (
            key == "tokenizer_class"
            and value is not None
            and not (isinstance(value, str) and _TOKENIZER.fullmatch(value))
        ):
            raise InputError(f"{file}: '{key}' is not the name of a tokenizer's class: restore the file")
        if key == "chat_template" and isinstance(value, str) and len(value) > LONGEST_TEMPLATE:
            raise InputError(f"{file}: '{key}' has more than {LONGEST_TEMPLATE} characters: it is not a chat template")
    return tree


def _json(file: Path) -> dict[str, Any]:
    try:
        tree = parse_json(read_whole(file))
    except (ValueError, OSError) as error:
        raise InputError(f"{file} is not JSON ({first_line(error)}): restore it from a copy") from None
    if not isinstance(tree, dict):
        raise InputError(f"{file} is not a JSON object: restore it from a copy")
    return tree


def _entries(tree: JsonValue, key: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield every value of a tree with the key that it is behind, also within lists."""
    if key:
        yield key, tree
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _entries(value, name or key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _entries(value, key)


def _check_tokenizer(file: Path) -> None:
    """Check the regular expressions of a ``tokenizer.json``; its vocabulary is the library's to read."""
    tree = _json(file) if file.is_file() else {}
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = 1
        for key, value in _entries(tree.get(part)):
            if key == "Regex" and not (isinstance(value, str) and len(value) <= LONGEST_PATTERN and steady(value)):
                raise InputError(
                    f"{file}: {part} has a regular expression that repeats a group of varying length, or is longer "
                    f"than {LONGEST_PATTERN} characters: its time has no bound"
                )
            if key in ("content", "prepend") and isinstance(value, str):
                growth *= max(1, len(value))
        if growth > LONGEST_GROWTH:
            raise InputError(f"{file}: {part} makes text more than {LONGEST_GROWTH} times as long: restore the file")


def steady(pattern: str) -> bool:
    """Return whether no group of varying length is repeated, by which a regular expression takes exponential time.

    A group is of one length if it has no alternatives, and nothing in it is repeated or left out but ``{n}`` times.
    """
    varying, place, inside = [False], 0, 0
    while place < len(pattern):
        one = pattern[place]
        if one == "\\":
            place += 1
        elif one == "[":
            inside += 1
        elif one == "]" and inside:
            inside -= 1
        elif inside:
            pass
        elif one == "(":
            varying.append(False)
            if pattern.startswith("(?", place):
                place += 1
        elif one == ")":
            inner = varying.pop() if len(varying) > 1 else False
            follows = pattern[place + 1 : place + 2]
            if inner and follows in ("*", "+", "{"):
                return False
            varying[-1] |= inner
        elif one in "*+?|" or (one == "{" and re.match(r"\{\d*,\d*\}", pattern[place:])):
            varying[-1] = True
        place += 1
    return True


def _library() -> Path:
    """Return the folder in which transformers has a folder for every kind of model, without importing it."""
    found = importlib.util.find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "models"


def _validated(model: type[Model], tree: Mapping[str, Any], source: str) -> Model:
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{source}: {complaint(error)}") from None
