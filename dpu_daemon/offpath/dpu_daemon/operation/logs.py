"""Formats, redacts and rate-limits the daemon's log: text or JSON lines (``operation.log = "json"``) on stderr.

The log reports refusals and faults, never single requests. Messages may contain text that a peer chose. Therefore each
message stays on one line, possible secrets and addresses are removed, and each kind of message is rate-limited.
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
"""Replies to an operator's signal. No peer can trigger them, and the operator waits for them."""
_SECRET: Final = re.compile(r"0x[0-9a-fA-F]{6,}|(?<![\w-])(?!GPU-|MIG-)[A-Za-z0-9_-]{32,}(?![\w-])")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "job_cancelled": ("job", "tenant", "uid"),
    "session_closed": ("session", "tenant", "cause", "detail"),
    "lease_opens": ("lease", "tenant", "profile", "start", "gpu"),
    "lease_closes": ("lease",),
    "lease_failed": ("lease", "detail"),
    "host_peer_refused": ("pid", "peer", "detail"),
    "helper_joined": ("helper", "gpus", "emulated", "kernels"),
    "helper_reloaded": ("helper", "revision", "kernels"),
    "helper_ends": ("helper",),
    "kernel_differs": ("kernel", "helper"),
    "helper_lost": ("helper", "detail"),
    "gpu_lost": ("gpu", "detail"),
    "worker_lost": ("lease", "lane", "detail"),
    "socket_remade": ("path",),
    "socket_lost": ("path", "detail"),
    "accept_failed": ("listener", "detail"),
    "ticket_refused": ("detail",),
    "no_connection": ("tenant", "detail"),
    "rdma_event": ("device", "event"),
    "no_memory": ("tenant", "detail"),
    "admin_refused": ("uid",),
    "controller_away": ("address", "detail"),
    "controller_there": ("address",),
    "engine_back": ("engine",),
    "engine_away": ("engine", "detail"),
    "engine_call_failed": ("job", "detail"),
    "gpus_unaccounted": ("node", "engine", "gpus", "looks", "fix"),
    "gpus_accounted": ("node", "engine"),
    "batch_failed": ("batch", "policy", "detail"),
    "job_refused": ("job", "detail"),
    "task_refused": ("task", "detail"),
    "inc_round_failed": ("detail",),
    "inc_switch_there": ("switch",),
    "inc_switch_away": ("switch", "detail"),
    "inc_controller_there": ("term",),
    "inc_controller_away": ("detail",),
    "inc_tree_refused": ("request", "detail"),
    "collab_clock": ("seconds",),
    "collab_forged": ("device",),
    "few_descriptors": ("limit", "wanted", "detail"),
    "collab_round_ended": ("job", "round", "end", "answered", "demand"),
    "service_away": ("service", "detail"),
    "chain_changed": ("service", "members"),
    "controller_rules": ("term",),
    "controller_takes_over": ("term",),
    "controller_deposed": ("term",),
    "agent_away": ("host", "detail"),
    "agent_refused": ("host", "detail"),
    "switch_there": ("switch",),
    "switch_away": ("switch", "detail"),
    "switch_refuses": ("switch", "detail"),
    "job_over": ("job",),
    "job_migrated": ("job", "downtime_ms"),
    "group_not_run": ("jobs", "detail"),
    "mode_changed": ("mode", "capacity"),
    "memory_failed": ("path", "detail"),
    "memory_unusable": ("path", "detail", "fault"),
    "memory_remade": ("path", "detail", "aside"),
    "host_quarantined": ("host", "cause", "detail"),
    "host_released": ("host",),
    "foreign_rank_refused": ("host", "job"),
    "incarnation_refused": ("host", "job"),
    "switch_term_refused": ("switch", "term"),
    "terms_used_up": ("term",),
    "term_spent": ("term",),
    "policy_quarantined": ("group", "detail"),
    "metrics_listen": ("port",),
    "session_lost": ("session", "tenant", "detail"),
    "session_not_recovered": ("session", "tenant", "detail"),
    "worker_killed": ("lease", "lane"),
    "helper_back": ("helper", "kept", "leases"),
    "tenant_gone": ("tenant",),
    "tenant_paced": ("tenant", "waited_ms"),
    "tree_lost": ("job", "stamp", "who", "detail"),
    "rank_refused": ("rank", "job", "detail"),
    "process_refused": ("detail",),
    "job_fenced": ("job", "stamp"),
    "config_changed": ("generation",),
    "config_last_good": ("detail",),
    "config_not_kept": ("detail",),
    "config_refused": ("generation", "detail"),
    "config_warning": ("key", "detail"),
    "plugin_quarantined": ("policy", "question", "detail"),
    "plugin_decides": ("policy",),
    "plugin_missing": ("detail",),
    "boot_id_unknown": ("file", "variable"),
    "clock_went_back": ("seconds",),
    "journal_new": ("detail",),
    "journal_replayed": ("events", "lineage"),
    "recovered": ("sessions", "jobs", "leases"),
    "journal_failed": ("detail",),
    "stored_dropped": ("descriptors", "name"),
    "selfcheck_failed": ("detail",),
    "selfcheck_exhausted": ("detail",),
    "metrics_failed": ("what", "detail"),
    "loop_fault": ("what", "detail"),
    "notify_failed": ("detail",),
    "daemon_ended": ("how", "descriptors"),
    "start_limit": ("starts",),
    "daemon_status": ("pid", "status"),
    "daemon_aborted": ("pid", "cause"),
    "daemon_killed": ("pid",),
    "notify_foreign": ("pid",),
    "notify_too_long": ("pid",),
    "store_full": ("descriptors", "name", "stored"),
}
"""Code → names of the message's arguments. A message carries its code (``extra={"code": …}``), so its text may change.
A message without a code is logged as text alone."""


def redacted(text: str) -> str:
    """Removes text that could be a token, a key or an address."""
    return _SECRET.sub("…", text)


def printable(text: str) -> str:
    """One line without terminal control characters, for peer-supplied text that an operator reads."""
    return "".join(each if each.isprintable() else " " for each in text)


class OneLine(logging.Formatter):
    """Text, one line per message, so that a line break in peer-supplied text cannot imitate a daemon message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.formatMessage`."""
        record.message = _CONTROL.sub(" ", redacted(record.message))
        if left_out := getattr(record, "left_out", 0):
            record.message += f" ({left_out} similar messages were dropped)"
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One object per line: time, level, logger, message, code, and the fields of that code."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        code: str = getattr(record, "code", "")
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if code:
            line["code"] = code
        if isinstance(record.args, tuple):
            for name, value in zip(FIELDS.get(code, ()), record.args, strict=False):
                line[name] = value if isinstance(value, int) else redacted(str(value))
        if left_out := getattr(record, "left_out", 0):
            line["left_out"] = left_out
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class RateLimit(logging.Filter):
    """Passes `BURST` messages of a kind at once and `PER_S` a second afterwards. The next message that passes carries
    the number of dropped ones.

    Errors may carry tracebacks, so they are limited to one a second from the start. The codes in `NEVER_LEFT_OUT`
    always pass. The filter tracks at most `KINDS_KEPT` kinds and forgets the least recently seen first.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, float, int]] = {}  # tokens left, last time, dropped

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        kind, now = str(record.msg), time.monotonic()
        burst = float(BURST)
        if getattr(record, "code", "") in NEVER_LEFT_OUT:
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
    """Exception handler for an event loop. Its log lines share one kind for the rate limit; asyncio's default lines
    differ in addresses, so each would be a kind of its own and pass unlimited."""
    fault = context.get("exception")
    what = str(context.get("message", ""))[:200]
    logger.error(
        "unhandled exception in the event loop: %s: %s",
        what,
        repr(fault)[:500],
        exc_info=fault,
        extra={"code": "loop_fault"},
    )


def set_up(style: str) -> None:
    """Give every handler of the root logger this style and the rate limit. A later call changes the style."""
    for handler in logging.getLogger().handlers:
        if style == "json":
            handler.setFormatter(JsonLines())
        elif not isinstance(handler.formatter, OneLine):
            kept = handler.formatter._fmt if handler.formatter is not None else None
            handler.setFormatter(OneLine(kept if not isinstance(handler.formatter, JsonLines) else None))
        if not any(isinstance(each, RateLimit) for each in handler.filters):
            handler.addFilter(RateLimit())
