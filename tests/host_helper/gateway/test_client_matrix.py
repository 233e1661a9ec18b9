"""What people have, unmodified, against `offpath gateway run`: each client where it is installed. tritonclient over
HTTP, also by asyncio, and gRPC, with tokens, is in `test_clients`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.request_path.triton_server import installed
from offpath.cli.local.environments import fetched

from ...support.cluster import Cluster
from ...support.processes import HERE
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


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A request for `simple` as a JSON file."""
    tensors = [
        {"name": f"INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": list(range(n, 16 + n))} for n in range(2)
    ]
    file = tmp_path_factory.mktemp("body") / "body.json"
    file.write_text(json.dumps({"inputs": tensors}))
    return file


def found(command: str) -> str:
    return shutil.which(command) or pytest.skip(f"needs {command}")


def is_inferred(line: str) -> bool:
    """Whether a client's line is the status and the answer to `body`."""
    status, _, text = line.partition(" ")
    return status == "200" and [each["data"] for each in json.loads(text)["outputs"]] == [
        list(range(16)), list(range(1, 17)),
    ]  # fmt: skip


def test_java(gateway: GatewayProcess, body: Path) -> None:
    """Its HttpClient offers HTTP/2 with each first request, and sends a stream in chunks."""
    java = found("java")
    if "jdk.compiler" not in ran(java, "--list-modules"):
        pytest.skip("needs a JDK: java alone cannot run a source file")
    lines = ran(
        java, str(HERE / "clients/Infer.java"), gateway.addresses["http"], Rig.token("ada"), str(body)
    ).splitlines()  # fmt: skip
    assert [line for line in lines if line != '200 {"ready":true}' and not is_inferred(line)] == []
    assert (len(lines), lines.count('200 {"ready":true}')) == (6, 2)


def test_node(gateway: GatewayProcess, body: Path) -> None:
    """http.request and fetch, each with a whole body and with a stream."""
    given = gateway.addresses["http"], Rig.token("ada"), str(body)
    lines = ran(found("node"), str(HERE / "clients/infer.js"), *given).splitlines()
    assert [is_inferred(line) for line in lines] == [True] * 4, lines


@pytest.mark.parametrize(
    "flags",
    [("--data-binary", "@{}"), ("-T", "{}", "-X", "POST"), ("-T", "-", "-X", "POST"), ("--http2", "-d", "@{}"),
     ("-H", "Expect: 100-continue", "-d", "@{}"), ("--compressed", "-d", "@{}"), ("--http1.0", "-d", "@{}"),
     ("-H", "Connection: close", "-d", "@{}")],
    ids=" ".join,
)  # fmt: skip
def test_curl(gateway: GatewayProcess, body: Path, flags: tuple[str, ...]) -> None:
    curl = found("curl")
    if "--http2" in flags and "HTTP2" not in ran(curl, "--version"):
        pytest.skip("needs curl with HTTP/2")
    url = f"http://{gateway.addresses['http']}/v2/models/simple/infer"
    command = [
        curl, "-sS", "-w", "%{stderr}%{http_code}", "-H", f"Authorization: Bearer {Rig.token('ada')}",
        *(flag.format(body) for flag in flags), url,
    ]  # fmt: skip
    with open(body, "rb") as given:
        done = subprocess.run(command, stdin=given, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert is_inferred(f"{done.stderr[-3:]} {done.stdout}"), done.stdout + done.stderr


def asked(anonymous: GatewayProcess, python: str, script: str, *given: str) -> Any:
    """What a client's script printed of both protocols."""
    places = anonymous.addresses["http"], anonymous.addresses["grpc"]
    return json.loads(ran(python, str(HERE / "clients" / script), *given, *places).splitlines()[-1])


def test_pytriton(anonymous: GatewayProcess, clients: Path) -> None:
    """Its clients ask for the configuration without headers, and `infer_batch` needs a batch dimension."""
    try:
        fetched("triton-env", "Triton cannot be installed", BOUND_S)
        pytriton = installed()
    except (EngineMissing, NotBuilt) as missing:
        pytest.skip(str(missing))
    got = asked(anonymous, str(clients / "bin/python"), "pytriton_main.py", pytriton)
    each = {"batch": 8, **dict.fromkeys(("infer_batch", "named", "infer_sample", "futures", "asyncio"), True)}
    assert got == {"http": each, "grpc": each}


def test_kserve(anonymous: GatewayProcess) -> None:
    """The package has too much behind it to be installed for this."""
    python = os.environ.get("OFFPATH_KSERVE_PYTHON") or pytest.skip("needs OFFPATH_KSERVE_PYTHON: a Python with kserve")
    got = asked(anonymous, python, "kserve_main.py")
    is_there = dict.fromkeys(("live", "ready", "model"), True)
    rows = list(range(16))
    assert got == {"http": {**is_there, "json": rows, "binary": rows}, "grpc": {**is_there, "infer": rows}}
