"""Who explores and words tasks where nothing says it, what is printed of that, and what a run or a folder records."""

from __future__ import annotations

import pytest

from graph.default_roles import RATE, default_roles
from graph.run_iteration import SERVER_RECIPE
from graph.settings import load_recipe

VARIABLE = "COEVOLVE_CHAT_MODEL"
ONE_ROUND = ["exploration.rounds=1", "exploration.independent=true"]
CUT = "exploration.references=cut"
LOCAL = ["explorer.kind=local", "abstractor.kind=local", *ONE_ROUND]
BOTH = "for rules: --set roles.explorer.kind=scripted --set roles.abstractor.kind=scripted"
RULES = "by default"
SMALL = "a small language model on this machine"


@pytest.mark.parametrize(
    ("given", "variable", "added", "words"),
    [
        (["local.draws=4"], "", LOCAL, f"calls and words of tasks by {SMALL} ({RATE}); {BOTH}"),
        ([], "", ["explorer.kind=scripted", "abstractor.kind=scripted"], f"words of tasks by rules ({RULES})"),
        (
            ["chat.model=m"],
            "",
            ["explorer.kind=scripted", "abstractor.kind=chat", CUT],
            f"by rules, their words by the model of an endpoint (roles.chat names it; {RULES}); "
            "for rules: --set roles.abstractor.kind=scripted",
        ),
        (
            [],
            "m",
            ["explorer.kind=scripted", "abstractor.kind=chat", CUT],
            f"by rules, their words by the model of an endpoint ({VARIABLE} names it; {RULES}); "
            "for rules: --set roles.abstractor.kind=scripted",
        ),
        (["explorer.kind=scripted", "abstractor.kind=scripted"], "m", [], "words of tasks by rules (as stated)"),
        (["explorer.kind=scripted", "abstractor.kind=chat"], "m", [CUT], "by the model of an endpoint (as stated)"),
        (
            ["explorer.kind=scripted", "abstractor.kind=chat", "exploration.references=chosen"],
            "m",
            [],
            "by the model of an endpoint (as stated)",
        ),
        (
            ["explorer={kind: scripted}"],
            "",
            ["abstractor.kind=scripted"],
            f"words of tasks by rules ({RULES})",
        ),
        (
            ["local.adapters=here", "exploration.rounds=2"],
            "",
            [*LOCAL[:2], ONE_ROUND[1]],
            f"by {SMALL} ({RATE}); {BOTH}",
        ),
        (["abstractor.kind=local", "explorer.kind=local"], "", ONE_ROUND, f"by {SMALL} ({RATE}; as stated)"),
    ],
)
def test_who_plays_where_nothing_says_it(
    given: list[str],
    variable: str,
    added: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    stated = [f"roles.{one}" for one in given]
    roles = default_roles(stated)
    assert list(roles.overrides) == [f"roles.{one}" for one in added]
    assert roles.words.endswith(words)
    settings = load_recipe(SERVER_RECIPE, [*stated, *roles.overrides])
    assert settings.roles.exploration.independent is (settings.roles.explorer.kind == "local")


def test_what_is_no_section_is_left_to_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert default_roles(["roles=5"]).overrides == default_roles([]).overrides
