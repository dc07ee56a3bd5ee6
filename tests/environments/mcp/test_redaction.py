"""A secret is left out of what a server says, however it is written there, and nothing else is."""

import base64
import html
import json
import struct
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.mcp.redaction import redacted

SECRETS = [
    "hush-hush-41",
    "pa\"ss'wo\\rd/é x",
    "line 1\nline 2\t",
    "日本語のキー😀",
    "a+b/c=d&e<f>g$h%20",
    "[(.*)+?^]{2}",
]
WRITINGS = {
    "plain": str,
    "JSON": json.dumps,
    "JSON with letters": lambda one: json.dumps(one, ensure_ascii=False),
    "JSON in JSON": lambda one: json.dumps({"a": json.dumps({"b": json.dumps([one])})}),
    "JSON as PHP writes it": lambda one: json.dumps(one).replace("/", "\\/"),
    "every character escaped": lambda one: "".join(
        f"\\u{unit:04X}" for (unit,) in struct.iter_unpack(">H", one.encode("utf-16-be"))
    ),
    "Python": repr,
    "Python in ASCII": ascii,
    "bytes of Python": lambda one: repr(one.encode()),
    "address": quote,
    "part of an address": lambda one: quote(one, safe=""),
    "form": quote_plus,
    "address in an address": lambda one: quote(quote(one, safe=""), safe=""),
    "small digits": lambda one: quote(one, safe="").lower() if one.isascii() and one.islower() else quote(one),
    "HTML": html.escape,
    "HTML in HTML": lambda one: html.escape(html.escape(one)),
    "HTML by numbers": lambda one: "".join(f"&#{ord(letter)};" for letter in one),
    "HTML by hexadecimal numbers": lambda one: "".join(f"&#x{ord(letter):X};" for letter in one),
    "hexadecimal": lambda one: one.encode().hex(),
    "hexadecimal in capitals": lambda one: one.encode().hex().upper(),
    "Base64": lambda one: base64.b64encode(one.encode()).decode(),
    "user and password": lambda one: base64.b64encode(f"me:{one}".encode()).decode(),
    "in longer Base64": lambda one: base64.b64encode(f"ab:{one}:cd".encode()).decode(),
    "Base64 of an address": lambda one: base64.urlsafe_b64encode(f"?{one}?".encode()).decode(),
}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_found_in_every_writing(secret, writing):
    text = f"before {WRITINGS[writing](secret)} behind"
    clean = redacted(text, {"OTHER": "something-else", "KEY": secret})
    assert "$KEY" in clean
    assert secret not in clean
    assert (clean.startswith("before "), clean.endswith(" behind")) == (True, True)


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=6, max_size=30), st.text(max_size=40), st.data())
def test_json_stays_json_and_any_secret_is_left_out(secret, around, data):
    text = json.dumps({"said": f"{around}{secret}{around}"}, ensure_ascii=data.draw(st.booleans()))
    clean = json.loads(redacted(text, {"KEY": secret}))
    assert secret not in clean["said"] or secret in f"{around}$KEY{around}"


@pytest.mark.parametrize("text", ["hush-hush-4", "HUSH-HUSH-41", "hush_hush_41", "hush-hush\\-41", "aHVzaC1odX", ""])
def test_what_is_not_the_secret_stays(text):
    assert redacted(text, {"KEY": "hush-hush-41", "SHORT": "hush"}) == text


def test_the_longer_of_two_secrets_is_named_whole():
    assert redacted("see secret-one-two", {"A": "secret-one", "B": "secret-one-two"}) == "see $B"
