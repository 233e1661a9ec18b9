"""The daemon's configuration, from flags, environment, file and defaults. All faults are reported at once, with places.

`Sources` reads and checks; `DaemonConfig` is the result; `Loaded` also records the origin of each value.
"""

from __future__ import annotations

from offpath.dpu_daemon.config.faults import ConfigError, Fault
from offpath.dpu_daemon.config.files import (
    agent_keys,
    device_context,
    read_token,
    secret_path,
    server_context,
    zmq_secret,
)
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
    "device_context",
    "load_config",
    "parse_config",
    "read_token",
    "secret_path",
    "server_context",
    "zmq_secret",
]
