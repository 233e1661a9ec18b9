"""A daemon in a directory of its own, pinned to a core, for benchmarks that compare settings."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.host_helper.requester import Requester

_BOUND_S: Final = 20.0


class DaemonProcess:
    """`offpath daemon run` with a configuration of the benchmark's; `close` ends it and removes the directory."""

    def __init__(
        self,
        tenants: Mapping[str, str],
        tables: str,
        *,
        core: int | None,
        module: str = COMMAND_LINE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. ``tenants``: further lines of each tenant's table; ``tables``: the rest of the file. ``module``:
        what runs the command line, with ``environment``. Raises: OSError."""
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        self._runtime = os.path.join(self._directory, "run")
        self._log = os.path.join(self._directory, "daemon.log")
        text = []
        for name, lines in tenants.items():
            self._write(self.token_file(name), os.urandom(24).hex())
            text.append(f'[[tenant]]\nname = "{name}"\ntoken_file = "{self.token_file(name)}"\n{lines}\n')
        config = os.path.join(self._directory, "offpathd.toml")
        self._write(config, "".join(text) + tables)
        words = ["daemon", "run", "--config", config, "--runtime-dir", self._runtime]
        words += ["--cpu", str(core)] if core is not None else []
        with open(self._log, "wb") as log:
            self._process = start(module, *words, more=environment, stderr=log)

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self._process.pid

    @property
    def runtime(self) -> str:
        """Its runtime directory."""
        return self._runtime

    @property
    def host_socket(self) -> str:
        """Where its helper connects."""
        return os.path.join(self._runtime, "host.sock")

    def connect(self, tenant: str, slots: int, payload_bytes: int, result_bytes: int = 4096) -> Requester:
        """A session of the tenant, as soon as the daemon listens. Raises: OffpathError: it does not."""
        deadline = time.monotonic() + _BOUND_S
        while True:
            try:
                return Requester(
                    f"unix:{os.path.join(self._runtime, 'negotiate.sock')}", tenant=tenant,
                    token_file=self.token_file(tenant), slots=slots, payload_bytes=payload_bytes,
                    result_bytes=result_bytes, timeout_s=_BOUND_S,
                )  # fmt: skip
            except OffpathError:
                if self._process.poll() is not None:
                    with open(self._log, encoding="utf-8", errors="replace") as log:
                        raise OffpathError(f"the daemon ended: {log.read()[-500:].strip()}") from None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def token_file(self, tenant: str) -> str:
        """The file with the tenant's token."""
        return os.path.join(self._directory, f"{tenant}.token")

    @staticmethod
    def _write(path: str, text: str) -> None:
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write(text)

    def close(self) -> None:
        """End it and remove the directory."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(_BOUND_S)
        shutil.rmtree(self._directory)
