"""Detects settings that a running daemon cannot change, for reloads and `offpath config check`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel

from offpath.dpu_daemon.config.faults import Fault

NEEDS_RESTART: Final = (
    "leasing.lanes", "leasing.landing_bytes", "leasing.result_bytes", "tls.listen", "datapath.fabric",
    "datapath.copy_engine", "datapath.host_channel", "rdma.device", "rdma.netdev", "rdma.near", "rdma.seal",
    "doca.device", "doca.path", "doca.representor", "doca.comch_name", "zmq.bind", "zmq.key_file", "zmq.domain",
    "ina.controller", "ina.server_key_file", "ina.key_file", "ina.host",
    "operation.metrics_listen", "durability.journal_mib", "host_uids",
)  # fmt: skip
"""Sessions and leases depend on lanes and sizes; open files and sockets depend on the others."""


def restart_faults(before: BaseModel, after: BaseModel, keys: Iterable[str] = NEEDS_RESTART) -> list[Fault]:
    """Those of ``keys`` that differ: a running process cannot apply them."""
    return [
        Fault(path, f"needs a restart: {_value(before, path)!r} is in force")
        for path in keys
        if _value(before, path) != _value(after, path)
    ]


def _value(config: BaseModel, path: str) -> object:
    value: object = config
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
