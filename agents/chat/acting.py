"""Chat models that act in live episodes: the explorer, and the validator with its judge (CoEvolve, section 3).

The explorer explores around a failure context, and without a guide from a start state, for D_0 and for the unguided
baseline: in the paper both are one model's work (section 3.1, table 12). Its rules are those of the paper's figure 9 in
words of our own.

The validator is an agent that carries out a draft, text and reference in hand (section 3.3). The paper accepts a draft
when the agent completes it, and also when it fails while the environment returns a positive reward. Who says that it is
completed is unsaid there; figure 13 is the prompt of a judge, which we read as that. The judge's five criteria are in
``judge_system.txt`` in words of our own. Its answer is a structured reply (ours) or the paper's two lines of text;
``success`` is true or false and nothing else. The reward of a synthetic task is unsaid, too: see
``memory.records.AgentValidation``.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from pydantic import ConfigDict, Field, JsonValue, StrictBool

from agents.chat.models import StructuredModel
from agents.chat.replies import Malformed, NextAction, WrittenAction, WrittenReply, labelled, shortened
from agents.chat.sending import EndpointFailed
from agents.chat.transcript import (
    MAX_OBSERVATION,
    acting_tools,
    action_text,
    attempt_text,
    context_text,
    data,
    interactions_text,
    offered,
    preface_text,
    prompt,
    tools_text,
)
from agents.evidence import live_run
from agents.settings import ExplorationSettings
from agents.spending import BudgetReached, RoleRefused
from environments.base import Action, Environment, Episode, Observation, Outcome, ToolCall, ToolSpec, UserTurn
from environments.turns import open_for_agent
from environments.verification.programs import program_tool
from memory.records import AgentValidation, Draft, FailureContext, Interaction, Unsignalled

MAX_REASON = 300
"""Most characters of a judge's reason in a record."""

MAX_AIM = 200
"""Most characters of what an explorer says that a call is for, in a record."""


class NextCall(WrittenAction):
    """The next call to make in the environment, or the end of this round."""

    # Asked for, because reasons come first; the paper's form has them in front of the action.
    model_config = ConfigDict(json_schema_extra={"required": ["purpose", "tool"]})

    purpose: str = Field(default_factory=str, description="one sentence: what this call is for")
    tool: str = Field(description="name of the tool to call; empty to end the round")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="arguments by parameter name")


@dataclass(frozen=True)
class ChatExplorer:
    """Explorer on a chat model. Environment calls run in a thread, off the event loop.

    An observation may contain instructions that the model follows; only calls of the context's tools reach the
    environment.
    """

    model: StructuredModel
    settings: ExplorationSettings

    async def explore(self, context: FailureContext, environment: Environment, seed: int) -> tuple[Interaction, ...]:
        """Explore for R rounds of at most S steps; ``seed`` is unused, because the endpoint does the sampling.

        With ``exploration.independent`` a round is shown its own actions only, otherwise those of earlier rounds too.

        A reply that stays unusable, or a spent budget, ends the exploration; interactions so far are kept. Raises
        RoleRefused, or its subclass BudgetReached, when there are none.
        """
        tools = acting_tools(await asyncio.to_thread(environment.tools, context.tools))
        documentation, program = tools_text(tools), program_tool(tools)
        rounds, steps, independent = self.settings.rounds, self.settings.steps, self.settings.independent
        interactions: list[Interaction] = []
        try:
            for number in range(rounds):
                first = len(interactions) if independent else 0
                with ExitStack() as stack:
                    run = await asyncio.to_thread(stack.enter_context, live_run(environment, context, number, steps))
                    for step in range(steps):
                        system, user = prompt(
                            "explore",
                            preface=preface_text(run.preface),
                            tools=documentation,
                            context=context_text(context),
                            scope="in this round" if independent else "in all rounds",
                            history=interactions_text(interactions[first:], program),
                            round=str(number + 1),
                            rounds=str(rounds),
                            exploration=_exploration(context),
                            left=str(steps - step),
                        )
                        reply, measured = await self.model.ask(
                            NextCall, system, user, subject=context.id, iteration=context.iteration
                        )
                        if not reply.tool:
                            break
                        action = offered(reply.tool, reply.arguments, context.tools)
                        aim = shortened(" ".join(reply.purpose.split()), MAX_AIM)
                        interactions.append(await asyncio.to_thread(run.act, action, measured, aim=aim))
        except RoleRefused:
            if not interactions:
                raise
        return tuple(interactions)


def _exploration(context: FailureContext) -> str:
    """Name an exploration without a weakness: nothing else distinguishes the prompts of those from one start state.

    A cache of replies, and a model at temperature 0, would answer all of them alike.
    """
    unguided = context.kind in (None, Unsignalled.UNGUIDED, Unsignalled.COVERAGE)
    return f" of exploration {context.id[-8:]}, one of many from here" if unguided else ""


class RunJudgement(WrittenReply):
    """Whether the agent completed the task, by the criteria."""

    reason: str = Field(description="one or two sentences: which criteria hold, which do not, and what shows it")
    success: StrictBool = Field(description="true only where every criterion holds, else false")

    @classmethod
    def from_text(cls, text: str) -> object:
        """Read the lines ``Success: true`` and ``Reason: ...`` (CoEvolve, figure 13)."""
        parts = labelled(text, ("success", "reason"))
        said = {part.partition("\n")[0].strip("*_` .").lower() for label, part in parts if label == "success"}
        if not said or not said <= {"true", "false"}:
            return None
        if len(said) > 1:
            raise Malformed("malformed reply: it says both that success is true and that it is false")
        return {"success": said == {"true"}, "reason": dict(parts).get("reason")}


class ChatValidator:
    """Validator on a chat model, which is the agent and the judge.

    Args:
        model: the chat model.
        actions: most actions of the run, all user turns together.
    """

    def __init__(self, model: StructuredModel, actions: int) -> None:
        self._model = model
        self._actions = actions

    async def validate(self, draft: Draft, environment: Environment, iteration: int | None) -> AgentValidation:
        """Play one episode of the draft and judge it.

        Raises EndpointFailed and BudgetReached for a run that they ended, and RoleRefused for a judge without a usable
        answer, unless the environment's reward decides alone. Raises EnvironmentFault when the environment failed.
        """
        run = _Run(self._model, draft, environment, iteration, self._actions)
        outcome = await run.play()
        reward = 1.0 if outcome.success else outcome.partial or 0.0
        completed: bool | None
        try:
            judgement = await run.judge()
            completed, detail = judgement.success, judgement.reason
        except RoleRefused as refusal:
            if reward <= 0 or isinstance(refusal, BudgetReached):
                raise
            completed, detail = None, f"The judge did not answer: {refusal}"
        return AgentValidation(
            accepted=completed or reward > 0,
            completed=completed,
            success=outcome.success,
            reward=reward,
            actions=run.made,
            detail=shortened(" ".join(detail.split()), MAX_REASON),
        )


@dataclass
class _Run:
    """The agent's episode, single use: it reads each user turn with the calls that are said to fulfil it.

    ``iteration``: of the questions' costs; None for D_0. ``actions``: most actions, all user turns together. ``said``:
    the user turns, actions and observations so far, as a prompt shows them.
    """

    model: StructuredModel
    draft: Draft
    environment: Environment
    iteration: int | None
    actions: int
    preface: str = ""
    made: int = 0
    last: Observation | None = None
    said: list[str] = field(default_factory=list)

    async def play(self) -> Outcome:
        """Play the episode and return the environment's outcome.

        A reply that stays unusable ends it: that is the model's own failure. Raises EndpointFailed and BudgetReached,
        which say nothing about the draft, and EnvironmentFault.
        """
        with closing(await asyncio.to_thread(self.environment.open, self.draft)) as episode:
            played, first = await asyncio.to_thread(open_for_agent, episode, self.draft)
            self.preface = preface_text((played[0].opened if played else first).preface)
            for one in played:
                tools = acting_tools(await asyncio.to_thread(self.environment.tools, one.opened.tools))
                self.said.append(f"User: {data('user', one.opened.full_text)}")
                self.said.append(attempt_text(one.steps, program_tool(tools)))
            turn: UserTurn | None = first
            try:
                while turn is not None:
                    await self._turn(episode, turn)
                    turn = await asyncio.to_thread(episode.end_turn) if self.made < self.actions else None
            except (BudgetReached, EndpointFailed):
                raise
            except RoleRefused:  # by the model itself: it gave up
                pass
            return await asyncio.to_thread(episode.outcome)

    async def _turn(self, episode: Episode, turn: UserTurn) -> None:
        """Act until the model ends the turn or no action is left."""
        tools = acting_tools(await asyncio.to_thread(self.environment.tools, turn.tools))
        documentation, program = tools_text(tools), program_tool(tools)
        self.said += [f"User: {data('user', turn.full_text)}", attempt_text((), program)]
        done: list[tuple[Action, Observation]] = []
        while self.made < self.actions:
            system, user = prompt(
                "validate",
                preface=self.preface,
                tools=documentation,
                history="\n".join(self.said),
                solution=reference_text(self.draft.reference[turn.index], program),
                left=str(self.actions - self.made),
            )
            reply, _ = await self.model.ask(NextAction, system, user, subject=self.draft.id, iteration=self.iteration)
            if not reply.tool:
                return
            action = offered(reply.tool, reply.arguments, turn.tools)
            self.last = await asyncio.to_thread(episode.step, action)
            done.append((action, self.last))
            self.made += 1
            self.said[-1] = attempt_text(done, program)

    async def judge(self) -> RunJudgement:
        """Ask the judge about the episode that was played. Raises RoleRefused."""
        draft = self.draft
        tools = acting_tools(await asyncio.to_thread(self.environment.tools, draft.tools))
        program = program_tool(tools)
        system, user = prompt(
            "judge",
            preface=self.preface,
            tools=tools_text(tools),
            query="\n".join(f"Turn {t}: {data('user', text)}" for t, text in enumerate(draft.turns, start=1)),
            expected="\n".join(
                f"Turn {t}:\n{reference_text(calls, program)}" for t, calls in enumerate(draft.reference, start=1)
            ),
            kind="calls of tools" if program is None else "code in Python that calls APIs",
            history="\n".join(self.said),
            last="(none)" if self.last is None else data("observation", self.last.full_text, MAX_OBSERVATION),
        )
        reply, _ = await self.model.ask(RunJudgement, system, user, subject=draft.id, iteration=self.iteration)
        return reply


def reference_text(calls: tuple[ToolCall, ...], program: ToolSpec | None) -> str:
    """Write the calls of one turn's reference, one per line; ``program`` is the tool that runs programs, if any."""
    return "\n".join(action_text(call, program) for call in calls) or "(no call)"
