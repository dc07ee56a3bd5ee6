"""Cues in the compact rendering: one token each, and nothing else changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_policy import CLASSES

from environments.base import Cue, InputError, Observation, ObservationStatus, UserTurn
from environments.bfcl.official import tool_names, tool_specs
from environments.learning_interface import HintKind
from training.embedded.compact import CompactRendering, CompactSettings, CompactText, cue_words
from training.embedded.new_policy import train_tokenizer
from training.seal.seal import GUIDELINES, InterfaceSettings, guideline

pytestmark = pytest.mark.slow

BARE, CUED = CompactSettings(), CompactSettings(cues=True)
TOOLS = tool_specs(CLASSES[0])
LABELS = [*GUIDELINES]


def rendering(card=CUED) -> CompactRendering:
    return CompactRendering(train_tokenizer(["hello there"] * 9, TOOLS, card, 700), card)


def turn(text, labels=()):
    return UserTurn(index=0, text=text, tools=tool_names(CLASSES), guidelines=tuple(map(guideline, labels)))


@settings(deadline=None)
@given(st.text(max_size=60), st.lists(st.sampled_from(LABELS), unique=True), st.sampled_from(HintKind))
def test_a_cue_is_its_word_and_the_rest_of_the_line_is_as_without(text, labels, kind):
    with_cues, plain = CompactText(CUED), CompactText(BARE)
    words = "".join(f"!{label} " for label in labels)
    assert with_cues.user(turn(text, labels)) == "U " + words + plain.user(turn(text)).removeprefix("U ")
    seen = Observation(text=text, status=ObservationStatus.ERROR)
    hinted = seen.model_copy(update={"hint": Cue(kind=kind, text="do it.")})
    assert with_cues.observation(hinted) == plain.observation(seen).removesuffix("\n") + f" !{kind}\n"


def test_without_tokens_for_cues_they_are_text_like_any_other():
    said = turn("Look.", LABELS[:2])
    assert CompactText(BARE).user(said) == CompactText(BARE).user(turn(said.full_text))
    hinted = Observation(text="no", status=ObservationStatus.ERROR, hint=Cue(kind="bad_path", text="do it."))
    as_text = Observation(text=hinted.full_text, status=ObservationStatus.ERROR)
    assert CompactText(BARE).observation(hinted) == CompactText(BARE).observation(as_text)


def test_every_cue_is_one_token_and_a_card_without_cues_is_what_it_was():
    tokenizer = rendering().tokenizer
    for word in cue_words():
        assert tokenizer.tokenize(f"x{word}x" if word.startswith(" ") else f"U {word}x")[1] == word
    assert "cues" not in BARE.model_dump()
    assert not set(cue_words()) & set(rendering(BARE).vocabulary)


@pytest.mark.parametrize(
    ("card", "interface", "message"),
    [
        (CUED, InterfaceSettings(), "schema_cues: the compact rendering shows no documentation"),
        (BARE, InterfaceSettings(schema_cues=False), "no tokens for cues: take recipes/starter-seal"),
    ],
)
def test_cues_that_would_not_be_seen_are_refused(card, interface, message):
    with pytest.raises(InputError, match=message):
        rendering(card).check_interface(interface)
    rendering(CUED).check_interface(InterfaceSettings(schema_cues=False))
