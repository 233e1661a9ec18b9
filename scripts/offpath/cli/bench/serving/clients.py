"""Clients of one connection that write their input and read their output for each request, and perf_analyzer."""

from __future__ import annotations

import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.measure import Block, CpuMeter
from offpath.cli.bench.request_path.triton_server import HttpClient, Region, infer_request
from offpath.host_helper.gateway.messages import SERVICE, classes
from offpath.host_helper.requester import Requester

_ANALYZER_S: Final = 120.0
Run = Callable[[], None]


class Client(ABC):
    """One way to have the model ``identity`` run. `block` measures it; ``pids``: the server's processes by role."""

    def __init__(self, name: str, pids: Callable[[], Mapping[str, Sequence[int]]]) -> None:
        self.name = name
        self._pids = pids

    @abstractmethod
    def run(self) -> bytes | NDArray[np.uint8]:
        """One request; returns the output."""

    def close(self) -> None:  # noqa: B027  (not each client has something to close)
        """Disconnect."""

    def block(self, expected: NDArray[np.uint8], count: int) -> Block:
        """Raises: OffpathError: the output is not the input."""
        self.forget()
        latencies = []
        meter = CpuMeter(self._pids())
        begin = time.perf_counter_ns()
        for _ in range(count):
            started = time.perf_counter_ns()
            taken = self.run()
            latencies.append(time.perf_counter_ns() - started)
        wall = time.perf_counter_ns() - begin
        spent = meter.spent()
        if not np.array_equal(np.frombuffer(taken, np.uint8), expected):
            raise OffpathError(f"{self.name}: the output is not the input")
        return Block(latencies, wall, 0, cpu_ns=spent)

    def forget(self) -> None:  # noqa: B027  (as above)
        """Before a block: no former output may pass for one of its own."""


class Native(Client):
    """offpath's client library."""

    def __init__(self, name: str, requester: Requester, data: NDArray[np.uint8], pids: Any) -> None:
        super().__init__(name, pids)
        self._requester, self._arrays = requester, [data]

    def run(self) -> NDArray[np.uint8]:
        """See `Client.run`."""
        array: NDArray[np.uint8] = self._requester.submit("identity", self._arrays).array
        return array


class ByRegion(Client):
    """Over HTTP or gRPC, with system shared memory."""

    def __init__(self, name: str, regions: tuple[Region, Region], data: NDArray[np.uint8], pids: Any) -> None:
        super().__init__(name, pids)
        self._in, self._out = (region.view for region in regions)
        self._data = data.data.cast("B")

    def forget(self) -> None:
        """See `Client.forget`. All settings of a server share the region."""
        self._out[:] = bytes(len(self._out))

    @abstractmethod
    def exchange(self) -> None:
        """Have the server do its part."""

    def run(self) -> bytes:
        """See `Client.run`."""
        nbytes = self._data.nbytes
        self._in[:nbytes] = self._data
        self.exchange()
        return bytes(self._out[:nbytes])


class OverHttp(ByRegion):
    """A keep-alive connection, as lean as a Python client can be."""

    def __init__(
        self, name: str, regions: tuple[Region, Region], data: NDArray[np.uint8], pids: Any, port: int,
        model: str = "identity", token: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name, regions, data, pids)
        self._client = HttpClient(port)
        self._message = infer_request("OUTPUT0", data.nbytes, model, token)

    def exchange(self) -> None:
        """See `ByRegion.exchange`."""
        self._client.exchange(self._message)

    def close(self) -> None:
        """See `Client.close`."""
        self._client.close()


class OverGrpc(ByRegion):
    """A channel of grpcio, with a request that is made once."""

    def __init__(
        self, name: str, regions: tuple[Region, Region], data: NDArray[np.uint8], pids: Any, address: str,
        token: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name, regions, data, pids)
        import grpc

        self._channel = grpc.insecure_channel(address)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._call = self._channel.unary_unary(
            f"/{SERVICE}/ModelInfer", lambda message: message, classes().ModelInferResponse.FromString
        )
        self._message = _request(data.nbytes).SerializeToString()

    def exchange(self) -> None:
        """See `ByRegion.exchange`."""
        self._call(self._message, metadata=self._metadata, timeout=_ANALYZER_S)

    def close(self) -> None:
        """See `Client.close`."""
        self._channel.close()


def _request(nbytes: int) -> Any:
    request = classes().ModelInferRequest(model_name="identity")
    for tensor, region in (
        (request.inputs.add(name="INPUT0", datatype="UINT8", shape=[nbytes]), "in"),
        (request.outputs.add(name="OUTPUT0"), "out"),
    ):
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = nbytes
    return request


def analyzed(
    program: str, address: str, nbytes: int, count: int, concurrency: int, pids: Mapping[str, Sequence[int]],
    *, model: str = "identity", token: str = "", by_region: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """What perf_analyzer measures over HTTP: µs, requests/s; and the server's CPU per request. Raises: OffpathError."""
    words = [
        program, "-m", model, "-u", address, "-i", "http", "--shape", f"INPUT0:{nbytes}", "--request-count", str(count),
        "-s", "999", "-r", "1", "-a", "--concurrency-range", str(concurrency),
    ]  # fmt: skip
    if by_region:
        words += ["--shared-memory", "system", "--output-shared-memory-size", str(nbytes)]
    if token:
        words += ["-H", f"authorization: Bearer {token}"]
    meter = CpuMeter(pids)
    done = subprocess.run(words, capture_output=True, text=True, timeout=_ANALYZER_S, check=False)
    spent = meter.spent()
    found = {
        name: re.search(pattern, done.stdout)
        for name, pattern in (
            ("p50_us", r"p50 latency: (\d+)"), ("p99_us", r"p99 latency: (\d+)"), ("per_s", r"throughput: ([\d.]+)")
        )
    }  # fmt: skip
    if done.returncode or not all(found.values()):
        raise OffpathError(f"perf_analyzer: {(done.stdout + done.stderr)[-500:].strip()}")
    cpu = {role: round(spent[role] / count / 1e3) for role in pids}
    return {**{name: float(each[1]) for name, each in found.items() if each}, "cpu_us": cpu}


def analyzer() -> str:
    """The program's path. Raises: EngineMissing: ./scripts/triton-clients-env cannot install it."""
    from offpath.cli.local.environments import fetched

    return os.fspath(fetched("triton-clients-env", "perf_analyzer cannot be installed", 600.0) / "bin/perf_analyzer")
