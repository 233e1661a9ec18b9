"""The host's side as a process of its own: SOCKET FOLDER. It answers what `tests.support.doca.HostProcess` asks."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from dataclasses import dataclass, field

from offpath.bindings.doca.lane import HostDevice, LaneEnd
from offpath.bindings.doca.load import load
from offpath.bindings.errors import OffpathError
from offpath.bindings.loopback.region import Region


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


def main(sock: socket.socket, folder: str) -> None:
    lanes: list[tuple[LaneEnd, Region]] = []

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
            elif "again" in asked:
                answer = lanes[-1][0].export().descriptor
            else:
                region = Region(fds[0], 0, os.fstat(fds[0]).st_size)
                lane = HostLane(region, asked["landing"], asked["result"], asked["dmabuf"])
                end = LaneEnd(HostDevice(path=folder), lane)  # type: ignore[arg-type]
                lanes.append((end, region))
                answer = end.export().descriptor
        except OffpathError as fault:
            answer = {"error": f"{type(fault).__name__}: {fault}"}
        sock.send(json.dumps(answer).encode())


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
