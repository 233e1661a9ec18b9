"""The part `triton` of `offpath bench request-path`: its ratios, its requests, and a real server if there is one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import orjson
import pytest

from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.measure import Block
from offpath.cli.bench.request_path.backend import SMALL
from offpath.cli.bench.request_path.plan import Point
from offpath.cli.bench.request_path.triton import Triton, ratios
from offpath.cli.bench.request_path.triton_server import (
    PACKAGE,
    HttpClient,
    Region,
    TritonServer,
    infer_request,
    installed,
)

from ..support.sources import ROOT


def blocks(*p50_us: float) -> list[Block]:
    return [Block([int(1000 * us)], 1, 0) for us in p50_us]


def is_installed() -> bool:
    try:
        installed()
    except NotBuilt:
        return False
    return True


def test_ratios_are_over_the_faster_placement() -> None:
    point = Point(SMALL)
    measured = {
        ("triton", point): blocks(300, 300), ("triton_free", point): blocks(200, 250),
        ("triton_first", point): blocks(100, 100), ("triton_first_free", point): blocks(110, 110),
        ("4", point): blocks(100, 100), ("4_identity", point): blocks(400, 500),
    }  # fmt: skip
    found = {key: (each["min"], each["max"]) for key, each in ratios(measured).items()}
    assert found == {
        "p50_over_triton_600k": (0.4, 0.5), "p50_over_triton_first_600k": (1.0, 1.0),
        "identity_over_triton_600k": (2.0, 2.0),
    }  # fmt: skip


def test_a_request_names_its_regions_and_carries_no_tensor() -> None:
    head, body = infer_request("FIRST", SMALL).split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    asked = orjson.loads(body)
    assert asked["inputs"][0]["parameters"] == {"shared_memory_region": "in", "shared_memory_byte_size": SMALL}
    assert asked["outputs"] == [
        {"name": "FIRST", "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 1}}
    ]


def test_the_packages_are_the_locked_ones() -> None:
    """The folder's name tells both versions: another lock makes another folder."""
    locked = (ROOT / "scripts" / "requirements" / "triton.txt").read_text("utf-8")
    for package in PACKAGE.split("+"):
        name, version = package.rsplit("-", 1)
        assert f"\n{name}=={version} " in locked
    assert "\nnumpy==1." in locked, "its python backend was built for it"
    assert all("--hash=sha256:" in text for text in re.split(r"\n(?=[a-z])", locked)[1:])


def test_without_a_server_the_part_is_left_out_with_the_way_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NotBuilt, match=r"\./scripts/triton-env installs one"):
        TritonServer(None)


@pytest.mark.skipif(not is_installed(), reason="no Triton server; ./scripts/triton-env installs one")
def test_a_real_server_returns_the_input_or_its_first_byte() -> None:
    server = TritonServer(None)
    try:
        client = HttpClient(server.port)
        regions = Region(client, "in", SMALL), Region(client, "out", SMALL)
        payload = np.random.default_rng(1).integers(1, 255, SMALL, np.uint8)
        for output, result in (("OUTPUT0", SMALL), ("FIRST", 1)):
            backend = Triton("triton", server, regions, output, None)
            assert len(backend.block(payload, 5, 1, 0).latencies_ns) == 5
            assert bytes(regions[1].view[:result]) == payload.tobytes()[:result]
            backend.close()
        for region in regions:
            region.close()
        client.close()
    finally:
        server.close()
