"""A job manager on this machine: for demonstrations, benchmarks and tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import work_admin
from offpath.cli import admin_client, manager_client
from offpath.cli.local.service import Service

_START_S: Final = 120.0
"""The first start on a machine compiles the placement."""
ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "refused"})


class JobManager:
    """A context manager. ``directory`` holds its configuration, file, socket and log.

    ``tables``: the configuration's tables beside ``[operation]``, as Python values; lists of dictionaries become arrays
    of tables.
    """

    def __init__(
        self, directory: str, tables: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._tables = tables
        self._environment = dict(environment or {})
        self._service = Service("job manager", Path(directory) / "log", _START_S)

    def __enter__(self) -> JobManager:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        self.configure()
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
        return os.path.join(self.directory, "run")

    @property
    def log(self) -> str:
        """What it has logged, over all starts."""
        return self._service.log

    def configure(self) -> None:
        """Write its configuration for the next start."""
        operation = {"state": os.path.join(self.directory, "jobs.sqlite"), "log": "json"}
        with open(os.path.join(self.directory, "manager.toml"), "w", encoding="utf-8") as file:
            file.write(toml_of({**self._tables, "operation": operation}))

    def start(self) -> None:
        """Start it again, and wait until it serves. Raises: PeerGone: it ended, or two minutes have passed."""
        config = os.path.join(self.directory, "manager.toml")
        self._service.start(
            "manager", "run", "--config", config, "--runtime-dir", self.runtime_dir, more=self._environment
        )  # fmt: skip

    def kill(self) -> None:
        """Kill it with SIGKILL, as a crash would."""
        self._service.kill()

    def close(self) -> None:
        """End it; its jobs continue. Idempotent."""
        self._service.close()

    # -- its socket ---------------------------------------------------------------------------------------------------
    def client(self) -> admin_client.AdminClient:
        """A new connection. Raises: DaemonUnreachable."""
        return manager_client.client(self.runtime_dir)

    def submit(self, job: str, gpus: int, argv: Sequence[str], **more: Any) -> work_admin.Explanation:
        """Raises: DaemonUnreachable, Refused."""
        request = work_admin.SubmitRequest(job=job, gpus=gpus, argv=list(argv), **{"model": "vgg16", **more})
        with self.client() as client:
            return client.query(request, work_admin.Explanation)

    def explain(self, job: str) -> work_admin.Explanation:
        """Raises: DaemonUnreachable, Refused."""
        with self.client() as client:
            return client.query(work_admin.ExplainRequest(job=job), work_admin.Explanation)

    def cancel(self, job: str) -> work_admin.Explanation:
        """Raises: DaemonUnreachable, Refused."""
        with self.client() as client:
            return client.query(work_admin.CancelRequest(job=job), work_admin.Explanation)

    def status(self) -> work_admin.Status:
        """Raises: DaemonUnreachable."""
        with self.client() as client:
            return client.query(work_admin.StatusRequest(), work_admin.Status)

    def jobs(self) -> list[work_admin.JobLine]:
        """All that it remembers. Raises: DaemonUnreachable."""
        return list(manager_client.all_jobs(self.runtime_dir, is_ended=True))

    def ended(self, jobs: Sequence[str], within_s: float) -> dict[str, work_admin.JobLine]:
        """Wait until all these jobs have ended. Raises: PeerGone: they have not in time."""
        until = time.monotonic() + within_s
        while True:
            found = {job.job: job for job in self.jobs() if job.job in jobs and job.state in ENDED}
            if len(found) == len(set(jobs)):
                return found
            if time.monotonic() > until:
                raise PeerGone(f"{sorted(set(jobs) - set(found))} did not end in {within_s:g} s")
            time.sleep(0.1)


def toml_of(tables: Mapping[str, Any]) -> str:
    """As the text of a file."""
    scalars = {name: value for name, value in tables.items() if not isinstance(value, list | Mapping)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in scalars.items()]
    for name, table in tables.items():
        if name in scalars:
            continue
        for each in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            below = {key: value for key, value in each.items() if _is_table(value)}
            lines += [f"{key} = {json.dumps(value)}" for key, value in each.items() if key not in below]
            for key, value in below.items():
                if isinstance(value, dict):
                    lines.append(f"[{name}.{key}]")
                    lines += [f"{json.dumps(inner)} = {json.dumps(text)}" for inner, text in value.items()]
                else:
                    for row in value:
                        lines.append(f"[[{name}.{key}]]")
                        lines += [f"{inner} = {json.dumps(text)}" for inner, text in row.items()]
    return "\n".join([*lines, ""])


def _is_table(value: object) -> bool:
    """A table, or an array of tables."""
    return isinstance(value, dict) or (isinstance(value, list) and all(isinstance(each, dict) for each in value))
