"""What is wrong with a configuration, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from offpath.bindings.errors import OffpathError


@dataclass(frozen=True, slots=True)
class Fault:
    """``path`` is the key's path, e.g. ``tenant.0.weight``; empty: the whole configuration. ``line``: of the file, 0
    where it is not the file's. ``tenant``: the name of the tenant whose table it is in, if it has one."""

    path: str
    text: str
    line: int = 0
    tenant: str = ""


class ConfigError(OffpathError):
    """The configuration cannot be used; the message lists every fault, a line each."""

    def __init__(self, message: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)
