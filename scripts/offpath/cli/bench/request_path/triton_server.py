"""A real Triton Inference Server with the identity backend (csrc/triton_identity.cc), and a client of one connection.

On request it also has models of Triton's python backend, and gRPC. The client speaks to offpath's gateway too.

The server is not a dependency: ./scripts/triton-env installs it into the user's cache. Tensors are in system shared
memory, which the client writes and reads for each request; its HTTP is as lean as a Python client can be.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from offpath.bindings.errors import OffpathError, PeerGone
from offpath.cli.bench.compiled import NotBuilt, built, cache_folder
from offpath.cli.bench.measure import children

PACKAGE: Final = "nvidia-pytriton-0.7.0+numpy-1.26.4"
"""As scripts/requirements/triton.txt names them."""
OUTPUTS: Final = ("OUTPUT0", "FIRST")
"""All of the input, or its first byte."""
_MODEL: Final = """\
backend: "identity"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] }, { name: "FIRST" data_type: TYPE_UINT8 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_PYTHON_MODEL: Final = """\
backend: "python"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_PYTHON_CODE: Final = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(each, "INPUT0").as_numpy())])
                for each in requests]
"""
PYTHON: Final = "python_identity"
"""The model of the python backend."""


class PythonModel(NamedTuple):
    """A model of the python backend: its ``config.pbtxt`` and its ``model.py``."""

    config: str
    code: str


PYTHON_MODELS: Final[Mapping[str, PythonModel]] = {PYTHON: PythonModel(_PYTHON_MODEL, _PYTHON_CODE)}
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

    def __init__(
        self, core: int | None, *, python: Mapping[str, PythonModel] | None = None, has_grpc: bool = False
    ) -> None:
        """Start it on a core. ``python``: also with these models, by name. Raises: NotBuilt: no server, no compiler,
        or no shared library of this Python. PeerGone: it does not start."""
        folder = installed()
        backend = built("triton_identity.cc", ("-shared", "-fPIC"))
        self._directory = tempfile.mkdtemp(prefix="offpath-bench-")
        models, backends = os.path.join(self._directory, "models"), os.path.join(self._directory, "backends")
        os.makedirs(os.path.join(models, "identity", "1"))
        os.makedirs(os.path.join(backends, "identity"))
        shutil.copy(backend, os.path.join(backends, "identity", "libtriton_identity.so"))
        with open(os.path.join(models, "identity", "config.pbtxt"), "w", encoding="ascii") as file:
            file.write(_MODEL)
        libraries = os.path.join(folder, "nvidia_pytriton.libs")
        more = {"LD_LIBRARY_PATH": libraries}
        if python:
            more = {
                "LD_LIBRARY_PATH": f"{libraries}:{_add_python(folder, models, backends, python)}",
                "PATH": f"{folder}/env/bin:{os.environ.get('PATH', os.defpath)}",
            }
        self.port = _free_port()
        self.grpc_port = _free_port() if has_grpc else 0
        command = [
            os.path.join(folder, "pytriton", "tritonserver", "bin", "tritonserver"), "--model-repository", models,
            "--backend-directory", backends, "--http-address", "127.0.0.1", "--http-port", str(self.port),
            *(("--grpc-address", "127.0.0.1", "--grpc-port", str(self.grpc_port)) if has_grpc
              else ("--allow-grpc", "false")),
            "--allow-metrics", "false", "--exit-timeout-secs", "2",
        ]  # fmt: skip
        log = os.path.join(self._directory, "log")
        with open(log, "wb") as file:
            self._process = subprocess.Popen(
                command, env=os.environ | more, stdout=file, stderr=file, start_new_session=True
            )
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
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # the python backend's stub too
        self._process.wait()
        shutil.rmtree(self._directory)

    def pids(self) -> list[int]:
        """The server, and the python backend's stub."""
        return [self.pid, *children(self.pid)]


def _add_python(folder: str, models: str, backends: str, python: Mapping[str, PythonModel]) -> str:
    """Add the python backend and its models; returns the folder of Python's shared library. Raises: NotBuilt."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    server = os.path.join(folder, "pytriton", "tritonserver")
    stub = os.path.join(server, "python_backend_stubs", version, "triton_python_backend_stub")
    libraries = [str(sysconfig.get_config_var("LIBDIR")), "/usr/lib/x86_64-linux-gnu"]
    library = next((each for each in libraries if os.path.exists(f"{each}/libpython{version}.so.1.0")), None)
    if library is None or not os.path.exists(stub):
        raise NotBuilt(f"no libpython{version}.so.1.0, or no stub of Triton's python backend for it")
    shutil.copytree(os.path.join(server, "backends", "python"), os.path.join(backends, "python"))
    shutil.copy(stub, os.path.join(backends, "python", "triton_python_backend_stub"))
    os.chmod(os.path.join(backends, "python", "triton_python_backend_stub"), 0o755)
    for name, model in python.items():
        os.makedirs(os.path.join(models, name, "1"))
        for file_name, text in (("config.pbtxt", model.config), (os.path.join("1", "model.py"), model.code)):
            with open(os.path.join(models, name, file_name), "w", encoding="ascii") as file:
                file.write(text)
    return library


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class HttpClient:
    """One keep-alive connection. ``token``: sent with each query."""

    def __init__(self, port: int, token: str = "") -> None:
        """Raises: OSError: nothing listens."""
        self._token = token
        self._sock = socket.create_connection(("127.0.0.1", port), _BOUND_S)
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def query(self, method: str, path: str, body: bytes, accept: tuple[int, ...] = (200,)) -> tuple[int, bytes]:
        """Status and body. Raises: OffpathError: another status than those to ``accept``."""
        return self.exchange(request(method, path, body, self._token), accept)

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
            raise OffpathError(f"the server answers {status}: {data[head + 4 :].decode('utf-8', 'replace')}")
        return status, data[head + 4 :]

    def _more(self) -> bytes:
        part = self._sock.recv(_REPLY_BYTES)
        if not part:
            raise PeerGone("the server closed the connection")
        return part

    def close(self) -> None:
        """Disconnect."""
        self._sock.close()


def request(method: str, path: str, body: bytes, token: str = "") -> bytes:
    """An HTTP/1.1 message."""
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{proof}Content-Length: {len(body)}\r\n\r\n"
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


def infer_request(output: str, nbytes: int, model: str = "identity", token: str = "") -> bytes:
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
    return request("POST", f"/v2/models/{model}/infer", body, token)
