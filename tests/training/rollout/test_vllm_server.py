"""The sampler on vLLM servers: equal to the trainer's own model, and what each fault of a server ends in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.chatter import STOP, Chatter
from support.fake_vllm import FakeVllm
from support.late import Late
from support.served_model import change, save_small

from environments.base import InputError
from training.rollout.sampling import EngineFailure, FinishReason
from training.rollout.settings import SamplingSettings
from training.rollout.vllm_requests import BadAnswer, EngineAnswer, MessageRequest, VersionSpan, WrongWeights, check

pytestmark = pytest.mark.slow

torch = Late("torch")

A, B = "http://a:1", "http://b:2"


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "starter")


@pytest.fixture
def made(starter: Path, tmp_path: Path) -> Iterator[Callable[..., SimpleNamespace]]:
    """Make servers, the trainer's model and a sampler between them."""
    from transformers import AutoModelForCausalLM

    from training.rollout.vllm_server import VllmServers
    from training.rollout.vllm_weights import PolicyWeights

    samplers = []

    def make(
        *urls: str,
        tolerance: float = 1e-3,
        adapter: bool = False,
        fakes: FakeVllm | None = None,
        ranks: dict[str, object] | None = None,
        **given: object,
    ) -> SimpleNamespace:
        model = AutoModelForCausalLM.from_pretrained(starter)
        if adapter:
            from peft import get_peft_model

            from training.rollout.lora import lora_config
            from training.settings import LoraSettings

            torch.manual_seed(1)
            get_peft_model(model, lora_config(LoraSettings(rank=2), model))
        fakes = fakes or FakeVllm(starter, *(urls or (A, B)))
        weights = PolicyWeights(
            SimpleNamespace(model=model, path=str(starter)), tmp_path / "weights", adapter=adapter, autocast=False
        )
        settings = SamplingSettings(engine="vllm_server", servers=tuple(fakes.servers), **given)
        sampler = VllmServers(settings, weights, tolerance, transport=fakes.transport, **(ranks or {}))
        samplers.append(sampler)
        return SimpleNamespace(model=model, fakes=fakes, sampler=sampler, weights=weights)

    yield make
    for sampler in samplers:
        sampler.close()


def chatters(count: int = 6, **given: object) -> list[Chatter]:
    return [Chatter(seed, actions=3, longest=8, **given) for seed in range(count)]


def play(made: SimpleNamespace, temperature: float = 0.9, count: int = 6, rows: int = 128) -> list[Chatter]:
    played = chatters(count)
    made.sampler.run(played, temperature=temperature, concurrency=rows)
    return played


def differences(model, chatter: Chatter, temperature: float) -> float:
    """The largest difference of the sampled log-probabilities to a plain forward pass over all ids."""
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.tensor([chatter.ids])).logits[0, :-1] / (temperature or 1.0)
    expected = torch.log_softmax(logits, -1)[torch.arange(len(chatter.ids) - 1), torch.tensor(chatter.ids[1:])].tolist()
    sampled = zip(chatter.logprobs[1:], expected, chatter.sampled[1:], strict=True)
    return max(abs(a - b) for a, b, own in sampled if own)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_logprobs_are_the_trainers_before_and_after_an_update(made, temperature: float) -> None:
    engine = made()
    for version in (0, 1):
        engine.sampler.load_weights(version)
        played = play(engine, temperature)
        assert max(differences(engine.model, one, temperature) for one in played) < 1e-5
        assert {len(one.acted) for one in played} == {3}
        change(engine.model)
    reasons = {message.finish_reason for one in played for message in one.acted}
    assert reasons <= {FinishReason.STOP, FinishReason.LENGTH}


def test_greedy_messages_equal_those_of_the_sampler_in_process(made) -> None:
    from training.rollout.in_process import InProcessSampler

    engine = made()
    engine.sampler.load_weights(0)
    served, own = play(engine, 0.0), chatters()
    InProcessSampler(engine.model).run(own, temperature=0.0, concurrency=8)
    assert [one.ids for one in served] == [one.ids for one in own]


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


def test_episodes_with_one_prompt_go_to_one_server(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    played = [Chatter(seed, actions=2, opening=(10 + seed % 4,) * 5) for seed in range(12)]
    engine.sampler.run(played, temperature=0.9, concurrency=12)
    groups = [{body["token_ids"][0] for body in engine.fakes[url].generated} for url in (A, B)]
    assert not groups[0] & groups[1]
    assert len(groups[0]) == len(groups[1]) == 2


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
        "/weight_info",
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


@pytest.mark.parametrize(
    ("fault", "counted"),
    [("abort", 1), ("drop", 1), ("status", 1), ("nan", 1), ("huge", 1), ("tokens", 1), ("cut", 1), ("mixed", 1)],
)
def test_a_message_with_a_fault_is_sampled_again_and_equal(made, fault: str, counted: int) -> None:
    undisturbed, disturbed = made(A), made(A)
    for engine in (undisturbed, disturbed):
        engine.sampler.load_weights(0)
    disturbed.fakes[A].fail_next = ["", fault]
    assert [one.ids for one in play(disturbed)] == [one.ids for one in play(undisturbed)]
    assert disturbed.sampler.figures().resampled == counted
    assert disturbed.sampler.figures().messages == 18
    assert disturbed.sampler.figures().reloads == (1 if fault == "mixed" else 0)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nan", "log-probability of token 0 is nan"),
        ("tokens", "the token 1000000 is not among the policy's 40"),
        ("huge", "answered with more than"),
        ("status", "EngineCore encountered an issue"),
        ("cut", "--max-model-len is too small"),
    ],
)
def test_a_server_that_only_fails_ends_the_round_with_its_cause(made, fault: str, told: str) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    engine.fakes[A].fail_next = [fault] * 100
    with pytest.raises(EngineFailure, match=f"no vLLM server is left to sample from.*{A}.*{told}"):
        play(engine, count=2)


def test_messages_that_are_only_aborted_end_the_round(made) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    engine.fakes[A].fail_next = ["abort"] * 100
    engine.sampler._pool.attempts = 3
    with pytest.raises(EngineFailure, match=r"could not be sampled in 3 attempts, the last one at .*'abort'"):
        play(engine, count=1)


def test_a_killed_servers_messages_go_to_another_and_it_may_come_back(made, capsys) -> None:
    undisturbed, engine = made(), made()
    for one in (undisturbed, engine):
        one.sampler.load_weights(0)
    real = engine.fakes[A].generate

    async def dies(body):
        engine.fakes[A].down = True
        return await real(body)

    engine.fakes[A].generate = dies
    played = play(engine)
    assert [one.ids for one in played] == [one.ids for one in play(undisturbed)]
    assert f"{A} is not asked again in this step" in capsys.readouterr().err
    engine.sampler.load_weights(1)
    assert "it is still not healthy" in capsys.readouterr().err
    engine.fakes[A].start()
    engine.fakes[A].down, engine.fakes[A].generate = False, real
    engine.sampler.load_weights(2)
    engine.fakes[A].generated.clear()
    play(engine)
    assert engine.fakes[A].generated, "a server that was started again is loaded and asked"


def test_all_servers_killed_end_the_round_naming_each(made) -> None:
    engine = made()
    engine.sampler.load_weights(0)
    for url in (A, B):
        engine.fakes[url].down = True
    with pytest.raises(EngineFailure, match=f"{A}.*connection refused.*{B}.*connection refused.*--resume"):
        play(engine)


def test_a_hung_server_is_left_after_one_timeout(made, capsys) -> None:
    engine = made(request_timeout=0.5)
    engine.sampler.load_weights(0)
    engine.fakes[A].hang = True
    began = time.monotonic()
    assert [len(one.acted) for one in play(engine)] == [3] * 6
    assert time.monotonic() - began < 30
    assert "was not answered within 0.5 seconds, it is not paused" in capsys.readouterr().err


def test_a_server_that_somebody_paused_is_named(made) -> None:
    engine = made(A, request_timeout=0.3)
    engine.sampler.load_weights(0)
    engine.fakes[A].paused = True
    with pytest.raises(EngineFailure, match="it is paused, and not by this run"):
        play(engine)


def test_a_restarted_server_is_loaded_again_before_it_counts(made, capsys) -> None:
    engine = made(A)
    change(engine.model)
    engine.sampler.load_weights(0)
    engine.fakes[A].start()
    played = play(engine)
    assert max(differences(engine.model, one, 0.9) for one in played) < 1e-5
    assert engine.sampler.figures().reloads == 1
    assert "is loaded again: weights 'default' sampled it" in capsys.readouterr().err


def test_a_server_started_again_while_it_is_loaded_does_not_get_the_name(made, capsys) -> None:
    """Weights that have hardly moved: the canary would let the old ones pass."""
    engine = made()
    change(engine.model, 1e-7)
    engine.fakes[A].restart_in_load = True
    engine.sampler.load_weights(0)
    assert engine.fakes[A].version == "default"
    assert "it was started again, or resumed by somebody else, while it was loaded" in capsys.readouterr().err
    assert [len(one.acted) for one in play(engine)] == [3] * 6
    assert not engine.fakes[A].generated
    engine.fakes[A].restart_in_load = False
    engine.sampler.load_weights(1)
    play(engine)
    assert engine.fakes[A].generated


def test_a_server_that_another_run_loads_is_left(made) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    engine.fakes[A].fail_next = ["mixed"] * 100
    with pytest.raises(EngineFailure, match="its weights changed again, as if another run loaded them"):
        play(engine)


def test_a_load_that_fails_leaves_the_server_paused_and_out(made) -> None:
    engine = made()
    engine.fakes[A].fail_load = 1
    engine.sampler.load_weights(0)
    assert engine.fakes[A].paused
    play(engine)
    assert not engine.fakes[A].generated
    engine.sampler.load_weights(1)
    play(engine)
    assert engine.fakes[A].generated


@pytest.mark.parametrize("fault", ["stale_head", "ignore_loads", "raw_logprobs"])
def test_the_canary_catches_what_no_version_shows(made, fault: str) -> None:
    """An output layer that was not renewed; a load that did nothing; log-probabilities before the temperature."""
    engine = made()
    engine.sampler.load_weights(0)
    setattr(engine.fakes[B], fault, True)
    change(engine.model)
    with pytest.raises(EngineFailure, match=f"{B} was loaded with .* and answers as other weights would.*allowed are"):
        engine.sampler.load_weights(1)


def test_canaries_of_several_servers_leave_the_model_in_training(made) -> None:
    """Servers answer at the same time. The mode in which their scores leave the model decides what an update does."""
    engine, modes = made(), []
    engine.model.train()

    def slowly(*_: object) -> None:
        modes.append(engine.model.training)
        time.sleep(0.2)
        modes.append(engine.model.training)

    hook = engine.model.model.layers[0].register_forward_hook(slowly)
    for version in range(3):
        engine.sampler.load_weights(version)
        assert engine.model.training
        change(engine.model)
    hook.remove()
    assert modes
    assert not any(modes), "another answer's end switched dropout on in the middle"


def test_the_canary_is_short_once_a_server_was_compared(made) -> None:
    """Each token of it is a pass of the engine that nothing shares; after a restart all is compared again."""

    def asked() -> list[tuple[float, int]]:
        bodies = [body for path, body in engine.fakes[A].requests if path == "/inference/v1/generate"]
        engine.fakes[A].requests.clear()
        given = [body["sampling_params"] for body in bodies if body["request_id"].startswith("canary")]
        return [(one["temperature"], one["max_tokens"]) for one in given]

    engine = made(A)
    engine.sampler.load_weights(0)
    assert asked() == [(0.0, 8), (0.7, 8)]
    for version in (1, 2):
        engine.sampler.load_weights(version)
        assert asked() == [(0.7, 1)]
    engine.fakes[A].start()
    play(engine)
    assert asked() == [(0.0, 8), (0.7, 8)]


def test_a_tolerance_is_kept(made) -> None:
    engine = made(A, tolerance=100.0)
    engine.fakes[A].stale_head = True
    change(engine.model)
    engine.sampler.load_weights(0)
    assert engine.sampler.figures().gap > 1e-2


def test_a_redirect_is_not_followed(made) -> None:
    engine = made(A)
    engine.fakes[A].redirect = True
    with pytest.raises(EngineFailure, match=r"redirected to http://elsewhere:1/: name the server's own address"):
        engine.sampler.load_weights(0)


def test_a_prompt_that_a_server_refuses_ends_the_round_with_its_words(made) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    engine.fakes[A].positions = 4
    with pytest.raises(EngineFailure, match=r"status 400.*the prompt is too long"):
        play(engine)


def test_adapters_are_asked_by_name_and_former_ones_dropped(made) -> None:
    engine = made(A, adapter=True)
    for version in (0, 1):
        engine.sampler.load_weights(version)
        played = play(engine)
        assert max(differences(engine.model, one, 0.9) for one in played) < 1e-5
        assert len(engine.fakes[A].adapters) == 1
        assert {body["model"] for body in engine.fakes[A].generated} == set(engine.fakes[A].adapters)
        engine.fakes[A].generated.clear()
        change(engine.model)
    assert engine.fakes[A].version == "default"
    engine.sampler.close()
    assert not engine.fakes[A].adapters


def test_an_adapter_is_put_on_the_policys_own_weights(made, tmp_path: Path) -> None:
    """A server that an evaluation or another run left with other ones."""
    engine = made(A, adapter=True)
    engine.fakes[A].load(str(save_small(tmp_path / "other", seed=3)))
    engine.fakes[A].version = "of-another-run"
    engine.sampler.load_weights(0)
    assert max(differences(engine.model, one, 0.9) for one in play(engine)) < 1e-5
    loads = len(engine.fakes[A].loads)
    engine.sampler.load_weights(1)
    assert len(engine.fakes[A].loads) == loads == 2, "once is enough"


def test_a_restarted_server_gets_its_adapter_again(made) -> None:
    engine = made(A, adapter=True)
    change(engine.model)
    engine.sampler.load_weights(0)
    engine.fakes[A].start()
    played = play(engine)
    assert max(differences(engine.model, one, 0.9) for one in played) < 1e-5
    assert engine.sampler.figures().reloads == 1


def test_of_several_processes_one_loads_and_all_sample(made, capsys) -> None:
    shared: list[object] = []

    def by_first(act):
        shared.append(act())
        return shared[-1]

    first = made(ranks={"by_first": by_first})
    other = made(fakes=first.fakes, ranks={"first": False, "by_first": lambda act: shared[-1]})
    for version in (0, 1):
        first.sampler.load_weights(version)
        other.sampler.load_weights(version)
        assert [one.ids for one in play(other)] == [one.ids for one in play(first)]
    assert [len(server.loads) for server in first.fakes.servers.values()] == [2, 2]
    first.fakes[A].start()
    assert [len(one.acted) for one in play(other)] == [3] * 6
    assert len(first.fakes[A].loads) == 2
    assert "another process of the trainer has to load it" in capsys.readouterr().err


def test_figures_say_what_was_sampled_and_who_waited(made) -> None:
    engine = made(A)
    engine.sampler.load_weights(0)
    played = play(engine)
    time.sleep(0.05)
    engine.sampler.load_weights(1)
    figures = engine.sampler.figures()
    assert figures.messages == sum(len(one.acted) for one in played)
    assert figures.tokens == sum(one.sampled.count(True) for one in played)
    assert figures.idle >= 0.05
    assert 0 < figures.canary < figures.load
    assert figures.gap < 1e-5


def test_figures_of_several_processes_count_what_each_of_them_sampled(made) -> None:
    from training.grpo.round import _of_processes

    shared: list[object] = []

    def by_first(act):
        shared.append(act())
        return shared[-1]

    first = made(ranks={"by_first": by_first})
    other = made(fakes=first.fakes, ranks={"first": False, "by_first": lambda act: shared[-1]})
    for engine in (first, other):
        engine.sampler.load_weights(0)
        play(engine)
    each = [engine.sampler.figures() for engine in (first, other)]
    whole = _of_processes(each)
    assert whole is not None
    assert whole.messages == sum(one.messages for one in each) == 36
    assert whole.tokens == sum(one.tokens for one in each)
    assert whole.sampling == max(one.sampling for one in each), "they sample at the same time"
    assert _of_processes([None, None]) is None


REQUEST = MessageRequest([1, 2, 3], 4, 0.9, 0, (7,), "g", "k")


def answer(ids: list[int], **given: object) -> EngineAnswer:
    spans = [VersionSpan(version="v", start=0, end=len(ids))]
    return EngineAnswer(
        **{"token_ids": ids, "logprobs": [-1.0] * len(ids), "finish_reason": "length", "versions": spans} | given
    )


def test_a_stop_id_in_the_last_place_is_a_stop_whatever_the_server_calls_it() -> None:
    assert check(answer([5, 5, 5, 7]), REQUEST, 40, "v").finish_reason is FinishReason.STOP
    assert check(answer([5, 5, 5, 5]), REQUEST, 40, "v").finish_reason is FinishReason.LENGTH
    assert check(answer([5, 7], finish_reason="stop"), REQUEST, 40, "v").context == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (answer([]), "has 0 tokens"),
        (answer([5] * 5), "4 at most"),
        (answer([5, 7, 5, 5]), "goes on after its stop id"),
        (answer([5]), "no stop id"),
        (answer([-1, 7]), "token -1 is not among"),
        (answer([5, 7], logprobs=[-1.0]), "1 log-probabilities"),
        (answer([5, 7], logprobs=[-1.0, 0.5]), "token 1 is 0.5"),
        (answer([5, 7], logprobs=[-1.0, float("-inf")]), "token 1 is -inf"),
        (answer([5, 7], prompt_tokens=2), "3 tokens were sent and 2 read"),
    ],
)
def test_an_answer_that_cannot_be_is_none(given: EngineAnswer, told: str) -> None:
    with pytest.raises(BadAnswer, match=told):
        check(given, REQUEST, 40, "v")


@pytest.mark.parametrize(
    "spans",
    [
        None,
        [],
        [VersionSpan(version="default", start=0, end=2)],
        [VersionSpan(version="v", start=0, end=1)],
        [VersionSpan(version="v", start=1, end=2)],
        [VersionSpan(version="v", start=0, end=1), VersionSpan(version="w", start=1, end=2)],
    ],
)
def test_every_token_has_to_name_the_wanted_weights(spans: list[VersionSpan] | None) -> None:
    with pytest.raises(WrongWeights):
        check(answer([5, 7], versions=spans), REQUEST, 40, "v")
