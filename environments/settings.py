"""The strict base of every settings section, and the settings of the environment and of verification.

A setting that does nothing in some configurations says so beside its type::

    temperature: float | None = Field(None, json_schema_extra=requires({"kind": "chat"}))

Given without its requirement it is refused, by one rule for all sections; ``docs/settings.md`` shows the same
declaration. A default that is written out counts as not given: a run's settings.yaml holds every key. It counts as
given in a section that says so for what it inherits (``Section.inherited_needs``), and then writes what is given alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import EllipsisType
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator
from pydantic.config import JsonDict

from environments.base import Environment
from environments.benchmark import PLAIN, AnyBenchmark
from environments.registry import (
    DEFAULT,
    belonging,
    checked_options,
    find_benchmark,
    is_import_path,
    look,
    packaged,
    parse_options,
    unknown,
)
from environments.trust import Program, refuse_untrusted

GIVEN: Literal["..."] = "..."
"""In ``requires``: the setting is there, with any value."""


class Above(NamedTuple):
    """In ``requires``: the setting is a number above this one."""

    number: int


Wanted = JsonValue | Above | tuple[JsonValue, ...]
Need = Mapping[str, Wanted]


def requires(*needs: Need) -> JsonDict:
    """Return the extra of a field's schema that declares what the setting is for.

    Each of ``needs`` has to hold. It maps settings to the values of which one is wanted, and holds where it does for
    any of them; of a setting that is a list, one element has to be wanted. Keys are dotted and begin in the nearest
    section, outwards, that has all of them.
    """

    def plain(wanted: Wanted) -> JsonValue:
        if isinstance(wanted, Above):
            return {"above": wanted.number}
        return list(wanted) if isinstance(wanted, tuple) else [wanted]

    return {"requires": [{key: plain(wanted) for key, wanted in need.items()} for need in needs]}


class Declared(NamedTuple):
    """One requirement of a setting, as seen from a section around it: keys of both are relative to that section."""

    key: tuple[str, ...]
    default: Any
    need: Mapping[str, Any]
    inherited: bool = False


class Section(BaseModel):
    """A section of a recipe: unknown keys, and settings without effect beside the others, are errors that name them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    inherited_needs: ClassVar[JsonDict] = {}
    """What every setting that the section inherits is for (``requires``), also where it is given as its default."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        complaint = next(unmet(self), None)
        if complaint is not None:
            raise ValueError(complaint)
        return self

    def _given(self, *keys: str) -> list[str]:
        """Return those of ``keys`` whose value is not the default."""
        return [key for key in keys if getattr(self, key) != type(self).model_fields[key].get_default()]


def unmet(section: BaseModel) -> Iterator[str]:
    """Yield one sentence for each setting that is given and has no effect, with the setting and the remedy."""
    for one in declared(type(section)):
        now = {key: _value(section, key.split(".")) for key in one.need}
        value = _value(section, one.key)
        given = one.key[0] in section.model_fields_set if one.inherited else value not in (_MISSING, one.default)
        if not given or any(_holds(now[key], wanted) for key, wanted in one.need.items()):
            continue
        (key, value), words = next(iter(now.items())), in_words(one.need)
        other = value if isinstance(value, str) else f"{key}: {_shown(value)}"
        why = f"{other} would ignore it: remove it, or set {words}"
        if len(one.need) > 1:
            why = "and there is none: remove it, or set one"
        yield f"'{'.'.join(one.key)}' is for {words}, {why}"


@cache
def declared(section: type[BaseModel]) -> tuple[Declared, ...]:
    """Return the requirements whose keys begin in ``section``: of its own settings, and of those of sections in it."""
    return tuple(_declared((section,), ()))


def _declared(around: tuple[type[BaseModel], ...], above: tuple[str, ...]) -> Iterator[Declared]:
    section = around[-1]
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        whole = {} if name in section.__annotations__ else getattr(section, "inherited_needs", {})
        for extra, inherited in ((field.json_schema_extra, False), (whole, True)):
            needs = extra.get("requires", []) if isinstance(extra, dict) else []
            assert isinstance(needs, list), "made by requires()"
            for need in needs:
                assert isinstance(need, dict), "made by requires()"
                outermost, *inner = (all(_has(each, key.split(".")) for key in need) for each in around)
                if outermost and not any(inner):
                    yield Declared((*above, name), default, need, inherited)
        if (kind := section_of(section, name)) is not None:
            yield from _declared((*around, kind), (*above, name))


def in_words(need: Mapping[str, Any]) -> str:
    """Return a requirement as words, such as ``kind: chat``."""
    words = []
    for key, wanted in need.items():
        if isinstance(wanted, dict):
            words.append(f"{key} above {wanted['above']}")
        else:
            words.append(key if wanted == [GIVEN] else f"{key}: {' or '.join(map(_shown, wanted))}")
    return " or ".join(words)


_MISSING = ...


def section_of(section: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the class of the section that a setting is, also where it may be null; None for a plain value."""
    annotation = section.model_fields[name].annotation
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _has(section: type[BaseModel] | None, key: Sequence[str]) -> bool:
    if section is None or key[0] not in section.model_fields:
        return False
    return len(key) == 1 or _has(section_of(section, key[0]), key[1:])


def _value(section: BaseModel, key: Sequence[str]) -> Any:  # noqa: ANN401 - the settings' own types
    """Return the setting at a dotted key; ``...`` where a section on the way is null."""
    found: Any = section
    for name in key:
        if not isinstance(found, BaseModel):
            return _MISSING
        found = getattr(found, name)
    return found


def _holds(value: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(value, int | float) and value > wanted["above"]
    assert isinstance(wanted, list), "made by requires()"
    if wanted == [GIVEN]:
        return not isinstance(value, EllipsisType) and value not in (None, (), False)
    return any(one in wanted for one in value) if isinstance(value, tuple) else value in wanted


def _shown(value: object) -> str:
    if value is None or isinstance(value, EllipsisType):
        return "null"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


class EnvironmentSettings(Section):
    """The environment's name and its options; a benchmark's options are written out with their defaults."""

    model_config = ConfigDict(validate_default=True)

    name: str = Field(
        DEFAULT,
        description="a benchmark's folder in environments/, or module:attribute of a benchmark or environment of "
        "your own",
    )
    options: dict[str, JsonValue] = Field(
        {},
        description="options of the benchmark (options_type in its benchmark.py), or arguments of your own callable",
    )

    @field_validator("name")
    @classmethod
    def _openable(cls, name: str) -> str:
        if not is_import_path(name) and packaged(name) is None:
            raise ValueError(unknown(name))
        return name

    @field_validator("options")
    @classmethod
    def _options_of_the_benchmark(cls, value: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        benchmark = packaged(info.data.get("name", ""))
        if benchmark is None:  # an import path is imported when the environment is opened
            return value
        written: dict[str, JsonValue] = parse_options(benchmark, value).model_dump(mode="json")
        return written

    @property
    def is_own(self) -> bool:
        """Return whether the user brings it: by an import path, or in the options of a benchmark made for that.

        No command that only reads opens it, and its options, which may hold anything, are shown to nobody else.
        """
        found = packaged(self.name)
        return is_import_path(self.name) or (found is not None and found.brought)

    @property
    def benchmark(self) -> AnyBenchmark:
        """The benchmark that ``name`` names. Raises InputError for an import path that cannot be imported."""
        return find_benchmark(self.name)

    def open(self) -> Environment:
        """Open the environment that ``name`` names.

        For ``module:callable`` the callable, which must declare what it makes (``environments.registry``), is called
        with ``options`` and returns the environment. Raises InputError when a requirement is not installed, cannot be
        imported, or does not return an Environment, and for a program that the options name and the user did not bind.
        """
        benchmark = self.benchmark
        options = checked_options(benchmark, self.options, "environment.options")
        refuse_untrusted(benchmark.program(options))
        return belonging(self.name, benchmark, lambda: benchmark.open(options))

    @property
    def program(self) -> Program | None:
        """The program that the options name, which a user binds (``environments.trust``)."""
        return self.benchmark.program(checked_options(self.benchmark, self.options, "environment.options"))

    @property
    def stated_benchmark(self) -> AnyBenchmark | None:
        """The benchmark as far as it is known without running code that ``name`` names.

        That is a packaged one, and ``PLAIN`` for a function or a class of the user's. None for another object of a
        user's module: it may be a benchmark of its own. Raises InputError like ``environments.registry.look``.
        """
        if not is_import_path(self.name):
            return self.benchmark
        return PLAIN if look(self.name) else None

    @property
    def max_actions(self) -> int | None:
        """Actions in one user turn before the environment cuts it off; None where it has no such option."""
        benchmark = self.benchmark
        return benchmark.max_actions(parse_options(benchmark, self.options))

    @property
    def for_evaluation(self) -> dict[str, JsonValue]:
        """The options that the evaluations of a run also need."""
        benchmark = self.benchmark
        return benchmark.evaluation_options(parse_options(benchmark, self.options))

    @property
    def verification_label(self) -> str | None:
        """The label of tasks that are verified without comparing states, None where states are compared."""
        benchmark = self.benchmark
        return benchmark.verification_label(parse_options(benchmark, self.options))


class VerificationSettings(Section):
    """Checks of a draft, beside those that are never off: decontamination, duplicates, whether it opens."""

    mode: Literal["deterministic", "agent", "both"] = Field(
        "deterministic",
        description="who verifies drafts; deterministic: replays of the reference (ours); agent: a run of "
        "roles.validator, which reads request and reference, beside the checks that are never off (CoEvolve, section "
        "3.3); both: the replays have to accept, and then the agent (ours)",
    )
    max_calls: int = Field(6, ge=1, le=1000, description="most calls of a draft's reference, all turns together (ours)")
    enabled: bool = Field(
        True,
        description="false: outside D_0 a draft only has to open, and to be neither held out nor a duplicate "
        "(ours, ablation)",
    )
