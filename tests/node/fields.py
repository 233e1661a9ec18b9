"""Judges the daemon's lines in the journal: `journalctl -o json` on standard input."""

from __future__ import annotations

import json
import sys

_LEVELS = {"critical": "2", "error": "3", "warning": "4", "info": "6", "debug": "7"}
_EXPECTED = {"journal_new", "journal_replayed", "recovered", "helper_joined", "config_changed", "config_refused"}


def main() -> int:
    """0: each line of the daemon carries its fields and its level, and the codes of what happened are there."""
    codes, lines = set(), 0
    for raw in sys.stdin:
        entry = json.loads(raw)
        message = entry.get("MESSAGE")
        if entry.get("SYSLOG_IDENTIFIER") != "offpath" or not isinstance(message, str) or not message.startswith("{"):
            continue
        said = json.loads(message)
        lines += 1
        codes.add(said.get("code"))
        found = (entry["_SYSTEMD_UNIT"], entry["PRIORITY"])
        if found != ("offpathd.service", _LEVELS[said["level"]]):
            print(f"{found}: {message}", file=sys.stderr)
            return 1
    if missing := _EXPECTED - codes:
        print(f"no line has the code {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    print(f"{lines} lines, {len(codes - {None})} codes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
