"""What a check says: a stable code, how bad it is, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Severity(Enum):
    """How bad: an ERROR keeps the daemon from its work, a WARNING will cost you, a NOTE is to be known."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


CODES: Final[dict[str, str]] = {
    "page-size": "the kernel's page size, to which all memory is cut",
    "memlock": "RLIMIT_MEMLOCK against what an RDMA device would pin",
    "nofile": "RLIMIT_NOFILE against the sessions and lanes of the configuration",
    "runtime-directory": "owner, mode and kind of the runtime directory",
    "stale-socket": "a socket file at which nobody listens",
    "journal-space": "room for the journal in the runtime directory",
    "daemon": "whether a daemon answers in the runtime directory",
    "token": "a tenant's token file",
    "tls-files": "certificate, key and authority of the TCP carrier",
    "tls-expiry": "how long the certificates hold",
    "clock": "monotonic and boot-time clocks, on which every deadline stands",
    "clock-sync": "whether the wall clock is synchronised (logs and certificates stand on it)",
    "cpu": "processors that this process may use",
    "kernel": "what the kernel must, or should, be able to do",
    "notify-queue": "messages that a service manager's socket holds",
    "package": "Python packages of the daemon",
    "plugin": "whether the policy plug-in of the configuration starts",
    "rdma": "whether this machine has RDMA devices",
    "rdma-port": "whether an RDMA port is up",
    "rdma-gid": "the address that an RDMA port can be connected to by",
    "rdma-library": "pyverbs, through which RDMA devices are used",
    "rdma-limits": "page size, message size and queue pairs of an RDMA device",
    "rdma-gpu": "the RDMA port that lies nearest to a GPU",
    "doca": "DOCA's libraries and their release",
    "doca-device": "the devices that DOCA shows, and what they can do",
    "doca-comch": "whether the host channel `comch` can be served here",
    "doca-representor": "the host's functions that the DPU's device sees",
    "fault-points": "fault points that are armed",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """``code`` is one of `CODES` and stays the same from release to release; ``fix`` is empty when all is well."""

    code: str
    severity: Severity
    what: str
    fix: str = ""


def ok(code: str, what: str) -> Finding:
    """Nothing to do."""
    return Finding(code, Severity.OK, what)
