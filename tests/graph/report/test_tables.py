"""Tables show every cell as text, in HTML and in plain columns."""

from __future__ import annotations

from graph.report.tables import table


def test_cells_are_text() -> None:
    shown = table(["who", "what"], [["<b>a</b>", None], ["line\none", 3]])
    html = shown._repr_mimebundle_()["text/html"]
    assert "<b>" not in html
    assert "&lt;b&gt;a&lt;/b&gt;" in html
    assert html.count("<tr>") == 3
    assert repr(shown).splitlines() == ["who       what", "<b>a</b>", "line one  3"]


def test_long_cells_are_cut() -> None:
    assert table(["a"], [["x" * 500]], width=20).rows == (("x" * 17 + "...",),)
