"""A model's own chat template as a rendering that never renders the history again.

The suffix after a sampled message (answers of tools, the next user turn) is found by rendering a dummy conversation and
keeping the text behind the dummy assistant message: so the sampled ids stay unchanged, whatever the template would have
made of them. Text from outside never becomes a control token, whatever it spells. What a template can do is probed with
dummy conversations when the model is loaded (``choose_reader``); one that lacks something an episode needs is refused
by name. All of this is our choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from environments.base import Action, InputError, MalformedCall, Observation, ToolCall, ToolSpec, UserTurn
from environments.task_text import with_own_descriptions
from environments.tool_lines import highest_ranked, tool_line
from training.rendering.base import DONE, EndTurn, Unwritable
from training.rendering.control_tokens import ControlTokens, marker_for
from training.rendering.template_process import TemplateFailure, TemplateProcess
from training.rendering.template_readers import response_template_reader, tagged_reader
from training.rendering.tool_calls import (
    DUMMY_TOOL,
    CallReader,
    Documentation,
    HarmonyReader,
    HermesReader,
    JsonReader,
    Message,
    PythonicReader,
    Schema,
    block_action,
    call_id,
    call_message,
    takes_blocks,
    tool_schema,
)
from training.settings import RenderingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CALL = ToolCall(name=DUMMY_TOOL["function"]["name"], arguments={"city": "Oslo", "days": 3})
_SAID = "dummy answer of the probe"
_ASKED: Message = {"role": "user", "content": "dummy question of the probe"}
_ANSWER: Message = {"role": "tool", "name": _CALL.name, "tool_call_id": call_id(0), "content": _SAID}
_DUMMY_LINE = "get_weather(city: string, days?: integer) the weather of the next days"
_CAN_CALL = "choose a model that was trained to call tools"


def choose_reader(rendering: ChatTemplateRendering) -> tuple[CallReader, bool]:
    """Return the reader that reads a rendered tool call back, and whether a message may hold several calls.

    Raises InputError for a template that documents no tools, drops their answers, does not end messages with a stop
    token, or writes calls in a format that no reader knows.
    """
    if _CALL.name not in rendering.render([_ASKED], [DUMMY_TOOL]):
        raise InputError(f"the chat template of {rendering.model} does not document tools: {_CAN_CALL}")
    if rendering.lines and not _shows_lines(rendering):
        raise InputError(
            f"policy.documentation: the chat template of {rendering.model} cannot show a function that is given as a "
            "line of text: set it to schemas"
        )
    if _SAID not in rendering.answers([_CALL.name], [_SAID])[1]:
        raise InputError(f"the chat template of {rendering.model} drops the answers of tools: {_CAN_CALL}")
    rendering.suffix([_ASKED])
    head, message, stop = written(rendering, call_of(_CALL.name, dict(_CALL.arguments)), [_ANSWER])
    readers: tuple[Callable[[], CallReader | None], ...] = (
        HermesReader,
        PythonicReader,
        JsonReader,
        HarmonyReader,
        lambda: tagged_reader(rendering.calls),
        lambda: response_template_reader(rendering.tokenizer, rendering.calls),
    )
    for made in readers:
        reader = made()
        if reader is not None and reader.read(message, stop, head, [DUMMY_TOOL]) == (_CALL,):
            return reader, _takes_several(rendering)
    raise InputError(
        f"the chat template of {rendering.model} writes a tool call as {message!r}, which cannot be read back: choose "
        "a model that writes <tool_call>{JSON}</tool_call> (Qwen2.5, Qwen3) or [name(parameter=value)], or save a "
        "response_template with its tokenizer"
    )


def _shows_lines(rendering: ChatTemplateRendering) -> bool:
    try:
        return _DUMMY_LINE in rendering.render([_ASKED], [_DUMMY_LINE])
    except InputError:
        return False


def check_writing(rendering: ChatTemplateRendering) -> None:
    """Raise InputError when a call, or an end of the turn, that the template writes last cannot be read back."""
    call, done = call_of(_CALL.name, dict(_CALL.arguments)), {"role": "assistant", "content": _SAID}
    for said, expected in ((call, (_CALL,)), (done, EndTurn(text=_SAID))):
        head, message, stop = written(rendering, said)
        if not stop or rendering.reader.read(message, stop, head, [DUMMY_TOOL]) != expected:
            raise InputError(
                f"training.expert: the chat template of {rendering.model} writes an assistant's last message as "
                f"{message + stop!r}, which cannot be read back: set it to null, or choose another model"
            )


def call_of(name: str, arguments: dict[str, Any]) -> Message:
    """Return an assistant message with one call and nothing else."""
    return {"role": "assistant", "content": "", "tool_calls": [call_message(0, name, arguments)]}


def written(rendering: ChatTemplateRendering, said: Message, following: Sequence[Message] = ()) -> tuple[str, str, str]:
    """Render the assistant message ``said``; return the text before it, the message, and its stop token.

    It is rendered between a dummy question and ``following``: some templates write a message differently when none
    follows. The stop token is empty when the template does not end the message with one.
    """
    before, head = rendering.asked
    text = rendering.render([_ASKED, said, *following], [DUMMY_TOOL])[len(before) :]
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(head, text, strict=False)))
    # A head may close a thinking block that the rendered history does not show: keep only the whole tags they share.
    begin = len(head) if shared == head else max(shared.rfind(">"), shared.rfind("\n")) + 1
    end = re.search(rendering.stop, text[begin:])
    message = text[begin : begin + end.start()] if end else text[begin:]
    return before + shared[:begin], message, end[0] if end else ""


def _takes_several(rendering: ChatTemplateRendering) -> bool:
    try:
        rendering.answers([_CALL.name] * 2, [_SAID] * 2)
    except InputError:
        return False
    return True


_HARMONY_END = "<|end|>"
_HARMONY = {"<|channel|>", "<|message|>", _HARMONY_END}
_MARK = "dummy_value_of_the_differencing"
_NO_NAME = "unknown"
_TODAY = datetime(2024, 7, 26)
"""The time of every template (the date that Llama 3's show by default), so that a run on another day has equal prompts.
"""


class ChatTemplateRendering:
    """Opens dialogues in the tokenizer's chat template."""

    name = "chat_template"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Collection[int] = (),
        options: RenderingOptions = RenderingOptions(),  # noqa: B008 - immutable
    ) -> None:
        """``stop_ids`` end a message beside the tokenizer's eos token: those of the model's generation config.

        Raises InputError for a template that lacks something an episode, or one of ``options``, needs, and names it.
        """
        self.model = tokenizer.name_or_path or "the model"
        if not tokenizer.chat_template:
            raise InputError(
                f"{self.model} has neither a chat template nor coevolve.json: choose an instruction-tuned "
                "model, or an initial policy made with python -m training.warm_start --model embedded"
            )
        if tokenizer.eos_token_id is None:
            raise InputError(f"{self.model} has no end-of-message token: set its eos_token")
        self.tokenizer = tokenizer
        self.stop_ids = frozenset({int(tokenizer.eos_token_id), *map(int, stop_ids)})
        self.stops = [str(token) for token in tokenizer.convert_ids_to_tokens(sorted(self.stop_ids)) if token]
        if _HARMONY & tokenizer.get_added_vocab().keys() == _HARMONY:
            # What gpt-oss ends so is a message of its thinking; its template ends what an assistant said with it, too.
            self.stop_ids -= {tokenizer.convert_tokens_to_ids(_HARMONY_END)}
            self.stops = sorted({*self.stops, _HARMONY_END})
        self.stop = re.compile("|".join(map(re.escape, sorted(self.stops, key=len, reverse=True))))
        self.lines = options.documentation == "lines"
        self.shown = None if options.tools_shown in (None, "all") else int(options.tools_shown)
        self._options: dict[str, Any] = {} if options.thinking is None else {"enable_thinking": options.thinking}
        self._apply = TemplateProcess(partial(_applied, tokenizer))
        self._controls = ControlTokens(tokenizer, _MARK)
        if options.thinking is not None:
            thought, plain = (self.render([_ASKED], enable_thinking=one) for one in (True, False))
            if thought == plain:
                raise InputError(
                    f"policy.thinking: the chat template of {self.model} has no option enable_thinking: leave it null"
                )
        self.reader, self.several = choose_reader(self)
        self._writes = False

    def begin(self) -> ChatTemplateDialogue:
        """Return a fresh dialogue for one episode."""
        return ChatTemplateDialogue(self)

    def prompt(
        self, text: str, tools: Sequence[Documentation], preface: str = "", advice: str = ""
    ) -> tuple[list[int], str]:
        """Render the first prompt, up to the head of the assistant's message; return its ids and its text.

        ``preface`` is the system message, in place of the template's own. ``advice`` goes behind either of them, so
        that nothing else changes. Both go in front of ``text`` for a template without a system message.
        """
        own = self.own_system if advice and not preface and self.has_system else ""
        preface = "\n\n".join(filter(None, (preface or own, advice)))
        before = [{"role": "system", "content": preface}] if preface and self.has_system else []
        if preface and not before:
            text = f"{preface}\n\n{text}"
        asked = [*before, {"role": "user", "content": text}]
        marker = marker_for([asked, list(tools)])
        inert = [message | {"content": self._controls.broken(message["content"], marker)} for message in asked]
        return self._controls.encode(self.render(inert, self._controls.broken(list(tools), marker)), marker)

    @cached_property
    def asked(self) -> tuple[str, str]:
        """The text of a dummy question, and the head of the message that answers it."""
        before = self.render([_ASKED], [DUMMY_TOOL], ask=False)
        return before, self.render([_ASKED], [DUMMY_TOOL])[len(before) :]

    def calls(self, calls: Sequence[ToolCall]) -> str:
        """Return what the template writes for a message with these calls and nothing else."""
        made = [call_message(place, call.name, dict(call.arguments)) for place, call in enumerate(calls)]
        return written(self, {"role": "assistant", "content": "", "tool_calls": made}, [_ANSWER])[1]

    @cached_property
    def has_system(self) -> bool:
        """Report whether the template shows a system message beside tools: some refuse one, some drop it."""
        try:
            return _SAID in self.render([{"role": "system", "content": _SAID}, _ASKED], [DUMMY_TOOL])
        except InputError:
            return False

    @cached_property
    def own_system(self) -> str:
        """The system message that the template writes where a conversation has none; empty if it writes none."""
        shown = self.render([{"role": "system", "content": _MARK}, _ASKED], [DUMMY_TOOL])
        before, _, behind = shown.partition(_MARK)
        own = self.render([_ASKED], [DUMMY_TOOL])
        fits = own.startswith(before) and own.endswith(behind) and len(own) >= len(before) + len(behind)
        return own[len(before) : len(own) - len(behind)] if fits else ""

    def suffix(self, following: Sequence[Message], names: Sequence[str] = ()) -> tuple[list[int], str]:
        """Render what the template puts between an assistant message and the next; return its ids and its text.

        The first id ends the message. ``following`` are the messages that come after it; ``names`` are those of its
        tool calls, none for a message without calls. Raises InputError for a template that drops messages, or does not
        end them with a stop token.
        """
        marker = marker_for([list(names), list(following)])
        said: Message = {"role": "assistant", "content": "" if names else _MARK}
        if names:
            arguments = {_MARK: _MARK}
            said["tool_calls"] = [
                call_message(i, self._controls.broken(name, marker), arguments) for i, name in enumerate(names)
            ]
        texts = self._controls.broken(list(following), marker)
        rendered = self.render([{"role": "user", "content": "dummy"}, said, *texts], [DUMMY_TOOL])
        _, mark, behind = rendered.rpartition(_MARK)
        end = self.stop.search(behind)
        if not mark:
            lost = "tool calls" if names else "what an assistant says"
            raise InputError(
                f"the chat template of {self.model} drops {lost}: choose a model that was trained to call tools"
            )
        if end is None:
            raise InputError(
                f"the chat template of {self.model} does not end an assistant message with one of its stop tokens "
                f"({', '.join(self.stops)}): set eos_token_id in its generation_config.json, or choose another model"
            )
        return self._controls.encode(behind[end.start() :], marker)

    def answers(self, names: Sequence[str], texts: Sequence[str]) -> tuple[list[int], str]:
        """Render the suffix that answers the calls of a message, one text each."""
        messages = [
            {"role": "tool", "name": name, "tool_call_id": call_id(place), "content": text}
            for place, (name, text) in enumerate(zip(names, texts, strict=True))
        ]
        return self.suffix(messages, names)

    def message(self, action: ToolCall | EndTurn) -> list[int]:
        """Return the ids of ``action`` as the template writes an assistant's last message, with the id that ends it.

        If the template shows thinking, the teacher's is empty. Raises InputError for a template whose last messages
        cannot be read back.
        """
        if not self._writes:
            check_writing(self)
            self._writes = True
        if isinstance(action, EndTurn):
            marker = marker_for(action.text)
            said: Message = {"role": "assistant", "content": self._controls.broken(action.text or DONE, marker)}
        else:
            marker = marker_for([action.name, action.arguments])
            said = call_of(
                self._controls.broken(action.name, marker), self._controls.broken(dict(action.arguments), marker)
            )
        _, text, stop = written(self, said)
        ids, _ = self._controls.encode(text + stop, marker)
        # In its history gpt-oss's template ends a message otherwise than the model does.
        return ids if ids[-1] in self.stop_ids else [*ids[:-1], int(self.tokenizer.eos_token_id)]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Documentation] = (), ask: bool = True, **options: bool
    ) -> str:
        """Render ``messages`` to text; ``ask``: with the head of the assistant's next message at the end.

        ``options`` override those of the rendering. Raises InputError when the template cannot render this.
        """
        try:
            return self._apply(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=ask,
                tokenize=False,
                date_string=f"{_TODAY:%d %b %Y}",
                **{**self._options, **options},
            )
        except TemplateFailure as error:
            raise InputError(
                f"the chat template of {self.model} cannot render a conversation with tool calls ({error}): choose a "
                "model that was trained to call tools"
            ) from error


def announced(new: Sequence[Documentation], text: str) -> str:
    """Return a later user message after the documentation of tools that are new in its turn, one per line."""
    if not new:
        return text
    lines = "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in new)
    return f"These tools are available from now on:\n{lines}\n\n{text}"


class ChatTemplateDialogue:
    """One episode in a chat template (see training.rendering.base.Dialogue)."""

    def __init__(self, rendering: ChatTemplateRendering) -> None:
        self.stop_ids = rendering.stop_ids
        self._rendering = rendering
        self._tools: dict[str, Schema] = {}
        self._documented: set[str] = set()
        self._head = ""
        self.stopped: int | None = None
        self._names: tuple[str, ...] = ()

    def first(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of the system message, the tools' documentation and the first user message."""
        documented = self._new_documentation(turn, tools, ())
        ids, self._head = self._rendering.prompt(turn.text, documented, turn.preface, turn.advice)
        return ids

    def parse(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        """Read the tool calls of a sampled message, or its block of Python; a message with neither ends the turn."""
        self.stopped = ids[-1] if ids and ids[-1] in self.stop_ids else None
        read = self._read(ids)
        if not isinstance(read, EndTurn):
            self._names = tuple(action.name if isinstance(action, ToolCall) else _NO_NAME for action in read)
        return read

    def _read(self, ids: Sequence[int]) -> tuple[Action, ...] | EndTurn:
        ended = bool(ids) and ids[-1] in self.stop_ids
        said = self._decode(ids[:-1] if ended else ids)
        if not ended:
            return (MalformedCall(text=said, reason="cut off: the message does not end"),)
        tools = tuple(self._tools.values())
        read = self._rendering.reader.read(said, self._decode(ids[-1:]), self._head, tools)
        if isinstance(read, EndTurn):
            block = block_action(read.text) if takes_blocks(tools) else None
            return read if block is None else (block,)
        if len(read) > 1 and not self._rendering.several:
            reason = f"{len(read)} tool calls in one message: the model's chat template takes one at a time"
            return (MalformedCall(text=said, reason=reason),)
        return read

    def observe(self, observations: Sequence[Observation]) -> list[int]:
        """Return the ids of the tools' answers and the head of the next assistant message."""
        return self._go_on(*self._rendering.answers(self._names, [one.full_text for one in observations]))

    def next_turn(self, turn: UserTurn, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of the next user message, which documents tools that are new in this turn, one per line."""
        new = self._new_documentation(turn, tools, [tool.name for tool in tools if tool.name not in self._tools])
        return self._go_on(*self._rendering.suffix([{"role": "user", "content": announced(new, turn.full_text)}]))

    def _new_documentation(
        self, turn: UserTurn, tools: Sequence[ToolSpec], added: Collection[str]
    ) -> list[Documentation]:
        """Return the documentation that a turn adds: of ``added`` tools, and of those shown for its text."""
        self._tools |= {tool.name: tool_schema(tool) for tool in tools}
        most = len(tools) if self._rendering.shown is None else self._rendering.shown
        wanted = highest_ranked(turn.text, tools, most).union(added) - self._documented
        self._documented |= wanted
        if self._rendering.lines:
            return [tool_line(tool) for tool in with_own_descriptions(tools) if tool.name in wanted]
        return [tool_schema(tool) for tool in tools if tool.name in wanted]

    def demonstrate(self, action: ToolCall | EndTurn) -> list[int]:
        """Return the ids of a message with one call, or of one that ends the turn, as a teacher writes it.

        Raises Unwritable for a call that the format cannot carry: it would be read as another one, or not at all.
        """
        ids = self._rendering.message(action)
        read = self._read(ids)
        if not isinstance(read, EndTurn) if isinstance(action, EndTurn) else read != (action,):
            what = "this end of a turn" if isinstance(action, EndTurn) else f"this call of {action.name!r:.60}"
            raise Unwritable(
                f"the format of {self._rendering.model} cannot hold {what}, whose texts spell a part of the format or "
                "are changed by the tokenizer: leave its task out"
            )
        return ids

    def _go_on(self, ids: list[int], text: str) -> list[int]:
        """Return the suffix without the token that ends a message when the message already has it.

        A message that was cut off, or that another stop id ended, gets the template's own end.
        """
        self._head = text
        return ids[1:] if ids[0] == self.stopped else ids

    def _decode(self, ids: Sequence[int]) -> str:
        tokenizer = self._rendering.tokenizer
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _applied(tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: Any, **options: Any) -> str:  # noqa: ANN401
    """Return a conversation in the chat template; ``apply_chat_template`` refuses tools that are text.

    Runs in the template's process: the clock of the compiled template is stopped there alone.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    template = _compile_jinja_template(tokenizer.get_chat_template(tools=tools))
    template.environment.globals["strftime_now"] = _TODAY.strftime
    if not any(isinstance(tool, str) for tool in tools or ()):
        return str(tokenizer.apply_chat_template(messages, tools=tools, **options))
    return str(template.render(messages=messages, tools=tools, **{**tokenizer.special_tokens_map, **options}))
