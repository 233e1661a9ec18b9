"""Prints the findings of `offpath doctor`, the worst first, and derives the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from offpath.bindings.findings import Finding, Severity

_ORDER: Final = list(Severity)


def show(findings: Iterable[Finding], *, as_json: bool, who: str) -> int:
    """Print the findings for ``who``; returns 1 if an error prevents it from running."""
    ordered = sorted(findings, key=lambda found: -_ORDER.index(found.severity))
    bad = sum(found.severity is Severity.ERROR for found in ordered)
    if as_json:
        print(json.dumps([{**asdict(found), "severity": found.severity.value} for found in ordered], indent=2))
        return int(bad > 0)
    for found in ordered:
        print(f"{found.severity.value:8}{found.code:19}{found.what}")
        if found.fix:
            print(f"{'':27}{found.fix}")
    print(f"{len(ordered)} findings, {bad} of them prevent the {who} from running", file=sys.stderr)
    return int(bad > 0)
