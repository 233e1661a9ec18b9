"""Host channels by name: how this host connects to its daemon, from arguments or the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from offpath.bindings.doca.channel import SERVER, ComchConnector
from offpath.bindings.errors import HostChannelError
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.plausible import port_fault
from offpath.bindings.ports import HostConnector
from offpath.bindings.runtime import HOST_SOCKET, local_socket

KINDS: Final = ("unix", "zmq", "comch")


def host_channel(
    kind: str | None = None,
    *,
    path: str | None = None,
    daemon: str | None = None,
    key: str | None = None,
    server_key: str | None = None,
    comch_name: str | None = None,
    doca_device: str = "",
    doca_path: str = "",
    environment: Mapping[str, str] = os.environ,
) -> HostConnector:
    """A connector for the supervisor and, separately, for each worker.

    Args:
        kind: ``unix`` (default), ``zmq`` or ``comch``.
        path: ``unix``: the daemon's host socket; default: that of the local daemon.
        daemon: ``zmq``: the daemon's address, tcp://HOST:PORT or ipc://PATH.
        key, server_key: ``zmq``: files of this host's secret key (mode 0600) and of the daemon's public key.
        comch_name: ``comch``: the server's name; default: offpath.
        doca_device, doca_path: ``comch``: as for `Helper.run`: the host's function, and the folder of DOCA.
        environment: ``OFFPATH_HELPER_HOST_CHANNEL``, ``…_DAEMON``, ``…_KEY``, ``…_SERVER_KEY``, ``…_COMCH_NAME`` are
            the defaults.

    Raises: HostChannelError: an unknown channel, or something that it needs is missing (pyzmq: ZmqMissing; a key:
        KeyFileRefused).
    """

    def setting(given: str | None, name: str) -> str:
        return given if given is not None else environment.get(f"OFFPATH_HELPER_{name}", "")

    chosen = kind or ("unix" if path is not None else setting(None, "HOST_CHANNEL") or "unix")
    if chosen == "unix":
        return LoopbackConnector(path or local_socket(HOST_SOCKET))
    if chosen == "comch":
        # The connecting process loads DOCA, which must not be loaded in a process that forks.
        return ComchConnector(doca_path, doca_device, setting(comch_name, "COMCH_NAME") or SERVER)
    if chosen != "zmq":
        raise HostChannelError(f"unknown host channel {chosen!r}: {', '.join(KINDS)}")
    needed = {
        "daemon": setting(daemon, "DAEMON"),
        "key": setting(key, "KEY"),
        "server-key": setting(server_key, "SERVER_KEY"),
    }
    if missing := [f"--{name}" for name, value in needed.items() if not value]:
        raise HostChannelError(f"the host channel zmq needs {', '.join(missing)}")
    if needed["daemon"].startswith("tcp://") and (fault := port_fault(needed["daemon"])):
        raise HostChannelError(f"--daemon {needed['daemon'][:200]}: {fault}")
    from offpath.bindings.zeromq.connection import ZmqConnector  # only here is pyzmq needed

    connector = ZmqConnector(needed["daemon"], needed["key"], needed["server-key"])
    connector.check()
    return connector
