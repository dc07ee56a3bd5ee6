"""The processes that train one round together: who is first, what they exchange, and how one's failure ends all.

Each process ("rank", as in torch.distributed) plays whole groups of a step, and gradients are averaged by the trainer.
The first one alone holds the run's lock, writes records and checkpoints, reports, and runs SEAL. What they exchange
here goes through a gloo group of its own, over the CPU and beside the trainer's collectives.

A failure ends all processes in one of two ways. Inside ``agreeing`` all ranks raise the failure of the one that failed.
Anywhere else the failing process ends, and its launcher (``training.grpo.launch``) ends the others. Where neither
happens (a process that hangs), the collective's deadline does. Without a launcher there is one process, ``ALONE``,
which exchanges nothing and needs no torch. All of this is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from environments.base import EnvironmentFault, InputError
from environments.command import StorageError, storage_refusal
from training.grpo.record import RoundFailure
from training.settings import LaunchSettings

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

Sharding = Literal["fsdp"]
"""How weights are divided among processes."""

_KINDS: Mapping[str, type[Exception]] = {
    "mistake": InputError,
    "storage": StorageError,
    "environment": EnvironmentFault,
    "round": RoundFailure,
}
_BROKEN = ("gloo", "connection closed", "connection reset", "timed out", "broken pipe", "nccl")


class LostRanks(RoundFailure):
    """The other processes of a round ended, or did not answer within the deadline; one of them knows why."""


@dataclass(frozen=True)
class _Failure:
    """The exception of one rank, as it is exchanged."""

    rank: int
    kind: str
    sentence: str

    def error(self) -> Exception:
        """Return the exception that every rank raises for it; only ranks beyond the first are named."""
        who = f"rank {self.rank}: " if self.rank else ""
        return _KINDS[self.kind](who + self.sentence)


class Ranks:
    """One of ``count`` processes that train together, number ``index`` from 0; alone unless ``group`` is given.

    ``sharding``: how the weights are divided among them (FSDP2); None where each has all of them.
    """

    def __init__(
        self,
        index: int = 0,
        count: int = 1,
        group: torch.distributed.ProcessGroup | None = None,
        deadline: float = 0.0,
        sharding: Sharding | None = None,
    ) -> None:
        self.index = index
        self.count = count
        self.sharding = sharding
        self._group = group
        self._deadline = deadline

    @property
    def first(self) -> bool:
        """Return whether this process locks, records, reports and saves."""
        return self.index == 0

    def gather(self, item: Item) -> list[Item] | None:
        """Return every rank's ``item``, in their order, on the first; None on the others. Raises LostRanks."""
        if self.count == 1:
            return [item]
        from torch import distributed

        items: list[Any] | None = [None] * self.count if self.first else None
        with self._deadline_of_all():
            distributed.gather_object(item, items, dst=0, group=self._group)
        return items

    def share(self, item: Item | None) -> Item:
        """Return the first rank's ``item`` on all ranks. Raises LostRanks."""
        if self.count > 1:
            from torch import distributed

            shared = [item]
            with self._deadline_of_all():
                distributed.broadcast_object_list(shared, src=0, group=self._group)
            item = shared[0]
        return item  # type: ignore[return-value]

    def most(self, number: int) -> int:
        """Return the largest ``number`` of all ranks, on all of them. Raises LostRanks."""
        if self.count == 1:
            return number
        import torch

        largest = torch.tensor(number)
        with self._deadline_of_all():
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=self._group)
        return int(largest)

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Run the block on every rank, then raise on all what any raised: that of the lowest rank.

        Collectives must not be called inside, as a rank that failed would not take part. The failing rank raises its
        own exception.
        """
        if self.count == 1:
            yield
            return
        failure, error = None, None
        try:
            yield
        except LostRanks:
            raise
        except Exception as caught:  # noqa: BLE001 - it is raised below, once the others know
            failure, error = _described(self.index, caught), caught
        from torch import distributed

        failures: list[_Failure | None] = [None] * self.count
        with self._deadline_of_all():
            distributed.all_gather_object(failures, failure, group=self._group)
        if error is not None:
            raise error
        for other in failures:
            if other is not None:
                raise other.error()

    def by_first(self, act: Callable[[], Item]) -> Item:
        """Call ``act`` on the first rank alone, and return its result on all; its failure is raised on all."""
        result = None
        with self.agreeing():
            if self.first:
                result = act()
        return self.share(result)

    @contextmanager
    def _deadline_of_all(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRanks(
                f"rank {self.index} lost the other processes: one ended, or did not answer within "
                f"{self._deadline:g} s (training.launch.deadline)"
            ) from error


ALONE = Ranks()
"""A round in one process."""


def _described(rank: int, error: Exception) -> _Failure:
    for kind, cause in _KINDS.items():
        if isinstance(error, cause):
            return _Failure(rank, kind, str(error))
    if refusal := storage_refusal(error):
        return _Failure(rank, "storage", refusal)
    return _Failure(rank, "round", f"{type(error).__name__}: {error}")


def lost_in_a_collective(error: BaseException) -> bool:
    """Return whether the error is of a collective of the trainer whose other processes are gone or did not answer."""
    from torch import distributed

    if isinstance(error, distributed.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _BROKEN)


def started_by_launcher() -> bool:
    """Return whether a launcher started this process as one of several (torchrun, accelerate launch)."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join(launch: LaunchSettings, on_cpu: bool) -> Ranks:
    """Join the other processes of a launch, and return this one's place among them.

    The state of accelerate is made here, before the trainer makes its own of the same process group. Raises
    RoundFailure when the launcher did not start as many processes as ``launch`` says, or they train alone.
    """
    from datetime import timedelta

    import torch
    from accelerate import PartialState
    from torch import distributed

    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count != launch.processes:
        raise RoundFailure(
            f"training.launch.processes is {launch.processes} and the launcher started {count} (WORLD_SIZE): start as "
            "many as the settings say"
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if not on_cpu and torch.cuda.device_count() < here:
        raise RoundFailure(
            f"the launcher started {here} processes on this machine, which has {torch.cuda.device_count()} GPUs: set "
            "training.launch.processes to the GPUs of this machine, or policy.device to cpu"
        )
    wait = timedelta(seconds=launch.deadline)
    state = PartialState(cpu=on_cpu, timeout=wait)
    if state.num_processes != count:
        raise RoundFailure(
            f"the launcher started {count} processes and accelerate made {state.num_processes} of them, of type "
            f"{state.distributed_type.value}: each would train alone; set policy.device to cpu where there is no GPU"
        )
    group = distributed.new_group(backend="gloo", timeout=wait)
    return Ranks(state.process_index, count, group, launch.deadline, "fsdp" if launch.fsdp else None)


def places_of(rank: int, ranks: int, order: Sequence[int], updates: int) -> tuple[int, ...]:
    """Return the groups of a step that ``rank`` of ``ranks`` plays, in the order in which it learns from them.

    ``order`` are all groups of the step by place in the plan, as its ``updates`` take them one after the other. Each
    update is divided evenly, so that it holds the same groups whatever the number of processes.
    """
    size = len(order) // updates
    own = size // ranks
    return tuple(
        place
        for update in range(updates)
        for place in order[update * size + rank * own : update * size + (rank + 1) * own]
    )


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every weight of the bare model by name, whole and on the CPU, on the first rank; nothing on the others.

    Every rank calls it: divided weights are gathered by all. A weight of two names (tied embeddings) is
    under both, as one tensor.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        # After a forward pass without gradients the outermost module still has its gathered weights.
        if isinstance(module, FSDPModule):
            module.reshard()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = cast("dict[str, torch.Tensor]", get_model_state_dict(model, options=options))
    names: dict[int, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name in state:
            state[name] = state[names.setdefault(id(weight), name)]
    return state
