"""What a daemon and its helper need so that lanes are copied by DOCA's emulator and messages go by a carrier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offpath.bindings.zeromq.keys import make_keys

from .doca import emulator


class Carrier:
    """``channel``: zmq or comch; its files lie in ``folder``, which must not be open to others."""

    def __init__(self, folder: Path, channel: str) -> None:
        self.channel = channel
        self._rendezvous = folder / "doca"
        self._rendezvous.mkdir(mode=0o700)
        self._tables: dict[str, Any] = {}
        self._options: dict[str, Any] = {"doca_path": emulator()}
        if channel == "comch":
            self._options["comch"] = {"doca_path": emulator()}
            return
        hosts, bind = folder / "hosts", f"ipc://{folder}/host.zmq"
        hosts.mkdir(mode=0o700)
        key, _ = make_keys("host-a", str(hosts))
        server, public = make_keys("daemon", str(folder))
        self._tables["zmq"] = {"bind": bind, "key_file": server, "allowed": str(hosts)}
        self._options["zmq"] = {"daemon": bind, "key": key, "server_key": public}

    def environment(self, side: str) -> dict[str, str]:
        """Of a process of this side: ``dpu`` or ``host``."""
        return {"DOCA_EMULATOR_SIDE": side, "DOCA_EMULATOR_DIR": str(self._rendezvous)}

    def tables(self) -> dict[str, Any]:
        """Of the daemon's configuration."""
        return {
            "datapath": {"copy_engine": "doca", "host_channel": self.channel}, "doca": {"path": emulator()},
            **self._tables,
        }  # fmt: skip

    def options(self) -> dict[str, Any]:
        """Of `Cluster.start_helper`."""
        return dict(self._options)
