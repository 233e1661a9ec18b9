"""The shipped services start and serve under their units' own sandbox: real commands, done here without systemd.

Without root or libseccomp a test is skipped. The emulation leaves out RestrictAddressFamilies=,
the control groups of devices, and PrivateTmp= for the test's own folder: `systemd-analyze` alone judges these.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import DeviceError
from offpath.host_helper import Requester
from offpath.host_helper.migd.client import MigdClient

from .support.gpu_emulator import emulator, machine
from .support.namespaces import needs_namespaces
from .support.processes import HERE, until
from .support.toml import to_toml
from .test_units import allowed_calls

ROOT = Path(__file__).resolve().parent.parent
UNITS = ROOT / "systemd"
NOBODY = 65534
KERNELS = """
import numpy as np
from offpath.host_helper import Helper
helper = Helper()
@helper.kernel("twice", demand=14)
def twice(values):
    return values * 2
"""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces as systemd makes them"),
    pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="needs libseccomp"),
    pytest.mark.skipif(
        shutil.which("systemd-analyze") is None,
        reason="needs systemd-analyze: the package systemd of Debian and Ubuntu",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """Before anything is started in one."""
    needs_namespaces("mount", "ipc", "net")


class Services:
    """The daemon and the helper, each in its unit's sandbox, as one user; the requester is root, outside."""

    def __init__(self, unit: Path = UNITS / "offpathd.service", **tables: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="offpath-s-"))
        self.folder.chmod(0o755)
        self.run_folder = self.folder / "run"
        self.run_folder.mkdir(mode=0o755)
        token = self.folder / "alpha.token"
        token.write_text("alpha-" + "x" * 24)
        token.chmod(0o600)
        self.token = self.folder / "root.token"
        shutil.copy(token, self.token)
        os.chown(token, NOBODY, NOBODY)
        (self.folder / "serve.py").write_text(KERNELS)
        (self.folder / "d.toml").write_text(
            to_toml({"tenant": [{"name": "alpha", "token_file": str(token), "uids": [0]}], **tables})
        )
        self._calls: dict[str, str] = {}
        for name in ("offpathd", "offpath-helper"):
            (self.folder / f"{name}.calls").write_text(" ".join(sorted(allowed_calls(f"{name}.service"))))
        self._started: list[subprocess.Popen[bytes]] = []
        config = ["--config", str(self.folder / "d.toml"), "--runtime-dir", str(self.run_folder)]
        self.daemon = self._start(unit, "offpathd", "daemon", "run", "--keep", *config)
        self.ready(1)

    def _start(self, unit: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "-v", *words]
        sandbox = [sys.executable, str(HERE / "sandbox_main.py"), str(unit), str(self.run_folder)]
        with (self.folder / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(
                [*sandbox, str(self.folder / f"{name}.calls"), *command], stdout=errors, stderr=errors,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def start_helper(self) -> None:
        where = ["--runtime-dir", str(self.run_folder)]
        helper = self._start(
            UNITS / "offpath-helper.service",
            "offpath-helper",
            "helper",
            "run",
            str(self.folder / "serve.py"),
            *where,
            "--emulate",
            "A100-40GB",
        )
        until(lambda: "joined as generation" in self.errors("offpath-helper") or helper.poll() is not None)
        assert helper.poll() is None, self.errors("offpath-helper")

    def errors(self, name: str = "offpathd") -> str:
        return (self.folder / f"{name}.err").read_text("utf-8", "replace")

    def ready(self, lives: int) -> str:
        """The lineage of that life."""
        pattern = r"offpathd ready in \S+ \(lineage (\w+)\)"
        until(lambda: len(re.findall(pattern, self.errors())) >= lives or self.daemon.poll() is not None)
        assert self.daemon.poll() is None, self.errors()
        found: str = re.findall(pattern, self.errors())[lives - 1]
        return found

    def kill_daemon(self) -> None:
        (child,) = Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)

    def requester(self) -> Requester:
        address = f"unix:{self.run_folder / 'negotiate.sock'}"
        sizes = {"payload_bytes": 1 << 20, "result_bytes": 1 << 20}
        return Requester(address, tenant="alpha", token_file=str(self.token), **sizes)

    def close(self) -> None:
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("OFFPATH_DAEMON_UID", str(NOBODY))  # the requester runs as another user than the daemon
    made: list[Services] = []

    def start(**settings: Any) -> Services:
        made.append(Services(**settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_both_services_serve_requests_under_their_units_sandbox_and_across_a_kill(services: Any) -> None:
    """Also the lineage: with /proc/sys hidden the boot's id comes from the unit's Environment=."""
    running = services(durability={"resume_ttl_s": 30}, leasing={"result_bytes": 1 << 20})
    running.start_helper()
    lineage = running.ready(1)
    with running.requester() as requester:
        for count in (10, 100_000):
            values = np.arange(count, dtype=np.float64)
            assert np.array_equal(requester.submit("twice", [values], timeout=30.0).array, values * 2)
        running.kill_daemon()
        assert running.ready(2) == lineage, running.errors()
        assert requester.submit("twice", [np.array([4.0])], timeout=30.0).array[0] == 8.0
    assert "Traceback" not in running.errors() + running.errors("offpath-helper")
    assert "boot id unknown" not in running.errors()


def test_the_sandbox_is_what_the_unit_says(services: Any) -> None:
    """Seen from within, by the daemon's own view of the machine: else the test above would prove nothing."""
    running = services()
    (child,) = Path(f"/proc/{running.daemon.pid}/task/{running.daemon.pid}/children").read_text().split()
    status = Path(f"/proc/{child}/status").read_text()
    for line in (r"Seccomp:\s+2", r"NoNewPrivs:\s+1", r"CapBnd:\s+0+", r"CapEff:\s+0+", rf"Uid:\s+{NOBODY}\s.*"):
        assert re.search(rf"^{line}$", status, re.MULTILINE), (line, status)
    root = Path(f"/proc/{child}/root")
    assert not (root / "proc/sys").exists()
    assert not (root / "proc/stat").exists()
    mounts = Path(f"/proc/{child}/mounts").read_text()
    assert re.search(r"^\S+ /usr \S+ ro[, ]", mounts, re.MULTILINE)
    files = re.search(r"^Max open files\s+(\d+)", Path(f"/proc/{child}/limits").read_text(), re.MULTILINE)
    assert files is not None
    assert int(files[1]) == min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def test_without_the_units_variable_a_kept_daemon_still_has_one_lineage(services: Any, tmp_path: Path) -> None:
    """`offpath daemon run --keep` names the boot itself: its own life cannot outlast one."""
    text = (UNITS / "offpathd.service").read_text()
    assert "Environment=OFFPATH_BOOT_ID=%b\n" in text
    (tmp_path / "bare.service").write_text(text.replace("Environment=OFFPATH_BOOT_ID=%b\n", ""))
    running = services(unit=tmp_path / "bare.service")
    lineage = running.ready(1)
    running.kill_daemon()
    assert running.ready(2) == lineage


def test_the_unit_passes_the_boots_id_because_it_hides_the_kernels_file() -> None:
    text = (UNITS / "offpathd.service").read_text()
    assert "\nProcSubset=pid\n" in text
    assert "\nEnvironment=OFFPATH_BOOT_ID=%b\n" in text


def test_migd_cuts_instances_under_its_units_sandbox_with_two_capabilities() -> None:
    """The GPU is emulated: which nodes a real driver needs, this cannot say."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="offpath-s-")))
        folder.chmod(0o755)
        (writable := folder / "run").mkdir(mode=0o755)
        shutil.copy(emulator() / "libnvidia-ml.so.1", folder)  # ProtectHome= hides where it was built
        (folder / "calls").write_text(" ".join(sorted(allowed_calls("offpath-migd.service"))))
        held.enter_context(machine())
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "migd", "run", "--runtime-dir", str(writable)]
        sandbox = [sys.executable, str(HERE / "sandbox_main.py"), str(UNITS / "offpath-migd.service"), str(writable)]
        with (folder / "migd.err").open("wb") as errors:
            process = subprocess.Popen(
                [*sandbox, str(folder / "calls"), *command], stderr=errors,
                env={**os.environ, "OFFPATH_GPU_PATH": str(folder)},
            )  # fmt: skip
        held.callback(process.wait, 20)
        held.callback(process.terminate)
        until(lambda: b"ready" in (folder / "migd.err").read_bytes() or process.poll() is not None)
        with MigdClient(str(writable / "migd.sock")) as client:
            gpu = client.gpus().gpus[0].uuid
            made = client.create(gpu, "3g.20gb", 4)
            with pytest.raises(DeviceError, match="nvidia-caps"):
                client.nodes(made.handle, os.geteuid())  # no driver lists capabilities here
            client.destroy(made.handle)
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = f"{1 << 27 | 1:016x}"
        for line in (r"Seccomp:\s+2", r"NoNewPrivs:\s+1", rf"CapBnd:\s+{mask}", rf"CapEff:\s+{mask}"):
            assert re.search(rf"^{line}$", status, re.MULTILINE), (line, status)


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_the_helpers_sandbox_has_no_network(family: socket.AddressFamily) -> None:
    """The namespace is empty: nothing but the loopback, which is down; Unix sockets of the file system work."""
    program = (
        "import socket; s = socket.socket(socket.AddressFamily(%d)); s.settimeout(5); s.connect(%r)"
    )  # fmt: skip
    with socket.socket(family) as listener, tempfile.TemporaryDirectory(prefix="offpath-s-") as folder:
        os.chmod(folder, 0o755)  # not below tmp_path: each pytest that starts closes the folder of them all
        os.mkdir(writable := f"{folder}/run")
        where = f"{folder}/s" if family == socket.AF_UNIX else ("127.0.0.1", 0)
        listener.bind(where)
        listener.listen()
        if family == socket.AF_UNIX:
            os.chmod(str(where), 0o666)
        sandbox = [sys.executable, str(HERE / "sandbox_main.py"), str(UNITS / "offpath-helper.service"), writable]
        command = [sys.executable, "-c", program % (family, listener.getsockname())]
        done = subprocess.run([*sandbox, "", *command], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode == 0) == (family == socket.AF_UNIX), done.stderr
