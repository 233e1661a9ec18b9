"""`offpath gateway run` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...support.cluster import Cluster
from ...support.processes import until
from ...support.toml import to_toml
from .rig import TENANTS, Rig


class GatewayProcess:
    """With a file of its own; ``config`` are its keys. Ready when the constructor returns."""

    def __init__(self, cluster: Cluster, folder: Path, each: dict[str, Any] | None = None, **keys: Any) -> None:
        """``each``: further keys of each tenant."""
        self.folder = folder
        self.config: dict[str, Any] = {
            "daemon": cluster.address,
            "http": "127.0.0.1:0",
            "grpc": "127.0.0.1:0",
            "tenant": [self.tenant(cluster, name, **(each or {})) for name in TENANTS],
            **keys,
        }
        self.file = folder / "gateway.toml"
        self.write()
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "-v", "gateway", "run", str(self.file), "--json"]
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert self.process.stdout is not None
            self.addresses: dict[str, str] = json.loads(self.process.stdout.readline() or b"{}")
            assert self.addresses, self.log
            until(lambda: self.log.count("gateway: models") >= len(TENANTS) or not self.is_alive)
        except BaseException:
            self.process.kill()
            raise

    def tenant(self, cluster: Cluster, name: str, **more: Any) -> dict[str, Any]:
        bearer = self.folder / f"{name}.bearer"
        bearer.write_text(Rig.token(name))
        bearer.chmod(0o600)
        return {
            "name": name, "token_file": str(cluster.folder / f"{name}.token"), "bearer_files": [str(bearer)],
            "uids": [os.getuid()], "slots": 16, "payload_bytes": 700_000, "result_bytes": 700_000, **more,
        }  # fmt: skip

    def write(self) -> None:
        self.file.write_text(to_toml(self.config))

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def reload(self) -> None:
        """Write the configuration, and wait until it was read."""
        self.write()
        before = self.log.count("the configuration")
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.log.count("the configuration") > before)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(20)
        finally:
            self.kill()
        assert code == 0, self.log
        assert "Traceback" not in self.log
