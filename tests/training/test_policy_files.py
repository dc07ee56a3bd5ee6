"""A policy folder may come from a stranger: whatever is wrong with it ends in a sentence, before it costs anything."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import ROOT

from environments.base import InputError
from environments.checkout import INITIAL_POLICY
from training.policy_files import check_folder, steady
from training.rollout.policy import load_policy

Change = Callable[[Path], object]
STARTER = ROOT / INITIAL_POLICY
LAYER = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


def edited(name: str, **keys: object) -> Change:
    """Keys of a JSON file replaced; the value ... removes one."""

    def change(folder: Path) -> None:
        tree = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
        tree = {key: value for key, value in (tree | keys).items() if value is not ...}
        (folder / name).write_text(json.dumps(tree))

    return change


def config(**keys: object) -> Change:
    return edited("config.json", **keys)


def wrote(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def headed(header: object, length: int | None = None, data: bytes = b"") -> Change:
    text = json.dumps(header).encode()
    return wrote("model.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + data)


def sharded(file: str) -> Change:
    def change(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, file)}))

    return change


def tokenizer(part: str, value: object) -> Change:
    return edited("tokenizer.json", **{part: value})


def split(pattern: str) -> Change:
    return tokenizer(
        "pre_tokenizer", {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    )


def linked(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return change


def piped(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


WRONG: dict[str, tuple[Change, str]] = {
    "more layers": (config(num_hidden_layers=4), "num_hidden_layers is 4 and the weights beside it have 3 layers"),
    "fewer layers": (config(num_hidden_layers=2, layer_types=["full_attention"] * 2), "does not describe"),
    "no layers": (config(num_hidden_layers=0), "num_hidden_layers: "),
    "many layers": (config(num_hidden_layers=20_000), "'num_hidden_layers' is 20000, more than 512"),
    "many layers elsewhere": (config(text_config={"num_hidden_layers": 10**9}), "'num_hidden_layers' is 1000000000"),
    "layers in words": (config(num_hidden_layers="three"), "num_hidden_layers: "),
    "larger vocabulary": (config(vocab_size=4096), "vocab_size is 4096 and the weights"),
    "smaller vocabulary": (config(vocab_size=128), "holds no causal language model|do not match"),
    "endless vocabulary": (config(vocab_size=2**40), "'vocab_size' is 1099511627776, more than"),
    "negative vocabulary": (config(vocab_size=-1), "vocab_size: "),
    "hidden size": (config(hidden_size=120), "hidden_size is 120 and the weights"),
    "heads that do not divide": (config(num_attention_heads=5), "describes a model of"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads: "),
    "negative heads": (config(num_attention_heads=-4), "num_attention_heads: "),
    "many heads": (config(num_attention_heads=60_000), "describes a model of"),
    "no keys": (config(num_key_value_heads=0), "holds no causal language model"),
    "wide layers": (config(intermediate_size=2**24), "describes a model of"),
    "positions of a mask": (config(max_position_embeddings=2**60), "'max_position_embeddings' is"),
    "many labels": (config(num_labels=10**9), "'num_labels' is 1000000000, more than 1024"),
    "dtype": (config(dtype="float7"), "dtype: "),
    "older dtype": (config(torch_dtype="load"), "torch_dtype: "),
    "quantised": (config(quantization_config={"quant_method": "nonsense"}), "quantised weights cannot be trained"),
    "a kernel": (config(attn_implementation="owner/kernel"), "'attn_implementation' names a kernel of the hub"),
    "a kernel inside": (config(_attn_implementation={"": "owner/kernel:run"}), "names a kernel of the hub"),
    "kernels of experts": (config(experts_implementation="a/b"), "names a kernel of the hub"),
    "an attention unknown": (config(attn_implementation="nonsense"), "holds no causal language model"),
    "code": (config(auto_map={"AutoConfig": "code.Config"}), "'auto_map' names code"),
    "code on the hub": (config(auto_map={"AutoModelForCausalLM": "owner/name--code.Model"}), "'auto_map' names code"),
    "trust": (config(trust_remote_code=True), "'trust_remote_code' names code"),
    "other weights": (config(transformers_weights="../x.safetensors"), "'transformers_weights' names code or another"),
    "unknown model": (config(model_type="nonsense"), "model_type: 'nonsense' is not one that transformers has"),
    "a path as model": (config(model_type="../../x"), "model_type: "),
    "no model": (config(model_type=...), "model_type: None"),
    "another model": (config(model_type="gpt2"), "holds no|lacks the weights|describes a model"),
    "no language model": (config(model_type="vit"), "holds no"),
    "rope of no kind": (config(rope_parameters={"rope_type": "nonsense", "rope_theta": 1.0}), "holds no"),
    "rope divided by nothing": (
        config(rope_parameters={"rope_type": "yarn", "factor": 0, "rope_theta": 1e4}),
        "is not a finite number",
    ),
    "rope as text": (config(rope_parameters="none"), "holds no"),
    "activation": (config(hidden_act="nonsense"), "holds no causal language model"),
    "torn configuration": (wrote("config.json", '{"model_type": "qwen3"'), "config.json is not JSON"),
    "a list": (wrote("config.json", "[]"), "config.json is not a JSON object"),
    "deep configuration": (wrote("config.json", '{"a":' * 9000 + "1" + "}" * 9000), "config.json is not JSON"),
    "configuration of bytes": (wrote("config.json", b"\xff\xfe"), "config.json is not JSON"),
    "pipe": (piped("config.json"), "config.json is a pipe or a device"),
    "pipe beside": (piped("chat_template.jinja"), "chat_template.jinja is a pipe or a device"),
    "linked weights": (linked("model.safetensors"), "model.safetensors is a link"),
    "linked tokenizer": (linked("tokenizer.json"), "tokenizer.json is a link"),
    "shards above": (sharded("../x.safetensors"), "weight_map"),
    "shards anywhere": (sharded("/etc/x.safetensors"), "weight_map"),
    "shards of a pickle": (sharded("pytorch_model.bin"), "weight_map"),
    "shards that are not here": (sharded("x.safetensors"), "is in x.safetensors, and that has no such weight"),
    "no header": (wrote("model.safetensors", b""), "model.safetensors is cut or damaged"),
    "long header": (headed({}, length=2**62), "its header would have 4611686018427387904 bytes"),
    "overlapping": (
        headed({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}, data=b"\0" * 8),
        "model.safetensors is cut or damaged",
    ),
    "beyond the end": (
        headed({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        "model.safetensors is cut or damaged",
    ),
    "shape of another size": (
        headed({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 8]}}, data=b"\0" * 8),
        "model.safetensors is cut or damaged",
    ),
    "a pickle beside": (wrote("pytorch_model.bin", b"x"), "pytorch_model.bin holds pickled weights"),
    "a pickled adapter": (wrote("adapter_model.bin", b"x"), "adapter_model.bin holds pickled weights"),
    "a pickle in capitals": (wrote("Model.PTH", b"x"), "Model.PTH holds pickled weights"),
    "a checkpoint": (wrote("last.ckpt", b"x"), "last.ckpt holds pickled weights"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "holds no tokenizer"),
    "torn tokenizer": (wrote("tokenizer.json", "{"), "tokenizer.json is not JSON"),
    "tokenizer of nothing": (wrote("tokenizer.json", "{}"), "holds no tokenizer"),
    "tokenizer of another kind": (tokenizer("model", {"type": "Nonsense"}), "holds no tokenizer"),
    "expression without end": (split("(a+)+$"), "repeats a group of varying length"),
    "alternatives without end": (split("(?:a|a)*b"), "repeats a group of varying length"),
    "expression that gives up": (split("a*a*a*a*a*a*a*a*a*a*$"), "holds no tokenizer: PanicException"),
    "text that grows": (
        tokenizer(
            "normalizer",
            {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30,
            },
        ),
        "makes text more than 64 times as long",
    ),
    "many entries": (
        config(id2label={str(number): "x" for number in range(5000)}),
        "'id2label' has more than 4096 entries",
    ),
    "no expression": (split("("), "holds no tokenizer"),
    "class of something else": (
        edited("tokenizer_config.json", tokenizer_class="AutoModel"),
        "'tokenizer_class' is not the name",
    ),
    "class of a tokenizer": (
        edited("tokenizer_config.json", tokenizer_class="a/b"),
        "'tokenizer_class' is not the name",
    ),
    "code of a tokenizer": (
        edited("tokenizer_config.json", auto_map={"AutoTokenizer": ["code.T", None]}),
        "'auto_map' names code",
    ),
    "tokenizer's settings as a list": (
        wrote("tokenizer_config.json", "[1]"),
        "tokenizer_config.json is not a JSON object",
    ),
    "tokens beyond": (
        tokenizer("model", {"type": "BPE", "vocab": {"a": 0, "b": 99_999}, "merges": []}),
        "has ids up to",
    ),
    "stop in words": (edited("generation_config.json", eos_token_id="end"), "eos_token_id"),
    "generation by code": (
        edited("generation_config.json", custom_generate="owner/name"),
        "'custom_generate' names code",
    ),
    "generation of a list": (wrote("generation_config.json", "[]"), "generation_config.json is not a JSON object"),
    "endless template": (wrote("chat_template.jinja", "x" * 2**21), "it is not a chat template"),
    "the card": (wrote("coevolve.json", "{"), "coevolve.json: "),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(STARTER, tmp_path / "policy")


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_folder_is_refused_in_one_sentence(folder: Path, what: str) -> None:
    change, says = WRONG[what]
    change(folder)
    with pytest.raises(InputError, match=says) as refused:
        load_policy(str(folder), "cpu")
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert str(folder) in sentence
    assert len(sentence) < len(str(folder)) * 2 + 600


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of one layer of the starter, as peft writes it."""
    made = tmp_path / "adapter"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "coevolve.json"):
        shutil.copyfile(STARTER / name, made / name)
    weights = {"A": np.ones((2, 128), np.float32), "B": np.ones((128, 2), np.float32)}
    save_file({LAYER.format(one): weight for one, weight in weights.items()}, made / "adapter_model.safetensors")
    edited(
        "adapter_config.json",
        peft_type="LORA",
        task_type="CAUSAL_LM",
        base_model_name_or_path=INITIAL_POLICY,
        r=2,
        lora_alpha=4,
        target_modules=["q_proj"],
        layers_to_transform=[0],
    )(made)
    return made


def of_adapter(**keys: object) -> Change:
    return edited("adapter_config.json", **keys)


WRONG_ADAPTERS: dict[str, tuple[Change, str]] = {
    "peft_type": (of_adapter(peft_type="NONSENSE"), "peft_type: "),
    "another kind": (of_adapter(peft_type="PREFIX_TUNING"), "peft_type: "),
    "no kind": (of_adapter(peft_type=...), "peft_type: "),
    "layers repeated": (of_adapter(layer_replication=[[0, 20_000]]), "'layer_replication' is not an option of a plain"),
    "expression of layers": (of_adapter(target_modules="(a+)+$"), "target_modules"),
    "expression in a list": (of_adapter(target_modules=["(q|k)+"]), "target_modules"),
    "ranks by expression": (of_adapter(rank_pattern={"(a+)+": 3}), "'rank_pattern' is not an option"),
    "rank": (of_adapter(r=10**9), "r: "),
    "no rank": (of_adapter(r=0), "r: "),
    "rank of another": (of_adapter(r=4), "r is 4 and .* has rank 2"),
    "made from the weights": (of_adapter(init_lora_weights="pissa_niter_4"), "init_lora_weights"),
    "code": (of_adapter(auto_mapping={"base_model_class": "X", "parent_library": "os"}), "'auto_mapping' is not an"),
    "base without a name": (of_adapter(base_model_name_or_path=None), "base_model_name_or_path: "),
    "base that is not there": (
        of_adapter(base_model_name_or_path="/nowhere/model"),
        "names a base model that does not",
    ),
    "weights of something else": (
        lambda folder: save_file({"x": np.ones((2, 2), np.float32)}, folder / "adapter_model.safetensors"),
        "x is not a weight of a LoRA adapter",
    ),
    "weights of another model": (
        lambda folder: save_file(
            {LAYER.format("A"): np.ones((2, 64), np.float32)}, folder / "adapter_model.safetensors"
        ),
        "holds no adapter that fits",
    ),
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(),
        "holds no adapter_model.safetensors",
    ),
    "pickled weights": (wrote("adapter_model.bin", b"x"), "adapter_model.bin holds pickled weights"),
    "an adapter of itself": (
        lambda folder: of_adapter(base_model_name_or_path=str(folder))(folder),
        "is a LoRA adapter",
    ),
}


@pytest.mark.parametrize("what", WRONG_ADAPTERS)
@pytest.mark.filterwarnings("ignore")
def test_a_wrong_adapter_is_refused_in_one_sentence(adapter: Path, what: str) -> None:
    of_adapter(layers_to_transform=...)(adapter)
    change, says = WRONG_ADAPTERS[what]
    change(adapter)
    with pytest.raises(InputError, match=says) as refused:
        load_policy(str(adapter), "cpu")
    assert "\n" not in str(refused.value)
    assert str(adapter) in str(refused.value)


def test_what_ships_and_what_rounds_write_passes(folder: Path, adapter: Path) -> None:
    for path in (ROOT / "recipes").glob("starter*"):
        assert check_folder(path)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_1.pth", "training_args.bin"):
        (folder / name).write_bytes(b"never read with the weights")
    assert not load_policy(str(folder), "cpu").adapter
    of_adapter(layers_to_transform=..., target_modules=["q_proj"])(adapter)
    assert not check_folder(adapter)


def test_files_of_the_hubs_cache_are_links_into_it(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(STARTER.iterdir())):
        shutil.copyfile(file, tmp_path / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert check_folder(snapshot)
    (snapshot / "merges.txt").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=r"merges\.txt is a link"):
        check_folder(snapshot)


@pytest.mark.parametrize(
    ("pattern", "bounded"),
    [
        (r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+", True),
        (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\s*[\r\n/]+", True),
        (r"\d{1,3}(?=(?:\d{3})*\b)", True),
        (r"[()+*]+", True),
        (r"\(a+\)+", True),
        (r"(a+)+", False),
        (r"(?:(?:a?))*", False),
        (r"(a|aa){2,}", False),
        (r"(?>(x{1,9}y){3})+", False),
    ],
)
def test_groups_of_varying_length_are_not_repeated(pattern: str, bounded: bool) -> None:
    assert steady(pattern) is bounded
