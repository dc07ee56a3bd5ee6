"""Methods as tools: what their annotations become, and what is missing in words."""

from typing import Annotated, Any, Literal

import pytest

from environments.base import InputError, Parameter
from environments.python_class.world import documented_tools

Text = Annotated[str, "a text"]


class Base:
    def first(self) -> None:
        """Do the first thing."""

    def second(self) -> None:
        """Do the second thing."""


class Everything(Base):
    def __init__(self, start: int) -> None:
        self.start = start

    def second(self, text: Text) -> None:
        """Do the second thing
        in two lines.
        """

    def many(
        self,
        text: Text,
        count: Annotated[int, "how many"],
        share: Annotated[float, "a share"],
        sure: Annotated[bool, "whether"],
        names: Annotated[list[str], "names"],
        anything: Annotated[list, "a list"],
        table: Annotated[dict[str, int], "a table"],
        side: Annotated[Literal["left", "right"], "which side"],
        size: Annotated[Literal[1, 2], "which size"] = 2,
        doors: Annotated[list[Literal["front", "back"]], "which doors"] = ["front"],  # noqa: B006
        *,
        note: Annotated[str | None, "a note"] = None,
    ) -> None:
        """Take everything."""

    def _hidden(self) -> None: ...

    @property
    def length(self) -> int:
        return self.start


def test_public_methods_are_tools_in_the_order_of_the_classes():
    tools = documented_tools(Everything)
    assert [*tools] == ["first", "second", "many"]
    assert {tool.group for tool in tools.values()} == {"Everything"}
    assert tools["second"].description == "Do the second thing in two lines."
    assert tools["second"].parameters == (Parameter(name="text", type="string", description="a text", required=True),)


def test_annotations_become_documentation():
    found = {
        p.name: (p.type, p.required, p.choices, p.default, p.items)
        for p in documented_tools(Everything)["many"].parameters
    }
    assert found == {
        "text": ("string", True, (), None, None),
        "count": ("integer", True, (), None, None),
        "share": ("float", True, (), None, None),
        "sure": ("boolean", True, (), None, None),
        "names": ("array", True, (), None, "string"),
        "anything": ("array", True, (), None, None),
        "table": ("dict", True, (), None, None),
        "side": ("string", True, ("left", "right"), None, None),
        "size": ("integer", False, (1, 2), 2, None),
        "doors": ("array", False, ("front", "back"), ["front"], "string"),
        "note": ("string", False, (), None, None),
    }


class Silent:
    def act(self) -> None:
        pass


class Bare:
    def act(self, text: str) -> None:
        """Act."""


class Unannotated:
    def act(self, text) -> None:
        """Act."""


class Variadic:
    def act(self, *texts: Text) -> None:
        """Act."""


class Exotic:
    def act(self, when: Annotated[set[str], "when"]) -> None:
        """Act."""


class Mixed:
    def act(self, what: Annotated[Literal["a", 1], "what"]) -> None:
        """Act."""


class Defaulted:
    def act(self, what: Annotated[str, "what"] = object()) -> None:
        """Act."""


class Deferred:
    async def act(self) -> None:
        """Act later."""


class Generating:
    def act(self) -> Any:
        """Act bit by bit."""
        yield 1


class Empty:
    def _act(self) -> None: ...


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (Silent, "Silent.act has no docstring"),
        (Bare, r"Bare.act: document the parameter as text: Annotated\["),
        (Unannotated, "Unannotated.act: document the parameter as text"),
        (Variadic, "Variadic.act: the parameter 'texts' cannot be given by name"),
        (Exotic, "Exotic.act: the type of 'when' is not one of str"),
        (Mixed, "Mixed.act: the type of 'what' is not one"),
        (Defaulted, "Defaulted.act: the default of 'what' is not a JSON value"),
        (Deferred, r"Deferred.act \(test_documentation.py:\d+\) is async or a generator"),
        (Generating, r"Generating.act \(test_documentation.py:\d+\) is async or a generator"),
        (Empty, "the class Empty has no public method"),
    ],
)
def test_missing_documentation_is_named(world, says):
    with pytest.raises(InputError, match=says):
        documented_tools(world)
