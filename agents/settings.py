"""Settings of the roles: which implementation, and its limits; a benchmark's own scripted roles."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.config import JsonDict

from environments.addresses import Address
from environments.registry import benchmark_of
from environments.settings import GIVEN, Section, requires

if TYPE_CHECKING:
    from environments.base import Environment
    from memory.records import Draft, FailureContext, Interaction

DAY = 24 * 3600.0  # upper bound of a timeout in seconds (ours)


ROLES = ("reflector", "explorer", "abstractor", "validator")
"""The roles that a chat model can play, by their key in ``roles``."""

ANY_CHAT = requires({f"{name}.kind": "chat" for name in ROLES})

LOCAL = ("explorer", "abstractor")
"""The roles that a language model on this machine can play."""


class ChatSettings(Section):
    """The model behind an OpenAI-compatible endpoint that plays the roles of kind chat."""

    model: str | None = Field(
        None,
        min_length=1,
        description="model at the endpoint; null: COEVOLVE_CHAT_MODEL",
    )
    base_url: Address | None = Field(
        None,
        description="an OpenAI-compatible endpoint, to which COEVOLVE_KEYS binds a key; null: OPENAI_BASE_URL, or "
        "OpenAI's own",
    )
    temperature: float | None = Field(None, ge=0.0, le=100.0, description="sampling temperature; null: the endpoint's")
    max_tokens: int = Field(4096, ge=1, le=1_048_576, description="most tokens of one reply, thinking included (ours)")
    timeout: float = Field(120.0, gt=0, le=DAY, description="seconds of one HTTP request (ours)")
    max_retries: int = Field(3, ge=0, le=100, description="retries of a failed request (ours)")
    price_prompt: float | None = Field(None, ge=0.0, le=1e9, description="price of a million prompt tokens")
    price_completion: float | None = Field(None, ge=0.0, le=1e9, description="price of a million completion tokens")


def _without_overrides(schema: JsonDict) -> None:
    """Leave the keys of ``roles.chat`` out of the schema of a role: the settings reference lists them once."""
    properties = schema["properties"]
    assert isinstance(properties, dict), "of a section"
    for name in ChatSettings.model_fields:
        del properties[name]


class RoleSettings(ChatSettings):
    """One role. A role of kind chat takes every key of `roles.chat` too, for itself alone."""

    model_config = ConfigDict(json_schema_extra=_without_overrides)
    inherited_needs = requires({"kind": "chat"})

    kind: Literal["scripted", "local", "chat"] = Field(
        "scripted",
        description="rules; the language model of `roles.local` on this machine (explorer and abstractor alone); or "
        "the model of `roles.chat`, whose keys can be set here too",
    )

    @property
    def overrides(self) -> set[str]:
        """The keys of ``roles.chat`` that are given for this role."""
        return self.model_fields_set & ChatSettings.model_fields.keys()

    def over(self, shared: ChatSettings) -> RoleSettings:
        """Return the role with the keys of ``shared`` that it has not of its own, which stay its ``overrides``."""
        values = {**dict(shared), **{name: getattr(self, name) for name in self.overrides}, "kind": self.kind}
        return RoleSettings.model_construct(_fields_set={"kind", *self.overrides}, **values)

    @model_serializer(mode="wrap")
    def _given_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A run's settings.yaml keeps what is given: an override that is written out would hide ``roles.chat``."""
        written = serialize(self)
        return {name: value for name, value in written.items() if name == "kind" or name in self.overrides}


class LocalSettings(Section):
    """The language model on this machine that plays the roles of kind local (ours)."""

    adapters: str = Field(
        "recipes/writer",
        min_length=1,
        description="folder of the two adapters, writer and reader, which name their model; recipes/writer ships, "
        "`python -m training.roles` makes others",
    )
    draws: int = Field(6, ge=1, le=256, description="proposals, and wordings, that are drawn for one that is taken")
    temperature: float = Field(0.8, gt=0.0, le=10.0, description="sampling temperature of proposals and wordings")
    margin: float = Field(
        0.0,
        ge=-100.0,
        le=100.0,
        description="least that words must add to the log-probability of the calls for the reader, in nats per token, "
        "beside that it returns the calls exactly",
    )


class BudgetSettings(Section):
    """Limits on the total spending of all chat roles in the whole run; null: no limit.

    No request is sent once a budget is spent. Calls are counted when they are sent, tokens and money when the reply
    arrives, so that requests in flight can overrun these.
    """

    tokens: int | None = Field(None, ge=1, le=10**15, description="prompt and completion tokens")
    calls: int | None = Field(None, ge=1, le=10**12, description="HTTP requests, retries included")
    money: float | None = Field(None, gt=0, le=1e12, description="in the currency of the roles' prices")


CUTS_PER_DRAFT = 2
"""Most cuts that a chat abstractor words for each draft that is wanted (ours)."""

WORDINGS_PER_CUT = 2
"""Most wordings of one of them: another one after one that is misread (ours)."""


class ExplorationSettings(Section):
    """How long an explorer acts, and how many drafts are made, in counts: a resumed run is equal."""

    rounds: int = Field(4, ge=1, le=1000, description="R: episodes opened for one context")
    steps: int = Field(8, ge=1, le=10_000, description="S: actions in one episode")
    independent: bool = Field(
        True,
        description="the rounds of a context share nothing (CoEvolve, section 3.2); false: a round gets what earlier "
        "ones found (ours)",
    )
    drafts_per_context: int = Field(3, ge=1, le=1000, description="most drafts proposed for one context")
    min_reference_calls: int = Field(
        1,
        ge=1,
        le=1000,
        description="fewest calls of a draft's reference, all turns together (CoEvolve, figure 12: 3)",
    )
    max_reference_calls: int = Field(
        3,
        ge=1,
        le=1000,
        description="most calls of a draft's reference, all turns together (ours)",
    )
    order: Literal["long_first", "easy_first"] = Field(
        "long_first",
        description="which drafts come first; long_first: those of most calls (CoEvolve, figure 12); easy_first: "
        "one call, then longer ones (ours); where a model words cuts, the order is drawn",
    )
    references: Literal["chosen", "cut"] = Field(
        "chosen",
        description="of a chat abstractor's drafts; chosen: the model picks interactions and writes all tasks of a "
        "context in one reply (CoEvolve); cut: rules cut them, and the model words one at a time and reads it back, "
        "which a small one can (ours)",
        json_schema_extra=requires({"abstractor.kind": "chat"}),
    )
    two_turns: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="share of the drafts of two calls and more that have two user turns (ours)",
        json_schema_extra=requires({"abstractor.kind": "scripted"}),
    )
    absent: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="share of the drafts of one user turn that become tasks of two: in the first a detail or a tool is "
        "missing, so that nothing can be called yet, where this can be put into words (ours)",
        json_schema_extra=requires({"abstractor.kind": ("scripted", "local")}),
    )
    compositions: int = Field(
        0,
        ge=0,
        le=1000,
        description="further drafts of a context: each is one of its drafts joined to a task of the set (ours)",
    )
    guidance: Literal["tools", "context"] = Field(
        "tools",
        description="what of a context guides; tools: its tool, those worth reaching, its facts; context: also "
        "its kind of signal (CoEvolve, figure 10), cause and focus, by rules (ours)",
        json_schema_extra=requires({"explorer.kind": ("scripted", "local")}),
    )
    unguided: Literal["uniform_calls", "same_rules"] = Field(
        "uniform_calls",
        description="of D_0 and of the unguided baseline; uniform_calls: tools are drawn uniformly, and values of "
        "those that fit; half of the answers are followed by a tool that takes a value of theirs (ours); same_rules: "
        "the guided explorer without an aim (ours)",
        json_schema_extra=requires({"explorer.kind": "scripted"}),
    )

    def abstractor_questions(self) -> int:
        """Return how much a chat abstractor asks about one context at most, without repairs.

        That is once, or of each cut for its words and for the calls in them.
        """
        if self.references == "chosen":
            return 1
        return self.drafts_per_context * CUTS_PER_DRAFT * WORDINGS_PER_CUT * 2

    def of_general_rules(self) -> str | None:
        """Return the first option that is stated and that only the general scripted roles follow, None without one."""
        if self.references == "cut":
            return "references"
        return next(iter(self._given("two_turns", "absent", "compositions", "guidance", "unguided")), None)

    @model_validator(mode="after")
    def _some_length_is_allowed(self) -> Self:
        if self.min_reference_calls > self.max_reference_calls:
            raise ValueError(
                f"'min_reference_calls' ({self.min_reference_calls}) is above 'max_reference_calls' "
                f"({self.max_reference_calls}): no draft could be made"
            )
        return self


class RolesSettings(Section):
    """The roles of a run."""

    chat: ChatSettings = Field(ChatSettings(), json_schema_extra=ANY_CHAT)
    local: LocalSettings = Field(
        LocalSettings(), json_schema_extra=requires({f"{name}.kind": "local" for name in LOCAL})
    )
    reflector: RoleSettings = Field(RoleSettings(), json_schema_extra=requires({"signals.contexts": "signals"}))
    explorer: RoleSettings = RoleSettings()
    abstractor: RoleSettings = RoleSettings()
    validator: RoleSettings | None = Field(
        None,
        description="the agent that carries out drafts; null: none",
        json_schema_extra=requires({"verification.mode": ("agent", "both")}),
    )
    validator_actions: int = Field(
        30,
        ge=1,
        le=10_000,
        description="actions of its episode, all turns together (CoEvolve, A.2: 30)",
        json_schema_extra=requires({"validator": GIVEN}),
    )
    exploration: ExplorationSettings = ExplorationSettings()
    branch_timeout: float = Field(600.0, gt=0, le=DAY, description="seconds of one context's branch")
    cache: str | None = Field(
        None,
        min_length=1,
        description="SQLite file of replies, so that identical requests are asked once; null: none (ours)",
        json_schema_extra=ANY_CHAT,
    )
    concurrency: int = Field(
        16,
        ge=1,
        le=1024,
        description="most requests in flight at one endpoint (ours)",
        json_schema_extra=ANY_CHAT,
    )
    budget: BudgetSettings = Field(BudgetSettings(), json_schema_extra=ANY_CHAT)

    def by_chat(self) -> Mapping[str, ChatSettings]:
        """Return the roles that a chat model plays, by their key, each with ``chat`` and its own keys over it."""
        roles = {name: getattr(self, name) for name in ROLES}
        return {name: role.over(self.chat) for name, role in roles.items() if role is not None and role.kind == "chat"}

    def by_local(self) -> tuple[str, ...]:
        """Return the roles that a language model on this machine plays, by their key."""
        return tuple(name for name in LOCAL if getattr(self, name).kind == "local")

    def plays_locally(self) -> bool:
        """Return whether a language model on this machine plays a role."""
        return self.by_local() != ()

    def branches_at_once(self) -> int:
        """Return how many contexts are worked on at the same time: a model on this machine answers one at a time."""
        return 1 if self.plays_locally() else self.concurrency

    @model_validator(mode="after")
    def _local_roles_exist(self) -> Self:
        for name in ROLES:
            role = getattr(self, name)
            if name not in LOCAL and role is not None and role.kind == "local":
                raise ValueError(f"{name}.kind must not be local: a model on this machine plays {' and '.join(LOCAL)}")
        return self

    @model_validator(mode="after")
    def _money_has_prices(self) -> Self:
        if self.budget.money is not None:
            for name, role in self.by_chat().items():
                for key in ("price_prompt", "price_completion"):
                    if getattr(role, key) is None:
                        raise ValueError(
                            f"'budget.money' needs '{key}' of the {name}, the price of a million tokens: add "
                            f"chat.{key} or {name}.{key}"
                        )
        return self

    @model_validator(mode="after")
    def _without_rules_it_is_a_model(self) -> Self:
        for name in ROLES:
            role = getattr(self, name)
            if role is not None and role.kind != "chat" and type(self).model_fields[name].default is None:
                raise ValueError(f"{name}.kind must be chat: no scripted {name} exists")
        return self


class OwnRoles(Protocol):
    """The module that ``Benchmark.scripted_roles`` names; equal arguments give equal results."""

    def explore(
        self,
        context: FailureContext,
        environment: Environment,
        settings: ExplorationSettings,
        seed: int,
        *,
        guided: bool,
    ) -> tuple[Interaction, ...]:
        """Explore ``context`` for R rounds of S steps; without ``guided`` every tool is drawn alike."""
        ...

    def draft(
        self,
        context: FailureContext,
        interactions: Sequence[Interaction],
        environment: Environment,
        settings: ExplorationSettings,
        seed: int,
    ) -> tuple[Draft, ...]:
        """Write at most ``drafts_per_context`` drafts."""
        ...


def own_roles(environment: Environment) -> OwnRoles | None:
    """Return the roles of the environment's benchmark; None where the general ones serve."""
    module = benchmark_of(environment).scripted_roles
    return None if module is None else cast(OwnRoles, importlib.import_module(module))
