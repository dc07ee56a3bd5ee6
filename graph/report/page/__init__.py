"""One self-contained HTML file with a run's story: `coevolve report`."""

from graph.report.page.page import Page, make_page

__all__ = ["Page", "make_page"]
