"""Reports which build of offpath runs: with the request path's mechanics in C, or pure Python."""

from __future__ import annotations

from offpath.bindings import native
from offpath.bindings.findings import Finding, Severity, ok


def describe() -> str:
    """In a few words, for `offpath --version`."""
    return "request path in C" if native.module is not None else "pure Python"


def check_build() -> Finding:
    """For `offpath doctor`."""
    if native.module is not None:
        return ok("build", "the request path's mechanics run in C")
    if native.is_stale:
        return Finding("build", Severity.WARNING, f"pure Python: {native.why}", "install offpath again to rebuild it")
    if native.why == "OFFPATH_PURE=1":
        return Finding("build", Severity.NOTE, "pure Python: OFFPATH_PURE=1", "unset OFFPATH_PURE for lower latency")
    return Finding(
        "build", Severity.NOTE, f"pure Python: {native.why}; a request costs more processor time",
        "install a C compiler and Python's headers, then offpath again",
    )  # fmt: skip
