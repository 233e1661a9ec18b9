"""The host's side as a process of its own: SOCKET FOLDER. It answers what `tests.support.doca.HostProcess` asks."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from dataclasses import dataclass, field

from offpath.bindings.doca.comch import ComchClient, Received
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.lane import DocaLaneExporter, HostDevice
from offpath.bindings.doca.load import load
from offpath.bindings.errors import OffpathError
from offpath.bindings.memory.region import Region

BOUND_S = 15.0
MESSAGE_BYTES = 4080


@dataclass
class HostLane:
    """Memory of the host's in the place of a GPU's, as much of `Lane` as is exported."""

    region: Region
    landing_bytes: int
    result_bytes: int
    has_dmabuf: bool
    peer_pointer: int = field(init=False)

    def __post_init__(self) -> None:
        self.peer_pointer = self.region.address

    def dmabuf(self) -> tuple[int, int] | None:
        return (self.region.fd, 0) if self.has_dmabuf else None


def talk(folder: str, name: str, sizes: list[int]) -> dict[str, object]:
    """Connect by Comch, send a message of each size, take as many that come back, leave."""
    doca = load(folder)
    device, engine = open_device(doca, Ability.CONNECT), Engine(doca)
    client = ComchClient(device, engine, name, MESSAGE_BYTES)
    until = time.monotonic() + BOUND_S
    got: list[str] = []
    try:
        while not (connection := client.connection()):
            assert not client.poll()
            assert time.monotonic() < until
        waiting = [(number % 256).to_bytes(1, "little") * size for number, size in enumerate(sizes)]
        refused = 0
        while len(got) < len(sizes):
            if waiting and client.send(connection, waiting[0]):
                waiting.pop(0)
            elif waiting:
                refused += 1
            got += [event.message.hex() for event in client.poll() if isinstance(event, Received)]
            client.connection()
            assert time.monotonic() < until
        return {"got": got, "message_bytes": client.message_bytes, "refused": refused}
    finally:
        client.close()
        client.close()
        device.close()
        engine.close()


def main(sock: socket.socket, folder: str) -> None:
    lanes: list[tuple[DocaLaneExporter, Region]] = []

    def withdraw() -> None:
        for end, region in lanes:
            end.close()
            end.close()
            region.close()
        lanes.clear()

    while True:
        text, fds, _, _ = socket.recv_fds(sock, 4096, 1)
        if not text:
            withdraw()
            return
        asked = json.loads(text)
        try:
            if "withdraw" in asked:
                withdraw()
                answer: object = {}
            elif "called" in asked:
                answer = {"called": sorted(load(folder).called)}
            elif "talk" in asked:
                answer = talk(folder, asked["talk"], asked["sizes"])
            elif "again" in asked:
                answer = lanes[-1][0].export().descriptor
            else:
                region = Region(fds[0], 0, os.fstat(fds[0]).st_size)
                lane = HostLane(region, asked["landing"], asked["result"], asked["dmabuf"])
                end = DocaLaneExporter(HostDevice(path=folder), lane)  # type: ignore[arg-type]
                lanes.append((end, region))
                answer = end.export().descriptor
        except OffpathError as fault:
            answer = {"error": f"{type(fault).__name__}: {fault}"}
        sock.send(json.dumps(answer).encode())


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
