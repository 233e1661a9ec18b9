"""Faults of a configuration and their places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from offpath.bindings.errors import OffpathError


@dataclass(frozen=True, slots=True)
class Fault:
    """``path``: the key's path, e.g. ``tenant.0.weight``; empty: the whole configuration. ``line``: in the file, 0 if
    the fault is not in the file. ``tenant``: the name of the tenant in whose table it is, if any."""

    path: str
    text: str
    line: int = 0
    tenant: str = ""


class ConfigError(OffpathError):
    """The configuration cannot be used; the message lists every fault, one per line."""

    def __init__(self, message: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)
