"""An MPS control daemon of a check's own, in its own directory, and processes that are its clients."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

import orjson

from offpath.bindings.cuda.driver import VISIBLE_VARIABLE
from offpath.bindings.errors import CudaError, CudaLost, DeviceError, OffpathError
from offpath.bindings.gpu_folder import gpu_folder
from offpath.cli.bench.gpu.device import Device, code_of
from offpath.cli.bench.gpu.kernels import EMPTY, FAULT, SPIN
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.bench.measure import end, fork
from offpath.cli.gpu_check.figures import NotPossible

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_MPS, _MULTIPROCESSORS = 133, 16
_ANSWER_S: Final = 20.0
_SECOND_NS: Final = 1_000_000_000


class Control:
    """A control daemon for one GPU, in a new directory of mode 0700. A context manager."""

    def __init__(self, setting: Setting) -> None:
        """Raises: NotPossible: no control program."""
        folder = gpu_folder()
        found = os.path.join(folder, PROGRAM) if folder else shutil.which(PROGRAM)
        if not found or not os.path.exists(found):
            raise NotPossible(f"{PROGRAM} is not installed")
        self.program: str = found
        self.folder = tempfile.mkdtemp(prefix="opmps-")  # short: it holds sockets
        self._is_running = False
        self.environment: Final = {PIPES: self.folder, LOGS: self.folder, VISIBLE_VARIABLE: setting.uuid}

    def __enter__(self) -> Control:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Raises: DeviceError: it does not start."""
        code, out, err = self.run("-d")
        if code:
            raise DeviceError(f"{PROGRAM} -d: code {code}: {out} {err}")
        self._is_running = True

    def stop(self) -> None:
        """Quit; then kill what is left of it: processes that have its directory in their environment."""
        if not self._is_running:
            return
        self._is_running = False
        with suppress(DeviceError):
            self.run(commands="quit -t 2\n")
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self, *arguments: str, commands: str = "") -> tuple[int, str, str]:
        """(code, standard output, standard error) of the control program. Raises: DeviceError: no answer."""
        # Into files: a daemon that keeps a pipe open would never let it end.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
            try:
                done = subprocess.run(
                    [self.program, *arguments], input=commands.encode(), env={**os.environ, **self.environment},
                    stdout=out, stderr=error, timeout=_ANSWER_S, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as fault:
                raise DeviceError(f"{PROGRAM}: {fault}") from fault
            return done.returncode, _text_of(out), _text_of(error)

    def logs(self) -> dict[str, str]:
        """The last lines of its logs."""
        found = {}
        for name in ("control.log", "server.log"):
            with suppress(OSError), open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as file:
                found[name] = file.read()[-800:]
        return found

    def _left(self) -> list[int]:
        mark = f"{PIPES}={self.folder}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words, variables = (_bytes_of(f"/proc/{name}/{file}") for file in ("cmdline", "environ"))
                if b"nvidia-cuda-mps" in words and mark in variables.split(b"\0"):
                    found.append(int(name))
        return found


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Client:
    """A process that uses the GPU with these variables in its environment, and does what it is told."""

    def __init__(self, setting: Setting, environment: Mapping[str, str]) -> None:
        """Raises: DeviceError: it cannot use the GPU; the text has the code."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(_ANSWER_S)
        self.pid = fork(None, lambda: _serve(theirs, setting, environment))
        theirs.close()
        self._is_open = True
        try:
            self.facts: dict[str, Any] = self._answer()
        except DeviceError:
            self.close()
            raise

    def do(self, order: str, value: int = 0) -> int:
        """The code of ``order`` (see `_serve`). Raises: DeviceError: the process ended."""
        self._link.send(orjson.dumps([order, value]))
        return int(self._answer()["code"])

    def _answer(self) -> dict[str, Any]:
        try:
            received = self._link.recv(4096)
        except TimeoutError as fault:
            raise DeviceError(f"no answer of a client within {_ANSWER_S:.0f} s") from fault
        if not received:
            raise DeviceError("the client's process ended")
        found: dict[str, Any] = orjson.loads(received)
        if "error" in found:
            raise DeviceError(found["error"])
        return found

    def close(self) -> None:
        """Kill it, unless that has happened. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._link.close()
            end(self.pid, signal.SIGKILL)

    def finish(self) -> None:
        """Let it end in order: its work awaited, its context released."""
        if self._is_open:
            with suppress(DeviceError, OSError):
                self.do("end")
        self.close()


def _serve(link: socket.socket, setting: Setting, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    try:
        device = Device(setting)
    except OffpathError as fault:
        code = fault.code if isinstance(fault, (CudaError, CudaLost)) else -1
        link.send(orjson.dumps({"error": f"{fault} (code {code})"}))
        time.sleep(_ANSWER_S)
        return
    handle = device.call("cuDeviceGet", 0)
    facts = {"mps": device.driver.attribute(handle, _MPS), "sms": device.driver.attribute(handle, _MULTIPROCESSORS)}
    kernels = {"fault": device.kernel(FAULT), "empty": device.kernel(EMPTY), "queue": device.kernel(SPIN, _SECOND_NS)}
    link.send(orjson.dumps(facts))
    while received := link.recv(4096):
        order, value = orjson.loads(received)
        if order == "allocate":
            code = code_of(partial(device.call, "cuMemAlloc", value))
        elif order == "wait":
            code = code_of(device.wait)
        elif order == "end":
            device.context.close()
            code = 0
        else:
            code = code_of(kernels[order].launch) or (0 if order == "queue" else code_of(device.wait))
        link.send(orjson.dumps({"code": code}))
