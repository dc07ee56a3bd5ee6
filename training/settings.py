"""Settings of the policy, of a round of GRPO and of the signals read from its rollouts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from environments.checkout import INITIAL_POLICY
from memory.records import PAPER_KINDS, SignalKind
from memory.settings import Section
from training.seal.settings import SealSettings

MOST_TOKENS = 1_048_576
"""Upper bound of token limits (ours): the longest context that published models have."""

MOST_ROLLOUTS = 65_536
"""Upper bound of the rollouts of one step (ours): beyond it a mistyped number would run for ever."""


ExperimentTracker = Literal["trackio", "tensorboard", "wandb"]
"""Trackers of experiments that a run can be sent to."""


class LoraSettings(Section):
    """LoRA: low-rank updates of chosen layers instead of all weights; the KL term is then to the frozen base."""

    rank: int = Field(16, ge=1, le=4096, description="rank of each update (ours)")
    alpha: int = Field(32, ge=1, le=65_536, description="updates are scaled by alpha / rank (ours)")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout of the updates' input while training (ours)")
    target_modules: tuple[str, ...] | None = Field(
        None, description="names of the layers that get an update; null: every linear one but the output layer"
    )

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.target_modules == ():
            raise ValueError("target_modules names no layer: name one, or give null for every linear one")
        return self


class PolicySettings(Section):
    """The model that is trained."""

    path: str = Field(
        INITIAL_POLICY,
        description="folder or hub id of a causal language model; recipes/starter, recipes/starter-seal and "
        "recipes/starter-world are the project's own from any working directory",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="type of matrix products; trained weights stay float32, LoRA's frozen base is stored in it",
    )
    thinking: bool | None = Field(
        None, description="enable_thinking of the model's chat template; null leaves it at the template's default"
    )
    lora: LoraSettings | None = Field(None, description="train a LoRA adapter; null trains all weights")


class LaunchSettings(Section):
    """Several processes that train a round together, started by accelerate's launcher (ours; the papers have no form).

    A step's groups are divided among them, and rollouts, records and weights are those of one process but for float
    order.
    """

    processes: int = Field(2, ge=2, le=4096, description="processes in all, over all machines: one per GPU (ours)")
    machines: int = Field(
        1,
        ge=1,
        le=1024,
        description="machines; on each of several the command is started with MASTER_ADDR, MASTER_PORT and NODE_RANK "
        "set (ours)",
    )
    config: str | None = Field(
        None,
        description="file of accelerate's configuration (recipes/launch/): FSDP2 or DeepSpeed ZeRO; null: each process "
        "has all weights (DDP) (ours)",
    )
    deadline: float = Field(
        1800.0,
        ge=1.0,
        le=1e6,
        description="seconds that a process waits for the others before the round fails: more than rollouts of one "
        "step differ between processes (ours; torch's own default)",
    )

    @model_validator(mode="after")
    def _machines_are_alike(self) -> Self:
        if self.processes % self.machines:
            raise ValueError(
                f"processes is {self.processes} and machines {self.machines}, which get equally many: make processes a "
                "multiple of machines"
            )
        return self


class ExperimentalTraining(Section):
    """What groups without a signal are replaced by or learn from besides (ours): not shown to help, off by default."""

    dynamic_sampling: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="groups that a step may play in place of ones whose rewards are all equal, which carry no signal: "
        "other tasks are drawn for them; null: none (ours)",
    )
    lend_reference: Literal["none", "off_policy", "supervised"] = Field(
        "none",
        description="off-policy demonstrations: a group without any success gets its task's verified reference, in "
        "place of one of its rollouts or as a supervised term of the loss (ours)",
    )
    lend_at_most: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="most groups of one step that get their reference; null: no limit (ours)",
    )
    lend_weight: float = Field(
        0.3,
        gt=0,
        le=1000.0,
        description="weight of a reference's mean loss per token, for lend_reference supervised (ours)",
    )

    @model_validator(mode="after")
    def _demonstrations_fit(self) -> Self:
        if self.lend_reference == "none" and self._given("lend_at_most"):
            raise ValueError("'lend_at_most' is for demonstrations, lend_reference none would ignore it: remove it")
        if self.lend_reference != "supervised" and self._given("lend_weight"):
            raise ValueError(
                f"'lend_weight' is for lend_reference supervised, {self.lend_reference} would ignore it: remove it"
            )
        return self


class ExpertSettings(Section):
    """Supervised updates on the references of new tasks, before a round's GRPO (ours; ``training.grpo.expert``)."""

    passes: int = Field(3, ge=1, le=1000, description="times that each new reference is learnt from (ours)")
    batch: int = Field(
        16, ge=1, le=65_536, description="most references in one update, which are of like length (ours)"
    )
    learning_rate: float = Field(
        1e-3, gt=0, le=1e30, description="peak learning rate of AdamW, which begins afresh in each round (ours)"
    )
    replay: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of the references learnt from that are drawn from older tasks (ours)"
    )
    replay_by: Literal["chance", "failure"] = Field(
        "chance",
        description="which older references are learnt from again; chance: all alike; failure: more often those at "
        "whose functions rollouts fail (ours)",
    )
    reword: bool = Field(
        False,
        description="whether the user turns of a reference are written anew, in the scripted abstractor's words, in "
        "each pass after the first and where it is replayed (ours)",
    )

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if self.replay_by != "chance" and not self.replay:
            raise ValueError("'replay_by' is for 'replay', which is 0: set it, or remove this")
        if self.reword and self.passes == 1 and not self.replay:
            raise ValueError("'reword' is for further passes and for 'replay', and there is neither: remove it")
        return self


class TrainingSettings(Section):
    """One round: F steps of GRPO. Defaults are the paper's where it states them, at the embedded policy's scale."""

    steps: int = Field(10, ge=1, le=100_000, description="F: GRPO steps between two evolutions (paper: 10)")
    tasks_per_step: int = Field(8, ge=1, le=4096, description="prompts in a step")
    rollouts_per_task: int = Field(8, ge=2, le=1024, description="K: rollouts of each task in a step (paper: 8)")
    learning_rate: float = Field(1e-4, gt=0, le=1e30, description="peak learning rate (paper: 1e-6 for 4B and more)")
    warmup_steps: int = Field(
        0,
        ge=0,
        le=10_000_000,
        description="steps in which the learning rate rises from zero, whatever the updates of a step",
    )
    decay_steps: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="steps of the whole run, not of a round, in which the learning rate falls linearly to a tenth, "
        "where it stays; null: it is constant (ours)",
    )
    updates_per_step: int = Field(
        1,
        ge=1,
        le=4096,
        description="optimizer updates in which the groups of a step are learnt from, each group in one of them "
        "(SEAL: 4; CoEvolve has no value)",
    )
    clip_low: float = Field(
        0.2,
        gt=0,
        lt=1.0,
        description="the ratio to the policy that sampled is clipped below at 1 - clip_low; it acts from the second "
        "update of a step on (paper: 0.20)",
    )
    clip_high: float = Field(
        0.28,
        gt=0,
        le=1000.0,
        description="the ratio is clipped above at 1 + clip_high (paper: 0.28; SEAL: 0.20)",
    )
    dual_clip: float | None = Field(
        None,
        gt=1.0,
        le=1e6,
        description="the ratio is bounded by this where the advantage is negative; null: it is not (SEAL: 10; CoEvolve "
        "has no value)",
    )
    kl: float = Field(1e-3, ge=0, le=1000.0, description="weight of the KL term to the initial policy (paper: 1e-3)")
    temperature: float = Field(0.9, gt=0, le=100.0, description="sampling temperature of rollouts (paper: 0.9)")
    max_new_tokens: int = Field(48, ge=1, le=MOST_TOKENS, description="sampled tokens of one message at most")
    max_tokens: int = Field(
        512, ge=16, le=MOST_TOKENS, description="tokens of one episode at most, prompt and observations included"
    )
    max_actions: int = Field(8, ge=1, le=10_000, description="actions in one user turn at most, during training")
    strict_messages: bool = Field(
        False,
        description="refuse a message with all of its calls if one of them is malformed or of a tool that is not on "
        "offer, as SEAL's released code does; false: each call is answered for itself",
    )
    held_to_tools: bool = Field(
        False,
        description="sample no name of a tool that the user turn does not offer, in rollouts; they are scored by the "
        "same restricted distribution. For policies with the compact rendering and sampling.engine in_process (ours)",
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="messages of the policy in one episode at most, over all user turns; what is not done by then is a "
        "failure; null: no limit (CoEvolve: 30; SEAL: 20)",
    )
    reward: Literal["success", "checks"] = Field(
        "success",
        description="reward of a failure: 0; or up to one half, by the share of checks passed, of those that doing "
        "nothing fails (environments that fill in Outcome.partial; ours)",
    )
    length_cost: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="reward that a success loses per call beyond the reference's number, down to one half; 0: a "
        "success is worth 1 (paper: 0; others are ours)",
    )
    max_grad_norm: float = Field(1.0, gt=0, le=1e12)
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="AdamW's weight decay, of all weights but biases and norms (SEAL as released: 0.01; CoEvolve has "
        "no value)",
    )
    max_trained_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="tokens after an episode's first prompt, observations included, that training sees: later ones are "
        "played and enter no loss; null: all (SEAL as released: 4096)",
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=MOST_ROLLOUTS,
        description="rollouts per forward and backward pass of one process; null: all of an update (ours)",
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations instead of keeping them: less memory, a third more time (ours)"
    )
    loss: Literal["group_tokens", "grpo", "dapo", "dr_grpo"] = Field(
        "group_tokens",
        description="normaliser of the policy's loss: the tokens of each group (CoEvolve, Eq. 1); of each rollout "
        "(grpo; SEAL as released); of the step (dapo); a constant (dr_grpo)",
    )
    expert: ExpertSettings | None = Field(
        None,
        description="begin a round with supervised updates on the verified references of the tasks that joined since "
        "the round before, D_0's in the first; null: none (ours)",
    )
    seal: SealSettings | None = Field(
        None, description="SEAL: weighted advantages and the learning interface; null: neither (arXiv 2605.24426)"
    )
    threads: int = Field(
        1, ge=1, le=1024, description="CPU threads of torch; more than one is slow beside a busy process"
    )
    launch: LaunchSettings | None = Field(
        None, description="train in several processes, on several GPUs or machines; null: in one (ours)"
    )
    report_to: tuple[ExperimentTracker, ...] = Field(
        (),
        description="trackers of experiments that the run's numbers and some rollouts are sent to: trackio, "
        "tensorboard, wandb, one or a list; none: no tracker. A resumed run may have others (ours)",
    )
    experimental: ExperimentalTraining = ExperimentalTraining()

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        if value in ("none", None, ["none"]):
            return ()
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @field_validator("report_to")
    @classmethod
    def _named_once(cls, value: tuple[ExperimentTracker, ...]) -> tuple[ExperimentTracker, ...]:
        twice = next((name for name in value if value.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is named twice: name it once")
        return value

    @property
    def processes(self) -> int:
        """The processes that train a round together."""
        return 1 if self.launch is None else self.launch.processes

    @model_validator(mode="after")
    def _decay_follows_the_warmup(self) -> Self:
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps is {self.decay_steps} and warmup_steps {self.warmup_steps}: both count from the run's "
                "first step, make decay_steps larger"
            )
        return self

    @model_validator(mode="after")
    def _references_are_scored_as_rollouts_are(self) -> Self:
        if self.held_to_tools and self.experimental.lend_reference != "none":
            raise ValueError(
                "'experimental.lend_reference' scores references over all tools, and held_to_tools restricts rollouts "
                "to those on offer: remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _nothing_is_left_out_of_seal(self) -> Self:
        if self.experimental.dynamic_sampling is not None and self.seal is not None:
            raise ValueError(
                "'experimental.dynamic_sampling' leaves rollouts out of a step, and SEAL's failure profile is of all: "
                "remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _updates_fill_a_step(self) -> Self:
        if self.tasks_per_step % self.updates_per_step:
            raise ValueError(
                f"updates_per_step is {self.updates_per_step} and a step has {self.tasks_per_step} tasks, whose groups "
                "stay whole: make tasks_per_step a multiple of it"
            )
        for name in ("clip_low", "clip_high", "dual_clip"):
            if self.updates_per_step == 1 and self._given(name):
                raise ValueError(
                    f"'{name}' acts from the second update of a step on, updates_per_step 1 would ignore it: raise "
                    "updates_per_step, or remove it"
                )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip is {self.dual_clip:g} and clip_high {self.clip_high:g}: make dual_clip larger than 1 + "
                "clip_high"
            )
        return self

    @model_validator(mode="after")
    def _processes_share_an_update(self) -> Self:
        if self.launch is None:
            return self
        groups, processes = self.tasks_per_step // self.updates_per_step, self.launch.processes
        if groups % processes:
            whole = "a step" if self.updates_per_step == 1 else "an update (tasks_per_step / updates_per_step)"
            raise ValueError(
                f"launch.processes is {processes} and {whole} has {groups} tasks, whose groups stay whole: make "
                "tasks_per_step a multiple of launch.processes x updates_per_step"
            )
        for key, used in (
            ("experimental.dynamic_sampling", self.experimental.dynamic_sampling is not None),
            ("experimental.lend_reference", self.experimental.lend_reference != "none"),
        ):
            if used:
                raise ValueError(
                    f"'{key}' chooses among the groups of a whole step, which several processes divide: remove it, or "
                    "remove launch"
                )
        return self

    @model_validator(mode="after")
    def _micro_batches_fill_an_update(self) -> Self:
        rows = self.tasks_per_step * self.rollouts_per_task
        if rows > MOST_ROLLOUTS:
            raise ValueError(
                f"a step has {rows} rollouts (tasks_per_step x rollouts_per_task): make it {MOST_ROLLOUTS} at most"
            )
        if self.micro_batch is not None and rows // (self.updates_per_step * self.processes) % self.micro_batch:
            whole, product = "a step", "tasks_per_step x rollouts_per_task"
            if self.updates_per_step > 1:
                whole, product = "an update", f"{product} / updates_per_step"
            if self.processes > 1:
                whole, product = f"{whole} of one process", f"{product} / launch.processes"
            rows //= self.updates_per_step * self.processes
            raise ValueError(
                f"micro_batch is {self.micro_batch} and {whole} has {rows} rollouts ({product}): make it a divisor of "
                "that"
            )
        return self


SHARED_OUT = ("experimental.novelty", "share_forgetting", "share_boundary", "share_rare", "share_unsolved")
"""Settings of signals that divide a limited number of contexts, and do nothing without a limit."""


class ExperimentalSignals(Section):
    """A choice among contexts beyond the shares of their kinds (ours): not shown to help, off by default."""

    novelty: bool = Field(
        False,
        description="reflect on three times as many signals and explore those whose (tool, error class) was explored "
        "least (ours)",
    )


class SignalSettings(Section):
    """How weaknesses are found in a round's trajectories (CoEvolve, section 3.1), and which of them are followed.

    ``definition`` chooses between the paper's signals and those of this project's recorded studies.
    """

    definition: Literal["paper", "group"] = Field(
        "paper",
        description="paper: signals mark trajectories, rare patterns are counted over the whole run; group: one signal "
        "per group of rollouts, rare patterns are counted in one round (ours, as in the recorded studies)",
    )
    window: int = Field(
        10,
        ge=1,
        le=100_000,
        description="W: scores of a task in earlier steps that forgetting compares with: of trajectories, with the "
        "definition group means of groups (ours; the paper has no value)",
    )
    threshold: float = Field(0.5, gt=0.0, lt=1.0, description="score that separates success from failure (paper: 0.5)")
    rare_percent: float = Field(
        5.0, gt=0.0, le=100.0, description="theta: patterns rarer than this are rare (5: an example in the paper)"
    )
    pattern: Literal["succeeded", "called", "sequence"] = Field(
        "succeeded",
        description="action pattern of a trajectory: the set of tools that it called with success, the set of tools "
        "that it called, or the sequence of its calls' tools (ours; the paper has no form)",
    )
    rare_total: Literal["patterns", "occurrences"] = Field(
        "patterns",
        description="N of the rare signal: different patterns observed in the run, or their occurrences (ours; the "
        "paper says the total number of observed patterns)",
    )
    rare_min_patterns: int = Field(
        50,
        ge=1,
        le=1_000_000_000,
        description="N_min: no pattern is rare while N is smaller (ours; the paper has no value)",
    )
    rare_min_trajectories: int = Field(
        2,
        ge=1,
        le=1_000_000,
        description="trajectories of the run in which a rare pattern has to recur (ours; the paper has no number)",
    )
    pattern_length: int = Field(
        2, ge=1, le=100, description="n of the API-name n-grams that the definition group counts as patterns (ours)"
    )
    last_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="steps at the end of a round whose trajectories carry signals, while scores and patterns are kept "
        "of all; null: all steps (ours; the paper has no value, and 1 gives about as many signals as its Figure 3b)",
    )
    contexts_per_iteration: int | None = Field(
        24,
        ge=1,
        le=100_000,
        description="failure contexts explored in one iteration, one per task and kind of signal at most (ours); null: "
        "no limit, as in the paper",
    )
    context_per: Literal["trajectory", "task"] = Field(
        "trajectory",
        description="contexts without a limit: one for each trajectory and kind that marks it (the paper, section "
        "3.2), or one for each task and kind (ours)",
    )
    share_forgetting: float = Field(0.3, ge=0.0, le=1.0, description="share of contexts for forgetting (ours)")
    share_boundary: float = Field(0.5, ge=0.0, le=1.0, description="share of contexts for boundary (ours)")
    share_rare: float = Field(0.2, ge=0.0, le=1.0, description="share of contexts for rare (ours)")
    share_unsolved: float = Field(
        0.5,
        gt=0.0,
        le=1000.0,
        description="weight of contexts for unsolved where kinds lists it, beside the shares of the paper's kinds, "
        "which sum to 1: 0.5 gives it a third of the contexts (ours)",
    )
    kinds: tuple[SignalKind, ...] = Field(
        PAPER_KINDS,
        min_length=1,
        description="kinds of signals in use, by default the paper's; the shares of those listed are scaled to sum to "
        "1; unsolved marks failures at calls without any success in the window (ours)",
    )
    unsolved: Literal["shape", "function"] = Field(
        "shape",
        description="what had no success: the whole sequence of the reference's calls, which is so where one of its "
        "functions had none; or a function of it alone (ours)",
    )
    unsolved_rounds: int = Field(
        3,
        ge=1,
        le=100_000,
        description="window of unsolved: rounds in which nothing succeeded, the present one included (ours)",
    )
    contexts: Literal["signals", "random", "unguided", "coverage"] = Field(
        "signals",
        description="source of contexts: signals; calls drawn uniformly from the round's trajectories; start states, "
        "explored without guidance with as many environment calls; tools that no task calls, then those, and pairs, "
        "that fewest tasks call (ours, baselines)",
    )
    uncovered: int = Field(
        0,
        ge=0,
        le=100_000,
        description="contexts of an iteration that come from coverage in place of signals, as with contexts: coverage; "
        "of contexts_per_iteration where that is a number, beyond the signals' where it is null (ours)",
    )
    coverage_by: Literal["tasks", "need"] = Field(
        "tasks",
        description="what contexts from coverage come first for; tasks: tools that fewest tasks call; need: tools with "
        "few tasks at whose calls rollouts fail, a tool that no rollout was asked for counting as half known (ours)",
    )
    experimental: ExperimentalSignals = ExperimentalSignals()

    @property
    def limit(self) -> int:
        """Return ``contexts_per_iteration`` where it is a number, as every choice among contexts needs it.

        Raises ValueError for null, which such a choice refuses beforehand.
        """
        if self.contexts_per_iteration is None:
            raise ValueError("signals.contexts_per_iteration is null: there is no limit to choose by")
        return self.contexts_per_iteration

    @property
    def for_signals(self) -> int | None:
        """Return the contexts that signals may have in an iteration; None without a limit."""
        return None if self.contexts_per_iteration is None else self.contexts_per_iteration - self.uncovered

    @property
    def from_coverage(self) -> int:
        """Return the contexts of an iteration that come from coverage."""
        return self.limit if self.contexts == "coverage" else self.uncovered

    @property
    def found(self) -> tuple[SignalKind, ...]:
        """Return the kinds that a round is read for: the paper's, listed or not, and others that are listed."""
        return tuple(kind for kind in SignalKind if kind in PAPER_KINDS or kind in self.kinds)

    def shares(self) -> dict[SignalKind, float]:
        """Return the share of each kind that is listed, scaled to sum to 1."""
        shares = {
            SignalKind.FORGETTING: self.share_forgetting,
            SignalKind.BOUNDARY: self.share_boundary,
            SignalKind.RARE: self.share_rare,
            SignalKind.UNSOLVED: self.share_unsolved,
        }
        if set(self.kinds) == set(PAPER_KINDS):
            return {kind: shares[kind] for kind in PAPER_KINDS}
        total = sum(shares[kind] for kind in self.kinds)
        return {kind: share / total for kind, share in shares.items() if kind in self.kinds}

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = self.share_forgetting + self.share_boundary + self.share_rare
        if abs(total - 1.0) > 1e-6:
            raise ValueError(f"share_forgetting + share_boundary + share_rare is {total:g}: make it 1")
        return self

    @model_validator(mode="after")
    def _kinds_fit(self) -> Self:
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"'kinds' lists a kind twice: {', '.join(self.kinds)}")
        if not any(getattr(self, f"share_{kind}") for kind in self.kinds):
            raise ValueError(f"'kinds' lists only kinds whose share is 0: {', '.join(self.kinds)}")
        return self

    @model_validator(mode="after")
    def _unsolved_is_listed(self) -> Self:
        listed = SignalKind.UNSOLVED in self.kinds
        given = self._given("share_unsolved", "unsolved", "unsolved_rounds")
        if given and not listed:
            raise ValueError(
                f"'{given[0]}' is for the kind unsolved, which 'kinds' does not list: add it, or remove this"
            )
        if listed and self.definition == "group":
            raise ValueError(
                "'kinds' lists unsolved, which is for definition: paper, group would ignore it: remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _coverage_leaves_room(self) -> Self:
        if self.uncovered and self.contexts_per_iteration is not None and self.uncovered >= self.contexts_per_iteration:
            raise ValueError(
                f"'uncovered' is {self.uncovered} of contexts_per_iteration: {self.contexts_per_iteration}, and leaves "
                "none for signals: make it smaller, or choose contexts: coverage"
            )
        return self

    @model_validator(mode="after")
    def _coverage_is_in_use(self) -> Self:
        if self.coverage_by != "tasks" and self.contexts != "coverage" and not self.uncovered:
            raise ValueError(
                "'coverage_by' is for contexts: coverage and for 'uncovered', and there is neither: remove it"
            )
        return self

    @model_validator(mode="after")
    def _choice_is_of_signals(self) -> Self:
        given = self._given("kinds", "uncovered", *SHARED_OUT)
        if self.contexts != "signals" and given:
            raise ValueError(f"'{given[0]}' is for contexts: signals, {self.contexts} would ignore it: remove it")
        return self

    @model_validator(mode="after")
    def _no_limit_shares_nothing_out(self) -> Self:
        if self.contexts_per_iteration is not None:
            return self
        if self.contexts != "signals":
            raise ValueError(
                f"'contexts_per_iteration' is null, and contexts: {self.contexts} needs a number: give one"
            )
        given = self._given(*SHARED_OUT)
        if given:
            raise ValueError(
                f"'{given[0]}' shares out a limit, and 'contexts_per_iteration' is null: remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _a_limit_has_its_own_choice(self) -> Self:
        if self.contexts_per_iteration is not None and self._given("context_per"):
            raise ValueError(
                "'context_per' is for contexts_per_iteration: null, a limit takes one per task and kind: remove it"
            )
        return self

    @model_validator(mode="after")
    def _of_the_definition(self) -> Self:
        only: dict[str, tuple[str, ...]] = {
            "paper": ("pattern", "rare_total", "rare_min_patterns", "rare_min_trajectories", "last_steps"),
            "group": ("pattern_length",),
        }
        for definition, keys in only.items():
            given = self._given(*keys)
            if self.definition != definition and given:
                raise ValueError(
                    f"'{given[0]}' is for definition: {definition}, {self.definition} would ignore it: remove it"
                )
        return self
