"""What a long test found, kept where ``OFFPATH_EVIDENCE`` names a folder for it."""

from __future__ import annotations

import os
from pathlib import Path


def keep(name: str, text: str) -> None:
    """Print, and keep as the file ``name``."""
    print(text)
    if folder := os.environ.get("OFFPATH_EVIDENCE"):
        Path(folder, name).write_text(text.rstrip() + "\n", "utf-8")
