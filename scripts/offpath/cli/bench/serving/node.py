"""A node with a gateway: daemon, helper and `offpath gateway run`, each a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.daemon_process import DaemonProcess
from offpath.cli.bench.measure import Cores, children, end, fork, pin
from offpath.cli.bench.request_path.triton_server import HttpClient
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.host_helper.helper import Helper
from offpath.host_helper.kernels import LaneContext
from offpath.host_helper.requester import Requester

TENANT: Final = "bench"
ATTACKER: Final = "attacker"
"""A second tenant of daemon and gateway."""
LANES: Final = 4
SLOTS: Final = 64
_BOUND_S: Final = 30.0


class Node:
    """One lease of a whole emulated GPU with the model ``identity``. The daemon has the DPU's core, all else the
    host's."""

    def __init__(self, cores: Cores, nbytes: int) -> None:
        """``nbytes``: of a request's tensors, and of an answer's. Raises: OffpathError: it does not start."""
        self.token, self.attackers_token = os.urandom(24).hex(), os.urandom(24).hex()
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        tables = (
            f'[[lease]]\ntenant = "{TENANT}"\nprofile = "7g.40gb"\n'
            f"[leasing]\nlanes = {LANES}\nlanding_bytes = {2 * nbytes}\nresult_bytes = {2 * nbytes}\n"
        )
        self.daemon = DaemonProcess({TENANT: "", ATTACKER: ""}, tables, core=cores.dpu)
        channel = self.daemon.host_socket
        self._helper = fork(cores.host, lambda: _serve(channel))
        self._gateway: subprocess.Popen[bytes] | None = None
        self._requester: Requester | None = None
        try:
            self._requester = self.daemon.connect(TENANT, 1, nbytes, nbytes)
            self._requester.submit("identity", [np.zeros(64, np.uint8)], timeout=_BOUND_S)
            self._gateway = self._start(nbytes)
            self.http_port, self.grpc_address = self._addresses(self._gateway)
            self.run_on(cores.host)
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def requester(self) -> Requester:
        """The native client's session, with one slot."""
        assert self._requester is not None
        return self._requester

    def pids(self) -> dict[str, list[int]]:
        """The processes by role."""
        assert self._gateway is not None
        return {
            "gateway": [self._gateway.pid], "daemon": [self.daemon.pid],
            "worker": [self._helper, *children(self._helper)],
        }  # fmt: skip

    def run_on(self, core: int | None) -> None:
        """Move the gateway's threads to a core; None: to every core."""
        assert self._gateway is not None
        allowed = {core} if core is not None else set(range(os.cpu_count() or 1))
        for task in os.listdir(f"/proc/{self._gateway.pid}/task"):
            os.sched_setaffinity(int(task), allowed)

    def _start(self, nbytes: int) -> subprocess.Popen[bytes]:
        text = f'daemon = "{self.daemon.runtime}"\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n'
        for tenant, token in ((TENANT, self.token), (ATTACKER, self.attackers_token)):
            bearer = os.path.join(self._directory, f"{tenant}.bearer")
            with open(os.open(bearer, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
                file.write(token)
            text += (
                f'[[tenant]]\nname = "{tenant}"\ntoken_file = "{self.daemon.token_file(tenant)}"\n'
                f'bearer_files = ["{bearer}"]\nuids = [{os.getuid()}]\nslots = {SLOTS}\n'
                f"payload_bytes = {nbytes}\nresult_bytes = {nbytes}\n"
            )
        config = os.path.join(self._directory, "gateway.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        pin(None)
        return start(COMMAND_LINE, "gateway", "run", config, "--json", stdout=subprocess.PIPE)

    def _addresses(self, gateway: subprocess.Popen[bytes]) -> tuple[int, str]:
        assert gateway.stdout is not None
        said: dict[str, Any] = json.loads(gateway.stdout.readline() or b"{}")
        if not said:
            raise OffpathError("the gateway does not start")
        return int(said["http"].rpartition(":")[2]), str(said["grpc"])

    def _wait(self) -> None:
        """Until the model is there."""
        client = HttpClient(self.http_port, self.token)
        deadline = time.monotonic() + _BOUND_S
        try:
            while client.query("GET", "/v2/models/identity/ready", b"", accept=(200, 400, 503))[0] != 200:
                if time.monotonic() > deadline:
                    raise OffpathError("the gateway has no model")
                time.sleep(0.05)
        finally:
            client.close()

    def close(self) -> None:
        """End everything and remove the directory."""
        if self._requester is not None:
            self._requester.close()
        if self._gateway is not None:
            self._gateway.terminate()
            self._gateway.wait(_BOUND_S)
            if self._gateway.stdout is not None:
                self._gateway.stdout.close()
        end(self._helper, signal.SIGTERM)
        self.daemon.close()
        shutil.rmtree(self._directory)


def _serve(channel: str) -> None:
    helper = Helper()

    @helper.lane_opened
    def touch(lane: LaneContext) -> None:
        """Fault in the lane's pages before the measurement."""
        lane.memory.write(0, bytes(lane.memory.landing_bytes))

    tensors = {"INPUT0": ("uint8", [-1])}, {"OUTPUT0": ("uint8", [-1])}

    @helper.kernel("identity", demand=14, inputs=tensors[0], outputs=tensors[1])
    def identity(view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return view

    helper.run(channel, emulate=["A100-40GB"])
