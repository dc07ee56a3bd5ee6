"""Settings of the policy, of how its prompts are written, of the engine that samples, and of a round of GRPO."""

from __future__ import annotations

import os
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from environments.addresses import Address
from environments.base import InputError
from environments.checkout import INITIAL_POLICY
from environments.settings import GIVEN, Above, Section, requires
from training.device_memory import Dtype, known_dtype
from training.seal.seal import SealSettings

MOST_TOKENS = 1_048_576
"""Upper bound of token limits (ours): the longest context that published models have."""

MOST_ROLLOUTS = 65_536
"""Upper bound of the rollouts of one step (ours): beyond it a mistyped number would run for ever."""

SERVERS_VARIABLE = "COEVOLVE_SERVERS"
"""Variable that names servers, separated by commas, of a job whose machines change."""

ExperimentTracker = Literal["trackio", "tensorboard", "wandb"]
"""Experiment trackers that a run can be sent to."""


class RenderingOptions(Section):
    """How a chat template's prompts are written; null: as the policy's card says, without a card the default."""

    thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; null: as trained, else the template's default"
    )
    documentation: Literal["schemas", "lines"] | None = Field(
        None,
        description="how a chat template documents a function: by schemas, or by lines (ours); null: as trained, "
        "else schemas",
    )
    tools_shown: Literal["all"] | Annotated[int, Field(ge=1, le=65_536)] | None = Field(
        None,
        description="functions that a chat template documents for a user turn: all, or the K that BM25 ranks "
        "highest for its text (ours); null: as trained, else all",
    )

    @field_validator("tools_shown", mode="before")
    @classmethod
    def _all_or_a_number(cls, value: object) -> object:
        return None if value is None else cls.checked_count(value)

    @staticmethod
    def checked_count(value: object) -> str | int:
        """Return ``value`` if it is ``all`` or an integer from 1 on. Raises ValueError for any other."""
        if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
            return value
        raise ValueError("give all, or the number of functions, 1 or more")

    def else_of(self, card: RenderingOptions | None) -> RenderingOptions:
        """Return the options with what they leave open taken from ``card``."""
        kept = {} if card is None else card.given_options
        return RenderingOptions.model_validate(kept | self.given_options)

    @property
    def given_options(self) -> dict[str, bool | str | int]:
        """The options that are not null."""
        return self.model_dump(include=set(RenderingOptions.model_fields), exclude_none=True)

    def check_compact(self, path: str) -> None:
        """Raise InputError for an option of a chat template: the policy at ``path`` has none."""
        for name in self.given_options:
            raise InputError(f"policy.{name}: {path} has no chat template, its rendering is compact: leave it null")


class LoraSettings(Section):
    """LoRA: low-rank updates of chosen layers instead of all weights; the KL term is then to the frozen base."""

    rank: int = Field(16, ge=1, le=4096, description="rank of each update")
    alpha: int = Field(32, ge=1, le=65_536, description="updates are scaled by alpha / rank")
    target_modules: tuple[str, ...] | None = Field(
        None, min_length=1, description="layers that get an update; null: every linear one but the output layer"
    )


class PolicySettings(RenderingOptions):
    """The model that is trained."""

    path: str = Field(
        INITIAL_POLICY,
        description="folder or hub id of a causal language model; recipes/starter, recipes/starter-seal, "
        "recipes/starter-world and, after make model, smollm2-135m are here from any working directory",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="of the trainer and of the sampler in process; auto: cuda where there is a GPU, else cpu"
    )
    dtype: Dtype = Field(
        "float32",
        description="of matrix products and of LoRA's frozen base; trained weights stay float32; auto: bfloat16 where "
        "the device has instructions for it, which a run records when it begins (ours)",
    )
    lora: LoraSettings | None = Field(None, description="train a LoRA adapter (ours); null: all weights")

    @property
    def known_dtype(self) -> Literal["float32", "bfloat16"]:
        """``dtype``, as this machine computes it where it is auto."""
        return known_dtype(self.dtype, self.device)


class LaunchSettings(Section):
    """Several processes that divide the groups of each step (ours); results are those of one but for float order."""

    processes: int = Field(2, ge=2, le=4096, description="one per GPU")
    fsdp: bool = Field(
        False, description="divide the weights among the processes (FSDP2); false: each has all of them (DDP)"
    )
    deadline: float = Field(
        1800.0,
        ge=1.0,
        le=1e6,
        description="seconds that a process waits for the others: more than the rollouts of a step can differ by",
    )


class ExpertSettings(Section):
    """Supervised updates on the references of new tasks, before a round's GRPO (ours; ``training.grpo.expert``)."""

    passes: int = Field(
        3,
        ge=1,
        le=1000,
        description="times that each new reference is learnt from",
        json_schema_extra=requires({"tokens": None}),
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description="tokens through the model in an expert step, prompts included: new references are repeated up "
        "to it, older ones where none is new; null: as many as passes take",
    )
    initial: bool = Field(
        True, description="whether the first round learns the references of D_0; false: a warm start did"
    )
    learning_rate: float = Field(
        1e-3, gt=0, le=1.0, description="peak learning rate of AdamW, which begins afresh in each round"
    )
    replay: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of the references learnt from that are of older tasks"
    )
    reword: bool = Field(
        False,
        description="write a reference's user turns anew, by rules, in later passes and in replay",
        json_schema_extra=requires({"passes": Above(1), "replay": Above(0), "tokens": GIVEN}),
    )


class ElsewhereSettings(Section):
    """Rounds by another engine, on as many nodes as it spans (ours; docs/scale.md)."""

    engine: Literal["verl", "prime-rl"] = Field(
        "verl",
        description="verl: a job for each round, by the settings of training; prime-rl: it trains beside the run, "
        "by settings of its own",
    )
    python: str = Field(
        ".venvs/verl/bin/python",
        description="Python of verl's environment",
        json_schema_extra=requires({"engine": "verl"}),
    )
    overrides: tuple[str, ...] = Field(
        (),
        description="verl's own settings, KEY=VALUE: GPUs, nodes",
        json_schema_extra=requires({"engine": "verl"}),
    )
    output: str | None = Field(
        None,
        description="prime-rl's output folder, whose newest weights are a round's policy",
        json_schema_extra=requires({"engine": "prime-rl"}),
    )

    @model_validator(mode="after")
    def _weights_are_found(self) -> Self:
        if self.engine == "prime-rl" and self.output is None:
            raise ValueError("engine prime-rl needs its output folder: set output")
        return self


class TrainingSettings(Section):
    """One round: F steps of GRPO. Defaults are the paper's where it states them, at the embedded policy's scale."""

    steps: int = Field(10, ge=1, le=100_000, description="F: GRPO steps between two evolutions (paper: 10)")
    tasks_per_step: int = Field(8, ge=1, le=4096, description="prompts in a step")
    rollouts_per_task: int = Field(8, ge=2, le=1024, description="K: rollouts of each task in a step (paper: 8)")
    learning_rate: float = Field(1e-4, gt=0, le=1.0, description="peak learning rate (paper: 1e-6 for 4B and more)")
    updates_per_step: int = Field(
        1, ge=1, le=4096, description="optimizer updates of a step, among which its groups are divided (SEAL: 4)"
    )
    clip_low: float = Field(
        0.2,
        gt=0,
        lt=1.0,
        description="the ratio to the policy that sampled is clipped below at 1 - clip_low (paper: 0.20)",
        json_schema_extra=requires({"updates_per_step": Above(1)}),
    )
    clip_high: float = Field(
        0.28,
        gt=0,
        le=100.0,
        description="the ratio is clipped above at 1 + clip_high (paper: 0.28; SEAL: 0.20)",
        json_schema_extra=requires({"updates_per_step": Above(1)}),
    )
    dual_clip: float | None = Field(
        None,
        gt=1.0,
        le=1e6,
        description="bound of the ratio where the advantage is negative; null: none (SEAL: 10)",
        json_schema_extra=requires({"updates_per_step": Above(1)}),
    )
    kl: float = Field(1e-3, ge=0, le=10.0, description="weight of the KL term to the initial policy (paper: 1e-3)")
    temperature: float = Field(0.9, gt=0, le=10.0, description="sampling temperature of rollouts (paper: 0.9)")
    max_new_tokens: int = Field(48, ge=1, le=MOST_TOKENS, description="sampled tokens of a message at most")
    max_tokens: int = Field(
        512, ge=16, le=MOST_TOKENS, description="tokens of an episode at most, prompt and observations included"
    )
    max_actions: int = Field(8, ge=1, le=10_000, description="actions in a user turn at most, during training")
    strict_messages: bool = Field(
        False,
        description="refuse all calls of a message if one is malformed or of a tool not on offer (SEAL as released)",
    )
    max_episode_steps: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="messages of an episode at most, beyond is a failure; null: no limit (CoEvolve: 30; SEAL: 20)",
    )
    length_cost: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="reward that a success loses per call beyond the reference's number, down to one half (paper: "
        "0; others are ours)",
    )
    similarity_reward: float = Field(
        0.0,
        ge=0.0,
        le=0.5,
        description="reward of a failure that makes the reference's calls, less where its calls are less like them: "
        "below every success (ours, after STAR's Sim-RL; papers: 0)",
    )
    resamples: int = Field(
        0,
        ge=0,
        le=100,
        description="times that a group is sampled anew while its rewards are all equal; the last is learnt from, all "
        "are recorded (dynamic sampling as in DAPO, which draws other tasks; papers: 0)",
    )
    max_grad_norm: float = Field(1.0, gt=0, le=1e12, description="gradients are clipped to this norm (SEAL: 1.0)")
    weight_decay: float = Field(
        0.0, ge=0.0, le=10.0, description="AdamW's, of all weights but biases and norms (SEAL as released: 0.01)"
    )
    max_trained_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="tokens behind an episode's first prompt, observations included, that enter the loss; null: "
        "all (SEAL as released: 4096)",
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=MOST_ROLLOUTS,
        description="rollouts per forward and backward pass of one process; null: all of an update (ours)",
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations: less memory, a third more time (ours)"
    )
    loss: Literal["group_tokens", "grpo", "dapo"] = Field(
        "group_tokens",
        description="normaliser of the policy's loss; group_tokens: the tokens of each group (CoEvolve, Eq. 1); "
        "grpo: of each rollout (SEAL as released); dapo: of the step",
    )
    expert: ExpertSettings | None = Field(
        None,
        description="begin a round with supervised updates on the references of the tasks that joined since the "
        "last one, D_0's in the first (ours); null: none",
    )
    seal: SealSettings | None = Field(
        None, description="SEAL's weighted advantages and learning interface; null: neither"
    )
    tag_synthesised: bool = Field(
        False,
        description="say in the system message of a synthesised task, in rollouts and references, that it is one, as "
        "tagged back-translation does; evaluation never does (ours)",
    )
    threads: int = Field(
        1, ge=1, le=1024, description="CPU threads of torch; more than one is slow beside a busy process"
    )
    launch: LaunchSettings | None = Field(
        None, description="train in several processes on this machine (ours); null: in one"
    )
    elsewhere: ElsewhereSettings | None = Field(
        None, description="another engine trains the rounds (ours); null: this project, on one machine"
    )
    report_to: tuple[ExperimentTracker, ...] = Field(
        (),
        description="trackers that get the run's metrics, one or a list; none: no tracker. A resumed run may have "
        "others (ours)",
    )

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        if value in ("none", None, ["none"]):
            return ()
        return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value)) if isinstance(value, list) else value

    @property
    def processes(self) -> int:
        """The processes that train a round together."""
        return 1 if self.launch is None else self.launch.processes

    @model_validator(mode="after")
    def _updates_fill_a_step(self) -> Self:
        if self.tasks_per_step % self.updates_per_step:
            raise ValueError(
                f"updates_per_step is {self.updates_per_step} and a step has {self.tasks_per_step} tasks, whose groups "
                "stay whole: make tasks_per_step a multiple of it"
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip is {self.dual_clip:g} and clip_high {self.clip_high:g}: make dual_clip larger than 1 + "
                "clip_high"
            )
        return self

    @model_validator(mode="after")
    def _another_engine_can(self) -> Self:
        if self.elsewhere is None:
            return self
        for key in self._given("expert", "seal", "launch", "max_trained_tokens", "resamples", "tag_synthesised"):
            raise ValueError(f"elsewhere: {self.elsewhere.engine} trains without {key}: remove one of the two")
        if self.elsewhere.engine == "verl" and self.loss == "group_tokens":
            raise ValueError("elsewhere: verl has no loss group_tokens: set loss to grpo or dapo")
        return self

    @model_validator(mode="after")
    def _processes_and_micro_batches_share_an_update(self) -> Self:
        groups = self.tasks_per_step // self.updates_per_step
        if groups % self.processes:
            whole = "a step" if self.updates_per_step == 1 else "an update (tasks_per_step / updates_per_step)"
            raise ValueError(
                f"launch.processes is {self.processes} and {whole} has {groups} tasks, whose groups stay whole: make "
                "tasks_per_step a multiple of launch.processes x updates_per_step"
            )
        rows = self.tasks_per_step * self.rollouts_per_task
        if rows > MOST_ROLLOUTS:
            raise ValueError(
                f"a step has {rows} rollouts (tasks_per_step x rollouts_per_task): make it {MOST_ROLLOUTS} at most"
            )
        rows //= self.updates_per_step * self.processes
        if self.micro_batch is not None and rows % self.micro_batch:
            whole, product = "a step", "tasks_per_step x rollouts_per_task"
            if self.updates_per_step > 1:
                whole, product = "an update", f"{product} / updates_per_step"
            if self.processes > 1:
                whole, product = f"{whole} of one process", f"{product} / launch.processes"
            raise ValueError(
                f"micro_batch is {self.micro_batch} and {whole} has {rows} rollouts ({product}): make it a divisor of "
                "that"
            )
        return self


class SamplingSettings(Section):
    """Which engine samples (ours): the trainer's own model, or vLLM servers that the user started."""

    engine: Literal["in_process", "vllm_server"] = Field(
        "in_process", description="in_process: the trainer's model decodes; vllm_server: vLLM servers"
    )
    servers: tuple[Address, ...] = Field(
        (),
        max_length=1024,
        description="addresses, such as http://host:8000; empty: those of the variable COEVOLVE_SERVERS",
        json_schema_extra=requires({"engine": "vllm_server"}),
    )
    request_timeout: float = Field(
        120.0,
        gt=0,
        le=86_400.0,
        description="timeout in seconds of one message; a server that takes longer ends the round",
        json_schema_extra=requires({"engine": "vllm_server"}),
    )
    concurrency: int = Field(
        32,
        ge=1,
        le=4096,
        description="most messages in flight at one server; on a CPU, prompts beyond the server's "
        "max_num_batched_tokens end its process",
        json_schema_extra=requires({"engine": "vllm_server"}),
    )

    @model_validator(mode="after")
    def _servers_differ(self) -> Self:
        for place, url in enumerate(self.servers):
            if url in self.servers[:place]:
                raise ValueError(f"'servers' lists {url} twice: remove one")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the servers, as they are now. Raises InputError where none are named."""
        listed = os.environ.get(SERVERS_VARIABLE, "").split(",")
        named = self.servers or tuple(part.strip() for part in listed if part.strip())
        if not named:
            raise InputError(
                "sampling.engine is vllm_server and no server is named: start one (python -m graph.serve RECIPE), and "
                f"set sampling.servers or {SERVERS_VARIABLE} to http://127.0.0.1:8000"
            )
        try:
            return TypeAdapter(tuple[Address, ...]).validate_python(named)
        except ValidationError:
            raise InputError(f"{SERVERS_VARIABLE}: name addresses as http://host:8000, separated by commas") from None

    def corrected(self, bfloat16: bool) -> bool:
        """Return whether the loss corrects for the engine's rounding (ours); ``bfloat16``: of matrix products."""
        return bfloat16 and self.engine != "in_process"


IN_PROCESS = SamplingSettings()
"""The default: the trainer's own model samples."""
