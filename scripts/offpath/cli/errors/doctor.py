"""Codes of `offpath doctor`: one for each check."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import Entry
from offpath.dpu_daemon.doctor.findings import CODES

FAMILIES: Final = {
    "doctor": "The checks of `offpath doctor`. A finding has its observation, its severity and a fix.",
}
_FIXES: Final = {
    "page-size": "nothing",
    "memlock": "`LimitMEMLOCK=` in the unit; `offpath doctor --memlock` prints the value",
    "nofile": "`LimitNOFILE=` in the unit, or fewer `max_sessions`",
    "runtime-directory": "give it to the daemon's user, mode 0700 or 0755; or choose another (`--runtime-dir`)",
    "helper-user": "add its uid to `host_uids`, and restart the daemon",
    "ina-directory": "start ranks of training jobs as the helper's user (docs/training.md)",
    "stale-socket": "nothing: the next daemon replaces it; if that fails, check its owner and mode",
    "journal-space": "free disk space, or set a smaller `durability.journal_mib`",
    "daemon": "`offpath daemon run`; its service manager ends a daemon that hangs",
    "token": "`openssl rand -hex 24`, mode 0600, owned by the daemon's user",
    "tls-files": "a PEM certificate with its key, mode 0600, and the CA that signs the clients",
    "tls-expiry": "renew the certificates, then send SIGHUP",
    "clock": "check the hypervisor's clock source",
    "clock-sync": "run an NTP client",
    "cpu": "give the daemon a core of its own (`offpath daemon run --cpu N`)",
    "kernel": "use a newer Linux kernel",
    "notify-queue": "`sysctl net.unix.max_dgram_qlen=512`",
    "build": "install a C compiler and Python's headers, then offpath again (docs/operations.md, Install)",
    "package": "`pip install 'offpath[daemon]'`",
    "plugin": "install the package that has the entry point, fix it, or name another policy",
    "gpu": "`offpath helper run FILE --emulate A100-40GB` emulates a GPU; docs/hosts.md says where it is named so",
    "gpu-driver": "install NVIDIA's driver",
    "gpu-nodes": "`nvidia-modprobe -u -c 0` as root makes them; their group or NVreg_DeviceFileMode permits users",
    "gpu-memory": "install the driver's open kernel modules (DMA-BUF), or load nvidia-peermem",
    "mig": "start offpath-migd; `offpath mig show` lists its GPUs (docs/gpu.md)",
    "mps": "install the driver's compute utilities; `--mps off` needs none",
    "rdma": "load the card's driver; loopback needs none",
    "rdma-port": "`ip link set NETDEV up`; then check its cable and switch",
    "rdma-gid": "`ip addr add ADDRESS dev NETDEV`: it needs an IPv4 address",
    "rdma-library": "install the distribution's python3-pyverbs (docs/rdma.md)",
    "rdma-limits": "permit the daemon's user to open `/dev/infiniband/uverbs*`; or use a kernel with another page size",
    "rdma-gpu": "use a slot on the same PCIe switch, or at least of the same socket",
    "doca": "install DOCA's packages, or set `OFFPATH_DOCA_PATH`; loopback and verbs need none",
    "doca-device": "see `doca_caps --list-devs`; set a BlueField to DPU mode; set `doca.device`",
    "doca-comch": "on the DPU, use DOCA 2.7 or later; use a shorter `doca.comch_name`",
    "doca-representor": "on the DPU, see `doca_caps --list-rep-devs`",
    "fault-points": "unset `OFFPATH_FAULTS`: it is for tests",
}
ENTRIES: Final = tuple(Entry("doctor", code, cause, _FIXES[code]) for code, cause in CODES.items())
