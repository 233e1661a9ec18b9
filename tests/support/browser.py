"""A page in headless Chromium, for tests: a process of ./scripts/browser-env's Python (see `browser_main`)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from .processes import HERE
from .sources import ROOT

INSTALL_S: Final = 900


class NoBrowser(Exception):
    """Chromium or Playwright is not here and cannot be installed; the text gives the reason."""


@cache
def installed() -> tuple[str, str]:
    """The Python of Playwright, and Chromium. Raises: NoBrowser."""
    done = subprocess.run(
        [ROOT / "scripts/browser-env"], capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines() or ["no reason was given"]
        raise NoBrowser(f"./scripts/browser-env: {reason[-1]}")
    folder, chromium = done.stdout.splitlines()
    return f"{folder}/bin/python", chromium


class Browser:
    """One page. Each method of `browser_main.Driven` is a call here."""

    def __init__(self) -> None:
        """Raises: NoBrowser."""
        python, chromium = installed()
        self._profile = tempfile.TemporaryDirectory(prefix="offpath-browser-", ignore_cleanup_errors=True)
        self.errors = Path(self._profile.name, "stderr")
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-I", str(HERE / "browser_main.py"), chromium, f"{self._profile.name}/profile"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
            self._process.stdin.flush()
            return self._answer()

        return call

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the browser ended:\n{self.errors.read_text('utf-8', 'replace')[-2000:]}"
        answer = json.loads(line)
        assert "fault" not in answer, answer["fault"]
        return answer["value"]

    def close(self) -> None:
        """End the browser and remove its profile."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
