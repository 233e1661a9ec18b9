"""Reports which build of offpath runs: the request path's mechanics in C or in Python, and what mypyc compiled."""

from __future__ import annotations

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from offpath.bindings import native
from offpath.bindings.findings import Finding, Severity, ok

_WITNESSES: Final = {"dpu_daemon": "offpath.dpu_daemon.requests.book_loop", "sched": "offpath.sched.jobs.book"}
"""Portion → a module of it that every fast build compiles."""


def compiled() -> tuple[str, ...]:
    """The portions with modules that mypyc compiled (./scripts/build-fast), by name. Imports no module of them."""
    return tuple(portion for portion, module in _WITNESSES.items() if _is_compiled(module))


def _is_compiled(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the hosts' wheel has no such package
        return False
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def describe() -> str:
    """In a few words, for `offpath --version`."""
    parts = ["request path in C"] if native.module is not None else []
    if portions := compiled():
        parts.append(f"{' and '.join(portions)} compiled")
    return ", ".join(parts) or "pure Python"


def check_build() -> Finding:
    """For `offpath doctor`."""
    portions = compiled()
    also = f"; {' and '.join(portions)} compiled" if portions else ""
    in_python = "the request path's mechanics run in Python" if portions else "pure Python"
    if native.module is not None:
        return ok("build", f"the request path's mechanics run in C{also}")
    if native.is_stale:
        return Finding(
            "build", Severity.WARNING, f"{in_python}: {native.why}{also}", "install offpath again to rebuild it"
        )
    if native.why == "OFFPATH_PURE=1":
        return Finding(
            "build", Severity.NOTE, f"{in_python}: OFFPATH_PURE=1{also}", "unset OFFPATH_PURE for lower latency"
        )
    return Finding(
        "build", Severity.NOTE, f"{in_python}: {native.why}; a request costs more processor time{also}",
        "install a C compiler and Python's headers, then offpath again",
    )  # fmt: skip
