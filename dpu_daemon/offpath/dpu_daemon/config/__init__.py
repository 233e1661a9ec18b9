"""Configuration of the daemon: flag, environment, file, default; all faults at once, each with its place.

`Sources` reads and checks; `DaemonConfig` is what comes out; `Loaded` also knows where each value came from.
"""

from __future__ import annotations

from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.files import agent_keys, read_token, secret_path, server_context, zmq_secret
from offpath.dpu_daemon.config.sources import Loaded, Origin, Sources, config_error, load_config, parse_config
from offpath.dpu_daemon.config.tables import (
    DaemonConfig,
    DatapathTable,
    DocaTable,
    DurabilityTable,
    InaTable,
    LeaseTable,
    LeasingTable,
    LimitsTable,
    OperationTable,
    RdmaTable,
    TenantTable,
    TlsTable,
    ZmqTable,
)

__all__ = [
    "ConfigError",
    "DaemonConfig",
    "DatapathTable",
    "DocaTable",
    "DurabilityTable",
    "Fault",
    "InaTable",
    "LeaseTable",
    "LeasingTable",
    "LimitsTable",
    "Loaded",
    "OperationTable",
    "Origin",
    "RdmaTable",
    "Sources",
    "TenantTable",
    "TlsTable",
    "ZmqTable",
    "agent_keys",
    "config_error",
    "load_config",
    "parse_config",
    "read_token",
    "secret_path",
    "server_context",
    "zmq_secret",
]
