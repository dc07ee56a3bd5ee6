"""Define the interface of a benchmark, with defaults for an environment that does not belong to one.

A benchmark subclasses ``Benchmark`` and overrides what differs. It is found by its name when it is
``environments/<name>/benchmark.py`` with the attribute ``BENCHMARK``, and by ``module:attribute`` anywhere else
(``environments.registry``). Nothing outside its package names it. A plain ``module:callable`` environment keeps every
default.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from environments.base import Environment, InputError, Record, TaskSpec, ToolCall, ToolSpec, begun
from environments.metrics import Metric, checks_passed
from environments.trust import Program

if TYPE_CHECKING:
    from environments.verification.decontamination import HeldOut

Section = TypeVar("Section", bound=BaseModel)


class Options(BaseModel):
    """Base of a benchmark's options, the recipe key ``environment.options``: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Record):
    """Limits of one attempt in an evaluation where the user gives none (ours, but for a benchmark's official actions).

    ``actions`` in one user turn. ``new_tokens`` of one message and ``tokens`` of one episode, for a model with a chat
    template and for the pointer-copy rendering. ``batch`` episodes are open at a time.
    """

    actions: int = 20
    new_tokens: int = 1024
    tokens: int = 24576
    compact_new_tokens: int = 48
    compact_tokens: int = 512
    batch: int = 128


class CompactCaps(Record):
    """Caps of the pointer-copy rendering (``training.embedded.compact.CompactSettings`` explains them)."""

    references: int = 9
    references_per_observation: int = 4
    observation_chars: int = 120
    list_items: int = 4


class ExplorationHints(Record):
    """Parameters of scripted exploration for the environment (ours).

    ``seed_chunk``: start states explored in one invocation of the seed graph. ``unguided_as_guided``: unguided
    exploration has the steps and drafts of the guided explorer in one round, instead of the budget that D_0 was
    measured with. ``compact``: caps of the pointer-copy rendering.
    """

    seed_chunk: int = 32
    unguided_as_guided: bool = False
    compact: CompactCaps = CompactCaps()


class KnownValue(NamedTuple):
    """A value that people gave to ``parameter`` of ``tool``, and the other values of the same call (``near``)."""

    tool: str
    parameter: str
    value: str | int | float
    near: frozenset[str | int | float]


class OfficialTask(NamedTuple):
    """One of the benchmark's own training tasks, by its official id; ``flaw`` is why no agent can solve it."""

    id: str
    spec: TaskSpec
    flaw: str | None = None


class OfficialTasks(Record):
    """Training tasks that fit the options. ``total`` also counts those that do not fit; ``why`` is the reason."""

    tasks: tuple[OfficialTask, ...]
    total: int
    why: str = ""


class EvaluationSet(Record):
    """One fixed set of evaluation tasks, described without opening it.

    ``sha256`` identifies its tasks, ``tasks`` counts them.
    """

    name: str
    held_out: bool
    sha256: str
    tasks: int


class EvaluationTask(Record):
    """One task of an evaluation set.

    ``cluster`` is equal for tasks that share a start state or a scenario. ``reference_calls`` is None where it is
    unknown. ``strata`` are the labels that results are broken down by.
    """

    id: str
    origin: Literal["panel", "official"]
    spec: TaskSpec
    cluster: str
    reference_calls: int | None
    strata: dict[str, str] = {}


class HumanTurn(Record):
    """A user turn that a person wrote, with the calls that answer it.

    ``tools`` are those of its calls, ``others`` further ones that were offered. ``state`` is the initial state,
    ``done`` the calls of earlier turns with their answers, ``answers`` those of ``calls``, empty where nothing was
    executed. ``held_out``: it measures a model, and teaches none. ``source`` names the set that it is of.
    """

    source: str
    tools: tuple[ToolSpec, ...]
    others: tuple[ToolSpec, ...] = ()
    state: dict[str, JsonValue] = {}
    done: tuple[tuple[ToolCall, str], ...] = ()
    calls: tuple[ToolCall, ...]
    answers: tuple[str, ...]
    words: str
    held_out: bool = False


class ContentLicence(Record):
    """The licence of what a benchmark contributes to tasks and trajectories: start states, tools, documentation.

    ``spdx`` is its identifier, in lower case as the hub writes it; ``notice`` is one sentence on what it covers.
    """

    spdx: str
    notice: str


TestAccess = Literal["study", "ledger"]
"""How a held-out set opens: for a committed study only, or for a command that names a test access log."""


class Benchmark(Generic[Section]):
    """A benchmark; the defaults are those of an environment that holds nothing out and has no tasks of its own.

    ``name`` is its environment's and its tasks' (``Environment.name``). ``options_type`` validates the recipe key
    ``environment.options``; of these ``actions_option`` limits the actions in one user turn, None where none does.
    ``evaluation_sets`` maps names to whether the set is held out. ``several_sets``: one environment serves several
    sets in one command. ``metrics`` maps names to functions of the attempts at an evaluation set, beside success, in
    the order of the report's columns. ``scripted_roles`` is the dotted name of a module with the functions of
    ``agents.settings.OwnRoles``, for an environment that the general scripted roles do not suit.
    ``everyday_groups`` are groups of tools that every task uses, so that they do not count for its difficulty.
    ``brought``: the options name what the user brings, so that it is checked like an environment of one's own.
    ``unpublishable`` is one sentence on why tasks and trajectories must not be published, None where they may be;
    ``licence`` is that of the content which they take from the benchmark. ``data`` names the benchmark's package and
    data, and what of them no evaluation set has; ``verdict`` says whose check an outcome is, and how that was shown.
    Both are one sentence of an evaluation's card, empty where the benchmark states none.
    """

    name: ClassVar[str] = ""
    options_type: type[Section]
    actions_option: ClassVar[str | None] = None
    limits: Limits = Limits()
    exploration: ExplorationHints = ExplorationHints()
    evaluation_sets: Mapping[str, bool] = {}
    several_sets: bool = True
    metrics: Mapping[str, Metric] = {"checks_passed": checks_passed}
    scripted_roles: str | None = None
    everyday_groups: frozenset[str] = frozenset()
    brought: bool = False
    unpublishable: str | None = None
    licence: ContentLicence | None = None
    data: str = ""
    verdict: str = ""

    # Options and the environment.

    def parse(self, given: Mapping[str, JsonValue]) -> Section:
        """Return the options with their defaults. Raises ValidationError, located at the key."""
        return self.options_type.model_validate_json(json.dumps(dict(given)), strict=True)

    def open(self, options: Section) -> Environment:
        """Open the environment. Raises InputError when what it needs is not installed.

        The environment has the benchmark's ``name``. One of another package gets the attribute ``benchmark``, which
        wrappers of it keep (``environments.registry.benchmark_of``).
        """
        raise NotImplementedError(f"{type(self).__name__} does not open an environment")

    def program(self, options: Section) -> Program | None:
        """Return the program that the options name; None where they name none.

        Where they come from a file it is opened once the user has bound it (``environments.trust``). Raises InputError
        where there is no such program.
        """
        return None

    def max_actions(self, options: Section) -> int | None:
        """Return the actions in one user turn before the environment cuts it off; None where it does not."""
        return None if self.actions_option is None else getattr(options, self.actions_option)

    def evaluation_options(self, options: Section) -> dict[str, JsonValue]:
        """Return the options of a run that its evaluations need too, as ``environment.options`` has them."""
        return {}

    def notes(self, environment: Environment) -> tuple[str, ...]:
        """Return lines on an opened environment for a user who sees it for the first time."""
        return ()

    def verification_label(self, options: Section) -> str | None:
        """Return the label of tasks that were verified without comparing states; None where states are compared."""
        return None

    def explain_no_starts(self, environment: str) -> str:
        """Return one sentence, with the key to change, for an environment whose ``starts()`` is empty."""
        return f"environment.name: starts() of the environment {environment} is empty: give it a state"

    # Training: tasks, text, values, diagnosis.

    def official_tasks(self, options: Section) -> OfficialTasks | None:
        """Return the benchmark's own training tasks that fit ``options``; None where it has none."""
        return None

    @property
    def has_official_tasks(self) -> bool:
        """Return whether ``official_tasks`` returns tasks, without reading them."""
        return type(self).official_tasks is not Benchmark.official_tasks

    def render(self, environment: Environment, task: TaskSpec, rng: random.Random) -> TaskSpec:
        """Return ``task`` with its user turns written from its reference, by default from the tools' documentation.

        Raises InputError for a reference that cannot be put into words. Equal arguments give equal text.
        """
        from environments.task_text import render_documented

        return render_documented(environment, task, rng)

    def join(self, first: TaskSpec, second: TaskSpec) -> TaskSpec | None:
        """Return ``first`` with a start and tools in which the reference of ``second`` may be carried out, too.

        Text and reference stay. By default both must begin in one initial state, and the first's setup counts. None
        where there is no such start. Verification replays both references, one after the other.
        """
        if begun(first.initial_state) != begun(second.initial_state) or first.classes != second.classes:
            return None
        return first.model_copy(update={"tools": tuple(dict.fromkeys((*first.tools, *second.tools)))})

    def known_values(self, environment: Environment) -> tuple[KnownValue, ...]:
        """Return values of training references that no state and no documentation holds, for scripted explorers."""
        return ()

    def written_turns(self, environment: Environment) -> tuple[HumanTurn, ...]:
        """Return turns that people wrote, which may be learnt from; none where the benchmark has none."""
        return ()

    # Decontamination.

    def held_out(self) -> HeldOut:
        """Return the held-out sets for decontamination. Raises InputError when a file is missing or was altered."""
        from environments.verification.decontamination import HeldOut

        return HeldOut()

    # Evaluation. Only ``evaluation`` calls these: they open held-out sets.

    def evaluation_set(self, name: str) -> EvaluationSet:
        """Describe a set of ``evaluation_sets``. Raises InputError when its files are missing or were altered."""
        raise InputError(f"{self.name} has no evaluation set {name!r}")

    def open_evaluation_set(self, name: str, limit: int | None = None) -> tuple[EvaluationTask, ...]:
        """Return the tasks of a set, the first ``limit`` if given. Raises InputError like ``evaluation_set``."""
        raise InputError(f"{self.name} has no evaluation set {name!r}")

    def access_to(self, name: str) -> TestAccess:
        """Return how the held-out set ``name`` opens."""
        return "ledger"

    def evaluation_environment(self, options: Section, name: str | None) -> Environment:
        """Open the environment for the tasks of the set ``name``; for a file of tasks it is None."""
        return self.open(options)

    def evaluation_notes(self, unevaluated: int) -> tuple[str, ...]:
        """Return notes for a reader of a set's scores; ``unevaluated`` attempts ended in an infrastructure error."""
        return ()

    def published_error(self, error: str) -> str:
        """Return the publishable part of an infrastructure error's text (a licence can forbid some of it)."""
        return error


AnyBenchmark = Benchmark[Any]
PLAIN: AnyBenchmark = Benchmark()
"""The defaults, for an environment that belongs to no benchmark."""


def explain(error: ValidationError) -> str:
    """Return the first message of a validation error, without the key."""
    return error.errors()[0]["msg"].removeprefix("Value error, ")
