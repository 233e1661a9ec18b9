"""A real Triton Inference Server with the identity backend (csrc/triton_identity.cc), and a client of one connection.

The server is not a dependency: ./scripts/triton-env installs it into the user's cache. Tensors are in system shared
memory, which the client writes and reads for each request; its HTTP is as lean as a Python client can be.
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Final

import orjson

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.cli.bench.compiled import NotBuilt, built, cache_folder

PACKAGE: Final = "nvidia-pytriton-0.7.0"
"""As scripts/requirements/triton.txt names it."""
OUTPUTS: Final = ("OUTPUT0", "FIRST")
"""All of the input, or its first byte."""
_MODEL: Final = """\
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] }, { name: "FIRST" data_type: TYPE_UINT8 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_BOUND_S: Final = 60.0
_REPLY_BYTES: Final = 65536


def installed() -> str:
    """The folder of the server's package. Raises: NotBuilt: it is not installed."""
    folder = os.path.join(os.path.dirname(cache_folder()), "triton", PACKAGE)
    if not os.path.isdir(folder):
        raise NotBuilt(f"no Triton server in {folder}; ./scripts/triton-env installs one")
    return folder


class TritonServer:
    """The server process, with the model ``identity``; ``close`` ends it."""

    def __init__(self, core: int | None) -> None:
        """Start it on a core. Raises: NotBuilt: no server or no compiler. PeerGone: it does not start."""
        folder = installed()
        backend = built("triton_identity.cc", ("-shared", "-fPIC"))
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        models, backends = os.path.join(self._directory, "models"), os.path.join(self._directory, "backends")
        os.makedirs(os.path.join(models, "identity", "1"))
        os.makedirs(os.path.join(backends, "identity"))
        shutil.copy(backend, os.path.join(backends, "identity", "libtriton_identity.so"))
        with open(os.path.join(models, "identity", "config.pbtxt"), "w", encoding="ascii") as file:
            file.write(_MODEL)
        self.port = _free_port()
        command = [
            os.path.join(folder, "pytriton", "tritonserver", "bin", "tritonserver"), "--model-repository", models,
            "--backend-directory", backends, "--http-address", "127.0.0.1", "--http-port", str(self.port),
            "--allow-grpc", "false", "--allow-metrics", "false", "--exit-timeout-secs", "2",
        ]  # fmt: skip
        log = os.path.join(self._directory, "log")
        libraries = {"LD_LIBRARY_PATH": os.path.join(folder, "nvidia_pytriton.libs")}
        with open(log, "wb") as file:
            self._process = subprocess.Popen(command, env=os.environ | libraries, stdout=file, stderr=file)
        try:
            self._wait(log)
            self.run_on(core)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def _wait(self, log: str) -> None:
        deadline = time.monotonic() + _BOUND_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                client = HttpClient(self.port)
            except OSError:
                time.sleep(0.05)
                continue
            try:
                if client.query("GET", "/v2/health/ready", b"", accept=(200, 400))[0] == 200:
                    return
            finally:
                client.close()
            time.sleep(0.05)
        with open(log, encoding="utf-8", errors="replace") as file:
            raise PeerGone(f"the Triton server does not start: {file.read()[-500:].strip()}")

    def run_on(self, core: int | None) -> None:
        """Move all its threads to a core; None: to every core of the machine."""
        allowed = {core} if core is not None else set(range(os.cpu_count() or 1))
        for task in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(task), allowed)

    def close(self) -> None:
        """End it and remove its files."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._directory)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class HttpClient:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        """Raises: OSError: nothing listens."""
        self._sock = socket.create_connection(("127.0.0.1", port), _BOUND_S)
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def query(self, method: str, path: str, body: bytes, accept: tuple[int, ...] = (200,)) -> tuple[int, bytes]:
        """Status and body. Raises: OffpathError: another status than those to ``accept``."""
        return self.exchange(request(method, path, body), accept)

    def exchange(self, message: bytes, accept: tuple[int, ...] = (200,)) -> tuple[int, bytes]:
        """As `query`, for a message of `request`."""
        self._sock.sendall(message)
        data = b""
        while (head := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        length = int(data[:head].lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(data) < head + 4 + length:
            data += self._more()
        status = int(data[9:12])
        if status not in accept:
            raise OffpathError(f"Triton answers {status}: {data[head + 4 :].decode('utf-8', 'replace')}")
        return status, data[head + 4 :]

    def _more(self) -> bytes:
        part = self._sock.recv(_REPLY_BYTES)
        if not part:
            raise PeerGone("the Triton server closed the connection")
        return part

    def close(self) -> None:
        """Disconnect."""
        self._sock.close()


def request(method: str, path: str, body: bytes) -> bytes:
    """An HTTP/1.1 message."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("ascii") + body


class Region:
    """A POSIX shared memory object that is registered with the server."""

    def __init__(self, client: HttpClient, name: str, nbytes: int) -> None:
        """Raises: OSError, OffpathError."""
        key = f"offpath-bench-{os.getpid()}-{name}"
        self._path = f"/dev/shm/{key}"
        with open(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as file:
            file.truncate(nbytes)
            self.view = memoryview(mmap.mmap(file.fileno(), nbytes))
        self.view[::4096] = bytes(len(range(0, nbytes, 4096)))  # no request pays for page faults
        body = {"key": f"/{key}", "offset": 0, "byte_size": nbytes}
        client.query("POST", f"/v2/systemsharedmemory/region/{name}/register", orjson.dumps(body))

    def close(self) -> None:
        """Unlink; the mapping ends with the process."""
        os.unlink(self._path)


def infer_request(output: str, nbytes: int) -> bytes:
    """The message that runs the model on the region ``in`` and has the ``output`` written to ``out``."""
    result = nbytes if output == "OUTPUT0" else 1
    inputs = {
        "name": "INPUT0", "datatype": "UINT8", "shape": [nbytes],
        "parameters": {"shared_memory_region": "in", "shared_memory_byte_size": nbytes},
    }  # fmt: skip
    outputs = {
        "name": output, "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": result}
    }  # fmt: skip
    body = orjson.dumps({"inputs": [inputs], "outputs": [outputs]})
    return request("POST", "/v2/models/identity/infer", body)
