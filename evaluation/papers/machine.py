"""Finds out what this machine has, and which parts of a paper it cannot run, before anything is spent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from agents.chat.endpoint import KEY_VARIABLE, KEYS_VARIABLE, URL_VARIABLE, bound_keys
from environments.addresses import origin_of
from environments.base import InputError, Record
from environments.checkout import ROOT
from evaluation.papers.catalogue import Part, StudyPlan, Tree, value_of
from evaluation.papers.estimate import environment_of, gpu_gib, policy_of
from memory.settings import OFFICIAL

VLLM = Path(".venvs") / "vllm" / "bin" / "python"

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of the drivers through which torch finds GPUs: NVIDIA's, the one of Windows' Linux, AMD's."""

Availability = Callable[[str, str], None]
"""Raise InputError where the set (second) of an environment (first) is not on this machine."""


class Machine(Record):
    """What the parts of a paper need of a machine.

    ``gpu_gib``: memory of all GPUs together. ``variables``: names of environment variables that are set. ``keys``: the
    variables that ``COEVOLVE_KEYS`` binds, by server (``agents.chat.endpoint.bound_keys``).
    """

    gpus: int
    gpu_gib: float
    vllm: bool
    variables: frozenset[str]
    keys: dict[str, str | None] = {}


def this_machine(variables: Mapping[str, str] = os.environ, drivers: Sequence[str] = DRIVERS) -> Machine:
    """Return what this machine has. Imports torch, which takes seconds, only where a GPU's driver is."""
    memory = _memory_of_gpus() if any(Path(one).exists() for one in drivers) else ()
    return Machine(
        gpus=len(memory),
        gpu_gib=sum(memory) / 2**30,
        vllm=(ROOT / VLLM).exists(),
        variables=frozenset(name for name, value in variables.items() if value),
        keys={str(origin): key for origin, key in bound_keys(variables).items()},
    )


def _memory_of_gpus() -> tuple[int, ...]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.cuda.get_device_properties(number).total_memory for number in range(count))


def study_refusals(
    plan: StudyPlan, sets: Sequence[str], part: Part, machine: Machine, available: Availability
) -> tuple[str, ...]:
    """Return one sentence for each thing that the study lacks on this machine, each once."""
    return tuple(dict.fromkeys(_of_study(plan, sets, part, machine, available)))


def _of_study(
    plan: StudyPlan, sets: Sequence[str], part: Part, machine: Machine, available: Availability
) -> Iterator[str]:
    trained = []
    for arm in plan.arms:
        try:
            tree = plan.settings_of(arm)
        except InputError as error:
            yield str(error)
            return
        yield from _of_gpu(tree, machine)
        if not arm.untrained:
            yield from _of_tasks(tree, part)
            trained.append(tree)
        for name in sets:
            yield from _missing_set(available, environment_of(tree), name)
    yield from _of_roles(trained, machine)
    yield from _of_vllm(part, machine)


def _of_gpu(tree: Tree, machine: Machine) -> Iterator[str]:
    if value_of(tree, "policy.device") != "cuda":
        return
    needed = gpu_gib(tree)
    if not machine.gpus:
        yield f"{policy_of(tree)} is trained on a GPU and this machine has none: run it on a machine with GPUs"
    elif needed is not None and needed > machine.gpu_gib:
        yield (
            f"{policy_of(tree)} takes about {needed:.0f} GiB of GPU memory and this machine has "
            f"{machine.gpu_gib:.0f}: run it on a larger one, or set policy.lora"
        )


def _of_tasks(tree: Tree, part: Part) -> Iterator[str]:
    initial = value_of(tree, "tasks.initial")
    if initial in (None, OFFICIAL) or Path(initial).is_file():
        return
    if Path(initial) not in {one.output for one in part.prepare}:
        yield f"tasks.initial: {initial} is missing: make it first, as the note on this table says"


def _of_roles(trees: Iterable[Tree], machine: Machine) -> Iterator[str]:
    """Yield one sentence for each variable that chat roles of any arm lack, with their models."""
    keys: dict[str, dict[str, None]] = {}
    unbound: dict[str, dict[str, None]] = {}
    unplaced: dict[str, None] = {}
    for tree in trees:
        roles = value_of(tree, "roles", {})
        for name, own in roles.items() if isinstance(roles, Mapping) else ():
            if not isinstance(own, Mapping) or own.get("kind") != "chat":
                continue
            role = {**(roles.get("chat") or {}), **own}
            named = f"roles.{name} ({role.get('model') or 'a chat model'})"
            key: str | None = KEY_VARIABLE
            if (url := role.get("base_url")) is not None:
                server = str(origin_of(url))
                key = machine.keys.get(server)
                if server not in machine.keys and not origin_of(url).is_loopback:
                    unbound.setdefault(server, {})[named] = None
            elif not machine.variables.intersection((f"COEVOLVE_{name.upper()}_BASE_URL", URL_VARIABLE)):
                unplaced[named] = None
            if key is not None and key not in machine.variables:
                keys.setdefault(key, {})[named] = None
    for key, names in keys.items():
        yield f"{key} is not set, the key of {', '.join(names)}: set it"
    for server, names in unbound.items():
        yield (
            f"no key is bound to {server}, which {', '.join(names)} would ask: set {KEYS_VARIABLE} to "
            f"{server}=VARIABLE, the variable that holds its key"
        )
    if unplaced:
        yield f"no endpoint is named for {', '.join(unplaced)}: set {URL_VARIABLE} to one that serves them"


def _of_vllm(part: Part, machine: Machine) -> Iterator[str]:
    if part.vllm and not machine.vllm:
        yield f"{VLLM} is missing: run `make vllm`"


def _missing_set(available: Availability, environment: str, name: str) -> Iterator[str]:
    try:
        available(environment, name)
    except InputError as error:
        yield str(error)


def evaluation_refusals(part: Part, machine: Machine, available: Availability) -> tuple[str, ...]:
    """Return one sentence for each thing that the evaluation of a served model lacks on this machine."""
    missing = [f"{name} is not set: set it" for name in part.variables if name not in machine.variables]
    if part.gpu and not machine.gpus:
        missing.append("it is scored on a GPU and this machine has none: run it on a machine with GPUs")
    found = [one for name in part.sets if part.environment for one in _missing_set(available, part.environment, name)]
    return (*missing, *found, *_of_vllm(part, machine))


def analysis_refusals(inputs: Sequence[Path], command: str) -> tuple[str, ...]:
    """Return one sentence for each result that an analysis reads and that is not there; ``command`` makes them."""
    return tuple(f"{path} is missing: run {command} first" for path in inputs if not path.exists())


def set_size(environment: str, name: str) -> int:
    """Return the number of tasks of a set or of a category, SET or CATEGORY@SPLIT, without scoring anything.

    Raises InputError where it is not on this machine.
    """
    from environments.registry import named_benchmark

    benchmark = named_benchmark(environment)
    if name in benchmark.evaluation_sets:
        return benchmark.evaluation_set(name).tasks
    from evaluation.sets import ALL, open_category

    category, _, split = name.partition("@")
    return len(open_category(category, split or ALL, benchmark=benchmark))
