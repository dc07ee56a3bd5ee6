"""Settings without effect: each declares what it is for, and one rule refuses it elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, Field, ValidationError

from environments.checkout import ROOT
from environments.settings import GIVEN, Declared, Section, declared, in_words, requires, unmet
from graph.settings import RunSettings


class Place(NamedTuple):
    """A section of a recipe, and where it is."""

    section: type[BaseModel]
    path: tuple[str, ...]


def sections(section: type[BaseModel] = RunSettings, above: tuple[str, ...] = ()) -> Iterator[Place]:
    yield Place(section, above)
    for name, field in section.model_fields.items():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind, (*above, name))


REQUIREMENTS = [(place, one) for place in sections() for one in declared(place.section)]


def name_of(place: Place, one: Declared) -> str:
    return ".".join((*place.path, *one.key))


def changed(section: BaseModel, key: tuple[str, ...], value: object) -> Any:
    """The section with a value that nothing has checked."""
    if len(key) > 1:
        inner = getattr(section, key[0])
        if inner is None:
            kinds = getattr(type(section).model_fields[key[0]].annotation, "__args__", ())
            inner = next(kind for kind in kinds if isinstance(kind, type)).model_construct()
        value = changed(inner, key[1:], value)
    return section.model_copy(update={key[0]: value})


def wanted(values: Any) -> object:
    """A value that fulfils what is wanted of one setting."""
    return values["above"] + 1 if isinstance(values, dict) else "anything" if values == [GIVEN] else values[0]


def unwanted(values: Any) -> object:
    if isinstance(values, dict):
        return values["above"]
    return None if values == [GIVEN] else "none of them" if values != [True] else False


@pytest.mark.parametrize(("place", "one"), REQUIREMENTS, ids=[name_of(*found) for found in REQUIREMENTS])
def test_a_setting_is_refused_where_it_has_no_effect_and_nowhere_else(place: Place, one: Declared) -> None:
    others = [other for other in declared(place.section) if other.key == one.key and other.need != one.need]
    section = place.section.model_construct()
    for other in others:
        key, values = next(iter(other.need.items()))
        section = changed(section, tuple(key.split(".")), wanted(values))
    for key, values in one.need.items():
        section = changed(section, tuple(key.split(".")), unwanted(values))
    given, begins = changed(section, one.key, "not the default"), f"'{'.'.join(one.key)}' is for {in_words(one.need)}, "
    assert not [said for said in unmet(section) if said.startswith(begins)]
    (said,) = [said for said in unmet(given) if said.startswith(begins)]
    assert "remove it, or set " in said
    for key, values in one.need.items():
        met = changed(given, tuple(key.split(".")), wanted(values))
        assert not [said for said in unmet(met) if said.startswith(begins)]


def test_every_declaration_begins_in_a_section_around_it() -> None:
    asked = [
        (".".join((*place.path, name)), need)
        for place in sections()
        for name, field in place.section.model_fields.items()
        for need in (field.json_schema_extra or {}).get("requires", ())  # type: ignore[union-attr]
    ]
    evaluated = [(name_of(place, one), one.need) for place, one in REQUIREMENTS if not one.inherited]
    assert sorted(map(str, asked)) == sorted(map(str, evaluated))
    assert len(asked) > 30


def test_a_declared_default_is_accepted_everywhere() -> None:
    RunSettings.model_validate(RunSettings().model_dump())


def test_a_section_refuses_what_is_unmet_and_a_requirement_that_names_nothing_is_evaluated_nowhere() -> None:
    class Lamp(Section):
        kind: str = "red"
        watts: int = Field(5, json_schema_extra=requires({"kind": "blue"}))
        hours: int = Field(5, json_schema_extra=requires({"colour": "blue"}))

    assert [one.key for one in declared(Lamp)] == [("watts",)]
    Lamp(watts=6, kind="blue")
    with pytest.raises(ValidationError, match="'watts' is for kind: blue, red would ignore it: remove it, or"):
        Lamp(watts=6)


def test_what_a_section_inherits_may_count_as_given_where_it_is_the_default() -> None:
    class Lamp(Section):
        watts: int = 5

    class Spot(Lamp):
        inherited_needs = requires({"kind": "blue"})
        kind: str = "red"

    assert Spot().watts == Lamp(watts=5).watts
    Spot(kind="blue", watts=5)
    with pytest.raises(ValidationError, match="'watts' is for kind: blue, red would ignore it: remove it, or"):
        Spot(watts=5)


def test_no_validator_refuses_by_hand_what_a_setting_declares() -> None:
    by_hand = [
        f"{path.relative_to(ROOT)}: {function.name}"
        for package in ("agents", "environments", "evaluation", "graph", "memory", "training")
        for path in (ROOT / package).rglob("*settings.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and any("validator" in ast.unparse(one) for one in function.decorator_list)
        and any(
            words in ast.unparse(function) for words in ("would ignore", "ignores it", "' is for ", "would be ignored")
        )
    ]
    assert by_hand == []
