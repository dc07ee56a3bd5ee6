"""How several processes are asked for, what is refused before any is started, and whose failure is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.small_policy import small_settings

from environments.base import InputError
from environments.command import StorageError
from memory.run import RunDirectory
from training.grpo.checkpoints import check_written_by
from training.grpo.launch import Ended, failure_of, launch_round
from training.grpo.ranks import ALONE, Ranks
from training.grpo.record import RoundFailure, RoundPlan
from training.preflight import check_launch, check_policy
from training.run_round import see_one_gpu
from training.settings import ExpertSettings, LaunchSettings, PolicySettings, SamplingSettings, TrainingSettings

LAUNCH = {"processes": 4}
SERVERS = SamplingSettings(engine="vllm_server", servers=("http://first:8000",))


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        (
            {"tasks_per_step": 6},
            "launch.processes is 4 and a step has 6 tasks, whose groups stay whole: make tasks_per",
        ),
        ({"updates_per_step": 4}, r"an update \(tasks_per_step / updates_per_step\) has 2 tasks, whose groups stay"),
        ({"micro_batch": 64}, "micro_batch is 64 and a step of one process has 16 rollouts .* / launch.processes"),
    ],
)
def test_settings_that_several_processes_cannot_share_are_refused(training, sentence) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TrainingSettings.model_validate({"launch": LAUNCH, **training})


def test_what_several_processes_can_share_is_not_refused() -> None:
    settings = TrainingSettings.model_validate({"launch": LAUNCH, "updates_per_step": 2, "micro_batch": 4})
    assert (settings.processes, TrainingSettings().processes, TrainingSettings().launch) == (4, 1, None)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("updates", [1, 2])
def test_an_update_has_the_same_groups_whatever_the_number_of_processes(ranks: int, updates: int) -> None:
    from training.grpo.group_rollouts import GroupRollouts

    settings = TrainingSettings(tasks_per_step=12, rollouts_per_task=2, updates_per_step=updates)
    plan = RoundPlan(run_seed=3, iteration=0, first_step=5, steps=(("a task",) * 12,) * 2)

    def shares(count: int, step: int) -> list[list[int]]:
        rollouts = GroupRollouts(plan, *(None,) * 3, settings, *(None,) * 2, ranks=Ranks(count=count))
        rows = rollouts._rows(step)
        assert [row + 1 for one in rows for row in one[::2]] == [row for one in rows for row in one[1::2]], "groups"
        return [[row // 2 for row in one[::2]] for one in rows]

    (order,), own = shares(1, 5), 12 // updates // ranks
    assert sorted(order) == list(range(12)), "each group is played once"
    assert (order == sorted(order)) == (updates == 1)
    assert (shares(1, 6) == [order]) == (updates == 1)
    among = shares(ranks, 5)
    assert len({len(share) for share in among}) == 1
    for update in range(updates):
        learnt = [place for share in among for place in share[update * own : (update + 1) * own]]
        assert learnt == order[update * own * ranks : (update + 1) * own * ranks]


@pytest.mark.parametrize("fsdp", [True, False])
def test_divided_weights_are_fsdp2_whose_checkpoints_are_whole(tmp_path: Path, fsdp: bool) -> None:
    from training.grpo.trl_run import trainer_config

    settings = TrainingSettings(launch=LaunchSettings(processes=8, fsdp=fsdp))
    plan = RoundPlan(run_seed=0, iteration=0, first_step=1, steps=(("a task",) * 8,))
    asked = trainer_config(settings, plan, tmp_path, 1, on_cpu=True).fsdp_plugin_args
    if not fsdp:
        assert asked is None
        return
    assert (asked["fsdp_version"], asked["auto_wrap_policy"]) == (2, "TRANSFORMER_BASED_WRAP")
    assert (asked["reshard_after_forward"], asked["cpu_ram_efficient_loading"]) == (True, False)
    assert asked["state_dict_type"] == "FULL_STATE_DICT", "for evaluation, and other numbers of GPUs"


@pytest.mark.parametrize(
    ("policy", "sampling", "expert", "sentence"),
    [
        ({"device": "cpu"}, SERVERS, False, r"divides weights over GPUs and policy\.device is cpu"),
        ({}, SamplingSettings(), False, r"sampling\.engine in_process needs all of them in each process: make it vllm"),
        ({}, SERVERS, True, r"training\.expert updates whole ones: set training\.expert to null"),
    ],
)
def test_weights_that_are_divided_train_with_servers_on_gpus_alone(policy, sampling, expert, sentence) -> None:
    given = {"expert": ExpertSettings() if expert else None}
    training = TrainingSettings(launch=LaunchSettings(fsdp=True), **given)
    check_launch(training.model_copy(update={"expert": None}), PolicySettings(), SERVERS)
    for launch in (LaunchSettings(), None):
        check_launch(TrainingSettings(launch=launch, **given), PolicySettings(**policy), sampling)
    with pytest.raises(InputError, match=sentence):
        check_launch(training, PolicySettings(**policy), sampling)
    with pytest.raises(InputError, match=sentence):  # before anything is written
        check_policy(PolicySettings(**policy), training, sampling)


def test_a_process_that_a_launcher_started_starts_no_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match=r"has started this one already: start it without one"):
        launch_round(tmp_path, 0, False, small_settings(tmp_path, launch={"processes": 2}))


def lost(rank: int) -> Ended:
    return Ended(rank, 1, f"LostRanks: rank {rank} lost the other processes")


FULL = "No space left on device: free some space there and go on"


@pytest.mark.parametrize(
    ("ended", "kind", "sentence"),
    [
        ([lost(0), Ended(1, 2, "InputError: rank 1: no file")], InputError, "rank 1: no file"),
        ([lost(0), Ended(1, 1, "RoundFailure: rank 1: nan")], RoundFailure, "rank 1: nan"),
        ([Ended(0, 2, f"StorageError: {FULL}")], StorageError, FULL),
        ([lost(0), Ended(1, -signal.SIGKILL, "")], RoundFailure, "rank 1 was ended by SIGKILL, and the others with it"),
        ([Ended(0, -signal.SIGTERM, ""), Ended(1, -signal.SIGKILL, "")], RoundFailure, "rank 1 was ended by SIGKILL"),
        ([Ended(0, -signal.SIGTERM, "Signal 15: x"), lost(1)], RoundFailure, "rank 1 lost the other processes"),
        ([Ended(0, 5, "")], RoundFailure, "rank 0 ended with status 5"),
    ],
)
def test_the_cause_is_told_and_not_what_followed_from_it(ended, kind, sentence) -> None:
    failure = failure_of(ended)
    assert type(failure) is kind
    assert str(failure).startswith(sentence)


def test_a_checkpoint_names_who_can_go_on_from_it(tmp_path: Path) -> None:
    """By the name that transformers gives the optimizer of whole weights, and accelerate that of divided ones."""
    from accelerate.utils.constants import OPTIMIZER_NAME as DIVIDED
    from transformers.trainer import OPTIMIZER_NAME as WHOLE

    whole, fsdp, without = tmp_path / WHOLE, tmp_path / f"{DIVIDED}.bin", tmp_path / "by another engine"
    for folder in (whole, fsdp, without):
        folder.mkdir()
        if folder != without:
            (folder / folder.name).touch()
    for folder in (whole, without):
        check_written_by(folder, ALONE)
        check_written_by(folder, Ranks(count=2))
    check_written_by(fsdp, Ranks(count=8, sharded=True))
    with pytest.raises(InputError, match=r"written with divided weights and training\.launch\.fsdp now says whole"):
        check_written_by(fsdp, Ranks(count=4))
    with pytest.raises(InputError, match=r"written with whole weights and training\.launch\.fsdp now says divided"):
        check_written_by(whole, Ranks(count=4, sharded=True))


def test_a_resumed_run_may_have_another_number_of_processes(tmp_path: Path) -> None:
    from graph.settings import RunSettings

    def settings(**training: object) -> RunSettings:
        return RunSettings(training=TrainingSettings.model_validate(training))

    run = RunDirectory.create(tmp_path / "run", settings(launch=LAUNCH))
    for changed in (settings(launch={"processes": 2}), settings()):
        run.save_settings(changed)
        run.check_settings()
    run.settings_path.write_text(run.settings_path.read_text().replace("kl: 0.001", "kl: 0.1"))
    with pytest.raises(InputError, match=r"'training\.kl' is"):
        run.check_settings()


@pytest.mark.parametrize(("given", "seen"), [(None, "0"), ("3,1,2", "3"), ("GPU-8932f937,1", "GPU-8932f937"), ("", "")])
def test_a_round_in_one_process_sees_one_gpu(monkeypatch: pytest.MonkeyPatch, given: str | None, seen: str) -> None:
    """None stays none: an empty list hides all of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    see_one_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
