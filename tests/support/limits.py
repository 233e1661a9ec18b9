"""Time limits that a test shortens: named constants of the product, set before its process does anything.

What waits for the end of a limit need not wait for the whole of it; that it is as long as it is promised to be is
asserted of the constant.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

MAIN = Path(__file__).resolve().with_name("shortened_main.py")
LIMITS = "OFFPATH_TEST_LIMITS"
"""Read by a process of a test: JSON of the limits by their place, such as
``offpath.dpu_daemon.hosts.handshakes.HELLO_TIMEOUT_S``. A module that has imported the constant has a place of its
own."""


def in_environment(limits: Mapping[str, float]) -> dict[str, str]:
    """What a process needs in its environment to have these limits."""
    return {LIMITS: json.dumps(dict(limits))}


@contextlib.contextmanager
def shortened_commands(limits: Mapping[str, float]) -> Iterator[None]:
    """Commands that `offpath.cli.local.child` starts within have these limits."""

    def command(module: str, *arguments: str) -> list[str]:
        return [sys.executable, str(MAIN), f"offpath.cli.{module}", *arguments]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LIMITS, json.dumps(dict(limits)))
        patch.setattr("offpath.cli.local.child.command", command)
        yield


def shorten_limits() -> None:
    """Does nothing unless `LIMITS` is set. Its own children have the product's limits."""
    for place, limit in json.loads(os.environ.pop(LIMITS, "{}")).items():
        module_name, _, name = place.rpartition(".")
        module = import_module(module_name)
        assert type(getattr(module, name)) is type(limit), f"{place} is no {type(limit).__name__}"
        setattr(module, name, limit)
