"""The two devices of ./scripts/rxe-vm as the distribution's tools see them: without these, none of ours can pass."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.rdma
DEVICES = ("rxe0", "rxe1")
HERE, PEER = "10.98.0.1", ("ip", "netns", "exec", "peer")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.parametrize("device", DEVICES)
def test_the_device_is_up_with_the_largest_mtu(device: str) -> None:
    found = said("ibv_devinfo", "-d", device)
    assert re.search(r"state:\s+PORT_ACTIVE", found)
    assert re.search(r"active_mtu:\s+4096", found)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    command = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not said("ss", "-Hltn", "sport = :18515"):
            assert process.poll() is None
            time.sleep(0.2)
        yield process
        process.kill()


def test_messages_go_to_a_peer_in_another_namespace_over_the_cable(server: subprocess.Popen[str]) -> None:
    def sent() -> int:
        with open("/sys/class/net/rdma1/statistics/tx_bytes") as file:
            return int(file.read())

    before = sent()
    assert "100 iters" in said(*PEER, "ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", "100", HERE)
    assert "100 iters" in server.communicate(timeout=60)[0]
    assert sent() - before > 100 * 4096
