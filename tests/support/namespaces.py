"""Namespaces for tests. Many machines and containers forbid them, also to root: the tests are then skipped."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest


def needs_namespaces(*kinds: str) -> None:
    """``kinds``: as unshare(1) names them, such as "mount" and "net". Skips the calling test where one is refused."""
    if refusal := _refusal(kinds):
        pytest.skip(f"needs namespaces: {', '.join(kinds)}; {refusal}")


@cache
def _refusal(kinds: tuple[str, ...]) -> str:
    """Why not; empty: they can be made. A mount namespace counts only if a file system can be mounted in it."""
    inside = "mount -t tmpfs none /tmp" if "mount" in kinds else "true"
    try:
        command = ["unshare", *(f"--{kind}" for kind in kinds), "sh", "-c", inside]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare (package util-linux)"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
