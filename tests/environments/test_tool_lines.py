"""Documentation as lines, and the functions that a user turn is shown, in prompts of real and made templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_models import save_model, template, tokenizer

from environments.base import InputError, Parameter, ToolCall, ToolSpec, UserTurn
from environments.bfcl.official import all_tools, tool_names
from environments.task_text import with_own_descriptions
from environments.tool_lines import highest_ranked, tool_line
from memory.run import PolicyDirectory, read_json, write_json
from training.rendering.chat_template import ChatTemplateRendering
from training.rollout.policy import PolicyCard, load_policy, save_policy
from training.settings import RenderingOptions

FILES = tuple(all_tools()[name] for name in tool_names(["GorillaFileSystem"]))


@cache
def rendering(name: str = "qwen3", **options: object) -> ChatTemplateRendering:
    return ChatTemplateRendering(tokenizer(template(name)), (), RenderingOptions.model_validate(options))


def turn(text: str, tools: Sequence[ToolSpec], index: int = 0) -> UserTurn:
    return UserTurn(index=index, text=text, tools=tuple(tool.name for tool in tools))


def prompt(text: str, tools: Sequence[ToolSpec], **options: object) -> str:
    ids = rendering(**options).begin().first(turn(text, tools), tools)
    return str(tokenizer(template("qwen3")).decode(ids))


def named(text: str) -> list[str]:
    """The functions that a text documents as lines, in their order."""
    return [tool.name for tool in sorted(FILES, key=lambda tool: text.find(f"{tool.name}(")) if f"{tool.name}(" in text]


@pytest.mark.parametrize(
    ("parameter", "line"),
    [
        ({"type": "string", "required": True}, "do(it: string) Do it."),
        ({"type": "integer", "required": False, "default": 3}, "do(it?: integer = 3) Do it."),
        ({"type": "string", "required": True, "choices": ("a", "b")}, 'do(it: "a"|"b") Do it.'),
        ({"type": "array", "required": True, "items": "string"}, "do(it: string[]) Do it."),
        (
            {"type": "array", "required": False, "choices": ("é", "b"), "default": ["é"]},
            'do(it?: ("é"|"b")[] = ["é"]) Do it.',
        ),
    ],
)
def test_a_function_is_one_line(parameter: dict, line: str) -> None:
    it = Parameter.model_validate({"name": "it", "description": "what"} | parameter)
    tool = ToolSpec(name="do", group="g", description="Do\n it. Or do not.", parameters=(it,))
    assert tool_line(tool) == line


def test_lines_are_a_small_part_of_the_schemas_and_a_template_writes_them_where_it_writes_schemas() -> None:
    lines, schemas = prompt("list", FILES, documentation="lines"), prompt("list", FILES)
    assert len(lines) < 0.35 * len(schemas)
    written = json.loads(lines.partition("<tools>\n")[2].partition("\n")[0])
    assert written == tool_line(with_own_descriptions(FILES)[0])
    assert "belongs to" not in lines
    assert lines.partition("<tools>")[0] == schemas.partition("<tools>")[0]
    assert lines.rpartition("</tools>")[2] == schemas.rpartition("</tools>")[2]


def test_a_control_token_in_a_line_stays_text() -> None:
    tool = ToolSpec(name="do", group="g", description="Say <|im_end|> now.")
    ids = rendering(documentation="lines").begin().first(turn("x", [tool]), [tool])
    plain = (
        rendering(documentation="lines").begin().first(turn("x", [tool]), [tool.model_copy(update={"description": ""})])
    )
    stop = tokenizer(template("qwen3")).convert_tokens_to_ids("<|im_end|>")
    assert ids.count(stop) == plain.count(stop)
    assert "Say <|im_end|> now." in tokenizer(template("qwen3")).decode(ids)


def test_a_template_that_cannot_show_lines_is_refused_with_key_and_remedy() -> None:
    by_field = template("qwen3").replace("tool | tojson", "tool.function.name ~ tool.function.description")
    assert by_field != template("qwen3")
    with pytest.raises(InputError, match=r"policy\.documentation: the chat template of .*: set it to schemas"):
        ChatTemplateRendering(tokenizer(by_field), (), RenderingOptions(documentation="lines"))
    assert ChatTemplateRendering(tokenizer(by_field)).several


def test_the_functions_shown_are_those_whose_words_the_turn_has() -> None:
    said = "Sort the lines of report.txt and count its words"
    assert {"sort", "wc"} <= highest_ranked(said, FILES, 4)
    assert named(prompt(said, FILES, documentation="lines", tools_shown=4)) == [
        tool.name for tool in FILES if tool.name in highest_ranked(said, FILES, 4)
    ]


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(max_size=60) | st.sampled_from([tool.description for tool in FILES]),
    count=st.integers(1, 30),
    some=st.lists(st.sampled_from(FILES), unique_by=lambda tool: tool.name),
)
def test_any_text_gets_that_many_functions_of_those_on_offer(text: str, count: int, some: list[ToolSpec]) -> None:
    shown = highest_ranked(text, some, count)
    assert len(shown) == min(count, len(some))
    assert shown <= {tool.name for tool in some}
    assert shown == highest_ranked(text, some, count)


def test_without_a_shared_word_the_first_functions_are_shown() -> None:
    assert highest_ranked("zzz", FILES, 2) == {FILES[0].name, FILES[1].name}


def test_a_later_turn_documents_what_it_brings_into_view_and_what_is_new_on_offer() -> None:
    offered, held_back = FILES[:-1], FILES[-1]
    dialogue = rendering(documentation="lines", tools_shown=2).begin()
    known = tokenizer(template("qwen3"))
    first = named(known.decode(dialogue.first(turn("sort the file", offered), offered)))
    assert len(first) == 2
    later = named(known.decode(dialogue.next_turn(turn("remove the directory", FILES, 1), FILES)))
    brought = highest_ranked("remove the directory", FILES, 2)
    assert set(later) == (brought | {held_back.name}) - set(first)
    again = known.decode(dialogue.next_turn(turn("remove the directory", FILES, 2), FILES))
    assert "available from now on" not in again
    unseen = next(tool.name for tool in FILES if tool.name not in {*first, *later})
    call = f'<tool_call>\n{{"name": "{unseen}", "arguments": {{}}}}\n</tool_call><|im_end|>'
    assert dialogue.parse(known.encode(call)) == (ToolCall(name=unseen),)


def test_as_many_functions_as_there_are_make_the_prompt_of_all() -> None:
    assert (
        prompt("sort", FILES, tools_shown=len(FILES))
        == prompt("sort", FILES, tools_shown="all")
        == prompt("sort", FILES)
    )


def test_a_policy_is_loaded_with_the_options_of_its_card_but_for_those_that_are_given(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "qwen3")
    chosen = RenderingOptions(documentation="lines", tools_shown=3)
    policy = load_policy(str(folder), "cpu", options=chosen)
    save_policy(tmp_path / "trained", policy.model, policy.tokenizer, policy.card)
    card = read_json(PolicyDirectory(tmp_path / "trained").card, PolicyCard)
    assert card == PolicyCard(rendering="chat_template", documentation="lines", tools_shown=3)

    def first(**options: object) -> list[int]:
        loaded = load_policy(str(tmp_path / "trained"), "cpu", options=RenderingOptions.model_validate(options))
        return loaded.rendering.begin().first(turn("sort", FILES), FILES)

    trained = policy.rendering.begin().first(turn("sort", FILES), FILES)
    assert first() == trained
    assert first(tools_shown="all") == rendering(documentation="lines").begin().first(turn("sort", FILES), FILES)
    assert first(documentation="schemas") != trained


def test_options_of_a_chat_template_are_refused_for_a_compact_policy(tmp_path: Path) -> None:
    write_json(PolicyDirectory(tmp_path).card, PolicyCard(rendering="compact"))
    for option in ({"documentation": "schemas"}, {"tools_shown": "all"}, {"tools_shown": 2}):
        with pytest.raises(InputError, match=rf"policy\.{next(iter(option))}: .* is compact: leave it null"):
            RenderingOptions.model_validate(option).check_compact(str(tmp_path))
