"""The processes that train one round together: who is first, what they exchange, and how one's failure ends all.

Each process ("rank", as in torch.distributed) plays whole groups of a step, and gradients are averaged by the trainer.
The first one alone holds the run's lock, and writes records and checkpoints. What they exchange here goes through a
gloo group of its own, over the CPU and beside the trainer's collectives.

A process that fails ends, and its launcher (``training.grpo.launch``) ends the others and says the cause; a process
that hangs is ended by the collective's deadline. Without a launcher there is one process, ``ALONE``, which exchanges
nothing and needs no torch. All of this is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from training.grpo.record import RoundFailure
from training.settings import LaunchSettings

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")

_BROKEN = ("gloo", "connection closed", "connection reset", "timed out", "broken pipe", "nccl")


class LostRanks(RoundFailure):
    """The other processes of a round ended, or did not answer within the deadline; one of them knows why."""


@dataclass(eq=False)
class Ranks:
    """One of ``count`` processes that train together, number ``index`` from 0; alone unless ``group`` is given.

    ``sharded``: the weights are divided among them (FSDP2); else each has all of them.
    """

    index: int = 0
    count: int = 1
    group: torch.distributed.ProcessGroup | None = None
    deadline: float = 0.0
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Return whether this process locks, records, reports and saves."""
        return self.index == 0

    def gather(self, item: Item) -> list[Item]:
        """Return every rank's ``item``, in their order, on all ranks. Raises LostRanks."""
        items: list[Any] = [item] * self.count
        if self.count > 1:
            from torch import distributed

            with self._deadline_of_all():
                distributed.all_gather_object(items, item, group=self.group)
        return items

    def by_first(self, act: Callable[[], Item]) -> Item:
        """Call ``act`` on the first rank alone, and return its result on all; where it fails, the others end.

        Raises LostRanks.
        """
        result = [act() if self.first else None]
        if self.count > 1:
            from torch import distributed

            with self._deadline_of_all():
                distributed.broadcast_object_list(result, src=0, group=self.group)
        return cast("Item", result[0])

    @contextmanager
    def _deadline_of_all(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRanks(
                f"rank {self.index} lost the other processes: one ended, or did not answer within "
                f"{self.deadline:g} s (training.launch.deadline)"
            ) from error


ALONE = Ranks()
"""A round in one process."""


def lost_in_a_collective(error: BaseException) -> bool:
    """Return whether the error is of a collective of the trainer whose other processes are gone or did not answer."""
    from torch import distributed

    if isinstance(error, distributed.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _BROKEN)


def join(launch: LaunchSettings, on_cpu: bool) -> Ranks:
    """Join the other processes of a launch, and return this one's place among them.

    The state of accelerate is made here, before the trainer makes its own of the same process group. Raises
    RoundFailure where a process would have no GPU, or would train alone.
    """
    from datetime import timedelta

    import torch
    from accelerate import PartialState
    from torch import distributed

    count = launch.processes
    if not on_cpu and torch.cuda.device_count() < count:
        raise RoundFailure(
            f"training.launch.processes is {count} and this machine has {torch.cuda.device_count()} GPUs: set it to "
            "the GPUs of this machine, or policy.device to cpu"
        )
    wait = timedelta(seconds=launch.deadline)
    state = PartialState(cpu=on_cpu, timeout=wait)
    if state.num_processes != count:
        raise RoundFailure(
            f"training.launch.processes is {count} and accelerate made {state.num_processes} of them, of type "
            f"{state.distributed_type.value}: each would train alone; set policy.device to cpu where there is no GPU"
        )
    group = distributed.new_group(backend="gloo", timeout=wait)
    return Ranks(state.process_index, count, group, launch.deadline, launch.fsdp)


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
