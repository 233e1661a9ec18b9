"""What a long test found, kept where ``OFFPATH_EVIDENCE`` names a folder for it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from .sources import ROOT


def keep(name: str, text: str) -> None:
    """Print, and keep as the file ``name``, behind lines that say what was run, when, and of which sources."""
    print(text)
    if folder := os.environ.get("OFFPATH_EVIDENCE"):
        suite = os.environ.get("OFFPATH_TEST_SUITE", "")
        commit = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        head = [f"command: ./scripts/test --full {suite}".rstrip(), f"date: {datetime.now(UTC):%Y-%m-%d}"]
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
        head += [f"commit: {commit or 'unknown'}", f"machine: {machine}"]
        Path(folder, name).write_text("\n".join([*head, "", text.strip(), ""]), "utf-8")
