"""The same requests to a real Triton server and to the gateway: the same status, and the same text where it is ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from offpath.bindings.errors import EngineMissing
from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.request_path.triton_server import HttpClient, Region, TritonServer
from offpath.cli.local.environments import fetched

from ...support.cluster import Cluster
from .process import GatewayProcess
from .rig import Rig

INFER = "/v2/models/identity/infer"
NBYTES = 4096


@pytest.fixture(scope="module")
def triton() -> Iterator[HttpClient]:
    try:
        fetched("triton-env", "Triton cannot be installed", 240.0)
        server = TritonServer(None)
    except (EngineMissing, NotBuilt) as missing:
        pytest.skip(str(missing))
    try:
        client = HttpClient(server.port)
        regions = [Region(client, name, NBYTES) for name in ("in", "out")]
        yield client
        for region in regions:
            region.close()
        client.close()
    finally:
        server.close()


@pytest.fixture(scope="module")
def ours(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpClient]:
    gateway = GatewayProcess(cluster, tmp_path_factory.mktemp("gateway"))
    try:
        client = Bearer(int(gateway.addresses["http"].rpartition(":")[2]))
        for name in ("in", "out"):
            Path(f"/dev/shm/offpath-test-beside-{name}").write_bytes(bytes(NBYTES))
            body = orjson.dumps({"key": f"/offpath-test-beside-{name}", "offset": 0, "byte_size": NBYTES})
            client.query("POST", f"/v2/systemsharedmemory/region/{name}/register", body)
        yield client
        client.close()
    finally:
        for name in ("in", "out"):
            Path(f"/dev/shm/offpath-test-beside-{name}").unlink(missing_ok=True)
        gateway.close()


class Bearer(HttpClient):
    def exchange(self, message: bytes, accept: tuple[int, ...] = (200,)) -> tuple[int, bytes]:
        line, _, rest = message.partition(b"\r\n")
        token = Rig.token("ada").encode()
        return super().exchange(b"%b\r\nAuthorization: Bearer %b\r\n%b" % (line, token, rest), accept)


def tensor(**more: Any) -> bytes:
    one = {"name": "INPUT0", "datatype": "UINT8", "shape": [4], "data": [1, 2, 3, 4], **more}
    return orjson.dumps({"inputs": [one], "outputs": [{"name": "OUTPUT0"}]})


def region(**parameters: Any) -> bytes:
    one = {"name": "INPUT0", "datatype": "UINT8", "shape": [NBYTES], "parameters": parameters}
    out = {"shared_memory_region": "out", "shared_memory_byte_size": NBYTES}
    return orjson.dumps({"inputs": [one], "outputs": [{"name": "OUTPUT0", "parameters": out}]})


IN = {"shared_memory_region": "in", "shared_memory_byte_size": NBYTES}
SAME: list[tuple[str, str, bytes]] = [
    ("GET", "/v2/models/identity/ready", b"null"),
    ("GET", "/v2/models/nope", b"{}"),
    ("GET", "/v2/models/identity/ready", b""),
    ("GET", "/v2/models/nope/ready", b""),
    ("GET", "/v2/models/nope", b""),
    ("GET", "/v2/models/nope/config", b""),
    ("GET", "/v2/models/nope/stats", b""),
    ("GET", "/v2/models/identity/versions/7", b""),
    ("GET", "/v2/systemsharedmemory/region/zz/status", b""),
    ("GET", "/v2/cudasharedmemory/status", b""),
    ("GET", "/nothing", b""),
    ("GET", INFER, b""),
    ("POST", "/v2", b""),
    ("POST", INFER, tensor()),
    ("POST", INFER, b"\xef\xbb\xbf" + tensor()),
    ("POST", "/v2/systemsharedmemory/region/n/register", b'\xef\xbb\xbf{"key":"/nokey","offset":0,"byte_size":4}'),
    ("POST", INFER, tensor(name="z")),
    ("POST", INFER, tensor(datatype="FP32")),
    ("POST", INFER, tensor(shape=[2, 2])),
    ("POST", INFER, tensor(shape=[3])),
    ("POST", INFER, b'{"inputs":[]}'),
    ("POST", INFER, b'{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[4]}]}'),
    ("POST", INFER, tensor(parameters={"binary_data_size": 4})),
    (
        "POST",
        INFER,
        tensor(parameters={"binary_data_size": 4, "shared_memory_region": "in", "shared_memory_byte_size": 4}),
    ),
    ("POST", INFER, tensor().replace(b"OUTPUT0", b"zz")),
    ("POST", INFER, region(**IN)),
    ("POST", INFER, region(**{**IN, "shared_memory_region": "zz"})),
    ("POST", INFER, region(**{**IN, "shared_memory_byte_size": NBYTES + 1})),
    ("POST", INFER, region(**{**IN, "shared_memory_byte_size": NBYTES - 1})),
    ("POST", INFER, region(**{**IN, "shared_memory_offset": 1})),
    ("POST", "/v2/systemsharedmemory/region/in/register", b'{"key":"/x","offset":0,"byte_size":4}'),
    ("POST", "/v2/systemsharedmemory/region/n/register", b'{"key":"/nokey","offset":0,"byte_size":4}'),
    ("POST", "/v2/systemsharedmemory/region/n/register", b'{"key":"/nokey","offset":0}'),
    ("POST", "/v2/systemsharedmemory/region/n/unregister", b""),
    ("POST", "/v2/repository/index", b""),
]
LIKE: list[tuple[str, str, bytes]] = [
    ("GET", "/v2/health/live", b""),
    ("GET", "/v2/health/ready", b""),
    ("POST", INFER, b""),
    ("POST", INFER, b"{"),
    ("POST", INFER, b'{"inputs":[1]}'),
    ("POST", INFER, b'{"inputs":{}}'),
    ("POST", INFER, tensor(data=None)),
    ("POST", INFER, tensor(data=[1, 2])),
    ("POST", INFER, tensor(data=["a", "b", "c", "d"])),
    ("POST", INFER, tensor(data=[1, 2, 3, -1])),
    ("POST", INFER, tensor(data=[1.5, 2, 3, 4])),
    ("POST", "/v2/repository/models/identity/load", b""),
]
"""The status is the same, the text is not."""


def asked(client: HttpClient, request: tuple[str, str, bytes]) -> tuple[int, Any]:
    status, body = client.query(*request, accept=tuple(range(200, 600)))
    return status, orjson.loads(body) if body else None


def plain(answer: Any) -> Any:
    """Without Triton's prefix and the blank at its end."""
    if isinstance(answer, dict) and "error" in answer:
        return re.sub(r"^\[request id: [^]]*\] ", "", answer["error"]).strip()
    return answer


@pytest.mark.parametrize("request_", SAME, ids=lambda each: f"{each[1]} {each[2].decode()}"[:100])
def test_the_answer_is_tritons(triton: HttpClient, ours: HttpClient, request_: tuple[str, str, bytes]) -> None:
    theirs, mine = asked(triton, request_), asked(ours, request_)
    if request_[1].endswith("index"):
        mine = (mine[0], [each for each in mine[1] if each["name"] == "identity"])
    assert (mine[0], plain(mine[1])) == (theirs[0], plain(theirs[1]))


@pytest.mark.parametrize("request_", LIKE, ids=lambda each: f"{each[1]} {each[2].decode()}"[:100])
def test_the_status_is_tritons(triton: HttpClient, ours: HttpClient, request_: tuple[str, str, bytes]) -> None:
    assert asked(ours, request_)[0] == asked(triton, request_)[0]


def test_metadata_has_the_keys_of_tritons(triton: HttpClient, ours: HttpClient) -> None:
    for path in ("/v2", "/v2/models/identity", "/v2/models/identity/stats"):
        theirs, mine = asked(triton, ("GET", path, b""))[1], asked(ours, ("GET", path, b""))[1]
        if path.endswith("stats"):
            theirs, mine = theirs["model_stats"][0], mine["model_stats"][0]
            assert mine["inference_stats"].keys() == theirs["inference_stats"].keys()
        assert mine.keys() == theirs.keys()
    theirs, mine = (asked(each, ("GET", "/v2/models/identity/config", b""))[1] for each in (triton, ours))
    assert mine.keys() <= theirs.keys()
    assert mine["input"][0].items() <= theirs["input"][0].items()
