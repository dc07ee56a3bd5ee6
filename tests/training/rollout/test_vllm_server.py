"""The sampler on vLLM servers: equal to the trainer's own model, and what each fault of a server ends in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chatter import STOP, Chatter
from support.fake_vllm import FakeVllm
from support.late import Late
from support.served_model import change, farthest, save_small, trained_and_sampled

from environments.base import InputError
from training.rollout.sampling import EngineFailure
from training.rollout.vllm_client import MessageRequest, ServerFault, read_message

pytestmark = pytest.mark.slow

torch = Late("torch")

A, B = "http://a:1", "http://b:2"


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "starter")


@pytest.fixture
def made(starter: Path, tmp_path: Path) -> Iterator[Callable[..., SimpleNamespace]]:
    """Make servers, the trainer's model and a sampler between them."""
    samplers = []

    def make(*urls: str, adapter: bool = False, fakes: FakeVllm | None = None, **given: object) -> SimpleNamespace:
        fakes = fakes or FakeVllm(starter, *(urls or (A, B)))
        rank = 2 if adapter else None
        engine = trained_and_sampled(
            starter, tuple(fakes.servers), tmp_path / "weights", fakes.transport, rank=rank, **given
        )
        samplers.append(engine.sampler)
        engine.fakes = fakes
        return engine

    yield make
    for sampler in samplers:
        sampler.close()


def chatters(count: int = 6, **given: object) -> list[Chatter]:
    return [Chatter(seed, actions=3, longest=8, **given) for seed in range(count)]


def play(made: SimpleNamespace, temperature: float = 0.9, count: int = 6, rows: int = 128) -> list[Chatter]:
    played = chatters(count)
    made.sampler.run(played, temperature=temperature, concurrency=rows)
    return played


def test_what_is_sampled_depends_on_seeds_not_on_servers_or_concurrency(made) -> None:
    alone, together = made(A), made(A, B)
    for engine in (alone, together):
        engine.sampler.load_weights(0)
    one, other = play(alone, rows=1), play(together)
    assert [chatter.ids for chatter in one] == [chatter.ids for chatter in other]
    assert len({tuple(chatter.ids) for chatter in one}) == len(one)
    seeds = [body["sampling_params"]["seed"] for body in alone.fakes[A].generated]
    assert len(set(seeds)) == len(seeds) == 18, "a message's seed is of its episode and its number"


def test_every_parameter_that_a_generation_config_could_set_is_stated(made) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    play(engine, count=1)
    body = engine.fakes[A].generated[0]
    given = body["sampling_params"]
    assert (given["temperature"], given["top_p"], given["top_k"], given["min_p"]) == (0.9, 1.0, 0, 0.0)
    assert (given["repetition_penalty"], given["logprobs"], given["stop_token_ids"]) == (1.0, 0, [STOP])
    assert given["ignore_eos"] is True
    assert body["model"] == "policy"


def test_no_more_messages_are_in_flight_than_a_server_may_have(made) -> None:
    engine = made(A, concurrency=2)
    engine.sampler.load_weights(0)
    now, most, real = 0, 0, engine.fakes[A].generate

    async def watched(body):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return await real(body)

    engine.fakes[A].generate = watched
    play(engine, count=8)
    assert most == 2


def test_weights_are_written_read_and_named_in_order_and_old_ones_removed(made, tmp_path: Path) -> None:
    engine = made(A)
    for version in (0, 1, 2):
        engine.fakes[A].requests.clear()
        engine.sampler.load_weights(version)
    paths = [path for path, _ in engine.fakes[A].requests if path != "/inference/v1/generate"]
    assert paths == [
        "/pause?mode=wait",
        "/collective_rpc",
        "/is_paused",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
        "/v1/models",
    ]
    assert len(set(engine.fakes[A].loads)) == 3
    (kept,) = (tmp_path / "weights").iterdir()
    assert str(kept) == engine.fakes[A].loads[-1]
    assert engine.fakes[A].version == kept.name


def test_leftovers_of_a_killed_trainer_are_removed(made, tmp_path: Path) -> None:
    engine = made(A)
    (tmp_path / "weights" / ".unfinished").mkdir(parents=True)
    engine.sampler.load_weights(0)
    assert len(list((tmp_path / "weights").iterdir())) == 1


def test_nothing_is_sampled_before_weights_are_loaded(made) -> None:
    with pytest.raises(EngineFailure, match="load_weights first"):
        play(made())


def test_a_negative_temperature_is_refused(made) -> None:
    with pytest.raises(InputError, match="greedy"):
        made().sampler.run([], temperature=-1.0, concurrency=1)


def test_a_drivers_own_error_ends_the_run_and_what_is_in_flight(made) -> None:
    class Broken(Chatter):
        def act(self, message):
            raise ZeroDivisionError("of the driver")

    engine = made()
    engine.sampler.load_weights(0)
    with pytest.raises(ZeroDivisionError):
        engine.sampler.run([*chatters(3), Broken(9)], temperature=0.9, concurrency=4)
    assert [len(one.acted) for one in play(engine)] == [3] * 6


def test_adapters_are_asked_by_name_and_former_ones_dropped(made) -> None:
    engine = made(A, adapter=True)
    for version in (0, 1):
        engine.sampler.load_weights(version)
        played = play(engine)
        assert farthest(engine.model, played, 0.9) < 1e-5
        assert len(engine.fakes[A].adapters) == 1
        assert {body["model"] for body in engine.fakes[A].generated} == set(engine.fakes[A].adapters)
        engine.fakes[A].generated.clear()
        change(engine.model)
    assert engine.fakes[A].version == "default"
    engine.sampler.close()
    assert not engine.fakes[A].adapters


def test_episodes_go_to_the_servers_in_turn(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    played = [Chatter(seed, actions=1, opening=(10 + seed,) * 5) for seed in range(6)]
    engine.sampler.run(played, temperature=0.9, concurrency=6)
    openings = [{body["token_ids"][0] for body in engine.fakes[url].generated} for url in (A, B)]
    assert openings == [{10, 12, 14}, {11, 13, 15}]


@pytest.mark.parametrize("fault", ["abort", "drop"])
def test_a_message_with_a_fault_is_sampled_again_and_equal(made, fault: str) -> None:
    undisturbed, disturbed = made(A), made(A)
    for engine in (undisturbed, disturbed):
        engine.sampler.load_weights(0)
    disturbed.fakes[A].fail_next = ["", fault]
    assert [one.ids for one in play(disturbed)] == [one.ids for one in play(undisturbed)]
    assert disturbed.sampler.figures().resampled == 1
    assert disturbed.sampler.figures().messages == 18


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("abort", "the message ended with 'abort' after 1 tokens"),
        ("huge", "answered with more than"),
        ("status", "EngineCore encountered an issue"),
        ("cut", "--max-model-len is too small"),
        ("mixed", "weights 'older' sampled a message"),
    ],
)
def test_a_server_that_only_fails_ends_the_round_with_its_cause(
    made, fault: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.rollout.vllm_server.PAUSE", 0.0)
    engine = made()
    engine.sampler.load_weights(0)
    engine.fakes[B].fail_next = [fault] * 100
    with pytest.raises(EngineFailure, match=f"the vLLM server {B} failed: .*{told}.*--resume"):
        play(engine, count=2)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"down": True}, "connection refused"),
        ({"hang": True}, "was not answered within 0.3 seconds: it hangs, or is paused"),
        ({"version": "default"}, "weights 'default' sampled a message and '.*-1-step-0' was wanted: it was started"),
        ({"redirect": True}, "redirected to http://elsewhere:1/: name the server's own address"),
        ({"positions": 4}, "status 400.*the prompt is too long"),
    ],
)
def test_a_server_that_is_lost_ends_the_round_and_may_come_back(made, fault: dict[str, object], told: str) -> None:
    engine = made(request_timeout=0.3)
    engine.sampler.load_weights(0)
    before = {name: getattr(engine.fakes[A], name) for name in fault}
    vars(engine.fakes[A]).update(fault)
    with pytest.raises(EngineFailure, match=f"the vLLM server {A} failed: .*{told}"):
        play(engine)
    vars(engine.fakes[A]).update(before)
    engine.sampler.load_weights(1)
    assert [len(one.acted) for one in play(engine)] == [3] * 6


def test_a_server_started_again_while_it_is_loaded_does_not_get_the_name(made) -> None:
    """Weights that have hardly moved: the trainer's probabilities would let the old ones pass."""
    engine = made()
    change(engine.model, 1e-7)
    engine.fakes[A].restart_in_load = True
    with pytest.raises(EngineFailure, match="it was started again, or resumed by somebody else, while it was loaded"):
        engine.sampler.load_weights(0)
    assert engine.fakes[A].version == "default"


def test_a_load_that_fails_leaves_the_server_paused_until_the_next_one(made) -> None:
    engine = made(A)
    engine.fakes[A].fail_load = 1
    with pytest.raises(EngineFailure, match=f"{A} failed: .*EngineCore"):
        engine.sampler.load_weights(0)
    assert engine.fakes[A].paused
    engine.sampler.load_weights(1)
    play(engine)


@pytest.mark.parametrize("fault", ["stale_head", "ignore_loads", "raw_logprobs"])
def test_one_token_shows_what_no_version_does(made, fault: str) -> None:
    """An output layer that was not renewed; a load that did nothing; log-probabilities before the temperature."""
    engine = made()
    engine.model.train()
    engine.sampler.load_weights(0)
    assert engine.model.training, "the mode in which a comparison leaves the model decides what an update does"
    setattr(engine.fakes[B], fault, True)
    change(engine.model)
    with pytest.raises(EngineFailure, match=f"{B} was loaded with .* and answers as other weights would.*allowed are"):
        engine.sampler.load_weights(1)


def test_an_adapter_on_other_weights_than_the_policys_is_refused(made, tmp_path: Path) -> None:
    """A server that an evaluation or another run left with other ones."""
    engine = made(A, adapter=True)
    engine.fakes[A].load(str(save_small(tmp_path / "other", seed=3)))
    with pytest.raises(EngineFailure, match="start it again where another run has loaded it"):
        engine.sampler.load_weights(0)


def test_of_several_processes_one_loads_and_all_sample(made) -> None:
    from training.grpo.round import _of_processes

    shared: list[object] = []

    def by_first(act):
        shared.append(act())
        return shared[-1]

    first = made(ranks={"by_first": by_first})
    other = made(fakes=first.fakes, ranks={"by_first": lambda act: shared[-1]})
    for version in (0, 1):
        first.sampler.load_weights(version)
        other.sampler.load_weights(version)
        assert [one.ids for one in play(other)] == [one.ids for one in play(first)]
    assert [len(server.loads) for server in first.fakes.servers.values()] == [2, 2]
    each = [engine.sampler.figures() for engine in (first, other)]
    whole = _of_processes(each)
    assert whole is not None
    assert whole.messages == sum(one.messages for one in each) == 72
    assert whole.tokens == sum(one.tokens for one in each)
    assert whole.sampling == max(one.sampling for one in each), "they sample at the same time"
    assert _of_processes([None, None]) is None


REQUEST = MessageRequest([1, 2, 3], 4, 0.9, 0, (7,), "k")


def read(ids: list[int], reason: str = "length", logprobs: object = None, spans: object = None, sent: int = 3):
    content = [{"logprob": one} for one in ([-1.0] * len(ids) if logprobs is None else logprobs)]
    spans = [{"version": "v", "start": 0, "end": len(ids)}] if spans is None else spans
    choice = {
        "token_ids": ids,
        "finish_reason": reason,
        "logprobs": {"content": content},
        "weight_versions": spans,
    }
    reply = {"choices": [choice], "usage": {"prompt_tokens": sent}}
    return read_message(json.dumps(reply).encode(), REQUEST, 40, "v")


def test_a_stop_id_in_the_last_place_is_a_stop_whatever_the_server_calls_it() -> None:
    assert read([5, 5, 5, 7]).ids == [5, 5, 5, 7]
    assert read([5, 5, 5, 5], "stop").ids == [5, 5, 5, 5]
    assert read([5, 7], "stop").context == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ids": []}, "has 0 tokens"),
        ({"ids": [5] * 5}, "4 at most"),
        ({"ids": [5, 7, 5, 5]}, "goes on after its stop id"),
        ({"ids": [5]}, "no stop id"),
        ({"ids": [-1, 7]}, "token -1 is not among"),
        ({"ids": [5, 7], "logprobs": [-1.0]}, "1 log-probabilities"),
        ({"ids": [5, 7], "logprobs": [-1.0, 0.5]}, "token 1 is 0.5"),
        ({"ids": [5, 7], "logprobs": [-1.0, float("-inf")]}, "token 1 is -inf"),
        ({"ids": [5, 7], "sent": 2}, "3 tokens were sent and 2 read"),
        ({"ids": [5, 7], "spans": []}, "which weights sampled 0 of its 2 tokens"),
        ({"ids": [5, 7], "spans": [{"version": "default", "start": 0, "end": 2}]}, "weights 'default' sampled"),
        ({"ids": [5, 7], "spans": [{"version": "v", "start": 0, "end": 1}]}, "sampled 1 of its 2"),
        ({"ids": [5, 7], "spans": [{"version": "v", "start": 1, "end": 2}]}, "sampled 0 of its 2"),
    ],
)
def test_an_answer_that_cannot_be_is_none(given: dict[str, object], told: str) -> None:
    with pytest.raises(ServerFault, match=told):
        read(**given)
