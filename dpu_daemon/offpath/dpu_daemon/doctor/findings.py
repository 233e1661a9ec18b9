"""What a check says, as the daemon's checks import it; hosts have the same, see `offpath.bindings.findings`."""

from __future__ import annotations

from offpath.bindings.findings import CODES, Finding, Severity, ok

__all__ = ["CODES", "Finding", "Severity", "ok"]
