"""Every notebook runs from its first cell to its last, shows what is committed, and says what it promises."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from support.notebooks import METADATA, WITHOUT_OUTPUTS, differences, executed, notebooks, shown

from environments.appworld.installation import Installation
from graph.walkthrough import VARIABLE, prepared_run

PROMISED: dict[str, tuple[str, ...]] = {
    "01_one_iteration.ipynb": (
        *("per_group", "as the trainer recorded it", "ratios", "clipped"),
        *("extract", "reflect", "deduplicate", "explore", "abstract", "verify", "update"),
    ),
    "05_seal.ipynb": ("correct_abstention", "weighted", "guidelines shown", "with a hint"),
    "06_appworld.ipynb": (),
    "09_language_model.ipynb": ("before", "after", "boundary", "reference", "admitted", "forgetting"),
}
"""What the outputs of each notebook have to name; nothing where none are committed."""

CPU_SECONDS = 60
"""What a notebook may take beside the run that all of them read."""

OF_A_MACHINE = re.compile(
    r"/(?:tmp|home|root|Users|work|opt|usr|var|mnt)/\w|\b0x[0-9a-f]{6,}|\b20\d\d-\d\d-\d\d[T ]\d\d:|ipykernel_\d"
)
OF_APPWORLD = re.compile(r"supervisor|simple_note|api_docs|access_token|\bapis\.|\bmade\d\d_\d", re.IGNORECASE)
"""Names in what AppWorld's apps answer and in its tasks."""
OF_BFCL = {"09_language_model.ipynb": frozenset({"access_token"})}
"""What BFCL has under the same name: its flights are booked with a token."""
NAMES = [path.name for path in notebooks()]
MARKS = {"06_appworld.ipynb": pytest.mark.appworld}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, preloaded: None) -> Path:
    """The run that all notebooks read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("notebooks") / "run"))
        return prepared_run().root


def test_every_notebook_has_a_promise() -> None:
    assert sorted(PROMISED) == NAMES


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES])
def test_it_shows_what_is_committed(name: str, run: Path) -> None:
    path = next(path for path in notebooks() if path.name == name)
    before = getrusage(RUSAGE_CHILDREN)
    fresh = executed(path, run)
    after = getrusage(RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < CPU_SECONDS
    assert not [word for word in PROMISED[name] if word not in shown(fresh)]
    found = differences(nbformat.read(path, as_version=4), fresh, hidden=name in WITHOUT_OUTPUTS)
    assert not found, "make notebooks writes the outputs anew:\n" + "\n".join(found)


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs_are_whole_and_name_no_machine(name: str) -> None:
    path = next(path for path in notebooks() if path.name == name)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    assert not OF_A_MACHINE.findall(path.read_text())
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if name in WITHOUT_OUTPUTS:
        assert not [cell for cell in code if cell.outputs or cell.execution_count]
        return
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run every cell: make notebooks"
    assert not [cell.metadata for cell in notebook.cells if cell.metadata]
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    named = set(OF_APPWORLD.findall(str(outputs))) - OF_BFCL.get(name, frozenset())
    assert not named, "AppWorld's data may not be published"


@pytest.mark.parametrize("name", NAMES)
def test_prose_leads(name: str) -> None:
    """Text before every piece of code, and no long code: helpers are in the package."""
    cells = nbformat.read(next(path for path in notebooks() if path.name == name), as_version=4).cells
    assert cells[0].cell_type == "markdown"
    for one, other in pairwise(cells):
        assert "markdown" in (one.cell_type, other.cell_type), f"code follows code: {other.source}"
    lengths = {cell.source: len(cell.source.splitlines()) for cell in cells if cell.cell_type == "code"}
    assert not [source for source, lines in lengths.items() if lines > 15]
    prose = sum(len(cell.source) for cell in cells if cell.cell_type == "markdown")
    assert prose > sum(map(len, lengths))


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.long
def test_without_its_world_the_notebook_of_appworld_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVOLVE_APPWORLD", str(tmp_path / "nowhere"))
    path = next(path for path in notebooks() if path.name == "06_appworld.ipynb")
    with pytest.raises(CellExecutionError, match="make appworld"):
        executed(path, tmp_path)


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.long
@pytest.mark.appworld
def test_with_its_world_the_notebook_of_appworld_plays_an_episode(tmp_path: Path, installation: Installation) -> None:
    said = shown(executed(next(path for path in notebooks() if path.name == "06_appworld.ipynb"), tmp_path))
    for promised in ("The user asks:", "is not allowed: open", "success=False", "success=True", "ungrounded_argument"):
        assert promised in said
