"""`offpath web run` as its own process, for tests, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from typing import Any

from .limits import in_environment
from .processes import BOUND_S, HERE, until


class Web:
    """`offpath web run` as its own process, and a client of it."""

    def __init__(self, *words: str, open_files: int = 1024, shortened: dict[str, float] | None = None) -> None:
        """``shortened``: its limits by their place (see `limits`)."""
        program = [str(HERE / "shortened_main.py")] if shortened else ["-m"]
        command = [sys.executable, "-W", "error", *program, "offpath.cli.main", "web", "run", "--json", *words]
        limited = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **in_environment(shortened or {})},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.ready = json.loads(line)
        self.port = int(self.ready["address"].rstrip("/").rpartition(":")[2])
        self.cookie = ""

    def get(self, path: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers={"Cookie": self.cookie, **given})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        is_json = answer.getheader("content-type", "").startswith("application/json")
        return answer.status, json.loads(body) if is_json else body, dict(answer.getheaders())

    def enter(self) -> None:
        secret = self.ready["link"].partition("#")[2]
        status, _, headers = self.get("/api/session", Authorization=f"Bearer {secret}")
        assert status == 200
        self.cookie = headers["set-cookie"].partition(";")[0]

    def state(self) -> Any:
        """The newest one, once there is one."""
        return until(lambda: self.get("/api/state")[1]["state"])

    def kill(self) -> None:
        """At the end of a test; what it wrote is not read."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def end(self) -> str:
        """By SIGTERM; what it wrote to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=BOUND_S)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return str(errors)
