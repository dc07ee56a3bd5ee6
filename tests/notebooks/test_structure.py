"""What two executions of a notebook must have in common, and what they may differ in."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from support.notebooks import differences, normalised

from graph.report.tables import table


def notebook(*outputs: NotebookNode, source: str = "show()") -> NotebookNode:
    return new_notebook(cells=[new_markdown_cell("Why."), new_code_cell(source, outputs=list(outputs))])


def said(text: str, name: str = "stdout") -> NotebookNode:
    return new_output("stream", name=name, text=text)


def displayed(thing: Any, kind: str = "display_data") -> NotebookNode:
    return new_output(kind, data=thing._repr_mimebundle_())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([said("1\n")], [said("2\n3\n")]),
        ([displayed(table(["a", "b"], [[1, 2]]))], [displayed(table(["a", "b"], [[3, 4], [5, 6]]))]),
        ([], []),
    ],
    ids=["text", "rows", "nothing"],
)
def test_values_may_differ(one: list[NotebookNode], other: list[NotebookNode]) -> None:
    assert differences(notebook(*one), notebook(*other)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([said("1\n")], []),
        ([said("1\n")], [said("1\n", "stderr")]),
        ([said("1\n")], [said("1\n"), displayed(table(["a"], [[1]]))]),
        ([said("1\n")], [displayed(table(["a"], [[1]]))]),
        ([displayed(table(["a"], []))], [displayed(table(["a"], []), "execute_result")]),
        ([said("1\n")], [new_output("error", ename="KeyError", evalue="", traceback=[])]),
    ],
)
def test_structure_may_not(one: list[NotebookNode], other: list[NotebookNode]) -> None:
    (sentence,) = differences(notebook(*one), notebook(*other))
    assert sentence.startswith("cell 1 shows")
    assert len(differences(notebook(*other), notebook(*one))) == 1


def test_source_and_cells_are_compared() -> None:
    assert differences(notebook(), notebook(source="other()")) == ["cell 1 has another source"]
    longer = notebook()
    longer.cells.append(new_markdown_cell("More."))
    assert differences(notebook(), longer) == ["2 cells, a fresh execution has 3"]


def test_what_depends_on_the_machine_is_removed() -> None:
    """Two executions of equal cells become equal files."""
    made = []
    for kernel, version, count in (("own", "3.11.7", 7), ("python3", "3.12.1", 3)):
        one = notebook(said("a"), displayed(table(["a"], [[1]]), "execute_result"))
        one.metadata = nbformat.from_dict({"kernelspec": {"name": kernel}, "language_info": {"version": version}})
        one.cells[1].execution_count = one.cells[1].outputs[1].execution_count = count
        one.cells[1].metadata = nbformat.from_dict({"execution": {"iopub.execute_input": f"at {count}"}})
        made.append(normalised(one))
    assert made[0] == made[1]
    assert [output.output_type for output in made[0].cells[1].outputs] == ["stream", "execute_result"]
