"""The package that hosts import: the requester client, and the helper that serves kernels.

Importing this package loads no other module. Each name below loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # for type checkers and editors only
    from offpath.host_helper.aio import AsyncRequester
    from offpath.host_helper.channels import host_channel
    from offpath.host_helper.errors import RequestFailed, RequestTimeout
    from offpath.host_helper.helper import Helper
    from offpath.host_helper.kernels import LaneContext, current_lane
    from offpath.host_helper.negotiate import Rdma, Tls
    from offpath.host_helper.requester import Requester, connect
    from offpath.host_helper.sequences import SequenceContext
    from offpath.host_helper.slots import Options, Result

__all__ = [
    "AsyncRequester",
    "Helper",
    "LaneContext",
    "Options",
    "Rdma",
    "RequestFailed",
    "RequestTimeout",
    "Requester",
    "Result",
    "SequenceContext",
    "Tls",
    "connect",
    "current_lane",
    "host_channel",
]

_WHERE: Final = {
    "AsyncRequester": "aio",
    "Helper": "helper",
    "LaneContext": "kernels",
    "Options": "slots",
    "RequestFailed": "errors",
    "RequestTimeout": "errors",
    "Requester": "requester",
    "Result": "slots",
    "Rdma": "negotiate",
    "SequenceContext": "sequences",
    "Tls": "negotiate",
    "connect": "requester",
    "current_lane": "kernels",
    "host_channel": "channels",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
