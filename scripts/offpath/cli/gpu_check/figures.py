"""How a check reports: each figure is written at once, so that a kill loses none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import orjson

from offpath.bindings.errors import DeviceError, OffpathError
from offpath.cli.bench.gpu.setting import ATTEMPT_S, in_child

_MOST_TEXT: Final = 600


class NotPossible(OffpathError):
    """This machine cannot do what the check needs; the text says what is missing."""


class Figures:
    """The report of one check, as lines of JSON on a descriptor. Processes that the check forks may write it too."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def add(self, name: str, value: Any, unit: str = "") -> None:
        """A figure: a number with its unit, or what a library answered."""
        self._write({"figure": name, "value": value, "unit": unit})

    def expect(self, name: str, is_met: bool, detail: object = "") -> None:
        """A promise that the check verifies; the check fails if one is not met."""
        self._write({"expectation": name, "is_met": bool(is_met), "detail": str(detail)[:_MOST_TEXT]})

    def attempt(self, name: str, function: Callable[[], Any], limit_s: float = ATTEMPT_S) -> Any:
        """The result of ``function`` in a forked process, where it may use CUDA; None if it failed, which is an
        expectation not met. The calling process must have used no CUDA itself."""
        try:
            return in_child(name, function, limit_s)
        except DeviceError as fault:
            self.expect(name, False, fault)
            return None

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._fd, orjson.dumps(line) + b"\n")
