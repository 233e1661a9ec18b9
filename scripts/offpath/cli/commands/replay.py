"""`offpath replay JOURNAL`: handles the journal's events again and compares every decision with the recorded one.

Exit code 1: the journal is damaged, or a decision differs. The file is only read. A daemon may be writing it; the
replay ends at its end when reading began.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.log import our_schema, replay
from offpath.dpu_daemon.durability.journal.ring import Entry, JournalCorrupt, JournalForeign, ReadOnlyFile, Ring
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.states import JobState
from offpath.sched.plain import field_names, to_plain

_PROGRESS_S: Final = 2.0
_SUBMITTED: Final = events.JobSubmitted | events.StackSubmitted | events.SequenceSubmitted
_LINES: Final[dict[type, str]] = {
    events.HelperLost: "helper_losses",
    events.WorkerLost: "worker_losses",
    events.CancelRequested: "cancels",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("journal", metavar="JOURNAL", help="the file `journal` of a runtime directory, or a copy of it")
    parser.add_argument(
        "--from", dest="begin", choices=("oldest", "newest"), default="oldest", help="the checkpoint to begin at"
    )
    parser.add_argument("--list", action="store_true", help="print the entries, one a line, and replay nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object (with --list: one a line)")


def main(arguments: argparse.Namespace) -> int:
    """Read, replay, count."""
    ring = Ring.opened(ReadOnlyFile(arguments.journal))
    if ring.identity.schema != our_schema():
        raise JournalForeign(f"{arguments.journal}: another build wrote it; use that build's `offpath replay`")
    start = ring.newest_checkpoint() if arguments.begin == "newest" else ring.oldest_checkpoint()
    if arguments.list:
        return _list(ring, start, arguments.json)
    found = _Found(ring, start)
    try:
        done = replay(_watched(ring, start), found.see)
    except JournalCorrupt as fault:
        found.fault = str(fault)
    else:
        found.unwritten = len(done.unwritten)
        found.verified = done.checkpoint_count
    if arguments.json:
        print(json.dumps(found.data()))
    else:
        print(found.text())
    if found.fault:
        print(f"offpath: {arguments.journal}: {found.fault}", file=sys.stderr)
    return int(bool(found.fault))


@dataclass(slots=True)
class _Found:
    """Counts of the replay, up to a fault if there is one."""

    ring: Ring
    start: int
    entries: int = 0
    commands: int = 0
    verified: int = 0
    accepted: int = 0
    unwritten: int = 0
    last: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    fault: str = ""
    kinds: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def see(self, entry: Entry) -> None:
        """Count an entry that is about to be replayed."""
        self.entries += 1
        self.last = entry.number
        self.end_ns = entry.time_ns
        if entry.kind == codec.KIND_CHECKPOINT:
            self.begin_ns = self.begin_ns or entry.time_ns
            return
        for value in codec.values(entry):
            if codec.is_event(value):
                self.kinds[type(value).__name__] += 1
                self.accepted += isinstance(value, _SUBMITTED)
                if type(value) in _LINES:
                    self.counts[_LINES[type(value)]] += 1
            else:
                self.commands += 1
                if isinstance(value, commands.Answer):
                    self.ends[value.state.name.lower(), value.reason.value] += 1
                    self.accepted -= value.state is JobState.REJECTED
                    self.counts["expiries"] += value.state is JobState.EXPIRED

    def data(self) -> dict[str, Any]:
        """As JSON data."""
        identity = self.ring.identity
        return {
            "lineage": identity.lineage, "boot": identity.boot, "restarts": self.ring.restarts,
            "first_record": self.start, "last_record": self.last, "entries": self.entries,
            "records": self.ring.next_number - self.start if not self.fault else self.last - self.start + 1,
            "seconds": round((self.end_ns - self.begin_ns) / 1e9, 3),
            "events": dict(self.kinds.most_common()), "commands": self.commands, "checkpoints": self.verified,
            "jobs_accepted": self.accepted,
            "ends": [{"state": s, "reason": r, "jobs": n} for (s, r), n in sorted(self.ends.items())],
            **{name: self.counts[name] for name in (*_LINES.values(), "expiries")},
            "unwritten_commands": self.unwritten, "fault": self.fault,
        }  # fmt: skip

    def text(self) -> str:
        """As text."""
        data = self.data()
        ends = data.pop("ends")
        kinds = data.pop("events")
        data.pop("fault")
        lines = [f"{name.replace('_', ' '):20}{value}" for name, value in data.items()]
        lines += ["events", *(f"  {name:18}{count}" for name, count in kinds.items())]
        lines += ["ends", *(f"  {each['state']:18}{each['reason']:24}{each['jobs']}" for each in ends)]
        lines.append("STOPPED at a fault" if self.fault else "every command equals the recorded one")
        return "\n".join(lines)


def _watched(ring: Ring, start: int) -> Iterator[Entry]:
    """The entries, with progress on standard error every two seconds."""
    newest = ring.newest_number()
    notified_s = time.monotonic()
    for entry in ring.entries(start):
        yield entry
        if time.monotonic() - notified_s > _PROGRESS_S:
            notified_s = time.monotonic()
            part = (entry.number - start) / max(1, newest - start)
            print(f"record {entry.number} of {newest} ({part:.0%})", file=sys.stderr)


def _list(ring: Ring, start: int, as_json: bool) -> int:
    """One line for each event and command: record, seconds since the first, kind, fields."""
    begin_ns: int | None = None
    for entry in _watched(ring, start):
        begin_ns = entry.time_ns if begin_ns is None else begin_ns
        seconds = (entry.time_ns - begin_ns) / 1e9
        for name, fields, is_event in _contents(entry):
            if as_json:
                print(json.dumps({"record": entry.number, "seconds": seconds, "kind": name, **fields}))
            else:
                text = " ".join(f"{key}={value}" for key, value in fields.items())
                mark = "  " if is_event else "    "
                print(f"{entry.number:>10} {seconds:12.6f}{mark}{name} {text}".rstrip())
    return 0


def _contents(entry: Entry) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The content of an entry: name, fields, and whether it is an event."""
    if entry.kind == codec.KIND_CHECKPOINT:
        yield "Checkpoint", {"bytes": len(entry.data)}, False
        return
    for value in codec.values(entry):
        kind: Any = type(value)
        fields = {each: to_plain(getattr(value, each)) for each in field_names(kind)}
        yield kind.__name__, fields, codec.is_event(value)
