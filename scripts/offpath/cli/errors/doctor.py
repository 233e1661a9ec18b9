"""Codes of `offpath doctor`: one for each check."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import Entry
from offpath.dpu_daemon.doctor.findings import CODES

FAMILIES: Final = {
    "doctor": "What `offpath doctor` looks at; a finding says what it saw, how bad that is and what to do here.",
}
_FIXES: Final = {
    "page-size": "nothing",
    "memlock": "`LimitMEMLOCK=` in the unit; `offpath doctor --memlock` says how much",
    "nofile": "`LimitNOFILE=` in the unit, or fewer `max_sessions`",
    "runtime-directory": "make it the daemon's own, mode 0700 or 0755; or choose another (`--runtime-dir`)",
    "stale-socket": "nothing: the next daemon replaces it; if it is refused, look at its owner and mode",
    "journal-space": "free some, or a smaller `durability.journal_mib`",
    "daemon": "`offpath daemon run`; one that hangs is ended by its service manager",
    "token": "`openssl rand -hex 24`, mode 0600, owned by the daemon's user",
    "tls-files": "a PEM pair of one key, mode 0600, and the authority that signs the clients",
    "tls-expiry": "renew them, then SIGHUP",
    "clock": "look at the hypervisor's clock source",
    "clock-sync": "run an NTP client",
    "cpu": "give the daemon a core of its own (`offpath daemon run --cpu N`)",
    "kernel": "a newer Linux",
    "notify-queue": "`sysctl net.unix.max_dgram_qlen=512`",
    "package": "`pip install 'offpath[daemon]'`",
    "plugin": "install the package that has the entry point, mend it, or name another policy",
    "rdma": "load the card's driver; loopback needs none",
    "rdma-port": "`ip link set NETDEV up`; then its cable and switch",
    "rdma-gid": "`ip addr add ADDRESS dev NETDEV`: an IPv4 address",
    "rdma-library": "the distribution's python3-pyverbs (docs/rdma.md)",
    "rdma-limits": "let the daemon's user open `/dev/infiniband/uverbs*`; a kernel with another page size",
    "rdma-gpu": "a slot on the same PCIe switch, or at least of the same socket",
    "doca": "DOCA's packages, or `OFFPATH_DOCA_PATH`; loopback and verbs need none",
    "doca-device": "`doca_caps --list-devs`; a BlueField in DPU mode; `doca.device`",
    "doca-comch": "on the DPU, DOCA 2.7 or later; a shorter `doca.comch_name`",
    "doca-representor": "on the DPU, `doca_caps --list-rep-devs`",
    "fault-points": "unset `OFFPATH_FAULTS`: it is for tests",
}
ENTRIES: Final = tuple(Entry("doctor", code, cause, _FIXES[code]) for code, cause in CODES.items())
