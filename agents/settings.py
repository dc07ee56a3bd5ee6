"""Settings of the roles: which implementation, and its limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from environments.addresses import Address
from environments.sections import GIVEN, Section, requires

DAY = 24 * 3600.0  # upper bound of a timeout in seconds (ours)


CHAT = requires({"kind": "chat"})
ANY_CHAT = requires(
    {"reflector.kind": "chat", "explorer.kind": "chat", "abstractor.kind": "chat", "solver": GIVEN, "validator": GIVEN}
)
SOLVED = requires({"solver": GIVEN})


class RoleSettings(Section):
    """One role. Options of a chat model are errors if the role is scripted."""

    kind: Literal["scripted", "chat"] = Field(
        "scripted", description="scripted: rules; chat: a model behind an OpenAI-compatible endpoint"
    )
    model: str | None = Field(
        None,
        min_length=1,
        description="chat: name of the model at the endpoint; null: COEVOLVE_<ROLE>_MODEL or COEVOLVE_CHAT_MODEL",
        json_schema_extra=CHAT,
    )
    base_url: Address | None = Field(
        None,
        description="chat: an OpenAI-compatible endpoint, to which the environment variable COEVOLVE_KEYS binds a key; "
        "null: COEVOLVE_<ROLE>_BASE_URL or OPENAI_BASE_URL, or OpenAI's own",
        json_schema_extra=CHAT,
    )
    structured: Literal["auto", "json_schema", "tool_call"] = Field(
        "auto",
        description="chat: how a reply is structured; auto: by JSON schema, or by tool calls if the endpoint rejects "
        "that (ours)",
        json_schema_extra=CHAT,
    )
    temperature: float | None = Field(
        None, ge=0.0, le=100.0, description="chat: sampling temperature; null: the endpoint's", json_schema_extra=CHAT
    )
    max_tokens: int = Field(
        4096,
        ge=1,
        le=1_048_576,
        description="chat: most tokens of one reply, its thinking included (ours)",
        json_schema_extra=CHAT,
    )
    timeout: float = Field(
        120.0, gt=0, le=DAY, description="chat: timeout in seconds of one HTTP request (ours)", json_schema_extra=CHAT
    )
    deadline: float = Field(
        300.0,
        gt=0,
        le=DAY,
        description="chat: timeout in seconds of one question with its retries, pauses and repair turn, without the "
        "time spent waiting for roles.concurrency (ours)",
        json_schema_extra=CHAT,
    )
    max_retries: int = Field(
        3, ge=0, le=100, description="chat: retries of a failed request (ours)", json_schema_extra=CHAT
    )
    retry_pause: float = Field(
        0.5,
        ge=0.0,
        le=3600.0,
        description="chat: seconds before the first retry, doubled for each one, 8 at most (ours)",
        json_schema_extra=CHAT,
    )
    max_retry_after: float = Field(
        60.0,
        ge=0.0,
        le=DAY,
        description="chat: most seconds that an endpoint's Retry-After can ask for; a longer one is cut (ours)",
        json_schema_extra=CHAT,
    )
    price_prompt: float | None = Field(
        None, ge=0.0, le=1e9, description="chat: price of a million prompt tokens", json_schema_extra=CHAT
    )
    price_completion: float | None = Field(
        None, ge=0.0, le=1e9, description="chat: price of a million completion tokens", json_schema_extra=CHAT
    )

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.kind == "chat" and self.deadline < self.timeout:
            raise ValueError("'deadline' is shorter than 'timeout', the deadline of one request: raise it")
        return self


class BudgetSettings(Section):
    """Limits on the total spending of all chat roles in the whole run; null: no limit.

    No request is sent once a budget is spent. Calls are counted when they are sent, tokens and money when the reply
    arrives, so that requests in flight can overrun these.
    """

    tokens: int | None = Field(None, ge=1, le=10**15, description="prompt and completion tokens")
    calls: int | None = Field(None, ge=1, le=10**12, description="HTTP requests, retries included")
    money: float | None = Field(None, gt=0, le=1e12, description="in the currency of the roles' prices")


class ExplorationSettings(Section):
    """How long an explorer acts, and how many drafts are made. All are counts, so that a resumed run is equal."""

    rounds: int = Field(4, ge=1, le=1000, description="R: episodes opened for one context")
    steps: int = Field(8, ge=1, le=10_000, description="S: actions in one episode")
    independent: bool = Field(
        True,
        description="whether the rounds of one context know nothing of each other (CoEvolve, section 3.2); false: a "
        "round knows what the ones before it found (ours)",
    )
    drafts_per_context: int = Field(3, ge=1, le=1000, description="most drafts proposed for one context")
    min_reference_calls: int = Field(
        1,
        ge=1,
        le=1000,
        description="fewest calls in a draft's reference, all turns together (CoEvolve, figure 12: 3; 1 is ours)",
    )
    max_reference_calls: int = Field(
        3,
        ge=1,
        le=1000,
        description="most calls in a draft's reference, all turns together (ours; the paper has no value)",
    )
    order: Literal["long_first", "easy_first"] = Field(
        "long_first",
        description="drafts that an abstractor proposes first; long_first: as many calls as possible (CoEvolve, figure "
        "12); easy_first: one call, then longer ones (ours)",
    )
    two_turns: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="scripted abstractor: share of the drafts of two calls and more that are proposed as two user "
        "turns, joined along one episode (ours)",
        json_schema_extra=requires({"abstractor.kind": "scripted"}),
    )
    compositions: int = Field(
        0,
        ge=0,
        le=1000,
        description="further drafts of a context, each of one of its drafts and a task of the set, one after the other "
        "in one user turn or, with the share two_turns, in two (ours)",
    )
    unguided: Literal["uniform_calls", "same_arguments", "same_rules"] = Field(
        "uniform_calls",
        description="scripted unguided exploration, of D_0 and of the unguided baseline; uniform_calls: tools and "
        "values are drawn uniformly (as in recorded studies); same_arguments: tools uniformly, arguments as the guided "
        "explorer draws them; same_rules: the guided explorer without an aim, so that the two differ in the context "
        "alone (ours)",
        json_schema_extra=requires({"explorer.kind": "scripted"}),
    )
    max_turns: int = Field(
        2,
        ge=1,
        le=100,
        description="most user turns in a chat abstractor's draft (ours)",
        json_schema_extra=requires({"abstractor.kind": "chat"}),
    )

    def of_general_rules(self) -> str | None:
        """Return the first option that is stated and that only the general scripted roles follow, None without one."""
        return next(iter(self._given("two_turns", "compositions", "unguided")), None)

    @model_validator(mode="after")
    def _some_length_is_allowed(self) -> Self:
        if self.min_reference_calls > self.max_reference_calls:
            raise ValueError(
                f"'min_reference_calls' ({self.min_reference_calls}) is above 'max_reference_calls' "
                f"({self.max_reference_calls}): no draft could be made"
            )
        return self


def requests_per_context(
    chat: Collection[str],
    *,
    reflects: bool,
    rounds: int,
    steps: int,
    drafts: int = 0,
    validator_steps: int = 0,
    solver_steps: int = 0,
) -> int:
    """Return the requests of one context's roles at most, without retries, where ``chat`` are those of a chat model.

    One reflection, a request for each of the explorer's ``rounds`` x ``steps`` actions, one abstraction, and for each
    of its ``drafts`` one per action of the validator and of the solver, all its attempts together.
    """
    counts = {
        "reflector": int(reflects),
        "explorer": rounds * steps,
        "abstractor": 1,
        "validator": drafts * validator_steps,
        "solver": drafts * solver_steps,
    }
    return sum(count for role, count in counts.items() if role in chat)


class RolesSettings(Section):
    """The roles of a run."""

    reflector: RoleSettings = Field(RoleSettings(), json_schema_extra=requires({"signals.contexts": "signals"}))
    explorer: RoleSettings = RoleSettings()
    abstractor: RoleSettings = RoleSettings()
    solver: RoleSettings | None = Field(
        None, description="chat: a model that tries accepted drafts from their text (ours); null: no draft is tried"
    )
    solver_attempts: int = Field(
        4, ge=1, le=1000, description="solver: episodes played for one draft (ours)", json_schema_extra=SOLVED
    )
    solver_actions: int = Field(
        12,
        ge=1,
        le=10_000,
        description="solver: actions in one episode, all turns together (ours)",
        json_schema_extra=SOLVED,
    )
    solver_min: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="solver: success rate below which a draft is refused; null: the rate is only recorded",
        json_schema_extra=SOLVED,
    )
    solver_max: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="solver: success rate above which a draft is refused; null: the rate is only recorded",
        json_schema_extra=SOLVED,
    )
    validator: RoleSettings | None = Field(
        None,
        description="chat: the agent that carries out drafts from text and reference, for verification.mode agent "
        "and both; null: drafts are verified without a model",
        json_schema_extra=requires({"verification.mode": ("agent", "both")}),
    )
    validator_actions: int = Field(
        30,
        ge=1,
        le=10_000,
        description="validator: actions in its episode, all turns together (CoEvolve, A.2: 30 steps per episode)",
        json_schema_extra=requires({"validator": GIVEN}),
    )
    exploration: ExplorationSettings = ExplorationSettings()
    branch_timeout: float = Field(600.0, gt=0, le=DAY, description="timeout in seconds of one context's branch")
    concurrency: int = Field(
        16,
        ge=1,
        le=1024,
        description="chat: most requests in flight at one endpoint, over all roles (ours)",
        json_schema_extra=ANY_CHAT,
    )
    cache: str | None = Field(
        None,
        description="chat: SQLite file of replies to identical requests; put it outside the run to share it; null: "
        "no cache",
        json_schema_extra=ANY_CHAT,
    )
    failures_in_a_row: int = Field(
        5,
        ge=1,
        le=1000,
        description="the run stops and prints the last cause after this number of consecutive questions of a role "
        "without a readable reply, or of branches that fail alike; after five times as many if one succeeded before "
        "(ours)",
    )
    budget: BudgetSettings = Field(BudgetSettings(), json_schema_extra=ANY_CHAT)

    def chat(self) -> Mapping[str, RoleSettings]:
        """Return the roles that a chat model plays, by their key."""
        roles = {"reflector": self.reflector, "explorer": self.explorer, "abstractor": self.abstractor}
        if self.solver is not None:
            roles["solver"] = self.solver
        if self.validator is not None:
            roles["validator"] = self.validator
        return {name: role for name, role in roles.items() if role.kind == "chat"}

    @model_validator(mode="after")
    def _chat_options_fit(self) -> Self:
        if self.budget.money is not None:
            for name, role in self.chat().items():
                for key in ("price_prompt", "price_completion"):
                    if getattr(role, key) is None:
                        raise ValueError(f"'budget.money' needs '{name}.{key}', the price of a million tokens: add it")
        return self

    @model_validator(mode="after")
    def _solver_options_fit(self) -> Self:
        if self.solver is not None and self.solver.kind != "chat":
            raise ValueError("solver.kind must be chat: no scripted solver exists")
        if self.solver_min is not None and self.solver_max is not None and self.solver_min > self.solver_max:
            raise ValueError("'solver_min' is above 'solver_max': no draft could pass")
        return self

    @model_validator(mode="after")
    def _validator_options_fit(self) -> Self:
        if self.validator is not None and self.validator.kind != "chat":
            raise ValueError("validator.kind must be chat: no scripted validator exists")
        return self
