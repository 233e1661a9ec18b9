"""Unmodified clients against `offpath gateway run`: tritonclient 2.51 over HTTP and gRPC, and perf_analyzer 2.51."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.local.environments import fetched

from ...support.certificates import Authority
from ...support.cluster import Cluster
from ...support.processes import HERE
from .process import GatewayProcess
from .rig import Rig

BOUND_S = 240.0


@cache
def environment() -> Path | str:
    """The clients' folder, or why there is none."""
    try:
        return fetched("triton-clients-env", "Triton's clients cannot be installed", BOUND_S)
    except EngineMissing as missing:
        return str(missing)


@pytest.fixture(scope="module")
def clients() -> Path:
    found = environment()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    process = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def got(gateway: GatewayProcess, clients: Path) -> Any:
    """What the client's script printed."""
    script = [str(clients / "bin/python"), str(HERE / "triton_client_main.py")]
    places = [gateway.addresses["http"], Rig.token("ada"), gateway.addresses["grpc"]]
    done = subprocess.run([*script, *places], capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])
DOUBLED = [[0, 2, 4], [6, 8, 10]]


@BOTH
def test_the_client_learns_what_there_is(got: Any, protocol: str) -> None:
    assert got[protocol]["metadata"] == {
        "live": True, "ready": True, "model": True, "nope": False, "versions": ["2"], "config": "scaling",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}], "server": "offpath",
    }  # fmt: skip
    assert got[protocol]["index"] == ["accumulate", "count", "identity", "lying", "napping", "recount", "scaling"]
    assert got[protocol]["statistics"]


@BOTH
def test_the_client_infers(got: Any, protocol: str) -> None:
    assert got[protocol]["infer"] == {"scaled": DOUBLED, "id": "r1", "big": True, "urgent": DOUBLED}


@BOTH
def test_the_client_infers_by_shared_memory(got: Any, protocol: str) -> None:
    regions = got[protocol]["regions"]
    assert (regions["equal"], regions["output"], regions["regions"]) == (True, True, 2)
    codes = {
        "http": {"small": "500", "beyond": "400", "twice": "400", "nokey": "500", "unregistered": "404"},
        "grpc": {
            "small": "StatusCode.INTERNAL", "beyond": "StatusCode.INVALID_ARGUMENT",
            "twice": "StatusCode.ALREADY_EXISTS", "nokey": "StatusCode.INTERNAL",
            "unregistered": "StatusCode.NOT_FOUND",
        },
    }[protocol]  # fmt: skip
    assert {case: regions[case][0] for case in codes} == codes
    assert regions["twice"][1] == "shared memory region 'in' already in manager"
    assert regions["small"][1] == (
        "shared memory size specified with the request for output 'OUTPUT0' (32 bytes) should be at least 614400 bytes"
        " to hold the results"
    )


@BOTH
def test_the_clients_own_failures_are_tritons(got: Any, protocol: str) -> None:
    wanted = {
        "unknown model": ("404", "NOT_FOUND", "Request for unknown model: 'nope' is not found"),
        "unknown version": ("404", "NOT_FOUND", "Request for unknown model: 'scaling' version 7 is not found"),
        "unknown input": ("400", "INVALID_ARGUMENT", "unexpected inference input 'z' for model 'scaling'"),
        "unknown output": ("400", "INVALID_ARGUMENT", "unexpected inference output 'z' for model 'scaling'"),
        "wrong shape": ("400", "INVALID_ARGUMENT", "unexpected shape for input 'x' for model 'scaling'"),
        "wrong dtype": ("400", "INVALID_ARGUMENT", "inference input 'x' data-type is 'INT32', but model 'scaling' "
                        "expects 'FP32'"),
        "oversize": ("413", "RESOURCE_EXHAUSTED", "900000 bytes of arrays"),
        "no input": ("400", "INVALID_ARGUMENT", "expected 1 inputs but got 0 inputs for model 'scaling'"),
    }  # fmt: skip
    for case, (http, grpc, text) in wanted.items():
        status, message = got[protocol]["failures"][case]
        assert status == (http if protocol == "http" else f"StatusCode.{grpc}"), case
        assert text in message, case


@BOTH
def test_the_client_s_sequences_keep_their_states(got: Any, protocol: str) -> None:
    found = got[protocol]["sequences"]
    assert found["config"]
    assert found["sums"] == [[[1, 1], [7, 1]], [[3, 2], [15, 2]], [[6, 3], [24, 3]]]
    assert found["texts"] == [[1, 1], [3, 2], [6, 3]]
    code = "400" if protocol == "http" else "StatusCode.INVALID_ARGUMENT"
    assert found["text ended"][0] == code
    assert "for sequence speech-7 to model 'accumulate' must specify the START flag" in found["text ended"][1]
    assert found["ended"] == [
        code, "inference request for sequence 1001 to model 'accumulate' must specify the START flag on the first "
        "request of the sequence",
    ]  # fmt: skip
    assert found["none"] == [
        code, "inference request to model 'accumulate' must specify a non-zero or non-empty correlation ID",
    ]  # fmt: skip
    assert found["stateless"] == [code, "model 'scaling' takes no sequences"]


def test_more_of_http(got: Any) -> None:
    assert got["http"]["gzip"] == got["http"]["json"] == DOUBLED
    assert got["http"]["not finite"] == ["nan", "inf", "-inf"]
    assert got["http"]["async"] == [2 * n for n in range(8)]
    assert got["http"]["aio"] == [2 * n for n in range(4)]
    assert got["http"]["load"] == ["503", "models are loaded by helpers, not by clients"]
    assert got["http"]["no token"] == ["401", "no valid bearer token"]


def test_more_of_grpc(got: Any) -> None:
    assert got["grpc"]["stream"] == [2 * n for n in range(8)]
    assert got["grpc"]["streamed sequence"] == [0, 1, 3, 6, 10, 15]
    assert got["grpc"]["async"] == DOUBLED
    assert got["grpc"]["deadline"] == "StatusCode.DEADLINE_EXCEEDED"
    assert got["grpc"]["no token"] == ["StatusCode.UNAUTHENTICATED", "no valid bearer token"]


def test_the_client_streams_a_decoupled_model(got: Any) -> None:
    answers = got["grpc"]["answers"]
    values = [[False, [float(number)] * 2] for number in (1, 2, 3)]
    assert answers["with end"] == [*values, [True, None]]
    assert answers["without end"] == values[:2]
    assert answers["failed"][0] == values[0]
    assert "answer 2" in answers["failed"][1]
    assert answers["first"] == values[0]
    text = "doesn't support models with decoupled transaction policy"
    assert answers["unary"] == ["StatusCode.UNIMPLEMENTED", f"ModelInfer RPC {text}"]
    assert got["http"]["decoupled"] == ["501", f"HTTP end point {text}"]


def test_the_client_streams_sequences_of_a_decoupled_model(got: Any) -> None:
    """Each answer counts on from the one before, over all requests of its sequence, beside another sequence."""
    found = got["grpc"]["stateful answers"]
    for number, each in (("81", 3), ("82", 2)):
        assert found[number] == [
            [f"{number}.{n}", n * each + m, flags] for n, flags in enumerate((1, 0, 2)) for m in range(1, each + 1)
        ]
    assert found["final"] == sorted(f"{number}.{n}" for number in (81, 82) for n in range(3))
    assert "must specify the START flag" in found["ended"]


@pytest.fixture(scope="module")
def with_tls(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, list[str]]]:
    """A gateway with TLS, and perf_analyzer's flags for a client with a certificate: it sends no token over gRPC."""
    authority = Authority(folder := tmp_path_factory.mktemp("gateway"))
    server, key = authority.issue("localhost", is_server=True)
    client = authority.issue("ada", "offpath://tenant/ada")
    tls = {"cert_file": server, "key_file": key, "client_ca_file": authority.ca_file}
    process = GatewayProcess(cluster, folder, tls=tls)
    yield process, [
        "--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", authority.ca_file,
        "--ssl-grpc-certificate-chain-file", client[0], "--ssl-grpc-private-key-file", client[1],
    ]  # fmt: skip
    process.close()


@pytest.mark.parametrize(
    "flags",
    [
        ("-i", "grpc"),
        ("-i", "grpc", "-a", "--concurrency-range", "4"),
        ("-i", "grpc", "-a", "--streaming"),
        ("-i", "grpc", "--shared-memory", "system"),
    ],
    ids=" ".join,
)
def test_perf_analyzer_runs_over_grpc_with_a_certificate(
    with_tls: tuple[GatewayProcess, list[str]], clients: Path, flags: tuple[str, ...]
) -> None:
    gateway, tls = with_tls
    perf_analyzer(clients, gateway.addresses["grpc"].replace("127.0.0.1", "localhost"), *flags, *tls)


@pytest.mark.parametrize(
    "flags",
    [
        ("-i", "http"),
        ("-i", "http", "-a", "--concurrency-range", "4"),
        ("-i", "http", "--shared-memory", "system"),
        ("-i", "http", "--shared-memory", "system", "-a", "--concurrency-range", "4"),
        ("-i", "http", "-a", "--request-rate-range", "50"),
    ],
    ids=" ".join,
)
def test_perf_analyzer_runs_over_http_with_a_token(
    gateway: GatewayProcess, clients: Path, flags: tuple[str, ...]
) -> None:
    token = ("-H", f"authorization: Bearer {Rig.token('ada')}")
    perf_analyzer(clients, gateway.addresses["http"], *flags, *token)


@pytest.mark.parametrize(
    "flags", [("--concurrency-range", "3"), ("--request-rate-range", "40", "--num-of-sequences", "4")], ids=" ".join
)
def test_perf_analyzer_sends_sequences_to_a_model_that_takes_them(
    gateway: GatewayProcess, clients: Path, flags: tuple[str, ...]
) -> None:
    token = ("-H", f"authorization: Bearer {Rig.token('ada')}")
    zeros = ("-z", "--sequence-length", "5", "-a")
    perf_analyzer(clients, gateway.addresses["http"], "-i", "http", *flags, *zeros, *token, model=("accumulate",))


def test_perf_analyzer_streams_a_decoupled_model(
    with_tls: tuple[GatewayProcess, list[str]], clients: Path, tmp_path: Path
) -> None:
    gateway, tls = with_tls
    given = tmp_path / "wish.json"
    given.write_text(json.dumps({"data": [{"wish": [4.0, 8.0, 0.0, 0.0]}]}))
    address = gateway.addresses["grpc"].replace("127.0.0.1", "localhost")
    flags = ("-i", "grpc", "-a", "--streaming", "--input-data", str(given), *tls)
    perf_analyzer(clients, address, *flags, model=("count",))


IDENTITY = ("identity", "--shape", "INPUT0:65536", "--output-shared-memory-size", "65536")


def perf_analyzer(clients: Path, address: str, *flags: str, model: tuple[str, ...] = IDENTITY) -> None:
    command = [
        str(clients / "bin/perf_analyzer"), "-m", *model, "-u", address, *flags, "--request-count", "100", "-s", "999",
        "-r", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert re.search(r"throughput: [1-9][0-9.]* infer/sec", said), said[-3000:]
    assert "Error" not in said, said[-3000:]
