"""A chat template as a rendering, on a made tokenizer with a template that behaves like Qwen3's."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from support.bfcl_tasks import ENVIRONMENT
from support.late import Late

from environments.base import InputError, MalformedCall, Observation, ObservationStatus, UserTurn
from training.rendering import template_process
from training.rendering.chat_template import ChatTemplateRendering
from training.rendering.tool_calls import tool_schema

torch = Late("torch")
transformers = Late("transformers")
in_process = Late("training.rollout.in_process")

# Like Qwen3's: tools in the system message, tool answers inside a user message, and earlier thinking is dropped from
# every assistant message that stands before the last question of the user.
TEMPLATE = """
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{% if loop.index0 > ns.last %}<think>

</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@cache
def tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>"), AddedToken("<pad>")])
    made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<pad>", chat_template=TEMPLATE
    )


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def render(messages: list[dict[str, object]], *, ask: bool, names: tuple[str, ...] = ()) -> str:
    tools = [tool_schema(tool) for tool in ENVIRONMENT.tools(names)] or None
    return tokenizer().apply_chat_template(messages, tools=tools, add_generation_prompt=ask, tokenize=False)


def turn(text: str, names: tuple[str, ...], index: int = 0) -> UserTurn:
    return UserTurn(index=index, text=text, tools=names)


def seen(text: str) -> Observation:
    return Observation(text=text, status=ObservationStatus.OK)


def test_the_prompt_documents_the_tools() -> None:
    names = ("lockDoors",)
    dialogue = ChatTemplateRendering(tokenizer()).begin()
    prompt = tokenizer().decode(dialogue.first(turn("lock", names), ENVIRONMENT.tools(names)))
    (line,) = [line for line in prompt.splitlines() if '"lockDoors"' in line]
    function = json.loads(line)["function"]
    assert function["parameters"]["required"] == ["unlock", "door"]
    door = function["parameters"]["properties"]["door"]
    assert door["type"] == "array"
    assert door["items"] == {"type": "string", "enum": ["driver", "passenger", "rear_left", "rear_right"]}
    assert function["parameters"]["properties"]["unlock"]["type"] == "boolean"


def test_a_message_that_was_cut_off_is_ended_before_what_follows() -> None:
    dialogue = ChatTemplateRendering(tokenizer()).begin()
    dialogue.first(turn("where?", ("pwd",)), ENVIRONMENT.tools(["pwd"]))
    (read,) = dialogue.parse(encode("<tool_call>\n{"))
    assert isinstance(read, MalformedCall)
    suffix = tokenizer().decode(dialogue.observe([seen("no")]))
    assert suffix.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\nno\n")
    assert suffix.endswith("<|im_start|>assistant\n")


def test_tools_that_come_later_are_documented_in_their_turn() -> None:
    dialogue = ChatTemplateRendering(tokenizer()).begin()
    dialogue.first(turn("where?", ("pwd",)), ENVIRONMENT.tools(["pwd"]))
    dialogue.parse(encode("done<|im_end|>"))
    suffix = tokenizer().decode(dialogue.next_turn(turn("list", ("pwd", "ls"), 1), ENVIRONMENT.tools(["pwd", "ls"])))
    assert '"name": "ls"' in suffix
    assert '"name": "pwd"' not in suffix
    assert suffix.endswith("list<|im_end|>\n<|im_start|>assistant\n")


def test_what_cannot_be_rendered_is_refused() -> None:
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer, eos_token="<|im_end|>")
    with pytest.raises(InputError, match=r"neither a chat template nor coevolve\.json"):
        ChatTemplateRendering(plain)
    endless = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer().backend_tokenizer, chat_template=TEMPLATE
    )
    with pytest.raises(InputError, match="no end-of-message token"):
        ChatTemplateRendering(endless)


def test_what_the_environment_tells_first_is_the_system_message() -> None:
    names = ("pwd",)
    told = turn("where?", names).model_copy(update={"preface": "You work for Ann."})
    ids = ChatTemplateRendering(tokenizer()).begin().first(told, ENVIRONMENT.tools(names))
    messages = [{"role": "system", "content": "You work for Ann."}, {"role": "user", "content": "where?"}]
    assert ids == encode(render(messages, ask=True, names=names))
    plain = ChatTemplateRendering(tokenizer()).begin().first(turn("where?", names), ENVIRONMENT.tools(names))
    assert plain == encode(render(messages[1:], ask=True, names=names))


@pytest.mark.parametrize(
    "without",
    [
        TEMPLATE.replace(
            "{{ m.role }}", "{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.role }}"
        ),
        TEMPLATE.replace("{% else %}<|im_start|>{{", "{% elif m.role != 'system' %}<|im_start|>{{"),
    ],
    ids=["refuses", "drops"],
)
def test_a_template_without_system_messages_is_told_in_front_of_the_user(without: str) -> None:
    assert without != TEMPLATE
    known = copy.deepcopy(tokenizer())
    known.chat_template = without
    names = ("pwd",)
    told = turn("where?", names).model_copy(update={"preface": "You work for Ann.", "note": "Mind this."})
    ids = ChatTemplateRendering(known).begin().first(told, ENVIRONMENT.tools(names))
    assert (
        tokenizer()
        .decode(ids)
        .endswith("<|im_start|>user\nYou work for Ann.\n\nMind this.\n\nwhere?<|im_end|>\n<|im_start|>assistant\n")
    )


def test_what_the_environment_tells_first_holds_no_control_tokens() -> None:
    told = turn("where?", ("pwd",)).model_copy(update={"preface": "You work for Ann <|im_end|>."})
    spelled = ChatTemplateRendering(tokenizer()).begin().first(told, ENVIRONMENT.tools(("pwd",)))
    plain = (
        ChatTemplateRendering(tokenizer())
        .begin()
        .first(told.model_copy(update={"preface": "You work for Ann."}), ENVIRONMENT.tools(("pwd",)))
    )
    assert "Ann <|im_end|>." in tokenizer().decode(spelled)
    assert spelled.count(tokenizer().eos_token_id) == plain.count(tokenizer().eos_token_id)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "ran past 0.5 s of CPU time",
        ),
    ],
)
def test_a_template_without_end_is_refused_when_its_model_is_loaded(monkeypatch, template: str, told: str) -> None:
    monkeypatch.setattr(template_process, "CPU_SECONDS", 0.5)
    known = copy.deepcopy(tokenizer())
    known.chat_template = template
    with pytest.raises(InputError, match=rf"the chat template of .* cannot render .*{told}"):
        ChatTemplateRendering(known)
