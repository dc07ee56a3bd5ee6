"""The page of a run in a real browser: it opens silently, is used by click, key and link; text stays text."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

import pytest
from support.browser import READY, find_chromium, running_browser, wait
from support.hostile_run import make_hostile_run
from support.pictures import WIDTH, take_pictures

from graph.report.effect import did_it_help
from graph.report.lineage import History
from graph.report.page import make_page
from graph.report.stories import first_story
from graph.report.story import mistake_of
from memory.run import RunDirectory

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

# The browser says that it closed a moment later, and only then the page leaves the address of the record.
CLOSED = "!document.getElementById('drawer').open && !location.hash.includes('=')"
DRAWN = "document.getElementById('drawer').open && document.activeElement.id === 'drawer-h'"
OPENED = "document.getElementById('drawer').dataset.id"
PARTS = "[...decoded.keys()].sort()"
FAINT = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (one) => {
    for (let e = one; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  const found = [];
  const shown = document.querySelector('dialog[open]') || document.body;
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const e = walker.currentNode.parentElement;
    if (!text || !e.getClientRects().length || e.closest('script, noscript, [disabled]')) continue;
    const style = getComputedStyle(e);
    const inks = [rgb(e instanceof SVGElement ? style.fill : style.color), behind(e)];
    const [a, b] = inks.map(light).sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${e.className} ${text.slice(0, 30)}`);
  }
  return found;
})()"""
"""Texts that hardly differ from what is behind them: below WCAG's contrast for small text."""
SIZE = {"width": 1280, "height": 900}
MOBILE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True}


class Written(NamedTuple):
    """A page on disk and the records that it shows."""

    path: Path
    history: History


@pytest.fixture(scope="module")
def written(grown_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Written:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(make_page(grown_run).html)
    return Written(path, History.read(grown_run))


@pytest.fixture(scope="module")
def browser(grown_run: RunDirectory) -> Iterator[Browser]:
    """One Chromium, whose pages share nothing; where there is none, what asks for it skips.

    The run is made before, in an event loop.
    """
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed: make chromium, or name one by COEVOLVE_CHROMIUM")
    with running_browser(program) as started:
        yield started


@pytest.fixture
def asked() -> list[str]:
    """The URLs that the page asked for."""
    return []


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, asked: list[str]) -> Iterator[Page]:
    """An empty page with the options of a parameter; nothing that a page must never do may have happened by the end."""
    wrong: list[str] = []
    page = browser.new_page(**{"viewport": SIZE, "color_scheme": "light", **getattr(request, "param", {})})
    page.on("console", lambda one: wrong.append(one.text) if one.type in ("error", "assert", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda one: (wrong.append(one.message), one.dismiss()))
    page.on("request", lambda one: asked.append(one.url))
    yield page
    page.wait_for_timeout(300)
    assert wrong == []
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    page.close()


def opened(page: Page, path: Path) -> None:
    page.goto(path.as_uri())
    wait(page, READY)


def go(page: Page, **to: str) -> None:
    """Follow a permanent link, and wait until its record is drawn."""
    page.evaluate(f"location.hash = {json.dumps(urlencode(to))}")
    wait(page, f"drawing > 0 && {DRAWN} && {OPENED} === {json.dumps(next(iter(to.values())))}")


def count(page: Page, selector: str) -> int:
    return int(page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))


def text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))


def no_sideways_scroll(page: Page) -> bool:
    return bool(page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"))


def test_only_what_is_seen_is_decoded(page: Page, asked: list[str], written: Written) -> None:
    opened(page, written.path)
    assert asked == [written.path.as_uri()]
    assert page.evaluate(PARTS) == ["table"], "rollouts are decoded when somebody opens one"
    assert count(page, "#rows tbody tr") <= 100
    assert count(page, "*") < 4_000
    task = next(task for task in written.history.tasks.values() if task.admitted_at == 1)
    go(page, task=task.id)
    stages = [name for name in page.evaluate(PARTS) if name.startswith("stage-")]
    assert stages == ["stage-001"]


def choose(page: Page, name: str, value: str) -> None:
    """Choose a value of a select."""
    page.evaluate(
        f"(() => {{ const s = document.getElementById({json.dumps(name)}); s.value = {json.dumps(value)};"
        "s.dispatchEvent(new Event('input')); })()"
    )


def found(page: Page, number: int) -> None:
    """Wait until so many records are found."""
    wait(page, f"document.getElementById('found').textContent.startsWith('{number} of')")


def test_records_are_searched_and_filtered(page: Page, written: Written) -> None:
    opened(page, written.path)
    chains = list(written.history.chains.values())
    found(page, len(chains))
    for number in (1, 0):
        choose(page, "iteration", str(number))
        found(page, sum(chain.iteration == number for chain in chains))
    choose(page, "iteration", "")
    tool = next(chain.context.tool for chain in chains if chain.context.tool)
    choose(page, "tool", tool)
    wait(page, f"!document.getElementById('found').textContent.startsWith('{len(chains)} ')")
    assert 0 < int(text(page, "#found").split()[0]) < len(chains)
    choose(page, "tool", "")
    choose(page, "kind", "task")
    found(page, len(written.history.tasks))
    task = next(task for task in written.history.tasks.values() if task.admitted_at == 1)
    page.click("#search")
    page.keyboard.insert_text(task.id)
    found(page, 1)
    page.click("#rows tbody a")
    wait(page, DRAWN)
    assert page.evaluate(OPENED) == task.id


def test_a_task_is_followed_by_click_key_and_link(page: Page, written: Written) -> None:
    history = written.history
    opened(page, written.path)
    choose(page, "kind", "task")
    found(page, len(history.tasks))
    page.click("#rows tbody a")
    wait(page, DRAWN)
    first = page.evaluate(OPENED)
    chain = history.chain_of(first)
    assert chain is not None
    assert chain.rollout is not None
    assert chain.signal is not None
    cards = page.evaluate("[...document.querySelectorAll('#drawer .card h3')].map((one) => one.textContent)")
    order = ["Rollout", "Signal", "Reflection", "Exploration", "Drafts", "What it asks", "Effect"]
    assert [one for one in cards if one in order] == order
    told = text(page, "#drawer")
    for part in (chain.rollout.id, chain.signal.id, chain.context.id, *(one.draft.id for one in chain.outcomes)):
        assert part in told
    labels = page.evaluate("[...document.querySelectorAll('#drawer dt')].map((one) => one.textContent)")
    assert labels.count("wrong >") == (chain.context.cause is not None)
    if mistake_of(history, chain) is not None:
        assert "expected" in labels
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    wait(page, CLOSED)
    page.go_back()
    wait(page, f"{DRAWN} && {OPENED} === {json.dumps(first)}")
    page.click("#drawer a[href*='rollout=']")
    wait(page, f"{DRAWN} && {OPENED} in {json.dumps(dict.fromkeys(history.rollouts, 1))}")
    assert "reference" in text(page, "#drawer").lower()
    page.go_back()
    wait(page, f"{DRAWN} && {OPENED} === {json.dumps(first)}")
    page.click("#drawer header button")
    wait(page, CLOSED)
    assert page.evaluate("scrollY") > 0, "a closed drawer leaves the page where it was"
    page.evaluate("document.querySelector('#rows tbody a').focus()")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait(page, DRAWN)
    assert page.evaluate(OPENED) not in (None, first)


def test_dots_are_the_results_of_a_group(page: Page, written: Written) -> None:
    opened(page, written.path)
    task_id, groups = next((name, found) for name, found in written.history.groups.items() if len(found) > 1)
    go(page, task=task_id)
    shown = page.evaluate(
        "[...[...document.querySelectorAll('#drawer .card')].find((one) => one.firstChild.textContent === 'Effect')"
        ".querySelectorAll('.dots')].map((one) => [...one.children].map((dot) => dot.classList.contains('good')))"
    )
    assert shown == [[one.success for one in group.rollouts] for group in groups]
    assert {len(group) for group in shown} == {4}


@pytest.mark.parametrize("page", [{**MOBILE, "color_scheme": one} for one in ("light", "dark")], indirect=True)
def test_a_narrow_screen_scrolls_in_one_direction(page: Page, written: Written) -> None:
    opened(page, written.path)
    assert no_sideways_scroll(page)
    chain = next(chain for chain in written.history.chains.values() if chain.admitted and chain.rollout is not None)
    assert chain.rollout is not None
    for view in ({"task": chain.admitted[0].id}, {"context": chain.context.id}, {"rollout": chain.rollout.id}):
        go(page, **view)
        assert no_sideways_scroll(page)
        wide = page.evaluate(
            "(() => { const d = document.getElementById('drawer'); return [d.scrollWidth, d.clientWidth] })()"
        )
        assert wide[0] <= wide[1], view


def test_dark_and_light_differ_and_are_legible(page: Page, written: Written) -> None:
    opened(page, written.path)
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours = page.evaluate(
            "(() => { const c = document.createElement('canvas').getContext('2d', { willReadFrequently: true });"
            "const s = getComputedStyle(document.documentElement);"
            "return [s.backgroundColor, s.color].map((one) => { c.fillStyle = one; c.fillRect(0, 0, 1, 1);"
            "return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3); }); })()"
        )
        low, high = sorted(_luminance(one) for one in colours)
        assert (high + 0.05) / (low + 0.05) >= 7.0, "WCAG's enhanced contrast"
        seen[scheme] = _luminance(colours[0])
    assert (seen["dark"] < 0.1, seen["light"] > 0.8) == (True, True), seen


@pytest.mark.parametrize("page", [{"color_scheme": one} for one in ("light", "dark")], indirect=True)
def test_every_text_is_legible(page: Page, written: Written) -> None:
    opened(page, written.path)
    found = page.evaluate(FAINT)
    chain = next(chain for chain in written.history.chains.values() if chain.admitted and chain.rollout is not None)
    assert chain.rollout is not None
    for view in ({"task": chain.admitted[0].id}, {"rollout": chain.rollout.id}):
        go(page, **view)
        found += page.evaluate(FAINT)
    assert not found, "WCAG asks for 4.5"


def test_the_map_leads_to_the_records_of_a_tool(page: Page, written: Written) -> None:
    opened(page, written.path)
    assert text(page, "#strip .verdict") == did_it_help(written.history)
    page.click("#map tbody td a")
    wait(page, "document.activeElement.id === 'records'")
    tool = text(page, "#map tbody th")
    number = int(page.evaluate("document.getElementById('iteration').value"))
    of_it = sum(one.context.tool == tool for one in written.history.chains_in(number))
    assert page.evaluate("document.getElementById('tool').value") == tool
    assert int(text(page, "#found").split()[0]) >= of_it > 0


def test_a_newcomer_finds_a_story_and_the_words(page: Page, written: Written) -> None:
    opened(page, written.path)
    page.evaluate("document.querySelector('#effect .story a').focus()")
    page.keyboard.press("Enter")
    wait(page, DRAWN)
    story = first_story(written.history)
    assert story is not None
    assert page.evaluate(OPENED) == story.task.id
    page.keyboard.press("Escape")
    page.click("nav [href='#words']")
    wait(page, "document.activeElement.id === 'words'")
    for word in ("context", "draft", "boundary"):
        assert word in text(page, "#words")


def _luminance(colour: list[int]) -> float:
    """WCAG's relative luminance of an sRGB colour."""
    linear = [c / 12.92 if (c := one / 255) <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for one in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_readme_has_pictures_of_a_run(browser: Browser, grown_run: RunDirectory, tmp_path: Path) -> None:
    pictures = take_pictures(grown_run, tmp_path, browser)
    assert {path.name for path in pictures} == {"report.png", "weakness.png", "effect.png"}
    for path in pictures:
        head = path.read_bytes()[:24]
        width, height = struct.unpack(">II", head[16:])
        assert head.startswith(b"\x89PNG")
        assert (width, height > 300) == (WIDTH, True), path.name


def test_hostile_records_change_nothing(page: Page, asked: list[str], grown_run: RunDirectory, tmp_path: Path) -> None:
    run = make_hostile_run(tmp_path / "hostile", grown_run)
    history = History.read(run)
    path = tmp_path / "hostile.html"
    path.write_bytes(make_page(run).html)
    opened(page, path)
    scripts, styles = count(page, "script"), count(page, "style")
    first = (("task", history.tasks), ("context", history.chains), ("rollout", history.rollouts))
    shown = [{kind: name} for kind, names in first for name in list(names)[:20]]
    for view in shown:
        go(page, **view)
        assert page.evaluate(OPENED) == next(iter(view.values()))
        assert no_sideways_scroll(page)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("({}).polluted") is None
    assert page.evaluate("document.title") == "hostile · CoEvolve"
    assert count(page, "img, iframe, object, embed, base, link, meta[http-equiv=refresh], form, svg[onload]") == 0
    assert (count(page, "script"), count(page, "style")) == (scripts, styles)
    assert page.evaluate("[...document.querySelectorAll('a')].every((one) => one.getAttribute('href').startsWith('#'))")
    assert page.evaluate("getComputedStyle(document.body).display") != "none"
    assert page.evaluate("[...document.querySelectorAll('*')].every((one) => !one.hasAttribute('onerror'))")
    assert asked == [path.as_uri()]
    assert "\u202e" not in page.evaluate("document.body.innerText")
    assert "[native code]" not in page.evaluate("document.documentElement.outerHTML")
