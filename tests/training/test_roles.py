"""The local roles' model: taught by TRL on a tiny model, interrupted and resumed, then asked as the roles ask it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_models import new_tokenizer, random_model, save, template

from agents.local.model import LocalModel
from agents.settings import LocalSettings
from environments.base import InputError
from environments.benchmark import HumanTurn
from environments.bfcl.benchmark import BFCL
from environments.bfcl.written_turns import single_turns
from environments.checkout import PACKAGED_MODEL, ROOT
from memory.run import read_json
from training import roles
from training.policy_files import read_adapter

TOKENS = 14_000
FEW = single_turns()[:120]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    known = new_tokenizer(template("qwen3"), [turn.words for turn in FEW], 2048)
    made = random_model("llama", known, layers=3, head_dim=16)
    return save(tmp_path_factory.mktemp("roles") / "model", made, known)


@pytest.fixture(scope="module", autouse=True)
def _few_turns() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BFCL, "written_turns", lambda self, environment: FEW)
        patch.setattr(roles, "SAVED", 2)
        yield


@pytest.fixture(scope="module")
def adapters(model: Path) -> Path:
    for direction in ("writer", "reader"):
        roles.teach(direction, str(model), model.parent / "adapters" / direction, tokens=TOKENS, threads=1, report=str)
    return model.parent / "adapters"


def test_a_course_that_was_interrupted_ends_as_one_that_was_not(model: Path, adapters: Path) -> None:
    class Killed(BaseException):
        pass

    def dies(line: str) -> None:
        if "update 8 of" in line:
            raise Killed

    out = model.parent / "again" / "writer"
    with pytest.raises(Killed):
        roles.teach("writer", str(model), out, tokens=TOKENS, threads=1, report=dies)
    assert not (out / roles.RECORD).exists()
    resumed = roles.teach("writer", str(model), out, tokens=TOKENS, threads=1, report=str)
    whole = read_json(adapters / "writer" / roles.RECORD, roles.RoleRecord)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.updates == whole.updates > 8
    assert whole.last_loss < whole.first_loss
    assert [one.name for one in out.parent.iterdir()] == ["writer"], "no course is left"


def test_the_upper_layers_learn(adapters: Path) -> None:
    import torch
    from safetensors.torch import load_file

    names = load_file(adapters / "writer" / "adapter_model.safetensors")
    assert {name.partition("layers.")[2].partition(".")[0] for name in names} == {"1", "2"}
    assert {value.dtype for value in names.values()} == {torch.bfloat16}


def test_a_model_answers_the_roles(model: Path, adapters: Path) -> None:
    from training.local_model import AdaptedModel

    asked: LocalModel = AdaptedModel(str(adapters))
    prompts = ["Tools:\nf(a: string) Do it.\nCalls:\n", "Tools:\nf(a: string) Do it.\nCalls:\nf()\nWords:"]
    first = asked.write(prompts, [1, 2], "writer", temperature=1.0, most=12)
    assert asked.write(prompts[::-1], [2, 1], "writer", temperature=1.0, most=12)[::-1] == first
    assert asked.write(prompts, [3, 4], "writer", temperature=1.0, most=12) != first
    greedy = asked.write(prompts[:1], [5], "reader", temperature=0.0, most=12)
    assert greedy == asked.write(prompts[:1], [6], "reader", temperature=0.0, most=12)
    texts = [(prompts[0], "f(a=1)\n"), (prompts[1], " Please do that for me, and soon."), (prompts[0], greedy[0][0])]
    together = asked.likelihood(texts, "reader")
    alone = [asked.likelihood([one], "reader")[0] for one in texts]
    assert together == pytest.approx(alone, abs=1e-4)
    assert together != asked.likelihood(texts, "writer") != asked.likelihood(texts, "untaught")
    assert all(value < 0 for value in together)


@pytest.mark.parametrize(
    "missing",
    [
        "writer/adapter_config.json",
        "reader/adapter_config.json",
        "reader/adapter_model.safetensors",
        "writer/role.json",
    ],
)
def test_a_part_of_the_adapters_that_is_not_there_is_named(adapters: Path, tmp_path: Path, missing: str) -> None:
    from training.local_model import check_local

    shutil.copytree(adapters, tmp_path / "some")
    (tmp_path / "some" / missing).unlink()
    folder, _, file = missing.partition("/")
    with pytest.raises(InputError, match=f"{folder} holds no {file}: make adapters with"):
        check_local(str(tmp_path / "some"))


def test_weights_that_are_not_those_of_their_record_are_refused(adapters: Path, tmp_path: Path) -> None:
    from training.local_model import AdaptedModel

    shutil.copytree(adapters, tmp_path / "mixed")
    shutil.copy(adapters / "writer" / "adapter_model.safetensors", tmp_path / "mixed" / "reader")
    with pytest.raises(InputError, match=r"mixed/reader: adapter_model.safetensors is not the file that role.json rec"):
        AdaptedModel(str(tmp_path / "mixed"))


def test_the_adapters_that_ship_are_those_of_their_records() -> None:
    from training.local_model import ADAPTERS, adapters_folder, check_weights

    folder = adapters_folder(LocalSettings().adapters)
    assert folder == ROOT / "recipes" / "writer"
    for direction in ADAPTERS:
        record = check_weights(folder / direction)
        assert (record.direction, record.model, record.environment) == (direction, PACKAGED_MODEL, "bfcl")
        assert read_adapter(folder / direction).base_model_name_or_path == PACKAGED_MODEL
        assert set(record.rows) == {"single", "turns"}


def test_adapters_of_two_models_are_refused(model: Path, adapters: Path, tmp_path: Path) -> None:
    from training.local_model import check_local

    assert check_local(str(adapters)) == (adapters, str(model))
    shutil.copytree(adapters, tmp_path / "both")
    shutil.copytree(model, tmp_path / "other")
    config = tmp_path / "both" / "reader" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(model), str(tmp_path / "other")))
    with pytest.raises(InputError, match="has adapters of two models"):
        check_local(str(tmp_path / "both"))


def test_rows_hide_what_is_looked_up_and_show_what_is_known() -> None:
    turn = HumanTurn(
        source="turns",
        tools=FEW[0].tools,
        state={"order": 4711},
        calls=(FEW[0].calls[0].model_copy(update={"arguments": {"order": 4711}}),),
        answers=("sent",),
        done=((FEW[0].calls[0], '{"order": 4711}'),),
        words="Send the order that you found.",
    )
    reader = roles.rows_of([turn], "reader", 0)[0]
    writer = next(row for row in roles.rows_of([turn], "writer", 0) if "Known" in row.prompt)
    alone = next(row for row in roles.rows_of([turn], "writer", 0) if row.prompt.endswith("Words:"))
    assert alone.prompt.endswith('(order="<found>")\nWords:')
    assert alone.answer == " Send the order that you found."
    assert writer.answer.endswith('(order="<found>")\nWords: Send the order that you found.')
    assert reader.answer.endswith("(order=4711)\n"), "the reader sees the earlier answer"
    assert "Words: Send the order" in reader.prompt
    assert roles.rows_of([turn.model_copy(update={"held_out": True})], "writer", 0) == []
