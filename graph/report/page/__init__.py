"""One self-contained HTML file that tells a run's story: `coevolve report`."""

from graph.report.page.page import Page, make_page

__all__ = ["Page", "make_page"]
