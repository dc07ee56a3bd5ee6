"""The call of one API as code: it calls what was meant with equal values, and the filter lets it pass."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from environments.appworld.client import World
from environments.appworld.engine.code_filter import refusal
from environments.appworld.worlds import call_code

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("song_id", "query", "access_token")), values, max_size=3))
def test_the_code_passes_equal_arguments(arguments: dict[str, Any]) -> None:
    code = call_code("spotify.like_song", arguments)
    assert refusal(code) is None
    received: dict[str, Any] = {}
    apis = SimpleNamespace(spotify=SimpleNamespace(like_song=lambda **given: received.update(given)))
    exec(code, {"apis": apis, "print": lambda value: None, "__builtins__": builtins})
    assert received == arguments


def test_the_real_engine_answers_it(world: World) -> None:
    executed = world.execute(call_code("spotify.show_song", {"song_id": 1}))
    assert executed.output.startswith("{")
    assert [(call.name, call.arguments) for call in executed.calls] == [("spotify.show_song", {"song_id": 1})]
    wrong = world.execute(call_code("spotify.show_song", {"song_id": None}))
    assert "Response status code is" in wrong.output
