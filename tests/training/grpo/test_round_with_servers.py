"""Rounds whose rollouts vLLM servers sample: weights reach them after each step, and a fault trains nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import run_here
from support.fake_vllm import FakeVllm
from support.late import Late
from support.small_policy import CLASSES, small_settings, small_tasks

from evaluation.attempts import evaluate
from evaluation.sets import Item
from evaluation.settings import ScoringSettings, sampling_on
from memory.records import Trajectory
from memory.run import RunDirectory, read_json, read_jsonl
from memory.tasks import admit
from training.grpo.record import RoundProgress, RoundRecord
from training.grpo.round import run_round
from training.rollout.sampling import EngineFailure
from training.settings import SamplingSettings

pytestmark = pytest.mark.slow

torch = Late("torch")

A, B = "http://a:1", "http://b:2"
STEPS, K = 2, 3


@pytest.fixture(scope="module")
def servers(starter: Path) -> Iterator[FakeVllm]:
    """Two servers that every sampler of this process reaches in place of the network."""
    from training.rollout import vllm_server

    fakes = FakeVllm(starter, A, B)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vllm_server, "VllmServers", partial(vllm_server.VllmServers, transport=fakes.transport))
        patched.setattr("training.grpo.round.CHECKPOINT_STEPS", 1)
        yield fakes


def new_run(root: Path, starter: Path, lora: bool = False, **sampling: object) -> RunDirectory:
    settings = small_settings(starter, steps=STEPS, rollouts_per_task=K, learning_rate=1e-2)
    policy = settings.policy.model_dump() | {"lora": {"rank": 2} if lora else None}
    settings = type(settings).model_validate(
        settings.model_dump()
        | {"sampling": SamplingSettings(engine="vllm_server", servers=(A, B), **sampling), "policy": policy}
    )
    run = RunDirectory.create(root, settings)
    admit(run, small_tasks())
    return run


def restart(servers: FakeVllm) -> None:
    for server in servers.servers.values():
        server.down = False
        server.start()
        server.loads.clear()
        server.generated.clear()


@pytest.fixture(scope="module")
def undisturbed(starter: Path, servers: FakeVllm, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    run = new_run(tmp_path_factory.mktemp("runs") / "undisturbed", starter)
    restart(servers)
    kept: dict[str, torch.Tensor] = {}

    def report(line: RoundProgress) -> None:
        if line.step == STEPS:  # the checkpoint of the step before is removed after this
            from safetensors.torch import load_file

            kept.update(load_file(run.policy_path / "checkpoint-1" / "model.safetensors"))

    record, _ = run_round(run.root, 0, False, report)
    asked = [body for server in servers.servers.values() for body in server.generated]
    return SimpleNamespace(run=run, record=record, asked=asked, loads=list(servers[A].loads), first_step=kept)


def test_both_servers_get_the_weights_of_each_step(undisturbed: SimpleNamespace) -> None:
    assert len(undisturbed.loads) == STEPS
    assert [load[-7:] for load in undisturbed.loads] == ["-step-0", "-step-1"]
    (last,) = undisturbed.run.served_path.iterdir()
    assert str(last) == undisturbed.loads[-1]


def test_rollouts_are_of_the_policy_before_the_step(undisturbed: SimpleNamespace, starter: Path) -> None:
    """The second step's tokens were sampled with the checkpoint after the first."""
    from safetensors.torch import load_file

    (last,) = undisturbed.run.served_path.iterdir()
    served = load_file(last / "model.safetensors")
    first = load_file(starter / "model.safetensors")
    assert served.keys() == undisturbed.first_step.keys()
    assert all(torch.equal(served[name], value) for name, value in undisturbed.first_step.items())
    assert any(not torch.equal(served[name], first[name]) for name in first)


def test_what_the_servers_did_is_recorded_beside_the_seconds(undisturbed: SimpleNamespace) -> None:
    record = undisturbed.record
    engine = record.measured.engine
    assert engine is not None
    assert engine.messages == len(undisturbed.asked)
    assert engine.tokens == record.sampled_tokens
    assert engine.resampled == 0
    assert 0 <= engine.gap < 1e-4
    assert min(engine.sampling, engine.load) > 0
    assert engine.sampling + engine.load <= record.measured.rollouts
    assert record.gap is not None, "it is measured where nothing is corrected, too"
    assert 0 < record.gap.mean < record.gap.largest < 1e-4


def without_measures(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_measures(one) for key, one in value.items() if key != "measured"}
    return [without_measures(one) for one in value] if isinstance(value, list | tuple) else value


def test_servers_that_die_end_the_round_and_nothing_is_trained_on_twice(
    undisturbed: SimpleNamespace, starter: Path, servers: FakeVllm, tmp_path: Path
) -> None:
    run = new_run(tmp_path / "disturbed", starter)
    restart(servers)
    real = servers[A].answer

    def dies(server) -> Callable:
        answered = server.generate

        async def generate(body):
            if len(server.loads) == STEPS:
                for one in servers.servers.values():
                    one.down = True
            return await answered(body)

        return generate

    with pytest.MonkeyPatch.context() as patched:
        for server in servers.servers.values():
            patched.setattr(server, "generate", dies(server))
        with pytest.raises(EngineFailure, match=r"the vLLM server http://[ab]:[12] failed: .*connection refused"):
            run_round(run.root, 0, False, lambda line: None)
    assert servers[A].answer == real
    assert {one.step for one in read_jsonl(run.iteration(0).trajectories, Trajectory)} == {1}
    restart(servers)
    resumed, before = run_round(run.root, 0, True, lambda line: None)
    assert not before
    assert without_measures(resumed.model_dump()) == without_measures(undisturbed.record.model_dump())
    played = [read_jsonl(one.iteration(0).trajectories, Trajectory) for one in (run, undisturbed.run)]
    assert [without_measures(one.model_dump()) for one in played[0]] == [
        without_measures(one.model_dump()) for one in played[1]
    ]
    assert resumed.measured.engine is not None
    assert resumed.measured.engine.messages > 0


def test_an_adapter_goes_by_name_and_the_correction_measures_the_gap(
    starter: Path, servers: FakeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with bfloat16, in which fakes and trainer would differ by more than the bound.
    monkeypatch.setattr(SamplingSettings, "corrected", lambda self, bfloat16: "sequence_mask")
    run = new_run(tmp_path / "lora", starter, lora=True)
    restart(servers)
    record, _ = run_round(run.root, 0, False, lambda line: None)
    assert not servers[A].loads
    names = {body["model"] for server in servers.servers.values() for body in server.generated}
    assert sorted(name[-7:] for name in names) == ["-step-0", "-step-1"]
    for step in record.steps:
        assert step.measured is not None
        assert 0 <= step.measured.mean <= step.measured.largest < 1e-4
    assert read_json(run.iteration(0).round, RoundRecord) == record
    restart(servers)
    here, there = scores(str(run.root / record.policy))
    assert here == there
    assert not servers[A].loads, "the adapter of a checkpoint goes by name, too"
    asked = {body["model"] for server in servers.servers.values() for body in server.generated}
    assert len(asked) == 1
    assert "policy" not in asked


def scores(policy: str) -> list[object]:
    """Outcomes of a policy, in this process and on the servers."""
    from environments.benchmark import Limits
    from environments.bfcl.benchmark import BFCLEnvironment

    items = [Item(task=task, group="small", cluster=task.id, reference_calls=1) for task in small_tasks()]
    shared = {"model": policy, "device": "cpu", "max_new_tokens": 16, "max_tokens": 120, "max_actions": 3}
    return [
        evaluate(items, BFCLEnvironment(CLASSES), ScoringSettings(**shared, **given), Limits())[0]
        for given in ({}, {"sampling": sampling_on((A, B))})
    ]


def test_an_evaluation_samples_from_the_same_servers(
    undisturbed: SimpleNamespace, starter: Path, servers: FakeVllm
) -> None:
    restart(servers)
    policy = str(undisturbed.run.policy_path / f"checkpoint-{STEPS}")
    here, there = scores(policy)
    assert here == there
    assert servers[A].loads == [policy]
    assert servers[A].generated
    assert not (Path(policy) / "served").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--servers", "a:1"], "--servers: servers.0"),
        (["--servers", A, "--servers", A], "twice"),
        (["--model", "openai:x", "--servers", A], "--servers decides how a local model runs"),
        (["--model", "lookup", "--train", "t.jsonl", "--servers", A], "--servers samples from a model"),
    ],
)
def test_options_of_an_evaluation_that_do_not_fit_are_refused(options: list[str], told: str) -> None:
    result = run_here("evaluation.run", "--evaluation-set", "templated-dev", *options)
    assert result.returncode == 2
    assert told in result.stderr
