"""Roles from settings: scripted without a key, chat lazily and with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.assembly import build_roles, unguided_roles
from agents.roles import Abstractor, Explorer, Reflector
from agents.scripted.explorer import GuidedExplorer
from agents.scripted.reflector import RuleReflector
from agents.scripted.unguided import UnguidedExplorer
from agents.settings import RoleSettings, RolesSettings
from environments.base import InputError

CHAT = RoleSettings(kind="chat", model="some-model", base_url="http://127.0.0.1:9/v1", timeout=5.0, max_retries=1)


def test_scripted_roles_need_nothing(monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    roles = build_roles(RolesSettings())
    assert isinstance(roles.reflector, RuleReflector)
    assert isinstance(roles.explorer, GuidedExplorer)
    assert isinstance(unguided_roles(RolesSettings()).explorer, UnguidedExplorer)


@pytest.mark.parametrize("role", ["reflector", "explorer", "abstractor"])
def test_a_chat_role_without_a_key_is_an_input_error(monkeypatch, role: str) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match=rf"roles\.{role}\.kind is chat.*OPENAI_API_KEY"):
        build_roles(RolesSettings(**{role: CHAT}))


def test_chat_roles_are_opened_without_a_request(monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    roles = build_roles(RolesSettings(reflector=CHAT, explorer=CHAT, abstractor=CHAT))
    assert type(roles.reflector).__name__ == "ChatReflector"
    assert type(roles.explorer).__name__ == "ChatExplorer"
    assert type(roles.abstractor).__name__ == "ChatAbstractor"


def test_roles_keep_their_protocols() -> None:
    """Checked by mypy: the assignments below do not type-check otherwise."""
    roles = build_roles(RolesSettings())
    reflector: Reflector = roles.reflector
    explorer: Explorer = roles.explorer
    abstractor: Abstractor = roles.abstractor
    assert {reflector, explorer, abstractor} == {roles.reflector, roles.explorer, roles.abstractor}


def test_scripted_assembly_imports_no_chat_library() -> None:
    code = (
        "import sys; from agents.assembly import build_roles; from agents.settings import RolesSettings\n"
        "build_roles(RolesSettings())\n"
        "print([m for m in ('langchain_core', 'langchain_openai', 'openai', 'torch', 'bfcl_eval') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"
