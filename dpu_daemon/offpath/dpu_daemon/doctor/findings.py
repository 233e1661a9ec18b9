"""Results of the daemon's checks, re-exported from `offpath.bindings.findings`, which hosts use too."""

from __future__ import annotations

from offpath.bindings.findings import CODES, Finding, Severity, ok

__all__ = ["CODES", "Finding", "Severity", "ok"]
