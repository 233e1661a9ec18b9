"""A daemon and its helper as real processes in a runtime directory of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from offpath.host_helper import Requester

from .limits import in_environment
from .processes import BOUND_S, HERE, Process, until
from .toml import to_toml

TIMEOUT = BOUND_S
MIB = 1 << 20
SHORTENED = {"offpath.dpu_daemon.config.tables.RETRY_OPEN_MS": 50}
"""Limits of every test's daemon. Many tests have an instance fail: its tenant's next one need not wait for a second."""
_GIVEN: set[int] = set()
_RELOADED = re.compile(r"configuration [0-9]+ (is|stays) in force")


class Cluster:
    """Tenants by name with their table of the configuration; every tenant has a token file here."""

    def __init__(
        self,
        tenants: dict[str, dict[str, Any]],
        keep: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        shortened: dict[str, float] | None = None,
        **tables: Any,
    ) -> None:
        """``keep``: settings of a service manager (possibly none) under which the daemon runs; ``daemon`` is then that
        manager.
        ``environment``: what is set for the daemon alone. ``shortened``: its limits by their place (see `limits`)."""
        self.folder = Path(tempfile.mkdtemp(prefix="offpath-t-"))
        self.run_folder = self.folder / "run"
        self.helper: Process | None = None
        self._helpers = 0
        self._more: list[Process] = []
        leasing = {"landing_bytes": 4 * MIB, "result_bytes": 4 * MIB, "keep_warm_ms": 300, **tables.pop("leasing", {})}
        leasing.setdefault("max_lanes", leasing.get("lanes", 2))  # so that tests know how many workers there are
        self.config: dict[str, Any] = {
            "tenant": [{"name": name, "token_file": self.make_token(name), **table} for name, table in tenants.items()],
            "leasing": leasing,
            "durability": {"resume_ttl_s": 0, **tables.pop("durability", {})},  # tests of resuming ask for it
            **tables,
        }
        self.config_file = self.folder / "offpathd.toml"
        self.config_file.write_text(to_toml(self.config))
        program = ["daemon_main.py", str(self.config_file), str(self.run_folder)]
        if keep is not None:
            kept = [sys.executable, "-W", "always", str(HERE / program[0]), *program[1:]]
            program = ["service_manager_main.py", str(self.run_folder), json.dumps(keep), *kept]
        environment = {**(environment or {}), **in_environment({**SHORTENED, **(shortened or {})})}
        self.daemon = Process("daemon", self.folder, *program, environment=environment)
        try:
            self.lineage = self.daemon.hear()["lineage"]
        except BaseException:
            self.kill()
            raise

    @property
    def address(self) -> str:
        return f"unix:{self.run_folder / 'negotiate.sock'}"

    @property
    def channel(self) -> str:
        return str(self.run_folder / "host.sock")

    def make_token(self, name: str) -> str:
        path = self.folder / f"{name}.token"
        path.write_text(self.token(name))
        path.chmod(0o600)
        return str(path)

    @staticmethod
    def token(name: str) -> str:
        return f"{name}-{'x' * 24}"

    def start_helper(
        self, environment: dict[str, str] | None = None, shortened: dict[str, float] | None = None, **options: Any
    ) -> Process:
        """Returns when the daemon has taken it in. ``shortened``: its limits by their place (see `limits`)."""
        if shortened:
            environment = {**(environment or {}), **in_environment(shortened)}
        self._helpers += 1
        self.helper = Process(
            f"helper{self._helpers}", self.folder, "helper_main.py", self.channel, json.dumps(options),
            environment=environment,
        )  # fmt: skip
        self._more.append(self.helper)
        helper = self.helper
        until(lambda: "joined as generation" in helper.errors or not helper.is_alive)
        assert helper.is_alive, helper.errors
        return helper

    def reload(self, text: str | None = None) -> bool:
        """Write the configuration (or ``text``) and have the daemon read it. False: it was refused."""
        written = self.config_file.with_suffix(".new")  # moved into place: an earlier signal may still be served
        written.write_text(to_toml(self.config) if text is None else text)
        written.replace(self.config_file)
        before = len(_RELOADED.findall(self.daemon.errors))
        self.daemon.signal(signal.SIGHUP)
        until(lambda: len(_RELOADED.findall(self.daemon.errors)) > before)
        return _RELOADED.findall(self.daemon.errors)[-1] == "is"

    def start(self, name: str, script: str, *arguments: str, environment: dict[str, str] | None = None) -> Process:
        """A further process of the test, ended with the cluster."""
        process = Process(name, self.folder, script, *arguments, environment=environment)
        self._more.append(process)
        return process

    def connect(self, tenant: str, **sizes: Any) -> Requester:
        sizes = {"payload_bytes": 128 << 10, "result_bytes": 128 << 10, **sizes}
        return Requester(self.address, tenant=tenant, token_file=str(self.folder / f"{tenant}.token"), **sizes)

    def statistics(self) -> dict[str, int]:
        """End the daemon in order; what it counted."""
        for process in reversed(self._more):
            process.finish()
        self.daemon.signal(signal.SIGTERM)
        counted: dict[str, int] = self.daemon.hear()
        self.daemon.finish(is_notified=True)
        return counted

    def close(self) -> None:
        """Everything must end in order and without complaint."""
        try:
            for process in reversed(self._more):
                process.finish()
            self.daemon.finish()
        finally:
            self.kill()

    def kill(self) -> None:
        for process in (*self._more, self.daemon):
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """Never one that was given before: the kernel gives a port again as soon as it is closed."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def said(result: Any) -> Any:
    """What a kernel of ``helper_main`` said in JSON."""
    return json.loads(result.array.tobytes())


def pids_of(helper: Process) -> list[int]:
    """The helper's workers, or the service manager's daemon."""
    found = []
    for task in os.listdir(f"/proc/{helper.pid}/task"):
        found += [int(pid) for pid in Path(f"/proc/{helper.pid}/task/{task}/children").read_text().split()]
    return found
