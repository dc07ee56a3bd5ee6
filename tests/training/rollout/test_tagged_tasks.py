"""The note in the system message of tasks that no person wrote, in training alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bfcl_tasks import ENVIRONMENT, FILES, call
from support.chat_models import save_model
from support.made_policy import task

from environments.base import InputError
from environments.benchmark import Limits
from evaluation.attempts import episode_limits
from evaluation.settings import ScoringSettings
from training.preflight import check_policy
from training.rollout.episodes import TAG, EpisodeLimits, limits_of, play_references
from training.rollout.policy import Policy, load_policy
from training.settings import PolicySettings, TrainingSettings
from training.start_rows import StartSettings
from training.warm_start import warm_start

MADE = task((call("mkdir", dir_name="box"),), (call("pwd"),), group=FILES)
TAGGED = EpisodeLimits(max_new_tokens=200, max_tokens=30000, tag_synthesised=True)


@pytest.fixture(scope="module", params=["qwen2_5", "llama3_1"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(str(save_model(tmp_path_factory.mktemp("model"), request.param)), "cpu")


@pytest.mark.parametrize("played", [0, 1])
@pytest.mark.parametrize(
    ("origin", "tagged"), [("seed", True), ("evolved", True), ("given", False), ("official", False), ("panel", False)]
)
def test_what_nobody_wrote_is_tagged(policy: Policy, origin: str, tagged: bool, played: int) -> None:
    made = MADE.model_copy(update={"origin": origin, "played": played})
    (with_tag,) = play_references(policy, ENVIRONMENT, [made], TAGGED)
    (without,) = play_references(policy, ENVIRONMENT, [made], TAGGED.model_copy(update={"tag_synthesised": False}))
    assert with_tag.outcome is not None
    assert with_tag.outcome.success
    text = policy.tokenizer.decode(with_tag.prompt_ids)
    assert text.count(TAG) == tagged
    assert text.replace(TAG, "").split() == policy.tokenizer.decode(without.prompt_ids).split()
    assert with_tag.completion_ids == without.completion_ids


def test_the_settings_of_a_round_say_so_and_no_evaluation_does() -> None:
    assert limits_of(TrainingSettings(tag_synthesised=True)).tag_synthesised
    assert not limits_of(TrainingSettings()).tag_synthesised
    assert not episode_limits(ScoringSettings(), Limits(), 48, 512, 8).tag_synthesised


def test_a_policy_without_a_system_message_is_refused(starter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training.tag_synthesised: .* has no chat template, so no system message"):
        check_policy(PolicySettings(path=str(starter)), TrainingSettings(tag_synthesised=True))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(MADE.model_dump_json() + "\n")
    with pytest.raises(InputError, match=r"--tag-synthesised: .* has no chat template"):
        warm_start(str(starter), [tasks], tmp_path / "out", StartSettings(tag_synthesised=True), "bfcl")
    assert not (tmp_path / "out").exists()
