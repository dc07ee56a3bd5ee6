"""docs/settings.md is what the settings are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel

from agents.settings import ChatSettings
from environments.checkout import ROOT
from graph.settings import RunSettings
from graph.settings_reference import settings_reference


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the dotted keys of all settings that are no section."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        yield from keys(sections[0], f"{above}{name}.") if sections else [f"{above}{name}"]


def listed(page: str) -> list[str]:
    """Return the dotted keys of the page: those that recipes set, and those of the lists below their headings."""
    often, *sections = page.split("\n### ")
    rows = re.findall(r"^- (`.*?) \(", often, re.MULTILINE)
    found = [key for row in rows for key in re.findall(r"`([\w.]+)`", row)]
    for text in sections:
        above = text[1 : text.index("`", 1)]
        found += [f"{above}.{name}" for name in re.findall(r"^- `(\w+)` \(", text, re.MULTILINE)]
    return found


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == settings_reference(), "write it again: make docs"


def test_every_setting_is_on_the_page_once() -> None:
    """A role's own keys of ``roles.chat`` are listed there, and the validator's are those of the other roles."""
    roles = ("roles.reflector", "roles.explorer", "roles.abstractor", "roles.validator")
    elsewhere = {f"{role}.{key}" for role in roles for key in ChatSettings.model_fields} | {"roles.validator.kind"}
    page = listed(settings_reference())
    sections = {key for key in page if any(other.startswith(f"{key}.") for other in page)}
    assert set(page) - sections == set(keys(RunSettings)) - elsewhere
    assert len(page) == len(set(page))
