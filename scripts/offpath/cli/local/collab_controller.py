"""A collaboration controller on this machine, with keys of its own: for demonstrations and tests."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from offpath.bindings.runtime import COLLAB_SOCKET
from offpath.bindings.wire import collab_admin
from offpath.bindings.zeromq.keys import make_keys
from offpath.cli import admin_client
from offpath.cli.local.job_manager import toml_of
from offpath.cli.local.ports import free_port
from offpath.cli.local.service import Service

_START_S: Final = 60.0


class CollabController:
    """A context manager. ``folder``: exists; it holds keys, configuration, file, socket and log. ``policy``: the table
    of the configuration. Gateways reach it with `settings`, which stay the same over restarts."""

    def __init__(self, folder: Path, policy: Mapping[str, Any]) -> None:
        self.folder, self._policy = folder, dict(policy)
        self._service = Service("collaboration controller", folder / "log", _START_S)
        self._address = f"tcp://127.0.0.1:{free_port()}"
        (folder / "allowed").mkdir(mode=0o700)
        make_keys("controller", str(folder))
        _, public = make_keys("gateway", str(folder))
        (folder / "allowed" / "gateway.pub").write_bytes(Path(public).read_bytes())
        tokens = folder / "tokens.key"
        tokens.touch(mode=0o600)
        tokens.write_text(secrets.token_hex(24))

    def __enter__(self) -> CollabController:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def runtime_dir(self) -> str:
        """For ``--runtime-dir``."""
        return str(self.folder / "run")

    @property
    def log(self) -> str:
        """What it has logged, over all starts."""
        return self._service.log

    def settings(self, **more: Any) -> Path:
        """The file for ``OFFPATH_COLLAB``, with ``more`` settings."""
        path = self.folder / "settings.toml"
        path.write_text(toml_of({
            "gateway": self._address, "server_key": str(self.folder / "controller.pub"),
            "key_file": str(self.folder / "gateway.key"), "token_key": str(self.folder / "tokens.key"),
            "runtime_dir": self.runtime_dir, **more,
        }))  # fmt: skip
        return path

    def start(self, policy: str = "") -> None:
        """Start it, again or anew, with another policy if one is named, and wait until it serves. Raises: PeerGone."""
        self._policy |= {"name": policy} if policy else {}
        path = self.folder / "collab.toml"
        path.write_text(toml_of({
            "devices": {"token_keys": [str(self.folder / "tokens.key")], "per_minute": 6_000, "burst": 200,
                        "retry_s": 1},
            "gateways": {"bind": self._address, "key_file": str(self.folder / "controller.key"),
                         "allowed": str(self.folder / "allowed")},
            "policy": self._policy, "operation": {"state": str(self.folder / "collab.sqlite"), "log": "json"},
        }))  # fmt: skip
        self._service.start("collab", "run", str(path), "--runtime-dir", self.runtime_dir)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        self._service.kill()

    def close(self) -> None:
        """End it. Idempotent."""
        self._service.close()

    def forget(self) -> None:
        """Its next start begins with no jobs and leases. It does not run."""
        for each in self.folder.glob("collab.sqlite*"):
            os.unlink(each)

    def client(self) -> admin_client.AdminClient:
        """A new connection to its socket for jobs. Raises: DaemonUnreachable."""
        return admin_client.AdminClient(self.runtime_dir, COLLAB_SOCKET, collab_admin.FROM_COLLAB)

    def summary(self) -> collab_admin.Summary:
        """Raises: DaemonUnreachable."""
        with self.client() as client:
            return client.query(collab_admin.SummaryRequest(), collab_admin.Summary)
