"""Bring the files outside docs/ that pages link to into the site: a hook of mkdocs (mkdocs.yml).

On disk and on a code host ``../SECURITY.md`` is a good link, but a site has only docs/. Such a file becomes a page
(Markdown) or a download (the rest) below ``repository/``, and links to it are rewritten. Linked pages may link on.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|pre))[^>]*\bhref=["']?(?:https?:)?//[^>]*"""
)
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def outside(text: str, folder: str) -> set[str]:
    """Return the linked paths outside docs/, relative to the repository; ``folder`` is the page's own there."""
    paths = (posixpath.normpath(posixpath.join(folder, found["path"])) for found in LINK.finditer(FENCED.sub("", text)))
    return {path for path in paths if not path.startswith("docs/") and (ROOT / path).is_file()}


def gathered() -> set[str]:
    """Return the paths of all files outside docs/ that its pages link to, directly or through such a page."""
    waiting = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    found: set[str] = set()
    while waiting:
        page = waiting.pop()
        new = outside((ROOT / page).read_text(encoding="utf-8"), posixpath.dirname(page)) - found
        found |= new
        waiting += [path for path in new if path.endswith(".md")]
    return found


def moved(text: str, source: str) -> str:
    """Return a page's text with links for its place in the site.

    ``source`` is the page's path in the site's sources: ``results.md``, or ``repository/SECURITY.md``.
    """
    inside = source.removeprefix("repository/")
    folder = posixpath.dirname(inside if inside != source else f"docs/{source}")

    def rewrite(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        place = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
        return posixpath.relpath(place, posixpath.dirname(source) or ".") + (link["anchor"] or "")

    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(rewrite, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(rewrite, text[end:])])


def on_files(files: Any, config: Any) -> Any:  # noqa: ANN401 - mkdocs is not installed where this is checked
    """Add the linked files to those of the site."""
    from mkdocs.structure.files import File

    for path in sorted(gathered()):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Rewrite the links of a page. Results and measurements, nearly all figures, are left out of the search."""
    if page.file.src_uri.startswith(("repository/results/", "repository/benchmarks/")):
        page.meta["search"] = {"exclude": True}
    return moved(markdown, page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Return the page as it is. Raises where it would load something from another host."""
    if found := LOADED.search(output):
        from mkdocs.exceptions import PluginError

        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output
