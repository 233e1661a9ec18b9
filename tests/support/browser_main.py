"""One page in headless Chromium, driven by lines of JSON: a command on stdin, its answer on stdout.

Runs in the environment of ./scripts/browser-env, which has Playwright and nothing of this project. argv: Chromium,
folder of its profile.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from playwright.sync_api import Error, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--disable-dev-shm-usage",
]  # fmt: skip
WAIT_MS = 30_000
TEXTS = "(all) => all.map((each) => each.innerText ?? each.textContent)"
PAINT = """() => Object.fromEntries(performance.getEntriesByType('paint').map((each) => [each.name, each.startTime]))"""


class Driven:
    """The page, and what it did: addresses that it requested, errors of its console."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._requests: list[str] = []
        self._errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: self._requests.append(request.url))
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.on("console", lambda line: self._errors.append(line.text) if line.type in ("error", "warning") else None)

    def open(self, url: str, scheme: str = "light", width: int = 1280, height: int = 900) -> None:
        """Load a page, with the system's colour scheme."""
        self._page.set_viewport_size({"width": width, "height": height})
        self._page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        self._page.goto(url, wait_until="load")

    def wait(self, selector: str) -> None:
        """Until the element is visible."""
        self._page.wait_for_selector(selector, state="visible")

    def wait_hidden(self, selector: str) -> None:
        """Until the element is not visible."""
        self._page.wait_for_selector(selector, state="hidden")

    def click(self, selector: str) -> None:
        """As a person does."""
        self._page.click(selector)

    def focus(self, selector: str) -> None:
        """Without a click."""
        self._page.focus(selector)

    def press(self, key: str) -> None:
        """A key."""
        self._page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Keys of a text."""
        self._page.keyboard.type(text)

    def texts(self, selector: str) -> list[str]:
        """The visible text of each element."""
        return list(self._page.eval_on_selector_all(selector, TEXTS))

    def evaluate(self, script: str) -> Any:
        """The value of a function."""
        return self._page.evaluate(script)

    def paint(self) -> Any:
        """Milliseconds from the navigation to the first paints."""
        return self._page.evaluate(PAINT)

    def shot(self, path: str) -> None:
        """What is visible, as PNG."""
        self._page.screenshot(path=path)

    def report(self) -> dict[str, list[str]]:
        """What the page did so far."""
        return {"requests": self._requests, "errors": self._errors}


def main() -> None:
    """Until stdin ends."""
    chromium, profile = sys.argv[1:]
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium, headless=True, args=ARGUMENTS
        )
        driven = Driven(context.pages[0] if context.pages else context.new_page())
        print(json.dumps({"value": "ready"}), flush=True)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            try:
                answer = {"value": getattr(driven, name)(*arguments)}
            except Error as fault:
                answer = {"fault": str(fault)}
            print(json.dumps(answer), flush=True)
        context.close()


main()
