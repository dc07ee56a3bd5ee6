"""What comes from outside spells no control token in any script, loses no character, and does not depend on the day."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from support.chat_models import new_tokenizer, template

from environments.base import Observation, ObservationStatus, Parameter, ToolCall, ToolSpec, UserTurn
from training.rendering.chat_template import ChatTemplateRendering
from training.settings import RenderingOptions

USER = "<\uff5cUser\uff5c>"
CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
BARE = "\uff5cend\uff5c"
WIDE = "<\uff5cw\uff41de\uff5c>"
ADDED = (USER, CALLS, BARE, WIDE, "[INST]", '<|"|>')
SPELT = (*ADDED, "<|im_end|>", "<tool_call>", "<\uff5ctool calls begin\uff5c>", "<|wade|>", "<\u200d\uff5cUser\uff5c>")
OPTIONS = (RenderingOptions(), RenderingOptions(documentation="lines"))


@cache
def opened(lines: bool = False, chat: str = "", normal: str = "") -> ChatTemplateRendering:
    from tokenizers import AddedToken, normalizers

    known = new_tokenizer(chat or template("qwen3"))
    for text in ADDED:
        known.add_tokens([AddedToken(text, normalized=text in (WIDE, CALLS), special=text in (USER, WIDE))])
    if normal:
        parts = [getattr(normalizers, normal)(), normalizers.Replace(" ", "\u2581")]
        known.backend_tokenizer.normalizer = normalizers.Sequence(parts)
    return ChatTemplateRendering(known, options=OPTIONS[lines])


def tool(text: str) -> ToolSpec:
    kinds: dict[str, Any] = {"type": "string", "description": text, "enum": [text, "b"], "default": text}
    inner = {"type": "object", "properties": {text: {"type": "string", "description": text}}}
    schema = {"type": "object", "properties": {"a": kinds, text: inner}, "required": ["a"]}
    known = Parameter(name="a", type="string", description=text, required=True, choices=(text, "b"), default=text)
    return ToolSpec(name=f"act{text}", group="", description=text, parameters=(known,), json_schema=schema)


def controls(rendering: ChatTemplateRendering, parts: list[list[int]]) -> list[list[int]]:
    known = set(rendering.tokenizer.added_tokens_decoder)
    return [[one for one in ids if one in known] for ids in parts]


def played(rendering: ChatTemplateRendering, text: str) -> list[list[int]]:
    dialogue = rendering.begin()
    turn = UserTurn(index=0, text=text, tools=("act",), preface=f"You are {text}.", note=f"Mind {text}.")
    parts = [dialogue.first(turn, [tool(text)])]
    call = f'<tool_call>\n{{"name": {json.dumps("act" + text)}, "arguments": {{}}}}\n</tool_call>'
    for said in (call, "done"):
        dialogue.parse(rendering.tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False))
        if said == "done":
            later = tool(text).model_copy(update={"name": f"later{text}"})
            parts.append(dialogue.next_turn(UserTurn(index=1, text=text, tools=("later",)), [tool(text), later]))
        else:
            parts.append(dialogue.observe([Observation(text=text, status=ObservationStatus.OK)]))
    return parts


@pytest.mark.parametrize("normal", ["", "NFKC"])
@pytest.mark.parametrize("lines", [False, True], ids=["schemas", "lines"])
def test_no_text_from_outside_spells_a_control_token(lines: bool, normal: str) -> None:
    """In preface, advice, user turns, answers, and each part of the documentation; of later turns, too."""
    rendering = opened(lines, normal=normal)
    harmless = controls(rendering, played(rendering, "harmless"))
    for text in SPELT:
        assert controls(rendering, played(rendering, f"x {text} y")) == harmless, text


@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_nothing_of_the_text_is_lost(escaped: bool) -> None:
    chat = template("qwen3")
    if escaped:
        chat = chat.replace("tool | tojson", "tool | tojson(ensure_ascii=True)")
    rendering = opened(chat=chat)
    text = f"\ue000\U000f0000 \\ue001 日本 😀 {USER} <|im_end|> \u2028"
    first, answer, later = (rendering.tokenizer.decode(ids) for ids in played(rendering, text))
    assert text in answer
    written = json.dumps(f"act{text}", ensure_ascii=escaped)
    assert first.count(text) == 3
    assert written in first
    assert json.dumps(f"later{text}", ensure_ascii=False) in later


def test_a_later_turn_shows_a_tool_as_the_first_does() -> None:
    rendering = opened()
    made = tool("\ue000 日本 é")
    turns = [UserTurn(index=place, text="go", tools=("act",)) for place in (0, 1)]
    fresh, late = rendering.begin(), rendering.begin()
    shown = [rendering.tokenizer.decode(fresh.first(turns[0], [made]))]
    late.first(turns[0], [])
    late.parse(rendering.tokenizer.encode("done<|im_end|>", add_special_tokens=False))
    shown.append(rendering.tokenizer.decode(late.next_turn(turns[1], [made])))
    lines = [[one for one in text.splitlines() if one.startswith('{"type": "function"')] for text in shown]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 1


def test_a_text_of_all_private_use_characters_of_the_plane_is_encoded() -> None:
    rendering = opened()
    text = "".join(map(chr, range(0xE000, 0xF900))) + "<|im_end|>"
    (answer,) = controls(rendering, [rendering.answers(["pwd"], [text])[0]])
    assert answer == controls(rendering, [rendering.answers(["pwd"], ["x"])[0]])[0]


def test_a_teachers_text_spells_no_control_token() -> None:
    rendering = opened()
    call = ToolCall(name="act", arguments={f'{USER}"': ["<|im_end|>", {CALLS: '<|"|>'}]})
    ids = rendering.message(call)
    assert controls(rendering, [ids]) == controls(rendering, [rendering.message(ToolCall(name="act"))])


@pytest.mark.parametrize(
    ("name", "begins", "says", "shown"),
    [
        ("llama3_2", "", "", "Today Date: 26 Jul 2024"),
        ("qwen2_5", "{%- set today = strftime_now('%d %B %Y, %H:%M') %}", "today", "26 July 2024, 00:00"),
        ("qwen2_5", "{%- macro day() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}", "day()", "2024-07-26"),
    ],
)
@pytest.mark.parametrize("lines", [False, True], ids=["schemas", "lines"])
def test_a_prompt_is_the_same_on_every_day(name: str, begins: str, says: str, shown: str, lines: bool) -> None:
    """The clock that a template can ask is stopped, whatever its form."""
    chat = begins + (template(name).replace("# Tools", f'" + {says} + "\\n#') if says else template(name))
    rendering = opened(lines and "eot_id" not in chat, chat=chat)  # Llama's template shows no lines
    ids = rendering.begin().first(UserTurn(index=0, text="go", tools=("act",)), [tool("x")])
    assert shown in rendering.tokenizer.decode(ids)
