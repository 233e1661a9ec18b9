"""The daemon's log: text, or one JSON object per line (``operation.log = "json"``), to standard error either way.

Lines are for refusals and faults, never for requests. Peers choose some of the words, so: one line per message
whatever they contain, no word that could be a secret or an address, and no more than so many of one kind a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from datetime import UTC, datetime
from typing import Any, Final

logger = logging.getLogger(__name__)
BURST: Final = 20
PER_S: Final = 1.0
KINDS_KEPT: Final = 256
NEVER_LEFT_OUT: Final = frozenset({"config_changed", "config_refused"})
"""Answers to an operator's signal, which no peer can cause and somebody waits for."""
_SECRET: Final = re.compile(r"0x[0-9a-fA-F]{6,}|(?<![\w-])(?!GPU-|MIG-)[A-Za-z0-9_-]{32,}(?![\w-])")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "job %d of %s is cancelled by uid %d": ("job_cancelled", ("job", "tenant", "uid")),
    "session %d of %s closed: %s %s": ("session_closed", ("session", "tenant", "cause", "detail")),
    "lease %d: %s gets %s at %d of %s": ("lease_opens", ("lease", "tenant", "profile", "start", "gpu")),
    "lease %d closes": ("lease_closes", ("lease",)),
    "lease %d could not be opened: %s": ("lease_failed", ("lease", "detail")),
    "host channel: turned away pid %d (%s): %s": ("host_peer_refused", ("pid", "peer", "detail")),
    "helper %s joined: %d GPUs, kernels %s": ("helper_joined", ("helper", "gpus", "kernels")),
    "helper %s ends": ("helper_ends", ("helper",)),
    "helper %s lost: %s": ("helper_lost", ("helper", "detail")),
    "worker of lease %d lane %d lost: %s": ("worker_lost", ("lease", "lane", "detail")),
    "socket %s was removed: made anew": ("socket_remade", ("path",)),
    "socket %s was removed, and cannot be made anew: %s": ("socket_lost", ("path", "detail")),
    "listening socket %s was removed: made anew": ("socket_remade", ("path",)),
    "listening socket %s was removed, and cannot be made anew: %s": ("socket_lost", ("path", "detail")),
    "%s: a connection could not be accepted: %s": ("accept_failed", ("listener", "detail")),
    "ticket refused: %s": ("ticket_refused", ("detail",)),
    "no connection for a session of %s: %s": ("no_connection", ("tenant", "detail")),
    "RDMA device %s: %s": ("rdma_event", ("device", "event")),
    "no memory for a session of %s: %s": ("no_memory", ("tenant", "detail")),
    "admin socket: uid %d turned away": ("admin_refused", ("uid",)),
    "the controller at %s is away: %s": ("controller_away", ("address", "detail")),
    "the controller at %s is there": ("controller_there", ("address",)),
    "rules in term %d": ("controller_rules", ("term",)),
    "a controller ruled in term %d; taking over": ("controller_takes_over", ("term",)),
    "another controller rules, in term %d: this one ends": ("controller_deposed", ("term",)),
    "agent %s is away: %s": ("agent_away", ("host", "detail")),
    "agent %s turned away: %s": ("agent_refused", ("host", "detail")),
    "switch %s is there": ("switch_there", ("switch",)),
    "switch %s is away: %s": ("switch_away", ("switch", "detail")),
    "switch %s refuses: %s": ("switch_refuses", ("switch", "detail")),
    "job %s is over": ("job_over", ("job",)),
    "job %s moved to another tree: %.0f ms without one": ("job_migrated", ("job", "downtime_ms")),
    "a group of %d jobs could not be run: %s": ("group_not_run", ("jobs", "detail")),
    "mode %s, capacity %d": ("mode_changed", ("mode", "capacity")),
    "state file %s is not written any more: %s": ("memory_failed", ("path", "detail")),
    "state file %s cannot be used (%s) nor moved aside: %s": ("memory_unusable", ("path", "detail", "fault")),
    "state file %s is unusable (%s): moved to %s, state is rebuilt from agents and switches": (
        "memory_remade",
        ("path", "detail", "aside"),
    ),
    "host %s is quarantined (%s): %s": ("host_quarantined", ("host", "cause", "detail")),
    "host %s is released from quarantine": ("host_released", ("host",)),
    "host %s reports ranks of job %s, which are another host's: refused": ("foreign_rank_refused", ("host", "job")),
    "host %s reports an incarnation of job %s that is more than a day ahead: refused": (
        "incarnation_refused",
        ("host", "job"),
    ),
    "switch %s names term %d, which no controller can have: it is not used until it is restarted": (
        "switch_term_refused",
        ("switch", "term"),
    ),
    "no term is left above %d: this controller ends": ("terms_used_up", ("term",)),
    "term %d has hardly any epoch numbers left: going on in the next": ("term_spent", ("term",)),
    "the plug-in for %s is asked no more, the built-in decides: %s": ("policy_quarantined", ("group", "detail")),
    "metrics on port %d": ("metrics_listen", ("port",)),
    "session %d of %s lost its peer: %s": ("session_lost", ("session", "tenant", "detail")),
    "session %d of %s cannot be gone on with: %s": ("session_not_recovered", ("session", "tenant", "detail")),
    "worker of lease %d lane %d is to be killed": ("worker_killed", ("lease", "lane")),
    "helper %s is back with %d of %d leases": ("helper_back", ("helper", "kept", "leases")),
    "tenant %s is gone": ("tenant_gone", ("tenant",)),
    "tenant %s exceeds its share of the event loop: its doorbells waited for %d ms": (
        "tenant_paced",
        ("tenant", "waited_ms"),
    ),
    "tree of %s stamp %d is lost: %s: %s": ("tree_lost", ("job", "stamp", "who", "detail")),
    "rank %d of %s turned away: %s": ("rank_refused", ("rank", "job", "detail")),
    "%s is fenced up to stamp %d": ("job_fenced", ("job", "stamp")),
    "configuration %d is in force": ("config_changed", ("generation",)),
    "the configuration is refused, the last good one is in force: %s": ("config_last_good", ("detail",)),
    "the configuration in force could not be kept for a restart: %s": ("config_not_kept", ("detail",)),
    "configuration %d stays in force: %s": ("config_refused", ("generation", "detail")),
    "%s: %s": ("config_warning", ("key", "detail")),
    "the policy plug-in is asked no more, the built-in policy decides: %s: %s: %s": (
        "plugin_quarantined",
        ("policy", "question", "detail"),
    ),
    "%s decides": ("plugin_decides", ("policy",)),
    "the built-in policy decides: %s": ("plugin_missing", ("detail",)),
    "boot id unknown: no %s, no %s; nothing accepted survives a restart": ("boot_id_unknown", ("file", "variable")),
    "the monotonic clock went back by %.3f s since the journal's last event": ("clock_went_back", ("seconds",)),
    "a new journal: %s": ("journal_new", ("detail",)),
    "replayed %d events of lineage %s": ("journal_replayed", ("events", "lineage")),
    "went on with %d sessions, %d jobs and %d leases": ("recovered", ("sessions", "jobs", "leases")),
    "the journal failed, nothing is accepted any more: %s": ("journal_failed", ("detail",)),
    "%d stored descriptors called %s belong to nothing; they are dropped": ("stored_dropped", ("descriptors", "name")),
    "the daemon fails its own check, and the watchdog is not fed: %s": ("selfcheck_failed", ("detail",)),
    "the daemon's check of itself is exhausted, which is no hang: %s": ("selfcheck_exhausted", ("detail",)),
    "metrics: %s: %s": ("metrics_failed", ("what", "detail")),
    "the event loop caught what it should not have: %s: %s": ("loop_fault", ("what", "detail")),
    "the service manager takes no message: %s": ("notify_failed", ("detail",)),
    "the daemon ended %s and is started again; %d descriptors kept": ("daemon_ended", ("how", "descriptors")),
    "the daemon was started %d times in a row; no more": ("start_limit", ("starts",)),
    "the daemon (pid %d): %s": ("daemon_status", ("pid", "status")),
    "the daemon (pid %d) %s; it is ended": ("daemon_aborted", ("pid", "cause")),
    "the daemon (pid %d) does not end; it is killed": ("daemon_killed", ("pid",)),
    "a message of pid %d, which is not the daemon's, is ignored": ("notify_foreign", ("pid",)),
    "a message of pid %d was too long, or its descriptors too many for RLIMIT_NOFILE": ("notify_too_long", ("pid",)),
    "%d descriptors called %.40r are not stored: %d are": ("store_full", ("descriptors", "name", "stored")),
}
"""Messages with arguments: template → stable code, names of the arguments. A message that is missing here is logged
all the same, with its text and without fields."""


def redacted(text: str) -> str:
    """Without what could be a token, a key or an address."""
    return _SECRET.sub("…", text)


def printable(text: str) -> str:
    """On one line, without characters that a terminal acts on: for what a peer said, and an operator reads."""
    return "".join(each if each.isprintable() else " " for each in text)


class OneLine(logging.Formatter):
    """Text, one line per message: a peer's line break must not look like a message of ours."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.formatMessage`."""
        record.message = _CONTROL.sub(" ", redacted(record.message))
        if left_out := getattr(record, "left_out", 0):
            record.message += f" ({left_out} more of this kind were left out)"
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, code, and the fields of its kind."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        code, names = KINDS.get(str(record.msg), ("", ()))
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if code:
            line["code"] = code
        if isinstance(record.args, tuple):
            for name, value in zip(names, record.args, strict=False):
                line[name] = value if isinstance(value, int) else redacted(str(value))
        if left_out := getattr(record, "left_out", 0):
            line["left_out"] = left_out
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class RateLimit(logging.Filter):
    """`BURST` messages of a kind at once, `PER_S` a second afterwards; the next one let through says how many not.

    Of errors, which may bring a traceback each, one a second from the first on.

    The kinds `NEVER_LEFT_OUT` all pass. At most `KINDS_KEPT` kinds are told apart, the one quiet longest is forgotten
    first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, float, int]] = {}  # left, when, left out

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        kind, now = str(record.msg), time.monotonic()
        burst = float(BURST)
        if KINDS.get(kind, ("", ()))[0] in NEVER_LEFT_OUT:
            return True
        if record.levelno >= logging.ERROR:
            burst, kind = 1.0, f"{record.levelname} {kind} {record.exc_info[0] if record.exc_info else None}"
        left, when, left_out = self._kinds.pop(kind, (burst, now, 0))
        left = min(burst, left + (now - when) * PER_S)
        while len(self._kinds) >= KINDS_KEPT:
            del self._kinds[next(iter(self._kinds))]
        if left < 1:
            self._kinds[kind] = left, now, left_out + 1
            return False
        self._kinds[kind] = left - 1, now, 0
        if left_out:
            record.left_out = left_out
        return True


def loop_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler whose lines the rate limit knows: the loop's own differ in addresses, each a
    kind of its own, and came without bound."""
    fault = context.get("exception")
    what = str(context.get("message", ""))[:200]
    logger.error("the event loop caught what it should not have: %s: %s", what, repr(fault)[:500], exc_info=fault)


def set_up(style: str) -> None:
    """Give every handler of the root logger this style and the rate limit; doing it again changes the style."""
    for handler in logging.getLogger().handlers:
        if style == "json":
            handler.setFormatter(JsonLines())
        elif not isinstance(handler.formatter, OneLine):
            kept = handler.formatter._fmt if handler.formatter is not None else None
            handler.setFormatter(OneLine(kept if not isinstance(handler.formatter, JsonLines) else None))
        if not any(isinstance(each, RateLimit) for each in handler.filters):
            handler.addFilter(RateLimit())
