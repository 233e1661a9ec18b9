"""The web page in headless Chromium: what it shows, by click and by keyboard, in light and dark, at 1 000 leases.

OFFPATH_WEB_SHOTS=FOLDER keeps the pictures that docs/web.md shows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from ...support.browser import Browser, NoBrowser
from ...support.png import pixels
from ...support.processes import Process, until
from ...support.web_world import HOSTILE

COLOURS = {"tenant-1": (0, 114, 178), "tenant-2": (230, 159, 0), "tenant-3": (0, 158, 115)}
MOST_BYTES = 200_000
DEMO_S = 60
LEAST_SPANS = 70 if "OFFPATH_WEB_SHOTS" in os.environ else 12


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One for all tests here: each loads its page anew."""
    try:
        made = Browser()
    except NoBrowser as reason:
        pytest.skip(str(reason))
    with made:
        yield made


class Page:
    """A page with generated state in the browser; its requests and console errors since it was opened."""

    def __init__(self, browser: Browser, link: str, **view: Any) -> None:
        self.browser = browser
        self.address = link.partition("#")[0]
        browser.open("about:blank")  # ends the page of the test before
        before = browser.report()
        self._seen = (len(before["requests"]), len(before["errors"]))
        browser.open(link, view.get("scheme", "light"), view.get("width", 1280), view.get("height", 900))
        browser.wait("html[data-polls]")

    def judge(self) -> None:
        """It requested nothing from other hosts, and the console is empty."""
        report = self.browser.report()
        requests, errors = report["requests"][self._seen[0] :], report["errors"][self._seen[1] :]
        assert requests
        assert [each for each in requests if not each.startswith(self.address)] == []
        assert errors == []

    def shot(self, name: str, folder: Path) -> Path:
        path = Path(os.environ.get("OFFPATH_WEB_SHOTS", folder)) / f"{name}.png"
        self.browser.shot(str(path.absolute()))
        assert path.stat().st_size < MOST_BYTES
        return path


def world(folder: Path, *words: str) -> Process:
    return Process("web", folder, "web_main.py", *words)


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    served = world(tmp_path, "40", "6")
    try:
        made = Page(chromium, served.hear()["link"])
        yield made
        made.judge()
    finally:
        served.kill()


def test_the_slices_of_the_demos_six_tenants_appear_while_it_runs(chromium: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "offpath.cli.main"]
    with (tmp_path / "demo").open("wb") as output:
        demo = subprocess.Popen(
            [*command, "demo", "--seconds", str(DEMO_S), "--picture", ""], stdout=output, stderr=output,
            env={**os.environ, "TMPDIR": str(tmp_path) if len(str(tmp_path)) < 40 else "/tmp"},
        )  # fmt: skip
    web = None
    try:
        socket = until(lambda: runtime_of(demo, tmp_path), 120)
        web = subprocess.Popen(
            [*command, "web", "run", "--runtime-dir", socket, "--listen", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert web.stdout is not None
        made = Page(chromium, json.loads(web.stdout.readline())["link"])
        names = [f"tenant-{n}" for n in range(1, 7)]
        assert [text.strip() for text in chromium.texts("#tenant-table td:first-child")] == names
        chromium.wait("#ended-table tbody tr")
        seen: set[str] = set()

        def have_held() -> bool:
            state = chromium.evaluate("async () => (await (await fetch('/api/state')).json()).history")
            tenant = state["fields"].index("tenant")
            seen.update(row[tenant] for row in state["rows"])
            return len(seen) >= 4 and len(state["rows"]) >= LEAST_SPANS

        until(have_held, DEMO_S + 60)
        assert seen <= set(names)
        chromium.click("#pause")
        picture = pixels(made.shot("web-demo", tmp_path))
        shades = {name for name, colour in COLOURS.items() if any(picture[near] > 50 for near in mixes(colour))}
        assert len(shades) >= 2, "the canvas has the colours of tenants"
        chromium.click("#ended-table tbody tr:first-child button")
        chromium.wait("#explain .stages")
        assert "COMPLETED" in chromium.texts("#explain-body")[0]
        made.shot("web-explain", tmp_path)
        chromium.press("Escape")
        made.judge()
    finally:
        for process in (web, demo):
            if process is not None:
                process.terminate()
                process.wait(60)
                if process.stdout is not None:
                    process.stdout.close()


def runtime_of(demo: subprocess.Popen[bytes], folder: Path) -> str:
    """The runtime directory of the demo's daemon, once it listens."""
    assert demo.poll() is None, (folder / "demo").read_text()
    for task in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split():
        words = Path(f"/proc/{task}/cmdline").read_bytes().split(b"\0")
        if b"daemon" in words and b"--runtime-dir" in words:
            found = words[words.index(b"--runtime-dir") + 1].decode()
            if Path(found, "admin.sock").exists():
                return found
    return ""


def mixes(colour: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """A tenant's colour on white, at the opacity of a lease that ended and of one that lasts."""
    found = []
    for alpha in (0.6, 0.92):
        mixed = [255 + (part - 255) * alpha for part in colour]
        found += [
            (round(mixed[0]) + r, round(mixed[1]) + g, round(mixed[2]) + b)
            for r in (-1, 0, 1)
            for g in (-1, 0, 1)
            for b in (-1, 0, 1)
        ]
    return found


def test_a_request_is_explained_by_click(page: Page) -> None:
    browser = page.browser
    browser.click("#job-table tbody tr:nth-child(2) button")
    browser.wait("#explain[open] ul")
    (text,) = browser.texts("#explain")
    assert f"Request {(1 << 63) + 1}/2" in text
    assert "no_room: no legal start of 1g.5gb is free" in text
    assert "unblocked when: lease 1 ends" in text
    browser.click("#explain-close")
    browser.wait_hidden("#explain")


def test_a_request_is_explained_by_keyboard_and_the_focus_comes_back(page: Page) -> None:
    browser = page.browser
    browser.press("4")
    assert browser.evaluate("() => document.activeElement.textContent") == "Requests"
    focused = "() => document.activeElement.closest('#job-table tbody') ? document.activeElement.textContent : ''"
    for _ in range(20):
        browser.press("Tab")
        if name := browser.evaluate(focused):
            break
    assert name == f"{(1 << 63) + 1}/1"
    browser.press("Enter")
    browser.wait("#explain[open] ul")
    browser.press("Escape")
    browser.wait_hidden("#explain")
    assert browser.evaluate(focused) == name
    polls = browser.evaluate("() => Number(document.documentElement.dataset.polls)")
    until(lambda: browser.evaluate("() => Number(document.documentElement.dataset.polls)") > polls)
    assert browser.evaluate(focused) == name, "an update leaves the focus where it is"


def test_the_charts_cursor_shows_which_lease_holds_a_slice(page: Page) -> None:
    browser = page.browser
    browser.focus("#chart")
    browser.press("ArrowLeft")
    assert "lease 1 of tenant-1, 1g.5gb" in browser.texts("#chart-note")[0]
    browser.press("ArrowDown")
    assert "lease 2 of " in browser.texts("#chart-note")[0]


def test_keys_filter_pause_and_show_the_help(page: Page) -> None:
    browser = page.browser
    browser.press("/")
    browser.type("tenant-3")
    rows = browser.texts("#lease-table tbody tr td:nth-child(2)")
    assert {text.strip() for text in rows} == {"tenant-3"}
    browser.press("Escape")
    browser.press("p")
    polls = browser.evaluate("() => document.documentElement.dataset.polls")
    browser.evaluate("() => new Promise((done) => setTimeout(done, 2500))")
    assert browser.evaluate("() => document.documentElement.dataset.polls") == polls
    browser.press("?")
    browser.wait("#keys[open]")
    browser.press("Escape")


def test_dark_is_the_systems_choice_and_can_be_chosen(chromium: Browser, tmp_path: Path) -> None:
    served = world(tmp_path, "40", "6")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    try:
        made = Page(chromium, served.hear()["link"], scheme="dark")
        assert chromium.evaluate(ground) == "rgb(20, 23, 26)"
        made.shot("web-dark", tmp_path)
        chromium.press("t")  # light
        assert chromium.evaluate(ground) == "rgb(255, 255, 255)"
        chromium.open(made.address, "light")
        assert chromium.evaluate(ground) == "rgb(255, 255, 255)"
        chromium.press("t")  # dark
        assert chromium.evaluate(ground) == "rgb(20, 23, 26)"
        chromium.press("t")  # the system's
        assert chromium.evaluate(ground) == "rgb(255, 255, 255)"
        made.judge()
    finally:
        served.kill()


def test_trees_are_drawn_on_the_topology_and_a_job_is_explained(page: Page, tmp_path: Path) -> None:
    browser = page.browser
    browser.press("5")
    browser.wait("#network svg")
    assert sorted(text[:2] for text in browser.texts("#network svg > text")) == sorted(
        [f"h{n}" for n in range(1, 9)] + [f"s{n}" for n in range(5)]
    )
    drawn = browser.evaluate("() => [...document.querySelectorAll('#network svg g')].map((g) => g.children.length - 1)")
    assert drawn == [6, 5], "resnet: four hosts and two switches below the root; vgg: three hosts and two"
    assert browser.evaluate("() => document.querySelectorAll('#network .lost').length") == 1
    page.shot("web-ina", tmp_path)
    browser.click("#tree-table tbody tr:first-child button")
    browser.wait("#explain[open] ul")
    assert "no other job uses this root" in browser.texts("#explain")[0]
    browser.press("Escape")
    assert "night" in browser.texts("#work-table")[0]


def test_hostile_names_are_text(chromium: Browser, tmp_path: Path) -> None:
    served = world(tmp_path, "14", "2", "hostile")
    try:
        made = Page(chromium, served.hear()["link"])
        shown = [text.strip() for text in chromium.texts("#tenant-table td:first-child")]
        assert shown == [HOSTILE, "a\ufffdb\ufffd[2J"]
        assert chromium.evaluate("() => document.querySelectorAll('img, main script').length") == 0
        chromium.click("#job-table tbody tr:first-child button")
        chromium.wait("#explain[open] ul")
        made.judge()
    finally:
        served.kill()


def test_what_cannot_be_read_is_a_fault_and_the_last_data_has_its_age(chromium: Browser, tmp_path: Path) -> None:
    served = world(tmp_path, "40", "6", "fails")
    try:
        made = Page(chromium, served.hear()["link"])
        chromium.wait("#leases.stale")
        reason = "cannot be read: <b>not an operator</b>"
        assert chromium.texts("#faults p") == [f"{each} {reason}" for each in ("daemon", "controller", "job manager")]
        assert [chromium.texts(f"#{note}")[0] for note in ("ina-note", "work-note")] == [
            f"The controller {reason}", f"The job manager {reason}",
        ]  # fmt: skip
        ages = "() => [...document.querySelector('#ages').textContent.matchAll(/([0-9.]+) s old/g)].map((m) => +m[1])"
        until(lambda: min(chromium.evaluate(ages)) > 4)
        assert len(chromium.evaluate(ages)) == 3
        assert "all data" not in chromium.texts("#ages")[0], "the polls themselves are on time"
        assert [len(chromium.texts(f"#{each}-table tbody tr")) for each in ("tenant", "tree", "work")] == [6, 2, 1]
        chromium.focus("#chart")
        chromium.press("ArrowLeft")
        assert "still held" in chromium.texts("#chart-note")[0], "the chart ends at the last poll with the daemon"
        now = chromium.evaluate("async () => (await (await fetch('/api/state')).json())")
        assert now["state"]["now_ms"] > now["history"]["now_ms"] + 3000
        made.judge()
    finally:
        served.kill()


def test_data_is_old_while_no_poll_ends(chromium: Browser, tmp_path: Path) -> None:
    served = world(tmp_path, "40", "6", "hangs")
    try:
        made = Page(chromium, served.hear()["link"])
        chromium.wait("#ages:not([hidden])")
        assert re.fullmatch(r"all data is [0-9.]+ s old", chromium.texts("#ages")[0])
        assert chromium.evaluate("() => document.querySelectorAll('section.stale').length") == 5
        chromium.open(made.address)
        chromium.wait("#ages:not([hidden])")
        (text,) = chromium.texts("#ages")
        assert float(text.split()[3]) > 4, "the age counts from the poll, not from the opening of the page"
        assert chromium.texts("#faults p") == []
        made.judge()
    finally:
        served.kill()


def test_the_chart_in_the_browser_keeps_a_bounded_number_of_spans(page: Page) -> None:
    script = """async () => {
      const { Chart } = await import("/static/chart.js");
      const canvas = document.createElement("div").appendChild(document.createElement("canvas"));
      const made = new Chart(canvas, document.createElement("p"), document.createElement("p"));
      const fields = ["number", "lease", "tenant", "gpu", "start", "slices", "profile", "begin_ms", "end_ms"];
      let number = 0;
      for (let poll = 1; poll <= 5; poll += 1) {
        const end = () => (number < 10 ? null : poll);
        const rows = Array.from({ length: 4000 }, () => [number += 1, 1, "ada", "g", 0, 1, "1g", 0, end()]);
        made.take({ fields, rows, is_whole: false, now_ms: poll });
      }
      const numbers = [...made.spans.keys()];
      return [numbers.length, numbers.filter((each) => each < 10).length, Math.max(...numbers)];
    }"""
    assert page.browser.evaluate(script) == [8192, 9, 20000]


def test_a_list_that_goes_on_is_marked(page: Page) -> None:
    script = """async () => {
      const { TableView } = await import("/static/tables.js");
      const place = document.createElement("div");
      const view = new TableView(place, [{ title: "n", text: (row) => row }], (row) => row, "none");
      view.update(["1", "2"], true);
      const cut = place.lastChild.hidden ? "" : place.lastChild.textContent;
      view.update(["1", "2"], false);
      return [cut, place.lastChild.hidden];
    }"""
    assert page.browser.evaluate(script) == ["Only the first 2 are read; there are more.", True]


def test_a_page_without_a_session_shows_no_data_and_takes_the_next_link(chromium: Browser, tmp_path: Path) -> None:
    served = world(tmp_path, "7", "2")
    try:
        link = served.hear()["link"]
        chromium.open(link.partition("#")[0])
        chromium.wait("#entry")
        assert chromium.texts("#tenant-table td") == []
        chromium.focus("#token")
        chromium.type("wrong")
        chromium.press("Enter")
        until(lambda: "used already" in chromium.texts("#entry-text")[0])
        chromium.type("\u4e2d")
        chromium.press("Enter")
        until(lambda: "ASCII" in chromium.texts("#entry-text")[0])
        chromium.evaluate("() => { document.querySelector('#token').value = ''; }")
        chromium.focus("#token")
        chromium.type(link.partition("#")[2])
        chromium.press("Enter")
        chromium.wait("html[data-polls]")
        assert chromium.evaluate("() => location.href") == link.partition("#")[0]
    finally:
        served.kill()


def test_a_thousand_leases_of_a_hundred_tenants(
    chromium: Browser, tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    served = world(tmp_path, "1000", "100")
    try:
        made = Page(chromium, served.hear()["link"])
        assert "1000 leases" in chromium.texts("#status")[0]
        assert chromium.texts("#lease-table .pager span") == ["1–50 of 1000"]
        assert "GPU 1–24 of 143" in chromium.texts("#gpu-pager span")[0]
        chromium.click("#lease-table .pager button:last-child")
        assert chromium.texts("#lease-table .pager span") == ["51–100 of 1000"]
        chromium.press("1")
        made.shot("web-thousand", tmp_path)
        drawn = chromium.evaluate("() => performance.getEntriesByName('draw')[0].duration")
        paint = chromium.paint()["first-contentful-paint"]
        complete = chromium.evaluate("() => performance.getEntriesByName('data-drawn')[0].startTime")
        record_property("first_contentful_paint_ms", paint)
        record_property("draw_ms", drawn)
        with capsys.disabled():
            print(f"\n1 000 leases: first paint {paint:.0f} ms, all drawn {complete:.0f} ms, an update {drawn:.0f} ms")
        made.judge()
    finally:
        served.kill()
