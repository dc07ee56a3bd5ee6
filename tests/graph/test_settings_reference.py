"""docs/settings.md is what the settings are."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from environments.checkout import ROOT
from graph.settings import RunSettings
from graph.settings_reference import settings_reference


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind)


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == settings_reference(), "write it again: make docs"


def test_every_key_is_on_the_page() -> None:
    page = settings_reference()
    assert not [key for key in keys(RunSettings) if f"`{key}`" not in page and f".{key}`" not in page]
