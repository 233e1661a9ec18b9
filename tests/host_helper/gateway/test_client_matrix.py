"""What people have, unmodified, against `offpath gateway run`: each client runs where it is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.local.environments import fetched

from ...support.cluster import Cluster
from .process import GatewayProcess
from .rig import TENANTS, Rig
from .test_clients import BOUND_S, perf_analyzer

SIMPLE = {
    "demand": 14, "max_batch": 8, "max_queue_delay_us": 500, "model": "simple",
    "inputs": {"INPUT0": ("int32", [-1, 16]), "INPUT1": ("int32", [-1, 16])},
    "outputs": {"OUTPUT0": ("int32", [-1, 16]), "OUTPUT1": ("int32", [-1, 16])},
}  # fmt: skip
"""`echo`, as the model that Triton's examples call."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster({name: {} for name in TENANTS}, leasing={"keep_warm_ms": 60_000})
    try:
        cluster.start_helper(needs={"echo": SIMPLE}, only=["echo"])
        yield cluster
        cluster.close()
    finally:
        cluster.kill()


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def clients() -> Path:
    try:
        return fetched("triton-clients-env", "Triton's clients cannot be installed", BOUND_S)
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def anonymous(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(cluster, tmp_path_factory.mktemp("anonymous"), anonymous="ada")
    yield process
    process.close()


TRITON_EXAMPLE = """
import sys
import numpy as np
import tritonclient.{protocol} as client
triton = client.InferenceServerClient(sys.argv[1])
assert triton.is_model_ready("simple")
rows = np.arange(16, dtype=np.int32).reshape(1, 16)
inputs = [client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
for tensor in inputs:
    tensor.set_data_from_numpy(rows)
answer = triton.infer("simple", inputs)
assert np.array_equal(answer.as_numpy("OUTPUT0"), rows), answer.as_numpy("OUTPUT0")
print("inferred")
"""


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_needs_no_header_where_there_is_an_anonymous_tenant(
    anonymous: GatewayProcess, clients: Path, protocol: str
) -> None:
    code = TRITON_EXAMPLE.format(protocol=protocol)
    assert ran(str(clients / "bin/python"), "-c", code, anonymous.addresses[protocol]).endswith("inferred\n")


def ran(*command: str) -> str:
    """What the client printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("flags", [("-b", "4"), ()], ids=" ".join)
def test_perf_analyzer_needs_no_shape(
    gateway: GatewayProcess, clients: Path, protocol: str, flags: tuple[str, ...]
) -> None:
    token = ("-H", f"authorization: Bearer {Rig.token('ada')}")
    perf_analyzer(clients, gateway.addresses[protocol], "-i", protocol, *flags, *token, model=("simple",))
