"""The result of a check: a stable code, its severity, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Severity(Enum):
    """ERROR: the daemon cannot work. WARNING: it works with a disadvantage. NOTE: information."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


CODES: Final[dict[str, str]] = {
    "page-size": "the kernel's page size, to which all memory is rounded",
    "memlock": "RLIMIT_MEMLOCK against what an RDMA device would pin",
    "nofile": "RLIMIT_NOFILE against the sessions and lanes of the configuration",
    "runtime-directory": "owner, mode and kind of the runtime directory",
    "stale-socket": "a socket file without a listener",
    "journal-space": "room for the journal in the runtime directory",
    "daemon": "whether a daemon answers in the runtime directory",
    "token": "a tenant's token file",
    "tls-files": "certificate, key and authority of the TCP carrier",
    "tls-expiry": "how long the certificates are valid",
    "clock": "monotonic and boot-time clocks, on which all deadlines depend",
    "clock-sync": "whether the wall clock is synchronised (logs and certificates depend on it)",
    "cpu": "processors that this process may use",
    "kernel": "kernel features that are required or recommended",
    "notify-queue": "messages that a service manager's socket queues",
    "helper-user": "whether the user of the shipped helper's unit may connect as helper",
    "ina-directory": "on a host, whose ranks of training jobs the helper would see",
    "package": "Python packages of the daemon",
    "build": "whether the request path's mechanics run in C",
    "plugin": "whether the policy plug-in of the configuration starts",
    "gpu": "on a host, the GPUs that a helper would serve; else those that a daemon serves; emulated ones are named",
    "gpu-driver": "on a host, NVIDIA's kernel module",
    "gpu-nodes": "on a host, whether this user may use the driver's device nodes",
    "gpu-memory": "on a host, by which way RDMA and DOCA reach GPU memory",
    "mig": "on a host, MIG mode and instances of each GPU that migd manages",
    "mps": "on a host, whether NVIDIA's control program for MPS is found",
    "rdma": "whether this machine has RDMA devices",
    "rdma-port": "whether an RDMA port is up",
    "rdma-gid": "the address that an RDMA port can be connected to by",
    "rdma-library": "pyverbs, through which RDMA devices are used",
    "rdma-limits": "page size, message size and queue pairs of an RDMA device",
    "rdma-gpu": "the RDMA port nearest to a GPU",
    "doca": "DOCA's libraries and their release",
    "doca-device": "the DOCA devices and their capabilities",
    "doca-comch": "whether the host channel `comch` can be served here",
    "doca-representor": "the host's functions that are visible to the DPU's device",
    "fault-points": "fault points that are armed",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """``code`` is one of `CODES` and stable across releases. ``fix`` is empty when there is nothing to do."""

    code: str
    severity: Severity
    what: str
    fix: str = ""


def ok(code: str, what: str) -> Finding:
    """A finding that requires no action."""
    return Finding(code, Severity.OK, what)
