"""README's code blocks run: the helper is served, the configuration is loaded, the requester asks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")


def _block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)
    return next(block for block in blocks if containing in block)


def _started(*words: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "offpath.cli.main", *words], cwd=cwd, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_readmes_blocks_serve_and_ask_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper file, the TOML and the requester's code are taken from README letter by letter."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.py").write_text(_block("python", "helper = Helper()"))
    (tmp_path / "offpathd.toml").write_text(_block("toml", "[[tenant]]"))
    token = os.open(tmp_path / "vision.token", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(token, os.urandom(20).hex().encode())
    os.close(token)

    def serve_and_ask(classify: Callable[..., Any], ask: Callable[[str], list[float]]) -> list[float]:
        runtime = tmp_path / "run"
        daemon = _started("daemon", "run", "--config", "offpathd.toml", "--runtime-dir", str(runtime), cwd=tmp_path)
        helper = _started("helper", "run", "serve.py", "--runtime-dir", str(runtime), cwd=tmp_path)
        try:
            socket = runtime / "negotiate.sock"
            deadline = time.monotonic() + 20
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            return ask(f"unix:{socket}")
        finally:
            for process in (helper, daemon):
                process.send_signal(signal.SIGTERM)
                assert process.wait(15) == 0

    document = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()]).parse(ROOT / "README.md")
    document.namespace["serve_and_ask"] = serve_and_ask
    evaluated = 0
    for example in document.examples():
        example.evaluate()
        evaluated += 1
    assert evaluated >= 4
    assert document.namespace["totals"][1] == 64.0


def test_the_folders_and_documents_that_readme_names_exist() -> None:
    """A map with dead ends is worse than none."""
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / link).exists(), link
    for folder in re.findall(r"^\| `([a-z_]+)/`", TEXT, re.M):
        assert (ROOT / folder).is_dir(), folder
