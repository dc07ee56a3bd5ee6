"""Documentation files as tool specifications, on files written by hand; the real ones are read in the world's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from environments.appworld.installation import Installation, read_api_documentation
from environments.base import InputError


def parameter(name: str, kind: str, **other: Any) -> dict[str, Any]:
    base = {"name": name, "type": kind, "required": True, "description": "What.", "default": None, "constraints": []}
    return base | other


def written(folder: Path, document: object) -> Installation:
    path = folder / "blind" / "data" / "api_docs" / "standard" / "shop.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    return Installation(python=folder / "python", world=folder)


def test_parameters_keep_type_default_and_constraints(tmp_path: Path) -> None:
    parameters = [
        parameter("item_id", "integer"),
        parameter("price", "number", required=False, default=1.5, constraints=["value >= 0.0", "value <= 9.0"]),
        parameter("tags", "list[string]", required=False),
        parameter("answer", "number | integer | string"),
    ]
    documents = {"buy": {"description": "Buy it.", "parameters": parameters, "canary_string": "x"}}
    tool = read_api_documentation(written(tmp_path, documents))["shop.buy"]
    assert (tool.name, tool.group, tool.description) == ("shop.buy", "shop", "Buy it.")
    assert [(p.type, p.items, p.required, p.default) for p in tool.parameters] == [
        ("integer", None, True, None),
        ("float", None, False, 1.5),
        ("array", "string", False, None),
        ("string", None, True, None),
    ]
    assert tool.parameters[1].description == "What. (value >= 0.0; value <= 9.0)"


@pytest.mark.parametrize(
    "documents",
    [{"buy": {}}, [], {"buy": {"description": "x", "parameters": [parameter("a", "matrix")]}}, "text"],
)
def test_files_of_another_shape_are_named(tmp_path: Path, documents: object) -> None:
    with pytest.raises(InputError, match=r"shop\.json is not API documentation"):
        read_api_documentation(written(tmp_path, documents))


def test_a_world_without_documentation_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="make appworld"):
        read_api_documentation(written(tmp_path, {}))
