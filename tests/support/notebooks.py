"""Executes the notebooks, refreshes their committed outputs, and compares those with a fresh execution in structure.

`python tests/support/notebooks.py [NAME ...]` (make notebooks) executes them and writes their outputs. All read one
run, which is made once: ``graph.walkthrough``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from environments.checkout import ROOT
from graph.walkthrough import VARIABLE, prepared_run

FOLDER = ROOT / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""The metadata of every committed notebook: no version, time or path of the machine that executed it."""

WITHOUT_OUTPUTS = frozenset({"06_appworld.ipynb"})
"""Notebooks whose outputs hold a benchmark's data or what derives from it, and may not be published."""

_TIMEOUT = 600  # seconds per cell: the first one may make the run

Shape = tuple[str, ...]


def notebooks() -> list[Path]:
    """Return the committed notebooks in order of their names."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, run: Path) -> NotebookNode:
    """Return the notebook after running its cells in a fresh kernel of this Python, in an empty folder, on ``run``."""
    notebook = nbformat.read(path, as_version=4)
    drop_outputs(notebook)
    with TemporaryDirectory(prefix="notebook-") as folder, _environment(run, Path(folder)):
        NotebookClient(
            notebook,
            timeout=_TIMEOUT,
            kernel_name="python3",  # jupyter_client's name for the Python that runs it
            record_timing=False,
            coalesce_streams=True,  # how many pieces there are depends on time
            extra_arguments=["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"],
            resources={"metadata": {"path": folder}},
        ).execute()
        assert not [one for one in Path(folder).iterdir() if one.name != "ipython"], "it left files behind"
    return normalised(notebook)


@contextmanager
def _environment(run: Path, folder: Path) -> Iterator[None]:
    """Let the kernel read the run, and keep its own files out of the user's folders."""
    kept = {VARIABLE: str(run), "IPYTHONDIR": str(folder / "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    kept |= {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
    with patch.dict(os.environ, kept):
        yield


def normalised(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook with what depends on the machine removed: metadata and ids."""
    notebook.metadata = nbformat.from_dict(METADATA)
    count = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = count
                if "metadata" in output:
                    output.metadata = NotebookNode()
    return notebook


def drop_outputs(notebook: NotebookNode) -> None:
    """Remove every output, and the counts of execution with them."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def shape(output: NotebookNode) -> Shape:
    """Return what two executions of a cell must have in common in one output: its kind and the kinds of its data.

    Values and printed text may differ from machine to machine.
    """
    name = output.get("name", output.get("ename", ""))
    return (output.output_type, name, *sorted(output.get("data", {})))


def differences(committed: NotebookNode, fresh: NotebookNode, *, hidden: bool = False) -> list[str]:
    """Return a sentence for each difference in structure between two executions of a notebook; none if they agree.

    ``hidden``: the committed notebook has no outputs, and sources are all that is compared.
    """
    if len(committed.cells) != len(fresh.cells):
        return [f"{len(committed.cells)} cells, a fresh execution has {len(fresh.cells)}"]
    found = []
    for number, (one, other) in enumerate(zip(committed.cells, fresh.cells, strict=True)):
        if (one.cell_type, one.source) != (other.cell_type, other.source):
            found.append(f"cell {number} has another source")
        elif one.cell_type == "code" and not hidden:
            shapes = [[shape(output) for output in cell.outputs] for cell in (one, other)]
            if shapes[0] != shapes[1]:
                found.append(f"cell {number} shows {shapes[0]}, a fresh execution {shapes[1]}")
    return found


def shown(notebook: NotebookNode) -> str:
    """Return everything that the cells print or show, as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs)


def refresh(names: Iterable[str]) -> None:
    """Execute the notebooks of these names (all for none), write their outputs, and print the seconds of each."""
    wanted = set(names)
    with TemporaryDirectory(prefix="notebooks-") as folder:
        with patch.dict(os.environ, {VARIABLE: os.environ.get(VARIABLE, f"{folder}/run")}):
            run = prepared_run().root
        for path in notebooks():
            if wanted and path.name not in wanted and path.stem not in wanted:
                continue
            begun = time.monotonic()
            notebook = executed(path, run)
            if path.name in WITHOUT_OUTPUTS:
                drop_outputs(notebook)
            nbformat.write(notebook, path)
            print(f"{path.name}: {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    refresh(sys.argv[1:])
